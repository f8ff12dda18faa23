"""`Options`: the user's `.option(...)` values, with the names, prefixes and refusals of Spark's Kafka source.

This module has what reading and writing share: valid names, parsing of values, client settings that are passed through, and
the error for unknown names. The options of one side only are in `read_options` and `write_options`.

Names are case-insensitive, because Spark passes them in lower case. A client setting may have the prefix of Spark's Kafka
source (`kafka.bootstrap.servers`) or not (`bootstrap.servers`).
Source: Structured Streaming + Kafka Integration Guide, "Creating a Kafka Source", "Kafka Specific Configurations".
"""

import difflib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.client.connection.kafka_options import SECURITY_KEYS, SECURITY_PREFIXES, security_options
from barnabas.net.client.connection.security import network_of

T = TypeVar("T")

KAFKA_PREFIX = "kafka."
CLIENT_NAMES = (
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "retry.backoff.ms",
    "metadata.max.age.ms",
    *SECURITY_KEYS,
)
# Spark itself, or the user on the same writer, adds these to the options; the connector does not validate them.
SPARKS_OWN_NAMES = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
# As in Spark's Kafka source: the connector determines these, so that offsets stay exact. With the reason and the remedy.
REFUSED = {
    "group.id": "offsets are kept in the checkpoint; to publish the query's lag under a group, use groupId",
    "auto.offset.reset": "use startingOffsets (earliest, latest or JSON)",
    "key.deserializer": "keys are always binary; use CAST(key AS STRING) or from_json on the column",
    "value.deserializer": "values are always binary; use CAST(value AS STRING) or from_json on the column",
    "key.serializer": "keys are binary or string columns; convert the column",
    "value.serializer": "values are binary or string columns; convert the column",
    "enable.auto.commit": "a query commits no offsets; use groupId to publish its lag",
    "interceptor.classes": "interceptors could make repeated reads differ; transform the DataFrame",
}
# Options that people bring from Spark's Kafka source and sink, and that change nothing here: a warning says why.
_NO_MEMBER = "a query is no member of a group"
_CONNECTIONS = "the client chooses sizes and pauses of its connections by itself"
WITHOUT_EFFECT = {
    "groupidprefix": "a query uses no consumer group; to publish its lag under a group, use groupId",
    "fetchoffset.numretries": "offset requests are retried until default.api.timeout.ms has passed",
    "fetchoffset.retryintervalms": "use retry.backoff.ms",
    "session.timeout.ms": _NO_MEMBER,
    "heartbeat.interval.ms": _NO_MEMBER,
    "max.poll.interval.ms": _NO_MEMBER,
    "partition.assignment.strategy": _NO_MEMBER,
    "group.instance.id": _NO_MEMBER,
    "auto.commit.interval.ms": "a query commits no offsets; use groupId to publish its lag",
    "max.poll.records": "tasks read whole batches; to limit a micro-batch, use maxOffsetsPerTrigger",
    "fetch.min.bytes": "a task knows how much it has to read, and does not wait for more",
    "fetch.max.wait.ms": "a task knows how much it has to read, and does not wait for more",
    "check.crcs": "checksums are always checked",
    "receive.buffer.bytes": _CONNECTIONS,
    "send.buffer.bytes": _CONNECTIONS,
    "connections.max.idle.ms": _CONNECTIONS,
    "reconnect.backoff.ms": _CONNECTIONS,
    "reconnect.backoff.max.ms": _CONNECTIONS,
    "socket.connection.setup.timeout.ms": _CONNECTIONS,
    "kafkaconsumer.cache.capacity": "workers share one client for each cluster",
    "kafkaconsumer.cache.timeout": "workers share one client for each cluster",
    "acks": "rows are always written with acks=all",
    "enable.idempotence": "the producer is always idempotent",
    "retries": "requests are repeated until delivery.timeout.ms has passed",
    "max.in.flight.requests.per.connection": "the producer keeps the order by itself",
}
MAX_SUGGESTIONS = 3
DURATION_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How to reach the cluster. Equal settings share one client per process, so this is a dictionary key."""

    bootstrap: str
    client_id: str
    request_timeout_ms: int
    api_timeout_ms: int  # Of a whole call with its retries.
    retry_backoff_ms: int
    metadata_max_age_ms: int  # New partitions and topics are noticed within this time.
    # The security options of clients, with paths of files that every machine has. Tasks get them pickled; no repr shows them.
    security: tuple[tuple[str, Any], ...] = field(default=(), repr=False)


class Options:
    """The options of one reader or writer, by lower-case name, client settings without their prefix."""

    def __init__(
        self,
        given: Mapping[str, str],
        *,
        known: Iterable[str],
        shared: Iterable[str] = CLIENT_NAMES,
        page: str = "docs/spark.md",
    ) -> None:
        """Raises InvalidConfigError for names that are refused, unknown (with similar names), or given twice."""
        self._names = {name.lower(): name for name in (*known, *shared)}
        self._page = page  # where all options are described
        self._values: dict[str, str] = {}
        for name, value in given.items():
            plain = name.lower().removeprefix(KAFKA_PREFIX)
            if plain in SPARKS_OWN_NAMES and plain not in self._names:
                continue
            if plain in WITHOUT_EFFECT and plain not in self._names:
                warnings.warn(f"option {name!r} has no effect: {WITHOUT_EFFECT[plain]}", stacklevel=2)
                continue
            self._check_name(name, plain)
            if self._values.get(plain, value) != value:
                raise InvalidConfigError(
                    f"{plain} is set twice, with and without the prefix kafka.: remove one of them"
                )
            self._values[plain] = str(value)

    def _check_name(self, name: str, plain: str) -> None:
        if plain in self._names:
            return
        if plain in REFUSED:
            raise InvalidConfigError(f"option {name!r} is not supported: {REFUSED[plain]}")
        if plain.startswith(SECURITY_PREFIXES):
            raise InvalidConfigError(f"option {name!r} is not available; see docs/security.md")
        near = difflib.get_close_matches(plain, self._names, MAX_SUGGESTIONS, cutoff=0.6)
        cure = (
            f"did you mean {' or '.join(self._names[item] for item in near)}?"
            if near
            else f"see {self._page} for all options"
        )
        raise InvalidConfigError(f"unknown option {name!r}: {cure}")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def given(self, *names: str) -> list[str]:
        """Which of the names were given."""
        return [name for name in names if self.has(name)]

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._values.get(name.lower(), default)

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self._values.get(name.lower())
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{name} is {text!r}; use true or false")
        return text.lower() == "true"

    def integer(self, name: str, default: int, *, least: int = 1) -> int:
        found = self.optional_integer(name, least=least)
        return default if found is None else found

    def optional_integer(self, name: str, *, least: int = 1) -> int | None:
        text = self._values.get(name.lower())
        if text is None:
            return None
        if not re.fullmatch(r"-?[0-9]+", text.strip()) or int(text) < least:
            raise InvalidConfigError(f"{name} is {text!r}; it must be an integer of at least {least}")
        return int(text)

    def duration_ms(self, name: str, default: int) -> int:
        """A duration in Spark's syntax: "15m", "10s", "250ms"; a number without a unit is in milliseconds."""
        text = self._values.get(name.lower())
        if text is None:
            return default
        match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", text.lower())
        if match is None or (match[2] or "ms") not in DURATION_UNITS_MS:
            raise InvalidConfigError(f"{name} is {text!r}; write it as 15m, 10s or 250ms")
        return int(int(match[1]) * DURATION_UNITS_MS[match[2] or "ms"])

    def parsed(self, name: str, parse: Callable[[str], T], example: str) -> T | None:
        """The value as `parse` converts it. A ValueError, KeyError or TypeError becomes an error that shows an example."""
        text = self._values.get(name.lower())
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfigError(
                f"{name} is {text!r}, which cannot be parsed ({error}); write {example}"
            ) from error


def client_settings(options: Options, *, client_id: str, metadata_max_age_ms: int) -> ClientSettings:
    """Raises InvalidConfigError if bootstrap.servers is missing."""
    bootstrap = (options.text("bootstrap.servers") or "").strip()
    if not bootstrap:
        raise InvalidConfigError(
            'bootstrap.servers is missing: name brokers with .option("bootstrap.servers", "host:port,host:port"); in SQL, use '
            "CREATE TEMPORARY VIEW (Spark 4.3 forgets the options of a table when it reads it)"
        )
    return ClientSettings(
        bootstrap=bootstrap,
        client_id=options.text("client.id", client_id) or client_id,
        request_timeout_ms=options.integer("request.timeout.ms", 30_000),
        api_timeout_ms=options.integer("default.api.timeout.ms", 60_000),
        retry_backoff_ms=options.integer("retry.backoff.ms", 50),
        metadata_max_age_ms=options.integer("metadata.max.age.ms", metadata_max_age_ms),
        security=_security(options),
    )


def _security(options: Options) -> tuple[tuple[str, Any], ...]:
    """Checked on the driver, before the first task. Raises InvalidConfigError."""
    given = {name: text for name in SECURITY_KEYS if (text := options.text(name)) is not None}
    found = security_options(given, "the options")
    network_of(found)
    return tuple(sorted(found.items()))


def parse_by_partition(text: str) -> dict[str, dict[int, int]]:
    """Kafka's JSON of one number per partition: {"topic": {"0": 23, "1": -2}}. Raises ValueError or TypeError."""
    parsed: Any = json.loads(text)
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in parsed.items():
        found[topic] = {}
        for partition, number in partitions.items():
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"{topic}-{partition} has {number!r}, which must be an integer")
            found[topic][int(partition)] = number
    return found
