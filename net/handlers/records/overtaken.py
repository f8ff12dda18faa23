"""Gaps that a new leader sees in the sequences of an idempotent producer, and that close by themselves.

Pure. A former leader refuses a batch, or dies with it, and its producer sends the batch behind it to the new leader first:
librdkafka does so while it waits for its repetition. OUT_OF_ORDER_SEQUENCE_NUMBER would be true and harmful, as for the batches
of `refused_sequences`: librdkafka raises its producer epoch and sends all unacknowledged batches again under new sequences,
also one that a leader stored without acknowledging it. So a leader that has stored nothing of this producer yet answers
with a retriable error, for `MAY_LAST_MS`. A leader that has stored a batch of it reports the gap. The first batches of a
producer leave no gap, so they are checked by the age of the leadership (`ProduceHandler._check_beginning`).
"""

from collections import OrderedDict
from dataclasses import dataclass

from barnabas.log.vocabulary.topic_partition import TopicPartition

MAY_LAST_MS = 10_000  # The missing batch comes after a producer's back-off, of at most 1 s in Kafka's clients.
MAX_GAPS = 4_096  # Producers times partitions. The oldest is forgotten first, and may then last longer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    leader_epoch: int
    producer_epoch: int
    expected: int  # the sequence that is missing


class Overtaken:
    def __init__(self) -> None:
        self._since_ms: OrderedDict[tuple[int, TopicPartition], tuple[Gap, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since_ms)

    def may_close(self, producer_id: int, topic_partition: TopicPartition, gap: Gap, now_ms: int) -> bool:
        """Whether the missing batch may still come."""
        key = (producer_id, topic_partition)
        known = self._since_ms.get(key)
        if known is not None and known[0] == gap:
            return now_ms - known[1] < MAY_LAST_MS
        self._since_ms[key] = (gap, now_ms)
        self._since_ms.move_to_end(key)
        if len(self._since_ms) > MAX_GAPS:
            self._since_ms.popitem(last=False)
        return True
