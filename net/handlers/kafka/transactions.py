"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), WriteTxnMarkers (27), TxnOffsetCommit (28), DescribeTransactions
(65), ListTransactions (66).

Versions: 0-5, 0-4, 0-5, 1, 0-5, 0, 0-2. Behaviour: KIP-98, KIP-447, KIP-664, KIP-890. From EndTxn v5 and TxnOffsetCommit v5 on,
clients use the second version of the protocol: every end raises the producer's epoch, and groups and partitions become part of
a transaction by their first offset or record. AddPartitionsToTxn has several transactions from v4 on. Old clients get
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. Differs from Kafka: any broker that does not coordinate the transactional id
says so in each answer. WriteTxnMarkers is for administrators alone, since coordinators have a message of their own: it aborts a
transaction that no coordinator knows (`kafka-transactions.sh abort`). For any other one, and for commits, the answer is
INVALID_TXN_STATE, because the coordinator may decide otherwise; the marker keeps the coordinator epoch of the one before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidRequestError, InvalidTxnStateError
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.name_pattern import NamePattern, name_pattern
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    TransactionalOffsetCommitRequest,
    TransactionState,
)
from barnabas.net.base.limits import MAX_MARKERS, check_count
from barnabas.net.base.slices import SharedSlice, sliced
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.group_apis import offsets_to_commit

from ..common.answer_room import ENTRY_BYTES, AnswerRoom, size_of_partitions
from ..common.many import once
from ..common.services import Services
from ..own.transactions import TransactionHandlers

logger = logging.getLogger("barnabas.transactions")

_TOPIC = attrgetter("topic")
_FENCED_SINCE = {
    24: 2,
    25: 2,
    26: 2,
}  # the first versions that answer PRODUCER_FENCED (KIP-588); TxnOffsetCommit never does
_MANY_SINCE = 4  # of AddPartitionsToTxn
_SECOND_VERSION_SINCE = 5  # of EndTxn and TxnOffsetCommit (KIP-890)
# A prepared transaction is an open one to Kafka's clients, which do not know the state.
_KAFKA_STATE = {state: TransactionState.ONGOING if state.is_open else state for state in TransactionState}
_STATES = frozenset(_KAFKA_STATE.values())


class KafkaTransactionHandlers:
    def __init__(self, services: Services, own: TransactionHandlers) -> None:
        self._services = services
        self._transactions = services.transactions
        self._own = own
        self._operations = services.transaction_operations

    # --- the parts of a transaction -----------------------------------------------------------------------------------

    async def add_partitions(
        self, request: KafkaRequest[bodies.AddPartitionsToTxnRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AddPartitionsToTxnResponse]:
        body, answer = request.body, bodies.AddPartitionsToTxnResponse
        if request.version < _MANY_SINCE:
            topics = await self._added(
                body.v3_and_below_transactional_id,
                body.v3_and_below_producer_id,
                body.v3_and_below_producer_epoch,
                body.v3_and_below_topics,
                is_check=False,
                version=request.version,
            )
            return KafkaResponse(body=answer(results_by_topic_v3_and_below=topics))
        results = [
            answer.AddPartitionsToTxnResult(
                transactional_id=item.transactional_id,
                topic_results=await self._added(
                    item.transactional_id,
                    item.producer_id,
                    item.producer_epoch,
                    item.topics,
                    is_check=item.verify_only,
                    version=request.version,
                ),
            )
            async for item in sliced(body.transactions, self._transactions.now_ms)
        ]
        return KafkaResponse(body=answer(results_by_transaction=results))

    async def _added(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topics: Sequence[bodies.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic],
        *,
        is_check: bool,
        version: int,
    ) -> list[bodies.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
        """All partitions or none: if one does not exist, nothing is attempted."""
        named = [(topic.name, number) for topic in topics for number in topic.partitions]
        check_count(named)
        wanted: dict[str, set[int]] = {}
        for name, number in named:
            wanted.setdefault(name, set()).add(number)
        known = self._transactions.topics_with_ids(wanted)
        exists = {(item.topic, number) for item in known for number in item.partitions}
        if len(exists) < len(set(named)):
            errors = {
                key: ErrorCode.OPERATION_NOT_ATTEMPTED if key in exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                for key in named
            }
            return _partition_results([PartitionOutcome(topic=t, partition=n, error=errors[t, n]) for t, n in named])
        asked = AddToTransactionRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            topics=known,
            is_check=is_check,
            uses_v2=False,
        )
        try:
            outcomes = {
                (item.topic, item.partition): item.error for item in (await self._transactions.add(asked)).partitions
            }
        except BarnabasError as error:
            outcomes = dict.fromkeys(named, _code(error, 24, version))
        return _partition_results(
            [PartitionOutcome(topic=t, partition=n, error=outcomes.get((t, n), 0)) for t, n in named]
        )

    async def add_offsets(
        self, request: KafkaRequest[bodies.AddOffsetsToTxnRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AddOffsetsToTxnResponse]:
        body = request.body
        asked = AddToTransactionRequest(
            transactional_id=body.transactional_id,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            groups=(body.group_id,),
        )
        error = 0
        try:
            await self._transactions.add(asked)
        except BarnabasError as refusal:
            error = _code(refusal, 25, request.version)
        return KafkaResponse(body=bodies.AddOffsetsToTxnResponse(error_code=error))

    async def end(
        self, request: KafkaRequest[bodies.EndTxnRequest], context: RequestContext
    ) -> KafkaResponse[bodies.EndTxnResponse]:
        body = request.body
        asked = EndTransactionRequest(
            transactional_id=body.transactional_id,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            is_commit=body.committed,
            uses_v2=request.version >= _SECOND_VERSION_SINCE,
        )
        try:
            found = await self._own.end(asked, context)
        except BarnabasError as error:
            return KafkaResponse(body=bodies.EndTxnResponse(error_code=_code(error, 26, request.version)))
        return KafkaResponse(
            body=bodies.EndTxnResponse(producer_id=found.producer_id, producer_epoch=found.producer_epoch)
        )

    async def commit_offsets(
        self, request: KafkaRequest[bodies.TxnOffsetCommitRequest], context: RequestContext
    ) -> KafkaResponse[bodies.TxnOffsetCommitResponse]:
        body = request.body
        offsets = offsets_to_commit(body)
        check_count(offsets)
        asked = TransactionalOffsetCommitRequest(
            transactional_id=body.transactional_id,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            group_id=body.group_id,
            member_id=body.member_id,
            member_epoch=body.generation_id,
            instance_id=body.group_instance_id,
            partitions=offsets,
            uses_v2=request.version >= _SECOND_VERSION_SINCE,
        )
        try:
            outcomes: Sequence[PartitionOutcome] = (await self._own.commit_offsets(asked, context)).partitions
        except BarnabasError as error:
            code = _offset_code(error)
            outcomes = [PartitionOutcome(topic=item.topic, partition=item.partition, error=code) for item in offsets]
        answer = bodies.TxnOffsetCommitResponse
        topics = [
            answer.TxnOffsetCommitResponseTopic(
                name=name,
                partitions=[
                    answer.TxnOffsetCommitResponsePartition(partition_index=item.partition, error_code=item.error)
                    for item in items
                ],
            )
            for name, items in groupby(outcomes, key=_TOPIC)
        ]
        return KafkaResponse(body=answer(topics=topics))

    # --- operators ----------------------------------------------------------------------------------------------------

    async def describe(
        self, request: KafkaRequest[bodies.DescribeTransactionsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeTransactionsResponse]:
        check_count(request.body.transactional_ids)
        with AnswerRoom(self._services.memory, "describe fewer transactions in one request") as room:
            states = [
                await self._described(name, room)
                async for name in sliced(once(request.body.transactional_ids), self._transactions.now_ms)
            ]
        return KafkaResponse(body=bodies.DescribeTransactionsResponse(transaction_states=states))

    async def _described(
        self, transactional_id: str, room: AnswerRoom
    ) -> bodies.DescribeTransactionsResponse.TransactionState:
        answer = bodies.DescribeTransactionsResponse
        try:
            found = await self._transactions.handle(
                transactional_id, lambda machine: machine.describe(transactional_id)
            )
            room.take(ENTRY_BYTES + size_of_partitions(found.partitions))
        except BarnabasError as error:
            return answer.TransactionState(transactional_id=transactional_id, error_code=error.code)
        return answer.TransactionState(
            transactional_id=transactional_id,
            transaction_state=_KAFKA_STATE[TransactionState(found.state)],
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[answer.TopicData(topic=item.topic, partitions=item.partitions) for item in found.partitions],
        )

    async def write_markers(
        self, request: KafkaRequest[bodies.WriteTxnMarkersRequest], context: RequestContext
    ) -> KafkaResponse[bodies.WriteTxnMarkersResponse]:
        """The answer has no place for words: those of the first refusal are in the log, and how many there were."""
        markers, answer = request.body.markers, bodies.WriteTxnMarkersResponse
        named = sum(len(topic.partition_indexes) for item in markers for topic in item.topics)
        if named > MAX_MARKERS:
            raise InvalidRequestError(f"{named} markers are asked for in one request; write {MAX_MARKERS} at most")
        part = SharedSlice(self._transactions.now_ms)
        refused: list[str] = []
        results = []
        for marker in markers:
            topics = []
            for topic in marker.topics:
                partitions = []
                for number in topic.partition_indexes:
                    code = await self._mark(marker, TopicPartition(topic.name, number), refused)
                    partitions.append(answer.WritableTxnMarkerPartitionResult(partition_index=number, error_code=code))
                    await part.step()
                topics.append(answer.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions))
            results.append(answer.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        if refused:
            logger.info("markers refused count=%d first=%s", len(refused), refused[0])
        return KafkaResponse(body=answer(markers=results))

    async def _mark(
        self,
        marker: bodies.WriteTxnMarkersRequest.WritableTxnMarker,
        topic_partition: TopicPartition,
        refused: list[str],
    ) -> ErrorCode:
        try:
            if marker.transaction_result:
                raise InvalidTxnStateError("only the coordinator of a transaction commits it")
            await self._operations.abort_hanging(
                topic_partition,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
            )
        except BarnabasError as error:
            refused.append(f"{topic_partition} producer={marker.producer_id} reason={error}")
            return error.code
        return ErrorCode.NONE

    async def list(
        self, request: KafkaRequest[bodies.ListTransactionsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.ListTransactionsResponse]:
        body, answer = request.body, bodies.ListTransactionsResponse
        pattern = name_pattern(body.transactional_id_pattern) if body.transactional_id_pattern else None
        now_ms = self._transactions.now_ms()
        known = [item for machine in self._transactions.machines() for item in machine.list().response]
        states = [
            answer.TransactionState(
                transactional_id=item.transactional_id,
                producer_id=item.producer_id,
                transaction_state=_KAFKA_STATE[TransactionState(item.state)],
            )
            async for item in sliced(known, self._transactions.now_ms)
            if _is_wanted(item, body, pattern, now_ms)
        ]
        unknown = [state for state in body.state_filters if state not in _STATES]
        return KafkaResponse(body=answer(unknown_state_filters=unknown, transaction_states=states))


def _is_wanted(
    item: TransactionRecord, body: bodies.ListTransactionsRequest, pattern: NamePattern | None, now_ms: int
) -> bool:
    known_states = set(body.state_filters) & _STATES
    if body.state_filters and _KAFKA_STATE[TransactionState(item.state)] not in known_states:
        return False
    if body.producer_id_filters and item.producer_id not in body.producer_id_filters:
        return False
    if body.duration_filter >= 0 and (item.started_ms < 0 or now_ms - item.started_ms < body.duration_filter):
        return False
    return pattern is None or pattern.matches(item.transactional_id)


def _code(error: BarnabasError, api: int, version: int) -> int:
    if error.code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE[api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


def _offset_code(error: BarnabasError) -> int:
    """Clients of TxnOffsetCommit know the errors of classic members only."""
    known = {
        ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH: ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
    return known.get(error.code, error.code)


def _partition_results(
    outcomes: Sequence[PartitionOutcome],
) -> list[bodies.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    answer = bodies.AddPartitionsToTxnResponse
    return [
        answer.AddPartitionsToTxnTopicResult(
            name=name,
            results_by_partition=[
                answer.AddPartitionsToTxnPartitionResult(
                    partition_index=item.partition, partition_error_code=item.error
                )
                for item in items
            ],
        )
        for name, items in groupby(outcomes, key=_TOPIC)
    ]
