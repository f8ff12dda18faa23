"""A leader asks the coordinator before it appends the first batch of a transaction to a partition (KIP-890).

Otherwise a delayed batch of a transaction that has ended would begin one that is never ended, and readers of committed records
would wait for it forever. Clients of the first version of the protocol have added the partition before; for those of the second
one (Produce v12), the question adds it. The coordinator answers when the transaction before is complete, so its marker may come
while the question is on its way. A marker of the transaction that the answer is about makes the permit of the batch void.

A partition with an open transaction is not asked about again, so a leader does not learn that the transaction is prepared: it
takes further batches of the same producer id and epoch, which are committed or aborted with the others (docs/guarantees.md).
KIP-939 leaves this to the producer as well: there, brokers know no prepared state. A higher epoch at the prepare alone would
not help, as leaders compare with their own last one. To refuse these batches, the coordinator would have to tell the leaders to
ask again, and answer the prepare when all have confirmed it; a new leader would have to ask about each open transaction. That
is a request to each leader for each prepare, beside the one for the markers. A question every few seconds would bound the time,
not close the gap, and an open transaction would stop with its coordinator.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from barnabas.log.format.record_batch import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Buffer,
    read_header,
)
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
from barnabas.log.vocabulary.transaction_messages import (
    NO_PRODUCER_EPOCH,
    NOT_STARTED,
    AddToTransactionRequest,
    TransactionTopic,
)
from barnabas.net.wire.protocol.requests import KafkaProduceRequest, ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import AddToTransactionResponse

SECOND_VERSION_SINCE: Final = 12  # of Produce
MAX_OPEN_PERMITS: Final = 20_000  # producers and partitions whose question is on its way
ATTEMPTS: Final = 2  # each waits at the coordinator until the last transaction is complete; then the client asks again
PAUSE_MS: Final = 20
MAX_ENDED: Final = 4  # transactions that end while questions are on their way: usually one, the transaction before

AnyProduce = ProduceRequest | KafkaProduceRequest
Ask = Callable[[AddToTransactionRequest], Awaitable[AddToTransactionResponse]]


class TransactionVerification:
    """`find(partition)`: the replica of this broker, or None."""

    def __init__(self, *, find: Callable[[TopicPartition], Partition | None], ask: Ask) -> None:
        self._find = find
        self._ask = ask
        self._last_permit = 0
        self._open: dict[tuple[TopicPartition, int], _Questions] = {}  # by partition and producer id

    def is_needed(self, item: ProducePartition) -> bool:
        """Of a batch that is transactional."""
        return self._first_batch(item) is not None

    def marker_appended(self, topic_partition: TopicPartition, producer_id: int, started_ms: int) -> None:
        """The transaction of this producer that began then has ended here; NOT_STARTED: it is not known which one."""
        questions = self._open.get((topic_partition, producer_id))
        if questions is None:
            return
        questions.unmarked_from = self._last_permit + 1
        if started_ms == NOT_STARTED or len(questions.ended) == MAX_ENDED:
            questions.valid_from = self._last_permit + 1
        else:
            questions.ended.append(started_ms)

    async def verified(self, request: AnyProduce) -> "Verified":
        """Ask about every partition that needs it; the result is valid until `Verified.close`."""
        verified = Verified(self, request)
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
        if len(item.records) < HEADER_SIZE or not item.records[ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK:
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
        is_whole = batch.size_bytes == len(item.records)  # more batches may follow, in the protocol of Barnabas
        return None if is_open or (is_whole and _is_repeated(partition, batch)) else batch

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
        verified.producer_epoch = first.producer_epoch
        uses_v2 = not 0 <= request.kafka_version < SECOND_VERSION_SINCE  # -1: our protocol
        asked = AddToTransactionRequest(
            transactional_id=request.transactional_id,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            topics=self._topics(request, batches),
            is_check=not uses_v2,
            uses_v2=uses_v2,
        )
        try:
            answer = await self._answer(asked, verified, batches)
        except BarnabasError as error:
            verified.refused.update(dict.fromkeys(batches, _as_told(error, uses_v2=uses_v2)))
            return
        verified.started_ms = answer.started_ms
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

    async def _answer(
        self, request: AddToTransactionRequest, verified: "Verified", batches: dict[int, BatchHeader]
    ) -> AddToTransactionResponse:
        """The permits are as old as the last question."""
        for _ in range(ATTEMPTS):
            try:
                verified.take_permits(batches)
                return await self._ask(request)
            except ConcurrentTransactionsError:
                await asyncio.sleep(PAUSE_MS / 1000)
        verified.take_permits(batches)
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

    def take_permit(self, item: ProducePartition, producer_id: int) -> "Permit":
        self._last_permit += 1
        topic_partition = TopicPartition(item.topic, item.partition)
        key = (topic_partition, producer_id)
        self._open.setdefault(key, _Questions()).count += 1
        return Permit(key=key, number=self._last_permit, leadership=self._leadership(topic_partition))

    def is_valid(self, permit: "Permit", started_ms: int) -> bool:
        """To append to the transaction that began then. Another leader may have written a marker meanwhile: a permit ends with
        the leadership."""
        questions = self._open[permit.key]
        if permit.leadership != self._leadership(permit.key[0]) or permit.number < questions.valid_from:
            return False
        if started_ms == NOT_STARTED:  # a coordinator of an older version: any marker may be that of its transaction
            return permit.number >= questions.unmarked_from
        return started_ms not in questions.ended

    def give_back(self, permit: "Permit") -> None:
        questions = self._open[permit.key]
        questions.count -= 1
        if not questions.count:
            del self._open[permit.key]

    def appended(self, permit: "Permit", producer_epoch: int, started_ms: int) -> None:
        topic_partition, producer_id = permit.key
        partition = self._find(topic_partition)
        if partition is not None:
            partition.log.producers.started(producer_id, producer_epoch, started_ms)

    def _leadership(self, topic_partition: TopicPartition) -> tuple[str, int]:
        partition = self._find(topic_partition)
        return ("", -1) if partition is None else (partition.topic_id, partition.leadership)


@dataclass(slots=True)
class _Questions:
    """About one producer in one partition, and the markers that came since the first of those that are on their way."""

    count: int = 0
    valid_from: int = 0  # the first permit after a marker that may be of any transaction
    unmarked_from: int = 0  # the first permit after the last marker
    ended: list[int] = field(default_factory=list)  # when the transactions began that markers have ended here


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """To append the first batch of a transaction, if nothing has ended it since the coordinator was asked."""

    key: tuple[TopicPartition, int]  # and the producer id
    number: int
    leadership: tuple[str, int]  # topic id, and leadership of the partition


class Verified:
    """What the coordinator said of the partitions of one request, by position."""

    def __init__(self, verification: TransactionVerification, request: AnyProduce) -> None:
        self._verification = verification
        self._request = request
        self._permits: dict[int, Permit] = {}
        self.refused: dict[int, BarnabasError] = {}
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.started_ms = NOT_STARTED  # when the transaction of these batches began
        self._accepted: list[Permit] = []

    def take_permits(self, batches: dict[int, BatchHeader]) -> None:
        """Newer ones, if there are some. To be called before the coordinator is asked."""
        self._give_back()
        for number, batch in batches.items():
            self._permits[number] = self._verification.take_permit(self._request.partitions[number], batch.producer_id)

    def close(self) -> dict[int, BarnabasError]:
        """The refusals. The caller appends in the same pass of the loop, so that no marker comes in between.

        A batch that needed no answer when it came needs one if the transaction has ended since then, or if the leadership began.
        """
        for number, item in enumerate(self._request.partitions):
            permit = self._permits.get(number)
            is_allowed = (
                self._verification.is_valid(permit, self.started_ms)
                if permit
                else not self._verification.is_needed(item)
            )
            if not is_allowed and number not in self.refused:
                self.refused[number] = NotEnoughReplicasError(
                    "a transaction of this producer has ended meanwhile; send again"
                )
        self._accepted = [permit for number, permit in self._permits.items() if number not in self.refused]
        self._give_back()
        return self.refused

    def appended(self) -> None:
        """After the append, in the same pass of the loop: from now on, only a marker of this transaction ends it here."""
        for permit in self._accepted:
            self._verification.appended(permit, self.producer_epoch, self.started_ms)

    def _give_back(self) -> None:
        for permit in self._permits.values():
            self._verification.give_back(permit)
        self._permits = {}


def is_transactional(records: Buffer) -> bool:
    return len(records) >= HEADER_SIZE and bool(records[ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK)


def _is_repeated(partition: Partition, batch: BatchHeader) -> bool:
    """A batch that is in the log already needs no answer: it is not appended again."""
    try:
        known = partition.log.producers.check(
            batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, is_transactional=True
        )
    except InvalidTxnStateError:
        return False  # the marker of the transaction before is on its way
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
