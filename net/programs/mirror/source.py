"""The cluster that is mirrored, through librdkafka: it speaks to every version of Kafka, and to us.

Its calls block, so each runs in a thread; one call of `read` at a time.
"""

import asyncio
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError, NetworkError
from barnabas.log.vocabulary.topic_partition import TopicPartition

ADMIN_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.2
MAX_RECORDS: Final = 5_000  # of one read; also of one transaction
# In librdkafka's queue, for all partitions. Its default is 64 MiB for each of them.
QUEUED_KIB: Final = 64 * 1024
# Topics that belong to a cluster and not to its users; those of Connect and Streams are users'.
INTERNAL: Final = ("__*", "barnabas-*-positions", "*.checkpoints.internal", "mm2-*.internal", "heartbeats")
# Of each cluster its own: how many copies, who leads, and what would refuse old times.
NOT_COPIED: Final = frozenset({
    "min.insync.replicas", "unclean.leader.election.enable", "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms", "message.timestamp.type", "message.format.version", "remote.storage.enable",
})  # fmt: skip
# Options that this program sets.
RESERVED: Final = frozenset({"group.id", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"})


class SourceError(NetworkError):
    """The source does not answer as it should; retried."""


class ClientMissingError(BarnabasError):
    """The client library is not installed."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    partitions: int
    topic_id: str = ""  # "" if the source does not tell it: Kafka before 2.8


@dataclass(frozen=True, slots=True)
class SourceRecord:
    partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """`lost`: partitions whose position is not in the log. `ends`: those that were read to their end, which may lie behind the
    last record, because of what readers are not shown."""

    records: list[SourceRecord]
    lost: list[TopicPartition]
    ends: dict[TopicPartition, int]


def client_options(bootstrap: str, more: Mapping[str, str]) -> dict[str, Any]:
    """Raises InvalidConfigError."""
    taken = sorted(RESERVED.intersection(more))
    if taken:
        raise InvalidConfigError(f"{taken[0]} is set by `barnabas mirror` itself; remove it from the source's options")
    return {"bootstrap.servers": bootstrap, "client.id": "barnabas-mirror", **more}


class Source:
    """Start it before use and close it afterwards."""

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        group_id: str,
        troubled: Callable[[str], None] = lambda reason: None,
        unreachable: Callable[[], None] = lambda: None,
    ) -> None:
        """`troubled`: a connection has failed; `unreachable`: no broker has one. They are called within `read`, in its thread."""
        try:
            import confluent_kafka
            from confluent_kafka import admin
        except ImportError as error:
            raise ClientMissingError(
                "`barnabas mirror` reads with librdkafka: pip install 'barnabas[mirror]'"
            ) from error
        self._kafka = confluent_kafka
        self._admin_module = admin
        self._troubled, self._unreachable = troubled, unreachable
        # Its log would repeat each failed connection. What matters of it comes to `_on_error` and as errors of calls.
        self._options = {**options, "log_level": 0}
        self._consumer_options = {
            **self._options,
            "group.id": group_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": QUEUED_KIB,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "error_cb": self._on_error,
        }
        self._consumer: Any = None
        self._admin: Any = None
        self.cluster_id = ""

    def _on_error(self, error: Any) -> None:
        if error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._unreachable()
        else:
            self._troubled(error.str())

    async def start(self) -> None:
        """Raises SourceError, InvalidConfigError."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        try:
            self._admin = self._admin_module.AdminClient(self._options)
            self._consumer = self._kafka.Consumer(self._consumer_options)
        except self._kafka.KafkaException as error:
            raise InvalidConfigError(f"an option of the source: {_told(error)}") from error
        self.cluster_id = self._metadata().cluster_id or ""

    async def close(self) -> None:
        if self._consumer is not None:
            await asyncio.to_thread(self._consumer.close)

    # --- topics -------------------------------------------------------------------------------------------------------

    async def topics(self, patterns: Sequence[str]) -> dict[str, SourceTopic]:
        """Those that match; internal topics only if they are named without wildcards."""
        metadata = await asyncio.to_thread(self._metadata)
        found = {
            name: len(topic.partitions)
            for name, topic in metadata.topics.items()
            if topic.error is None and is_wanted(name, patterns)
        }
        ids = await self.topic_ids(found)
        return {name: SourceTopic(partitions=count, topic_id=ids.get(name, "")) for name, count in found.items()}

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Without those that the source does not tell."""
        names = list(topics)
        if not names:
            return {}

        def ask() -> dict[str, str]:
            wanted = self._kafka.TopicCollection(names)
            found: dict[str, str] = {}
            for name, future in self._admin.describe_topics(wanted, request_timeout=ADMIN_TIMEOUT_S).items():
                try:
                    topic_id = future.result(timeout=2 * ADMIN_TIMEOUT_S).topic_id
                except self._kafka.KafkaException:
                    continue  # it was deleted just now, for example
                except TimeoutError as error:
                    raise SourceError("the source does not answer: no ids of topics") from error
                if topic_id is not None and (
                    topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits()
                ):
                    found[name] = str(topic_id)
            return found

        return await asyncio.to_thread(ask)

    async def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings that differ from the source's defaults, and that a copy has too."""
        resources = [self._admin_module.ConfigResource("topic", name) for name in topics]
        if not resources:
            return {}
        described = await self._answers(self._admin.describe_configs, resources)
        is_set = self._admin_module.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            resource.name: {
                entry.name: entry.value
                for entry in entries.values()
                if entry.source == is_set and entry.value is not None and entry.name not in NOT_COPIED
            }
            for resource, entries in described.items()
        }

    def _metadata(self) -> Any:
        try:
            return self._admin.list_topics(timeout=ADMIN_TIMEOUT_S)
        except self._kafka.KafkaException as error:
            raise SourceError(f"the source does not answer: {_told(error)}") from error

    async def _answers(self, call: Any, asked: Any, **options: Any) -> dict[Any, Any]:
        def ask() -> dict[Any, Any]:
            try:
                futures = call(asked, request_timeout=ADMIN_TIMEOUT_S, **options)
                return {key: future.result(timeout=2 * ADMIN_TIMEOUT_S) for key, future in futures.items()}
            except (self._kafka.KafkaException, TimeoutError) as error:
                raise SourceError(f"the source does not answer: {_told(error)}") from error

        return await asyncio.to_thread(ask)

    # --- records ------------------------------------------------------------------------------------------------------

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these offsets on, and nothing else."""
        places = [self._kafka.TopicPartition(*partition, offset) for partition, offset in positions.items()]
        await asyncio.to_thread(self._consumer.assign, places)

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset of the log, and the end."""

        def ask() -> tuple[int, int]:
            try:
                found = self._consumer.get_watermark_offsets(
                    self._kafka.TopicPartition(*partition), timeout=ADMIN_TIMEOUT_S
                )
            except self._kafka.KafkaException as error:
                raise SourceError(f"the source does not tell the offsets of {partition}: {_told(error)}") from error
            return int(found[0]), int(found[1])

        return await asyncio.to_thread(ask)

    def known_end(self, partition: TopicPartition) -> int | None:
        """The end as the last fetch told it; None before the first."""
        _, end = self._consumer.get_watermark_offsets(self._kafka.TopicPartition(*partition), cached=True)
        return int(end) if end >= 0 else None

    async def read(self) -> "Read":
        """The next records of all partitions; after 0.2 s, what there is."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> "Read":
        records: list[SourceRecord] = []
        lost: list[TopicPartition] = []
        ends: dict[TopicPartition, int] = {}
        codes = self._kafka.KafkaError
        for message in self._consumer.consume(MAX_RECORDS, POLL_S):
            error = message.error()
            if error is None:
                kind, time_ms = message.timestamp()
                records.append(
                    SourceRecord(
                        TopicPartition(message.topic(), message.partition()),
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers(),
                        time_ms if kind != self._kafka.TIMESTAMP_NOT_AVAILABLE else None,
                    )
                )
            elif error.code() == codes._PARTITION_EOF:
                ends[TopicPartition(message.topic(), message.partition())] = message.offset()
            elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
                lost.append(TopicPartition(message.topic(), message.partition()))
            elif error.fatal() or error.code() in (codes._AUTHENTICATION, codes.TOPIC_AUTHORIZATION_FAILED):
                raise SourceError(f"reading {message.topic()}: {error.str()}")
        return Read(records, lost, ends)

    # --- groups -------------------------------------------------------------------------------------------------------

    async def groups(self, patterns: Sequence[str]) -> list[str]:
        """Groups of consumers that match."""

        def ask() -> list[str]:
            try:
                listed = self._admin.list_consumer_groups(request_timeout=ADMIN_TIMEOUT_S).result(2 * ADMIN_TIMEOUT_S)
            except (self._kafka.KafkaException, TimeoutError) as error:
                raise SourceError(f"the source does not list its groups: {_told(error)}") from error
            return sorted(group.group_id for group in listed.valid)

        names = await asyncio.to_thread(ask)
        return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]

    async def committed(self, group_id: str) -> dict[TopicPartition, int]:
        wanted = [self._kafka.ConsumerGroupTopicPartitions(group_id)]
        found = await self._answers(self._admin.list_consumer_group_offsets, wanted)
        (answer,) = found.values()
        return {
            TopicPartition(item.topic, item.partition): int(item.offset)
            for item in answer.topic_partitions
            if item.error is None and item.offset >= 0
        }


def is_wanted(topic: str, patterns: Sequence[str]) -> bool:
    if topic in patterns:
        return True
    return any(fnmatch.fnmatchcase(topic, pattern) for pattern in patterns) and not any(
        fnmatch.fnmatchcase(topic, pattern) for pattern in INTERNAL
    )


def _told(error: BaseException) -> str:
    cause = error.args[0] if error.args else error
    return str(cause.str()) if hasattr(cause, "str") else str(cause) or type(error).__name__
