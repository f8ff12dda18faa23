"""Which batches of idempotent producers were refused for now, so that the batches behind them are refused alike.

Pure. A producer has up to five batches of a partition under way. If the first is refused because the partition has too few
in-sync replicas, and an in-sync replica returns before the second is looked at, the second leaves a gap.
OUT_OF_ORDER_SEQUENCE_NUMBER would be true and harmful: librdkafka takes it for a loss, raises its producer epoch and sends all
unacknowledged batches again under new sequences. A batch among them that an earlier leader stored without acknowledging it
is then stored twice. Apache Kafka answers so; this broker repeats the refusal, and the producer sends its batches in order.

Where the log does not know the producer yet, it would even take the second batch, since a forgotten producer may begin anywhere;
so the batches behind a refused one are refused before the log is asked.
"""

from collections import OrderedDict
from dataclasses import dataclass

from barnabas.log.format.record_batch import NO_PRODUCER_ID, BatchHeader
from barnabas.log.segment.producer_state import REMEMBERED_BATCHES, SEQUENCES
from barnabas.log.vocabulary.errors import BarnabasError, RetriableError
from barnabas.log.vocabulary.topic_partition import TopicPartition

MAX_REFUSALS = 4_096  # Producers times partitions; each takes some 300 bytes. The oldest is forgotten first.


@dataclass(slots=True, kw_only=True)
class Refusal:
    producer_epoch: int
    first_sequence: int  # of the earliest refused batch that has not come again
    error: type[BarnabasError]  # and no error that was raised: its frames hold the receive buffer of the request
    message: str
    followers_left: int  # batches that the producer can have sent before it heard of the refusal; 0 <= it <= 4

    def is_before(self, batch: BatchHeader) -> bool:
        """Sequence numbers wrap: of their circle, one half lies behind each."""
        distance = (batch.base_sequence - self.first_sequence) % SEQUENCES
        return batch.producer_epoch == self.producer_epoch and 0 < distance < SEQUENCES // 2

    def is_answered_by(self, appended: BatchHeader) -> bool:
        """The refused batch is in the log, or its producer has begun a new epoch."""
        has_come = appended.base_sequence == self.first_sequence or self.is_before(appended)
        return has_come or appended.producer_epoch > self.producer_epoch


class RefusedSequences:
    """Ask `before` of each batch that is to be appended; say `refused` or `appended` of what became of it."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[tuple[int, TopicPartition], Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refusals)

    def before(self, topic_partition: TopicPartition, batch: BatchHeader) -> BarnabasError | None:
        """With which error a batch before this one was refused, whose producer cannot have heard of that yet."""
        refusal = self._refusals.get((batch.producer_id, topic_partition))
        if refusal is None or not refusal.is_before(batch) or refusal.followers_left == 0:
            return None
        refusal.followers_left -= 1
        return refusal.error(refusal.message)

    def refused(self, topic_partition: TopicPartition, batch: BatchHeader, error: BarnabasError) -> None:
        """This batch is not in the log; with some errors it comes again."""
        if batch.producer_id == NO_PRODUCER_ID or not isinstance(error, RetriableError):
            return
        key = (batch.producer_id, topic_partition)
        refusal = self._refusals.get(key)
        if refusal is not None and refusal.is_before(batch):
            return
        self._refusals[key] = Refusal(
            producer_epoch=batch.producer_epoch,
            first_sequence=batch.base_sequence,
            error=type(error),
            message=error.message,
            followers_left=REMEMBERED_BATCHES - 1,
        )
        self._refusals.move_to_end(key)
        if len(self._refusals) > MAX_REFUSALS:
            self._refusals.popitem(last=False)

    def appended(self, topic_partition: TopicPartition, batch: BatchHeader) -> None:
        """This batch is in the log now, or was before."""
        key = (batch.producer_id, topic_partition)
        refusal = self._refusals.get(key)
        if refusal is not None and refusal.is_answered_by(batch):
            del self._refusals[key]
