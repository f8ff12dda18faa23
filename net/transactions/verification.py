"""Before the first batch of a transaction is appended to a partition, its coordinator is asked (KIP-890).

Otherwise a delayed batch of a transaction that has ended would begin one that nobody ends, and readers of committed records
would wait for it forever. Clients of the first version of the protocol have added the partition before; for those of the second
one (Produce v12), the question adds it. A marker that comes while the question is on its way makes the permit of the batch
void, because the answer was about a transaction that has ended.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from barnabas.log.format.record_batch import HEADER_SIZE, TRANSACTIONAL_MASK, BatchHeader, Buffer, read_header
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ConcurrentTransactionsError,
    CorruptRecordError,
    ErrorCode,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    NotEnoughReplicasError,
    ProducerFencedError,
    TransactionAbortableError,
    error_for,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import AddToTransactionRequest, TransactionTopic

from ..protocol.requests import KafkaProduceRequest, ProducePartition, ProduceRequest
from ..protocol.responses import AddToTransactionResponse

SECOND_VERSION_SINCE: Final = 12  # of Produce
_ATTRIBUTES_POSITION: Final = 22
MAX_OPEN_PERMITS: Final = 20_000  # producers and partitions whose question is on its way
ATTEMPTS: Final = 20  # while the markers of the last transaction are written; then the client asks again
PAUSE_MS: Final = 20

AnyProduce = ProduceRequest | KafkaProduceRequest
Ask = Callable[[AddToTransactionRequest], Awaitable[AddToTransactionResponse]]


class TransactionVerification:
    """`find(partition)`: the replica of this broker, or None."""

    def __init__(self, *, find: Callable[[TopicPartition], Partition | None], ask: Ask) -> None:
        self._find = find
        self._ask = ask
        self._last_permit = 0
        # (partition, producer id) -> the first permit that is valid, and the number of questions on their way.
        self._open: dict[tuple[TopicPartition, int], tuple[int, int]] = {}

    def is_needed(self, item: ProducePartition) -> bool:
        return self._first_batch(item) is not None

    def marker_appended(self, topic_partition: TopicPartition, producer_id: int) -> None:
        """The questions about this producer that are on their way are void."""
        key = (topic_partition, producer_id)
        if key in self._open:
            self._open[key] = (self._last_permit + 1, self._open[key][1])

    async def verified(self, request: AnyProduce) -> "Verified":
        """Ask about every partition that needs it; the result is valid until `Verified.close`."""
        verified = Verified(self)
        batches = {
            number: batch
            for number, item in enumerate(request.partitions)
            if (batch := self._first_batch(item)) is not None
        }
        if batches:
            await self._verify(request, batches, verified)
        return verified

    def _first_batch(self, item: ProducePartition) -> BatchHeader | None:
        """The batch, if it is transactional and would begin a transaction in this partition."""
        if len(item.records) < HEADER_SIZE or not item.records[_ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK:
            return None
        partition = self._find(TopicPartition(item.topic, item.partition))
        if partition is None or not partition.role.is_leader:
            return None  # the append says so
        try:
            batch = read_header(item.records)
        except CorruptRecordError:
            return None  # as well
        entry = partition.log.producers.find(batch.producer_id)
        is_open = entry is not None and entry.epoch == batch.producer_epoch and entry.open_transaction_offset >= 0
        return None if is_open or _is_repeated(partition, batch) else batch

    async def _verify(self, request: AnyProduce, batches: dict[int, BatchHeader], verified: "Verified") -> None:
        first = next(iter(batches.values()))
        producer = (first.producer_id, first.producer_epoch)
        if request.transactional_id is None or any(
            (batch.producer_id, batch.producer_epoch) != producer for batch in batches.values()
        ):
            error = InvalidTxnStateError(
                "transactional batches need one transactional id and one producer in a request"
            )
            verified.refused.update(dict.fromkeys(batches, error))
            return
        if len(self._open) + len(batches) > MAX_OPEN_PERMITS:
            busy = NotEnoughReplicasError("too many transactions begin at this broker; try again")
            verified.refused.update(dict.fromkeys(batches, busy))
            return
        for number in batches:
            verified.permits[number] = self._take_permit(request.partitions[number], first.producer_id)
        uses_v2 = request.kafka_version >= SECOND_VERSION_SINCE
        try:
            answer = await self._answer(
                AddToTransactionRequest(
                    transactional_id=request.transactional_id,
                    producer_id=first.producer_id,
                    producer_epoch=first.producer_epoch,
                    topics=self._topics(request, batches),
                    is_check=not uses_v2,
                    uses_v2=uses_v2,
                )
            )
        except BarnabasError as error:
            verified.refused.update(dict.fromkeys(batches, _as_told(error, uses_v2=uses_v2)))
            return
        faults = {
            (item.topic, item.partition): error_for(item.error, item.message)
            for item in answer.partitions
            if item.error
        }
        for number in batches:
            item = request.partitions[number]
            fault = faults.get((item.topic, item.partition))
            if fault is not None:
                verified.refused[number] = _as_told(fault, uses_v2=uses_v2)

    async def _answer(self, request: AddToTransactionRequest) -> AddToTransactionResponse:
        for _ in range(ATTEMPTS):
            try:
                return await self._ask(request)
            except ConcurrentTransactionsError:
                await asyncio.sleep(PAUSE_MS / 1000)
        return await self._ask(request)

    def _topics(self, request: AnyProduce, numbers: dict[int, BatchHeader]) -> tuple[TransactionTopic, ...]:
        found: dict[tuple[str, str], list[int]] = {}
        for number in numbers:
            item = request.partitions[number]
            partition = self._find(TopicPartition(item.topic, item.partition))
            if partition is not None:
                found.setdefault((item.topic, partition.topic_id), []).append(item.partition)
        return tuple(
            TransactionTopic(topic=topic, topic_id=topic_id, partitions=tuple(sorted(set(partitions))))
            for (topic, topic_id), partitions in sorted(found.items())
        )

    # --- permits ------------------------------------------------------------------------------------------------------

    def _take_permit(self, item: ProducePartition, producer_id: int) -> "Permit":
        self._last_permit += 1
        topic_partition = TopicPartition(item.topic, item.partition)
        key = (topic_partition, producer_id)
        valid_from, count = self._open.get(key, (self._last_permit, 0))
        self._open[key] = (valid_from, count + 1)
        return Permit(key=key, number=self._last_permit, leadership=self._leadership(topic_partition))

    def is_valid(self, permit: "Permit") -> bool:
        """Another leader may have written a marker meanwhile: a permit ends with the leadership."""
        known = self._open.get(permit.key)
        is_current = permit.leadership == self._leadership(permit.key[0])
        return known is not None and permit.number >= known[0] and is_current

    def give_back(self, permit: "Permit") -> None:
        valid_from, count = self._open.pop(permit.key)
        if count > 1:
            self._open[permit.key] = (valid_from, count - 1)

    def _leadership(self, topic_partition: TopicPartition) -> int:
        partition = self._find(topic_partition)
        return -1 if partition is None else partition.leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """To append the first batch of a transaction, if nothing has ended it since the coordinator was asked."""

    key: tuple[TopicPartition, int]  # and the producer id
    number: int
    leadership: int  # of the partition


class Verified:
    """What the coordinator said of the partitions of one request, by position."""

    def __init__(self, verification: TransactionVerification) -> None:
        self._verification = verification
        self.refused: dict[int, BarnabasError] = {}
        self.permits: dict[int, Permit] = {}

    def close(self) -> dict[int, BarnabasError]:
        """The refusals. The caller appends in the same pass of the loop, so that no marker comes in between."""
        for number, permit in self.permits.items():
            if number not in self.refused and not self._verification.is_valid(permit):
                self.refused[number] = NotEnoughReplicasError(
                    "a transaction of this producer has ended meanwhile; send again"
                )
            self._verification.give_back(permit)
        self.permits = {}
        return self.refused


def is_transactional(records: Buffer) -> bool:
    return len(records) >= HEADER_SIZE and bool(records[_ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK)


def _is_repeated(partition: Partition, batch: BatchHeader) -> bool:
    """A batch that is in the log already needs no answer: it is not appended again."""
    try:
        known = partition.log.producers.check(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count
        )
    except BarnabasError:
        return True  # the append refuses it
    return known is not None


def _as_told(error: BarnabasError, *, uses_v2: bool) -> BarnabasError:
    """Clients of the first version know fewer errors, and retry what is answered as too few replicas."""
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError(error.message)
    if isinstance(error, TransactionAbortableError) or error.code == ErrorCode.TRANSACTION_ABORTABLE:
        return error if uses_v2 else InvalidTxnStateError(error.message)
    if isinstance(error, InvalidTxnStateError | InvalidProducerIdMappingError):
        return error
    if isinstance(error, ConcurrentTransactionsError) and uses_v2:
        return error
    return NotEnoughReplicasError(f"the coordinator of the transaction cannot be asked at the moment: {error.message}")
