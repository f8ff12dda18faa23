"""Which partitions a consumer reads from a replica in its own rack instead of from their leader (KIP-392). Pure.

The leader names the replica (`preferred_read_replica`). The consumer stays with it until the leader changes, the replica fails or
refuses, or `metadata.max.age.ms` has passed: then it asks the leader again. After a failure, the leader itself serves the
partition for a while, because it may name the same replica until it notices the failure.
"""

from dataclasses import dataclass
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.metadata import MetadataCache

AVOIDED_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _SentTo:
    node_id: int
    leader_epoch: int
    until_ms: int


class ReadReplicas:
    def __init__(self, metadata: MetadataCache, rack: str, *, stay_ms: int) -> None:
        """Times are of one monotonic clock. A consumer without a rack ("") is never sent away."""
        self._metadata = metadata
        self._rack = rack
        self._stay_ms = stay_ms
        self._sent_to: dict[TopicPartition, _SentTo] = {}
        self._avoided_until_ms: dict[TopicPartition, int] = {}

    def source(self, partition: TopicPartition, now_ms: int) -> tuple[int, str]:
        """The broker to fetch from, -1 if there is none now, and the rack to name there."""
        leader = self._metadata.leader(partition)
        sent = self._sent_to.get(partition)
        if sent is not None:
            is_known = sent.node_id in self._metadata.brokers
            if not is_known:
                self.failed(partition, now_ms)
            elif sent.leader_epoch == leader.epoch and now_ms < sent.until_ms:
                return sent.node_id, self._rack
            self._sent_to.pop(partition, None)
        if self._avoided_until_ms and self._avoided_until_ms.get(partition, now_ms) > now_ms:
            return leader.node_id, ""
        return leader.node_id, self._rack

    def send(self, partition: TopicPartition, node_id: int, now_ms: int) -> bool:
        """The leader names this replica. False: the metadata does not have the broker, and must be renewed."""
        leader = self._metadata.leader(partition)
        self._sent_to[partition] = _SentTo(node_id, leader.epoch, now_ms + self._stay_ms)
        is_known = node_id in self._metadata.brokers
        if not is_known or node_id == leader.node_id:
            self.failed(partition, now_ms)  # the leader would name it again and again
        return is_known

    def failed(self, partition: TopicPartition, now_ms: int) -> bool:
        """The broker that was asked for the partition refused, or cannot be reached. Return whether that was a replica that the
        leader had named: then the leader serves the partition for the next seconds."""
        if self._sent_to.pop(partition, None) is None:
            return False
        self._avoided_until_ms = {one: until for one, until in self._avoided_until_ms.items() if until > now_ms}
        self._avoided_until_ms[partition] = now_ms + AVOIDED_MS
        return True

    def lost(self, node_id: int, now_ms: int) -> None:
        """This broker cannot be reached."""
        for partition in [one for one, sent in self._sent_to.items() if sent.node_id == node_id]:
            self.failed(partition, now_ms)
