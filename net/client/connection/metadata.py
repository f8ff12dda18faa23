"""A client's view of the cluster: brokers, topics, and the leader of each partition with its epoch. Pure.

Any broker may answer, so an answer may be older than the previous one. A leader is replaced only by one whose epoch is not
older (KIP-320), brokers and topics only by an answer whose metadata offset is not older. A topic that was deleted and
created again starts with new state, because its epochs restart.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, UnknownTopicOrPartitionError, error_for
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.topic_partition import TopicPartition, no_such_topic
from barnabas.net.wire.protocol.responses import MetadataResponse, PartitionMetadata, TopicMetadata

NO_LEADER = -1
# Waited for partitions that a topic lacks: brokers apply new partitions one after the other, and one may answer that is behind.
MISSING_PARTITION_MS = 5_000
MAX_FIRST_IDS = 20_000  # names, including deleted topics: as many as one Metadata request may name


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """`node_id` is -1 while the partition has no leader."""

    node_id: int
    epoch: int


UNKNOWN_LEADER = Leader(node_id=NO_LEADER, epoch=-1)


class MetadataCache:
    def __init__(self) -> None:
        self.brokers: dict[int, NodeAddress] = {}
        self.cluster_id = ""
        self.controller_id = -1
        self.offset = -1  # Of the newest accepted answer; never decreases within one cluster.
        self._leaders: dict[TopicPartition, Leader] = {}
        self._partition_counts: dict[str, int] = {}  # Never shrinks while the topic id stays.
        self._topic_ids: dict[str, str] = {}
        self._first_topic_ids: dict[str, str] = {}  # The topic id of a name when it was first seen.
        self._topic_errors: dict[str, tuple[int, str]] = {}

    def leader(self, partition: TopicPartition) -> Leader:
        return self._leaders.get(partition, UNKNOWN_LEADER)

    def partition_count(self, topic: str) -> int:
        """0 while the topic is not known."""
        return self._partition_counts.get(topic, 0)

    def topic_id(self, topic: str) -> str:
        """Changes when a topic is deleted and created again; "" while the topic is not known."""
        return self._topic_ids.get(topic, "")

    def is_successor(self, topic: str) -> bool:
        """Whether another topic had this name when it was first seen: all records of the current one are newer."""
        now = self.topic_id(topic)
        return bool(now) and now != self._first_topic_ids.get(topic, now)

    def topics(self) -> list[str]:
        return list(self._partition_counts)

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.partition_count(topic))]

    def topic_failure(self, topic: str) -> BarnabasError:
        """Why the topic is not usable, according to the last answer about it."""
        code, message = self._topic_errors.get(topic, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""))
        return error_for(code, message or no_such_topic(topic))

    def partition_failure(self, partition: TopicPartition) -> BarnabasError | None:
        """Why the partition cannot exist; None if it does, or if the topic is not known."""
        count = self.partition_count(partition.topic)
        if not 0 < count <= partition.partition:
            return None
        return UnknownTopicOrPartitionError(
            f"topic {partition.topic!r} has partitions 0 to {count - 1}, not {partition.partition}: correct the number, or add"
            f" partitions (barnabas topic add-partitions {partition.topic} --total {partition.partition + 1})"
        )

    def update(self, response: MetadataResponse) -> None:
        """Merge an answer from any broker."""
        if response.cluster_id != self.cluster_id:
            self._forget_cluster(response.cluster_id)
        is_current = response.offset >= self.offset
        for broker in response.brokers:
            if is_current or broker.node_id not in self.brokers:
                self.brokers[broker.node_id] = broker
        if is_current:
            self.offset = response.offset
            self.controller_id = response.controller_id
            self._forget_brokers(keep={broker.node_id for broker in response.brokers})
        for topic in response.topics:
            self._update_topic(topic, is_current=is_current)

    def hint(self, partition: TopicPartition, *, node_id: int, epoch: int) -> bool:
        """Merge a leader that another response named; returns whether it was new."""
        known = self.leader(partition)
        if node_id < 0 or epoch <= known.epoch or partition.partition >= self.partition_count(partition.topic):
            return False
        self._leaders[partition] = Leader(node_id=node_id, epoch=epoch)
        return True

    def forget_leader(self, partition: TopicPartition, *, node_id: int) -> None:
        """The broker reports that it is not the leader, and no other leader is known. The epoch stays as the lower bound."""
        known = self.leader(partition)
        if known.node_id == node_id:
            self._leaders[partition] = Leader(node_id=NO_LEADER, epoch=known.epoch)

    def forget_topic(self, topic: str) -> None:
        for number in range(self._partition_counts.pop(topic, 0)):
            self._leaders.pop(TopicPartition(topic, number), None)
        self._topic_ids.pop(topic, None)

    def without_leader(self, topics: Iterable[str]) -> bool:
        """Whether any of the topics is unknown or has a partition without a leader."""
        for topic in topics:
            partitions = self.partitions(topic)
            if not partitions or any(self.leader(partition).node_id < 0 for partition in partitions):
                return True
        return False

    def _update_topic(self, topic: TopicMetadata, *, is_current: bool) -> None:
        if topic.error:
            self._topic_errors[topic.name] = (topic.error, topic.message)
            if topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and is_current:
                self.forget_topic(topic.name)
            return
        self._topic_errors.pop(topic.name, None)
        known_id = self._topic_ids.get(topic.name)
        if known_id is not None and topic.topic_id != known_id:
            if not is_current:
                return  # The answer is about a deleted topic of this name.
            self.forget_topic(topic.name)
        self._topic_ids[topic.name] = topic.topic_id
        self._first_topic_ids.setdefault(topic.name, topic.topic_id)
        if len(self._first_topic_ids) > MAX_FIRST_IDS:
            del self._first_topic_ids[next(iter(self._first_topic_ids))]
        self._partition_counts[topic.name] = max(self.partition_count(topic.name), len(topic.partitions))
        for number, partition in enumerate(topic.partitions):
            self._update_leader(TopicPartition(topic.name, number), partition)

    def _update_leader(self, partition: TopicPartition, answer: PartitionMetadata) -> None:
        if answer.leader_epoch >= self.leader(partition).epoch:
            self._leaders[partition] = Leader(node_id=answer.leader, epoch=answer.leader_epoch)

    def _forget_brokers(self, *, keep: set[int]) -> None:
        self.brokers = {node_id: broker for node_id, broker in self.brokers.items() if node_id in keep}

    def _forget_cluster(self, cluster_id: str) -> None:
        """Another cluster answers at this address (for example a recreated test cluster): discard all known state."""
        self.cluster_id = cluster_id
        self.offset = -1
        self._first_topic_ids.clear()
        for topic in self.topics():
            self.forget_topic(topic)


class _Missing:
    """How long a reader has waited for what is missing. Pure."""

    def __init__(self, metadata: MetadataCache, *, limit_ms: int) -> None:
        self._metadata = metadata
        self._limit_ms = limit_ms  # -1: no limit
        self._since_ms: int | None = None  # None: nothing is missing, or nothing was asked yet

    @property
    def is_waiting(self) -> bool:
        """After `failure` has returned None: whether something is missing."""
        return self._since_ms is not None

    def reset(self) -> None:
        """The reader has others now."""
        self._since_ms = None

    def _is_over(self, now_ms: int) -> bool:
        """Whether the time is over, with something missing. An application that goes on waits as long again."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms < self._limit_ms:
            return False
        self._since_ms = None
        return True


class MissingTopics(_Missing):
    """How long a reader has waited for topics of which none exists. Pure. Ask `failure`, or `note` for the next call of the
    application, after each answer with metadata: a client asks for it again and again while a topic is missing."""

    _noted: BarnabasError | None = None

    def reset(self) -> None:
        self._since_ms = self._noted = None

    def note(self, topics: Collection[str], now_ms: int) -> None:
        """Keep the failure, if there is one, until `raise_noted`."""
        self._noted = self.failure(topics, now_ms) or self._noted

    def raise_noted(self) -> None:
        """Once for each failure."""
        error, self._noted = self._noted, None
        if error is not None:
            raise error

    def failure(self, topics: Collection[str], now_ms: int) -> BarnabasError | None:
        """The error for the application, once the time is over."""
        metadata = self._metadata
        if not topics or self._limit_ms < 0 or any(metadata.partition_count(topic) for topic in topics):
            self._since_ms = self._noted = None
            return None
        if not self._is_over(now_ms):
            return None
        error = metadata.topic_failure(next(iter(topics)))
        return type(error)(f"{error.message} (missing_topic_timeout_ms={self._limit_ms} has passed)")


class MissingPartitions(_Missing):
    """How long a reader has waited for partitions that its topics lack. Pure. Ask `failure` as that of `MissingTopics`."""

    def __init__(self, metadata: MetadataCache, *, limit_ms: int) -> None:
        super().__init__(metadata, limit_ms=min(limit_ms, MISSING_PARTITION_MS))

    def failure(self, partitions: Iterable[TopicPartition], now_ms: int) -> BarnabasError | None:
        """The error for the application, once the time is over."""
        error = next(filter(None, map(self._metadata.partition_failure, partitions)), None)
        if error is None or self._limit_ms < 0:
            self._since_ms = None
            return None
        return error if self._is_over(now_ms) else None
