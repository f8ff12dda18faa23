"""`ReadOptions`: the options of a source: partitions, start and end offsets, and limits per batch. Pure.

Names, defaults, precedence and refusals are those of Spark's Kafka source: a timestamp for all partitions takes precedence over
timestamps by partition, and these over offsets; `startingOffsets` is `latest` for streams and `earliest` for batches; a batch
can neither start at the end nor end at the start; a stream has no end. Trigger limits of streams do not apply to batches.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from barnabas.log.vocabulary.errors import InvalidConfigError, InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.log.vocabulary.topic_partition import TopicPartition, check_topic_name

from ..common.options import ClientSettings, Options, client_settings, parse_by_partition

EARLIEST = -2  # As in Kafka's JSON of offsets.
LATEST = -1
MAX_TRIGGER_DELAY_MS = 15 * 60_000  # As in Spark's Kafka source.
FETCH_TIMEOUT_MS = (
    120_000  # spark.network.timeout: a task without a record for this time fails, and Spark runs it again.
)
METADATA_MAX_AGE_MS = 2_000  # A query notices new partitions within this time; half a request per second.
FETCH_MAX_BYTES = 16 << 20  # Of one response; a running task has up to two in memory.
CLIENT_ID = "barnabas-spark"

_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAMS_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId")
NAMES = (
    *_STRATEGIES,
    *_STARTS,
    *_ENDS,
    *_STREAMS_ONLY,
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "fetch.timeoutMs",
    "kafkaConsumer.pollTimeoutMs",
    "isolation.level",
    "client.rack",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
)
_OFFSETS_EXAMPLE = '{"topic":{"0":23,"1":-2}} (-2: earliest, -1: latest)'
_TIMES_EXAMPLE = '{"topic":{"0":1700000000000}} (milliseconds since 1970)'


# --- which partitions ---


@dataclass(frozen=True, slots=True)
class Topics:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """An RE2 pattern that is matched against whole names."""

    regex: str


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]


Subscription = Topics | TopicPattern | Assigned


# --- from where, to where ---


@dataclass(frozen=True, slots=True)
class Everywhere:
    """EARLIEST or LATEST of every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, or EARLIEST, LATEST."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of each partition at or after this time."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    timestamps_ms: Mapping[TopicPartition, int]


Boundary = Everywhere | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How a task fetches."""

    max_bytes: int
    is_committed_only: bool  # isolation.level = read_committed
    rack: str
    timeout_ms: int  # A task without progress for this time fails.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    client: ClientSettings
    fetch: FetchSettings
    subscription: Subscription
    start: Boundary
    end: Boundary  # Of a batch.
    is_late_start_latest: bool  # startingOffsetsByTimestampStrategy = latest
    fails_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    includes_headers: bool
    group_id: str | None


def parse_read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Raises InvalidConfigError, which names the option and the remedy."""
    options = Options(given, known=NAMES)
    if is_stream and (useless := options.given(*_ENDS)):
        raise InvalidConfigError(f"{useless[0]} is for batches: a stream has no end; use spark.read, or remove it")
    parsed = ReadOptions(
        client=client_settings(options, client_id=CLIENT_ID, metadata_max_age_ms=METADATA_MAX_AGE_MS),
        fetch=_fetch_settings(options),
        subscription=_subscription(options),
        start=_boundary(options, "starting", default=LATEST if is_stream else EARLIEST),
        end=_boundary(options, "ending", default=LATEST),
        is_late_start_latest=_choice(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fails_on_data_loss=options.boolean("failOnDataLoss", default=True),
        min_partitions=options.optional_integer("minPartitions"),
        max_records_per_partition=options.optional_integer("maxRecordsPerPartition"),
        max_offsets_per_trigger=options.optional_integer("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=options.optional_integer("minOffsetsPerTrigger"),
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        includes_headers=options.boolean("includeHeaders", default=False),
        group_id=options.text("groupId"),
    )
    if not is_stream:
        _check_batch_range(parsed)
    _check_limits(parsed)
    return parsed


def includes_headers(given: Mapping[str, str]) -> bool:
    """Read before the other options: the schema depends on it, also that of a writer, whose options are checked later."""
    value = next((value for name, value in given.items() if name.lower() == "includeheaders"), "false")
    return str(value).lower() == "true"


def _subscription(options: Options) -> Subscription:
    chosen = options.given(*_STRATEGIES)
    if len(chosen) != 1:
        found = "none" if not chosen else " and ".join(chosen)
        raise InvalidConfigError(f"give exactly one of {', '.join(_STRATEGIES)}; found {found}")
    text = (options.text(chosen[0]) or "").strip()
    if not text:
        raise InvalidConfigError(f"{chosen[0]} is empty: name the topics to read")
    if chosen[0] == "subscribe":
        return Topics(tuple(dict.fromkeys(check_topic_name(name.strip()) for name in text.split(","))))
    if chosen[0] == "subscribePattern":
        try:
            return TopicPattern(name_pattern(text).text)
        except InvalidRegularExpressionError as error:
            raise InvalidConfigError(f"subscribePattern: {error.message}") from error
    assigned = options.parsed("assign", _parse_assign, '{"topic":[0,1]}')
    assert assigned is not None
    return assigned


def _parse_assign(text: str) -> Assigned:
    partitions = [
        TopicPartition(check_topic_name(topic), int(number))
        for topic, numbers in json.loads(text).items()
        for number in numbers
    ]
    if not partitions:
        raise ValueError("it names no partition")
    return Assigned(tuple(sorted(set(partitions))))


def _boundary(options: Options, side: Literal["starting", "ending"], *, default: int) -> Boundary:
    """The three options of a side, in their order of precedence."""
    everywhere = options.optional_integer(f"{side}Timestamp", least=0)
    if everywhere is not None:
        return AtTime(everywhere)
    by_partition = options.parsed(f"{side}OffsetsByTimestamp", parse_by_partition, _TIMES_EXAMPLE)
    if by_partition is not None:
        return AtTimes(_flat(by_partition))
    name = f"{side}Offsets"
    text = options.text(name, "")
    if not text:
        return Everywhere(default)
    if text.strip().lower() in ("earliest", "latest"):
        return Everywhere(EARLIEST if text.strip().lower() == "earliest" else LATEST)
    offsets = options.parsed(name, parse_by_partition, f"earliest, latest or {_OFFSETS_EXAMPLE}")
    assert offsets is not None
    flat = _flat(offsets)
    if any(offset < EARLIEST for offset in flat.values()):
        raise InvalidConfigError(f"{name} has an offset below -2; -2 is earliest, -1 is latest")
    return AtOffsets(flat)


def _flat(by_topic: Mapping[str, Mapping[int, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, partition): number
        for topic, partitions in by_topic.items()
        for partition, number in partitions.items()
    }


def _check_batch_range(options: ReadOptions) -> None:
    """A batch that starts at the end or ends at the start is empty: as in Spark's Kafka source, this is an error."""
    match options.start:
        case Everywhere(offset) if offset == LATEST:
            raise InvalidConfigError("startingOffsets latest would read nothing in a batch: use earliest or offsets")
        case AtOffsets(offsets) if LATEST in offsets.values():
            raise InvalidConfigError("startingOffsets has -1 (latest), which would read nothing in a batch")
    match options.end:
        case Everywhere(offset) if offset == EARLIEST:
            raise InvalidConfigError("endingOffsets earliest would read nothing: use latest or offsets")
        case AtOffsets(offsets) if EARLIEST in offsets.values():
            raise InvalidConfigError("endingOffsets has -2 (earliest), which would read nothing")


def _check_limits(options: ReadOptions) -> None:
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise InvalidConfigError(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}: lower it")
    if options.group_id == "":
        raise InvalidConfigError("groupId is empty: name the group, or remove the option")


def _fetch_settings(options: Options) -> FetchSettings:
    name = "fetch.timeoutMs" if options.has("fetch.timeoutMs") else "kafkaConsumer.pollTimeoutMs"
    levels = ("read_committed", "read_uncommitted")
    return FetchSettings(
        max_bytes=min(
            options.integer("fetch.max.bytes", FETCH_MAX_BYTES),
            options.integer("max.partition.fetch.bytes", FETCH_MAX_BYTES),
        ),
        is_committed_only=_choice(options, "isolation.level", levels) == "read_committed",
        rack=options.text("client.rack", "") or "",
        timeout_ms=options.integer(name, FETCH_TIMEOUT_MS),
    )


def _choice(options: Options, name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; the first is the default."""
    text = (options.text(name) or choices[0]).lower()
    if text not in choices:
        raise InvalidConfigError(f"{name} is {text!r}; use {' or '.join(choices)}")
    return text
