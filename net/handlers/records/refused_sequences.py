"""Which batches of idempotent producers were refused for now, so that the batches behind them are refused alike.

Pure. A producer has up to five batches of a partition under way. If the first is refused because this broker does not lead yet,
or has too few in-sync replicas, and that changes before the second is checked, the second leaves a gap.
OUT_OF_ORDER_SEQUENCE_NUMBER would be true and harmful: librdkafka takes it for a loss, raises its producer epoch and sends all
unacknowledged batches again under new sequences. A batch among them that an earlier leader stored without acknowledging it
is then stored twice. Apache Kafka answers so; this broker repeats the refusal, and the producer sends its batches in order.

Where the log knows the producer, the log says which batch comes next, and a refused batch that has come by another leader since
is forgotten. Where it does not, it would even take the second batch, since a forgotten producer may begin anywhere; so the
batches behind a refused one are refused before the log is asked.
"""

from collections import OrderedDict
from dataclasses import dataclass

from barnabas.log.format.record_batch import NO_PRODUCER_ID, BatchHeader
from barnabas.log.segment.producer_state import REMEMBERED_BATCHES, is_behind
from barnabas.log.vocabulary.errors import BarnabasError, RetriableError
from barnabas.log.vocabulary.topic_partition import TopicPartition

MAX_REFUSALS = 4_096  # Producers times partitions; each takes some 300 bytes. The oldest is forgotten first.
MAX_FOLLOWERS = REMEMBERED_BATCHES - 1  # batches that a producer can have sent before it receives an error


@dataclass(slots=True, kw_only=True)
class Refusal:
    producer_epoch: int
    first_sequence: int  # of the earliest refused batch that has not come again, as far as this broker knows
    newest_sequence: int  # of the batch that was refused last
    error: type[BarnabasError]  # and no error that was raised: its frames hold the receive buffer of the request
    message: str
    followers_left: int = MAX_FOLLOWERS  # how often the refusal may be repeated; 0 <= it <= MAX_FOLLOWERS


class RefusedSequences:
    """Call `before` for each batch before it is appended, and then `refused` or `appended`.

    `expected`: the next sequence that the log expects from the producer in this epoch; None if the producer is unknown.
    """

    def __init__(self) -> None:
        self.refusals: OrderedDict[tuple[int, TopicPartition], Refusal] = OrderedDict()  # mostly empty

    def before(
        self, topic_partition: TopicPartition, batch: BatchHeader, expected: int | None = None
    ) -> BarnabasError | None:
        """The error of an earlier batch that was refused, if the producer cannot have received it before it sent this batch."""
        key = (batch.producer_id, topic_partition)
        refusal = self.refusals.get(key)
        if refusal is None or refusal.producer_epoch != batch.producer_epoch:
            return None
        if expected is not None and is_behind(expected, refusal.newest_sequence):
            del self.refusals[key]  # all that was refused has come since
            return None
        awaited = refusal.first_sequence if expected is None else expected
        if not is_behind(batch.base_sequence, awaited) or refusal.followers_left == 0:
            return None
        refusal.followers_left -= 1
        return refusal.error(refusal.message)

    def refused(self, topic_partition: TopicPartition, batch: BatchHeader, error: BarnabasError) -> None:
        """This batch is not in the log, and not because of `before`; with some errors it comes again."""
        if batch.producer_id == NO_PRODUCER_ID or not isinstance(error, RetriableError):
            return
        key = (batch.producer_id, topic_partition)
        known = self.refusals.get(key)
        first = batch.base_sequence
        if known is not None and known.producer_epoch == batch.producer_epoch:
            first = known.first_sequence if is_behind(first, known.first_sequence) else first
        self.refusals[key] = Refusal(
            producer_epoch=batch.producer_epoch,
            first_sequence=first,
            newest_sequence=batch.base_sequence,
            error=type(error),
            message=error.message,
        )
        self.refusals.move_to_end(key)
        if len(self.refusals) > MAX_REFUSALS:
            self.refusals.popitem(last=False)

    def appended(self, topic_partition: TopicPartition, batch: BatchHeader) -> None:
        """This batch is in the log now, or was before."""
        key = (batch.producer_id, topic_partition)
        refusal = self.refusals.get(key)
        if refusal is None:
            return
        is_same_epoch = batch.producer_epoch == refusal.producer_epoch
        has_come = batch.base_sequence == refusal.first_sequence or is_behind(
            batch.base_sequence, refusal.first_sequence
        )
        if batch.producer_epoch > refusal.producer_epoch or (is_same_epoch and has_come):
            del self.refusals[key]
