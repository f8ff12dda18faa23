"""The queues of partitions whose batches are numbered, so that brokers append each of them once and in order. Pure.

Up to five batches are in flight, one a request. A batch keeps its sequence through all retries. After a failure nothing is
sent until all answers are here; then what was not acknowledged goes back to the front, in order, and the first of it goes
alone. Within an epoch the batches that are written are the first ones, without a gap.

A gap (a batch was refused permanently or given up, or its predecessor is missing on the broker) ends the epoch: what is left
gets new sequences in the next one. A batch that may have been written never gets a new number: the front is sent again as it
was until the broker says that it is there, or that it does not follow (then neither it nor anything behind it was written).
Kafka's producer counts one epoch for all partitions; a broker compares them by partition, so here each has its own.

In a transaction (`TransactionalQueue`), all partitions have the epoch that the coordinator gave to the transaction. There, a gap
cannot be mended: the transaction is aborted.

Source: KIP-98, KIP-360.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity

from ..connection.errors import BarnabasError, ErrorCode
from .batch_growth import BatchGrowth
from .record_accumulator import Batch, PartitionQueue

MAX_IN_FLIGHT = 5  # a broker remembers so many batches of a producer
MAX_EPOCH = 2**15 - 1
_SEQUENCES = 2**31
# The broker knows nothing of the batch's predecessor. Of the last two, neither of the batch itself, were it there.
_NOT_IN_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH})


class IdempotentQueue(PartitionQueue):
    __slots__ = (
        "awaited",
        "epoch",
        "front_is_missing",
        "has_gap",
        "has_returned",
        "is_first",
        "next_sequence",
        "producer_id",
        "spent_id",
    )
    is_transactional: ClassVar[bool] = False

    def __init__(self, partition: TopicPartition, growth: BatchGrowth | None = None) -> None:
        super().__init__(partition, growth)
        self.producer_id = -1  # until one is given; nothing is sent without it
        self.spent_id = -1  # all epochs of this one were used
        self.epoch = 0
        self.next_sequence = 0
        self.awaited = (
            0  # requests without an answer; `in_flight` has their batches, and those that came back meanwhile
        )
        self.has_returned = False
        self.has_gap = False  # this epoch takes no new batch
        self.front_is_missing = False  # the broker has neither the front nor anything behind it
        # A broker that knows nothing of a producer takes any sequence, so the first batch of an epoch goes alone.
        self.is_first = True

    @property
    def lacks_id(self) -> bool:
        return self.producer_id < 0

    def adopt(self, producer_id: int) -> None:
        assert self.lacks_id and producer_id >= 0 and producer_id != self.spent_id
        self.producer_id = producer_id
        self.epoch = 0

    @property
    def is_ready(self) -> bool:
        if not self.sealed or self.is_backing_off or self.has_returned:
            return False
        if self.has_gap and self.sealed[0].producer is None:
            return False
        goes_alone = self.is_first or self.failures or self.has_gap
        return self.awaited < (1 if goes_alone else MAX_IN_FLIGHT)

    @property
    def is_awaiting(self) -> bool:
        return self.awaited > 0

    @property
    def is_healthy(self) -> bool:
        return self.awaited > 0 and not self.failures and not self.has_returned

    def take(self, max_bytes: int, compression: Compression) -> tuple[list[Batch], bytes]:
        """Move one batch into flight, numbered if it is not yet."""
        assert self.is_ready and not self.lacks_id
        self.split_front(compression)
        batch = self.sealed.popleft()
        if batch.producer is None:
            batch.number_as(
                ProducerFields(
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    base_sequence=self.next_sequence,
                    is_transactional=self.is_transactional,
                )
            )
            self.next_sequence = (self.next_sequence + batch.record_count) % _SEQUENCES
        batch.attempts += 1
        self.in_flight.append(batch)
        self.awaited += 1
        return [batch], batch.encode(compression)

    def acknowledge(self, sent: list[Batch], *, base_offset: int, log_append_time_ms: int = -1) -> list[Batch]:
        for batch in sent:
            self.in_flight.remove(batch)
            batch.finish(base_offset=base_offset, log_append_time_ms=log_append_time_ms)
        self.failures = 0
        self.last_error = None
        self.is_first = False
        self._answered()
        return sent

    def fail(self, sent: list[Batch], error: BarnabasError) -> list[Batch]:
        """Keep what may still be written under its sequence, or under another one; return permanently failed batches."""
        (batch,) = sent
        is_front = self.in_flight[0] is batch
        done: list[Batch] = []
        if self._may_follow(batch, error, is_front=is_front):
            self._return(error, is_front=is_front)
        else:
            self.has_gap = True
            self.failures = 0  # the broker answers: what is behind this batch need not wait
            done = self._refuse(batch, error)
        self._answered()
        return done

    def _may_follow(self, batch: Batch, error: BarnabasError, *, is_front: bool) -> bool:
        """Whether the batch may be written by another attempt, under its sequence or another one."""
        if error.code in _FORGOTTEN and batch.attempts == 1:
            batch.attempts = 0  # this attempt has left nothing behind
            return True
        return error.retriable or error.code == _NOT_IN_ORDER

    def _return(self, error: BarnabasError, *, is_front: bool) -> None:
        self.has_returned = True
        self.last_error = error
        if is_front and not error.retriable:
            self.front_is_missing = True

    def _refuse(self, batch: Batch, error: BarnabasError) -> list[Batch]:
        position = self.in_flight.index(batch)
        parts = self.split(batch) if error.code == ErrorCode.MESSAGE_TOO_LARGE else ()
        self.in_flight[position : position + 1] = parts
        if parts:
            self.has_returned = True
            return []
        if batch.attempts > 1:
            doubt = "an earlier attempt was not answered: the records may have been written"
            error = type(error)(f"{error.message}; {doubt}")
        batch.finish(error=error)
        return [batch]

    def _answered(self) -> None:
        """One request has its answer; with the last one, what came back goes to the front."""
        self.awaited -= 1
        if self.awaited:
            return
        if self.has_returned:
            self.sealed.extendleft(reversed(self.in_flight))
            self.in_flight.clear()
            self.has_returned = False
            self.failures += 1
        self._end_epoch_if_settled()

    def _end_epoch_if_settled(self) -> None:
        """Where a gap is behind all that may have been written."""
        if not (self.front_is_missing or (self.has_gap and not (self.sealed and self.sealed[0].producer))):
            return
        for batch in self.sealed:
            batch.number_as(None)
        self.epoch += 1
        self.next_sequence = 0
        self.has_gap = self.front_is_missing = False
        self.is_first = True
        if self.epoch > MAX_EPOCH:
            self.spent_id, self.producer_id = self.producer_id, -1

    def expire(self, created_before_ms: int, error: Callable[[Batch], BarnabasError]) -> list[Batch]:
        expired = super().expire(created_before_ms, error)
        if any(batch.producer is not None for batch in expired):
            self.has_gap = True
            if not self.awaited:
                self._end_epoch_if_settled()
        return expired

    def abandon(self, error: BarnabasError) -> list[Batch]:
        self.awaited = 0
        return super().abandon(error)


class TransactionalQueue(IdempotentQueue):
    """`identity` tells the producer id and epoch of the open transaction. When it is aborted, the queue is abandoned.

    In a transaction, a broker knows only the last five batches again. Answers come in any order, because a request may also wait
    for a slower partition. So no batch is sent that lies five behind the first one without an answer.
    """

    __slots__ = ("_identity", "_window")
    is_transactional: ClassVar[bool] = True

    def __init__(
        self, partition: TopicPartition, growth: BatchGrowth | None, identity: Callable[[], ProducerIdentity]
    ) -> None:
        super().__init__(partition, growth)
        self._identity = identity
        self._window: deque[Batch] = deque()  # from the first batch without an answer on, those with one among them

    @property
    def lacks_id(self) -> bool:
        return False  # without one, no transaction begins

    def take(self, max_bytes: int, compression: Compression) -> tuple[list[Batch], bytes]:
        now = self._identity()
        if (self.producer_id, self.epoch) != (now.producer_id, now.producer_epoch):
            assert not self.in_flight, "a transaction ends when all of its batches are done"
            self.producer_id, self.epoch = now.producer_id, now.producer_epoch
            self._begin_epoch()
        taken = super().take(max_bytes, compression)
        self._window.extend(taken[0])
        return taken

    @property
    def is_ready(self) -> bool:
        return len(self._window) < MAX_IN_FLIGHT and super().is_ready

    def acknowledge(self, sent: list[Batch], *, base_offset: int, log_append_time_ms: int = -1) -> list[Batch]:
        done = super().acknowledge(sent, base_offset=base_offset, log_append_time_ms=log_append_time_ms)
        while self._window and self._window[0] not in self.in_flight:
            self._window.popleft()
        return done

    def abandon(self, error: BarnabasError) -> list[Batch]:
        left = super().abandon(error)
        self._begin_epoch()
        return left

    def _answered(self) -> None:
        super()._answered()
        if not self.in_flight:  # what came back is sent again from the first on
            self._window.clear()

    def _begin_epoch(self) -> None:
        self._window.clear()
        self.next_sequence = 0
        self.is_first = True
        self.has_returned = self.has_gap = self.front_is_missing = False
        self.failures = 0
        self.last_error = None

    def _may_follow(self, batch: Batch, error: BarnabasError, *, is_front: bool) -> bool:
        """What the broker has lost cannot get another sequence in the same epoch."""
        return error.retriable or (error.code == _NOT_IN_ORDER and not is_front)

    def _refuse(self, batch: Batch, error: BarnabasError) -> list[Batch]:
        done = super()._refuse(batch, error)
        if not done:  # its halves take the place of it
            assert batch.producer is not None
            sequence = batch.producer.base_sequence
            for part in batch.parts:
                part.number_as(replace(batch.producer, base_sequence=sequence))
                sequence = (sequence + part.record_count) % _SEQUENCES
            self.has_gap = False
        return done

    def _end_epoch_if_settled(self) -> None:
        """Only the end of the transaction ends its epoch."""
