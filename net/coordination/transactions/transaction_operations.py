"""What operators ask about transactions, on this broker and, where the question is about all coordinators, on the others.

A transaction hangs if it is open in a partition, and no coordinator knows it: readers of committed records wait there, and
nothing will end it. Brokers verify the first batch of every transaction with its coordinator, so that this cannot happen by
itself; it may come with a log that another program has written.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.replication.partition import Partition
from barnabas.log.segment.producer_state import ProducerEntry
from barnabas.log.vocabulary.errors import (
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTopicError,
    InvalidTxnStateError,
    NetworkError,
    RequestTimedOutError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
)
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS, TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    NOT_STARTED,
    UNDECIDED_STATES,
    TransactionTopic,
)
from barnabas.net.base.clock import Clock
from barnabas.net.base.slices import sliced
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.wire.protocol.requests import Request
from barnabas.net.wire.protocol.responses import Response
from barnabas.net.wire.protocol.transaction_operations import (
    ANY_EPOCH,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransaction,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
)

from .marker_writer import MarkerWriter
from .transaction_service import TransactionService

logger = logging.getLogger("barnabas.transactions")

MAX_LISTED: Final = 10_000  # transactions of one answer: about 1 MiB
MAX_ASKED: Final = 100  # open transactions of one look, each of which may need one more question
ASK_TIMEOUT_MS: Final = 5_000  # of one question to another broker


class TransactionOperations:
    def __init__(
        self,
        *,
        node_id: int,
        clock: Clock,
        metadata: MetadataService,
        controller: ControllerChannel,
        replication: ReplicationService,
        service: TransactionService,
        writer: MarkerWriter,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._metadata = metadata
        self._controller = controller
        self._replication = replication
        self._service = service
        self._writer = writer

    # --- coordinators -------------------------------------------------------------------------------------------------

    async def list(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """The transactions of the slots that this broker coordinates, in the order of their ids."""
        machines = self._service.machines()
        known = [item for machine in machines for item in machine.list().response]
        now_ms = self._service.now_ms()
        states, producer_ids = frozenset(request.states), frozenset(request.producer_ids)
        found = [
            self._listed(item, now_ms)
            async for item in sliced(known, self._clock.now_ms)
            if (not states or item.state in states)
            and (not producer_ids or item.producer_id in producer_ids)
            and _duration_ms(item, now_ms) >= request.min_duration_ms
            and item.transactional_id.startswith(request.id_prefix)
        ]
        found.sort(key=lambda item: item.transactional_id)
        return ListTransactionsResponse(
            transactions=tuple(found[:MAX_LISTED]),
            slots=tuple(sorted(machine.slot for machine in machines)),
            left_out=max(0, len(found) - MAX_LISTED),
        )

    async def describe(self, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
        """Raises TransactionalIdNotFoundError, NotCoordinatorError."""
        found = await self._service.handle(
            request.transactional_id,
            lambda machine: machine.describe(request.transactional_id, must_confirm=request.is_confirmed),
        )
        return DescribeTransactionResponse(
            summary=self._listed(found, self._service.now_ms()),
            started_ms=found.started_ms,
            topics=found.partitions,
            groups=found.offset_groups,
        )

    async def abort(self, transactional_id: str) -> None:
        """Raises TransactionalIdNotFoundError, InvalidTxnStateError, ConcurrentTransactionsError, NotCoordinatorError."""
        now_ms = self._service.now_ms
        await self._service.handle(
            transactional_id, lambda machine: machine.abort(transactional_id=transactional_id, now_ms=now_ms())
        )
        logger.warning("transaction=%s aborted by an operator; its producer is fenced", transactional_id)

    def _listed(self, record: TransactionRecord, now_ms: int) -> ListedTransaction:
        return ListedTransaction(
            transactional_id=record.transactional_id,
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            state=record.state,
            timeout_ms=record.timeout_ms,
            duration_ms=_duration_ms(record, now_ms),
            partition_count=sum(len(item.partitions) for item in record.partitions),
            group_count=len(record.offset_groups),
            coordinator=self._node_id,
            prepared_for=record.prepared_for,
        )

    # --- partitions ---------------------------------------------------------------------------------------------------

    async def open(self, request: OpenTransactionsRequest) -> OpenTransactionsResponse:
        """The open transactions in the partitions that this broker leads."""
        found: list[OpenTransaction] = []
        async for partition in sliced(self._replication.manager.led(), self._clock.now_ms):
            found += self._open_in(partition, request.older_than_ms)
        found.sort(key=lambda item: -item.age_ms)
        return OpenTransactionsResponse(
            transactions=tuple(found[:MAX_LISTED]), left_out=max(0, len(found) - MAX_LISTED)
        )

    def _open_in(self, partition: Partition, older_than_ms: int) -> Iterable[OpenTransaction]:
        producers, wall_ms = partition.log.producers, self._clock.wall_ms()
        for producer_id, first_offset in producers.transactions.opened():
            entry = producers.find(producer_id)
            assert entry is not None, "a producer with an open transaction is not forgotten"
            age_ms = wall_ms - _began_ms(entry)
            if age_ms >= older_than_ms:
                yield OpenTransaction(
                    topic=partition.topic_partition.topic,
                    topic_id=partition.topic_id,
                    partition=partition.topic_partition.partition,
                    producer_id=producer_id,
                    producer_epoch=entry.epoch,
                    coordinator_epoch=entry.coordinator_epoch,
                    first_offset=first_offset,
                    age_ms=age_ms,
                )

    async def abort_hanging(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int = ANY_EPOCH,
        coordinator_epoch: int | None = None,
    ) -> None:
        """Abort a transaction in a partition that this broker leads, if no coordinator knows it.

        Otherwise its other partitions might be committed. `coordinator_epoch` is refused if it is older than that of the
        producer's last marker. Raises InvalidTxnStateError, InvalidProducerEpochError, TransactionCoordinatorFencedError,
        InvalidTopicError, CoordinatorNotAvailableError (not every coordinator has answered), and what an append raises.
        """
        if topic_partition.topic in INTERNAL_TOPICS:
            raise InvalidTopicError(
                f"{topic_partition.topic} is an internal topic of the cluster: it has no transactions"
            )
        partition = self._replication.manager.partition(topic_partition)
        partition.role.current_leader()
        before = _checked(partition, producer_id, producer_epoch, coordinator_epoch)
        await self._check_nobody_knows(partition, producer_id)
        if _checked(partition, producer_id, producer_epoch, coordinator_epoch) != before:
            raise InvalidTxnStateError(
                f"producer {producer_id} has written to {topic_partition} meanwhile, so its transaction does not hang; look again"
            )
        await self._writer.abort_hanging(partition, producer_id=producer_id, producer_epoch=before[0])
        logger.warning(
            "hanging transaction aborted partition=%s producer=%d epoch=%d offset=%d",
            topic_partition,
            producer_id,
            before[0],
            before[1],
        )

    async def hanging_here(self, *, older_than_ms: int) -> Sequence[OpenTransaction]:
        """The oldest transactions in the partitions led here that no coordinator knows. Raises CoordinatorNotAvailableError."""
        opened = (await self.open(OpenTransactionsRequest(older_than_ms=older_than_ms))).transactions[:MAX_ASKED]
        if not opened:
            return ()
        known = await self.of_producers(tuple(sorted({item.producer_id for item in opened})))
        topics = {item.producer_id: await self._topics_of(item) for item in known if item.state in UNDECIDED_STATES}
        return [
            item
            for item in opened
            if not _has(topics.get(item.producer_id, ()), item.topic_id, item.partition) and self._is_open(item)
        ]

    def _is_open(self, item: OpenTransaction) -> bool:
        """It may have ended while the coordinators were asked."""
        partition = self._replication.manager.find(TopicPartition(item.topic, item.partition))
        entry = None if partition is None else partition.log.producers.find(item.producer_id)
        return entry is not None and entry.open_transaction_offset == item.first_offset

    async def _check_nobody_knows(self, partition: Partition, producer_id: int) -> None:
        topic_partition = partition.topic_partition
        for known in await self.of_producers((producer_id,)):
            if known.state in UNDECIDED_STATES and _has(
                await self._topics_of(known), partition.topic_id, topic_partition.partition
            ):
                name = known.transactional_id
                raise InvalidTxnStateError(
                    f"the transaction of producer {producer_id} in {topic_partition} does not hang: it is that of transactional "
                    f"id {name!r}, in state {known.state}; abort it as a whole: barnabas transaction abort {name}"
                )

    async def _topics_of(self, known: ListedTransaction) -> tuple[TransactionTopic, ...]:
        try:
            answer = await self._ask(
                known.coordinator, DescribeTransactionRequest(transactional_id=known.transactional_id)
            )
        except TransactionalIdNotFoundError:
            return ()
        assert isinstance(answer, DescribeTransactionResponse)
        return answer.topics

    async def of_producers(self, producer_ids: tuple[int, ...]) -> Iterable[ListedTransaction]:
        """What all coordinators together know of these producers. Raises CoordinatorNotAvailableError unless all answer."""
        slots = self._metadata.image.slots
        nodes = sorted({slot.coordinator for slot in slots})
        request = ListTransactionsRequest(producer_ids=producer_ids)
        answers = await asyncio.gather(*(self._ask(node_id, request) for node_id in nodes if node_id >= 0))
        listed = [answer for answer in answers if isinstance(answer, ListTransactionsResponse)]
        missing = set(range(len(slots))).difference(*(answer.slots for answer in listed))
        if missing:
            raise CoordinatorNotAvailableError(
                f"{len(missing)} of {len(slots)} coordinators of transactions do not answer at the moment; try again"
            )
        return [item for answer in listed for item in answer.transactions]

    async def _ask(self, node_id: int, request: Request) -> Response:
        if node_id == self._node_id:
            if isinstance(request, ListTransactionsRequest):
                return await self.list(request)
            assert isinstance(request, DescribeTransactionRequest)
            return await self.describe(request)
        try:
            return await self._controller.ask_broker(node_id, request, timeout_ms=ASK_TIMEOUT_MS)
        except (NetworkError, RequestTimedOutError) as error:
            raise CoordinatorNotAvailableError(f"broker {node_id} does not answer: {error.message}") from error


def _duration_ms(record: TransactionRecord, now_ms: int) -> int:
    return -1 if record.started_ms == NOT_STARTED else max(0, now_ms - record.started_ms)


def _began_ms(entry: ProducerEntry) -> int:
    known = entry.transaction_started_ms
    return entry.last_update_ms if known == NOT_STARTED else known


def _checked(
    partition: Partition, producer_id: int, producer_epoch: int, coordinator_epoch: int | None
) -> tuple[int, int, int]:
    """Epoch, first offset and last offset of the producer's open transaction."""
    entry = partition.log.producers.find(producer_id)
    if entry is None or entry.open_transaction_offset < 0:
        raise InvalidTxnStateError(
            f"producer {producer_id} has no open transaction in {partition.topic_partition}; see those that hang: "
            "barnabas transaction hanging"
        )
    if producer_epoch not in (ANY_EPOCH, entry.epoch):
        raise InvalidProducerEpochError(
            f"producer {producer_id} has a transaction open in epoch {entry.epoch}, not {producer_epoch}"
        )
    if coordinator_epoch is not None and coordinator_epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"the last marker of producer {producer_id} came from coordinator epoch {entry.coordinator_epoch}, this one is "
            f"of {coordinator_epoch}"
        )
    return entry.epoch, entry.open_transaction_offset, entry.batches[-1].last_offset if entry.batches else -1


def _has(topics: Iterable[TransactionTopic], topic_id: str, number: int) -> bool:
    return any(item.topic_id == topic_id and number in item.partitions for item in topics)
