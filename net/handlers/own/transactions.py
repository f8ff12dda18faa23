"""InitTransactions (1013), AddToTransaction (24), PrepareTransaction (1032), EndTransaction (26),
TransactionalOffsetCommit (28), WriteMarkers (27): transactions, for the SDK and between brokers.
ListTransactions (66), DescribeTransaction (65), AbortTransaction (1014),
OpenTransactions (1015), AbortHanging (1016): operations on them.

Versions: 0. Behaviour: as Kafka's APIs of these numbers, with the coordinator of the transactional id (the group's for
offsets); any other broker answers NOT_COORDINATOR. A reply leaves once the quorum has committed its content. EndTransaction
answers when the transaction is decided; its markers are written after that. Differs from Kafka: partitions are named by topic
id, too, so that a transaction never reaches a later topic of the same name; WriteMarkers ends the offsets of groups as well.
PrepareTransaction is KIP-939's idea as a request of its own: only transactions that are ready for a decision elsewhere lose their
timeout. AbortTransaction answers when the abort is decided, AbortHanging when the in-sync replicas have the marker.
"""

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import (
    AddToTransactionRequest,
    EndTransactionRequest,
    InitTransactionsRequest,
    PrepareTransactionRequest,
    ProducerIdentity,
    TransactionalOffsetCommitRequest,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.group_responses import OffsetCommitResponse
from barnabas.net.wire.protocol.requests import WriteMarkersRequest
from barnabas.net.wire.protocol.responses import AddToTransactionResponse, EmptyResponse, WriteMarkersResponse
from barnabas.net.wire.protocol.transaction_operations import (
    AbortHangingRequest,
    AbortTransactionRequest,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
)

from ..common.services import Services


class TransactionHandlers:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups
        self._transactions = services.transactions
        self._markers = services.markers

    async def init(self, request: InitTransactionsRequest, context: RequestContext) -> ProducerIdentity:
        return await self._transactions.init(request)

    async def add(self, request: AddToTransactionRequest, context: RequestContext) -> AddToTransactionResponse:
        return await self._transactions.add(request)

    async def prepare(self, request: PrepareTransactionRequest, context: RequestContext) -> EmptyResponse:
        await self._transactions.prepare(request)
        return EmptyResponse()

    async def end(self, request: EndTransactionRequest, context: RequestContext) -> ProducerIdentity:
        return await self._transactions.end(request)

    async def write_markers(self, request: WriteMarkersRequest, context: RequestContext) -> WriteMarkersResponse:
        return await self._markers.write(request)

    async def commit_offsets(
        self, request: TransactionalOffsetCommitRequest, context: RequestContext
    ) -> OffsetCommitResponse:
        """The coordinator of the transaction is asked first, whether the group is part of it; in the second version of the
        protocol, the question makes it so."""
        groups = self._groups
        permit = await groups.handle_slot(
            request.group_id,
            lambda machine: machine.offsets.permit(group_id=request.group_id, producer_id=request.producer_id),
        )
        answer = await self._transactions.add_at_coordinator(
            AddToTransactionRequest(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                groups=(request.group_id,),
                is_check=not request.uses_v2,
                uses_v2=request.uses_v2,
            )
        )
        outcomes = await groups.handle_slot(
            request.group_id,
            lambda machine: machine.offsets.commit(
                request,
                permit=permit,
                started_ms=answer.started_ms,
                now_ms=groups.now_ms(),
                topic_ids=groups.topic_ids,
            ),
        )
        return OffsetCommitResponse(partitions=outcomes)


class TransactionOperationHandlers:
    def __init__(self, services: Services) -> None:
        self._operations = services.transaction_operations

    async def list(self, request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
        return await self._operations.list(request)

    async def describe(
        self, request: DescribeTransactionRequest, context: RequestContext
    ) -> DescribeTransactionResponse:
        return await self._operations.describe(request)

    async def abort(self, request: AbortTransactionRequest, context: RequestContext) -> EmptyResponse:
        await self._operations.abort(request.transactional_id)
        return EmptyResponse()

    async def open(self, request: OpenTransactionsRequest, context: RequestContext) -> OpenTransactionsResponse:
        return await self._operations.open(request)

    async def abort_hanging(self, request: AbortHangingRequest, context: RequestContext) -> EmptyResponse:
        await self._operations.abort_hanging(
            TopicPartition(request.topic, request.partition),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        )
        return EmptyResponse()
