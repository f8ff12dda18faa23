"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28), DescribeTransactions (65), ListTransactions
(66): transactions, of which there are none yet.

Versions: 0-3 of the first four, which ApiVersions does not list; 0; 0-1. Behaviour: a producer receives the one error code that
every client treats as final (`NoTransactionsError`), so that no client waits for its timeout; listing and describing transactions
finds none.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import ErrorCode, NoTransactionsError
from barnabas.net.protocol.kafka import bodies
from barnabas.net.protocol.kafka.apis import KafkaApi, KafkaRequest, KafkaResponse
from barnabas.net.server.dispatcher import Handler, Reply, RequestContext

_REFUSED = int(NoTransactionsError.code)
# Kafka's names of transaction states (KIP-664): a filter may contain only these.
_STATES = frozenset(
    {
        "Ongoing", "PrepareAbort", "PrepareCommit", "Dead", "CompleteAbort", "CompleteCommit", "PrepareEpochFence",
        "Empty",
    }
)  # fmt: skip


def add_partitions(
    request: KafkaRequest[bodies.AddPartitionsToTxnRequest], context: RequestContext, reply: Reply
) -> None:
    answer = bodies.AddPartitionsToTxnResponse
    topics = [
        answer.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                answer.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=_REFUSED)
                for number in topic.partitions
            ],
        )
        for topic in request.body.v3_and_below_topics
    ]
    reply(KafkaResponse(body=answer(results_by_topic_v3_and_below=topics)))


def add_offsets(request: KafkaRequest[bodies.AddOffsetsToTxnRequest], context: RequestContext, reply: Reply) -> None:
    reply(KafkaResponse(body=bodies.AddOffsetsToTxnResponse(error_code=_REFUSED)))


def end(request: KafkaRequest[bodies.EndTxnRequest], context: RequestContext, reply: Reply) -> None:
    reply(KafkaResponse(body=bodies.EndTxnResponse(error_code=_REFUSED)))


def commit_offsets(request: KafkaRequest[bodies.TxnOffsetCommitRequest], context: RequestContext, reply: Reply) -> None:
    answer = bodies.TxnOffsetCommitResponse
    topics = [
        answer.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                answer.TxnOffsetCommitResponsePartition(partition_index=item.partition_index, error_code=_REFUSED)
                for item in topic.partitions
            ],
        )
        for topic in request.body.topics
    ]
    reply(KafkaResponse(body=answer(topics=topics)))


def describe(request: KafkaRequest[bodies.DescribeTransactionsRequest], context: RequestContext, reply: Reply) -> None:
    answer = bodies.DescribeTransactionsResponse
    states = [
        answer.TransactionState(transactional_id=name, error_code=int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
        for name in request.body.transactional_ids
    ]
    reply(KafkaResponse(body=answer(transaction_states=states)))


def list_transactions(
    request: KafkaRequest[bodies.ListTransactionsRequest], context: RequestContext, reply: Reply
) -> None:
    unknown = [state for state in request.body.state_filters if state not in _STATES]
    reply(KafkaResponse(body=bodies.ListTransactionsResponse(unknown_state_filters=unknown)))


HANDLERS: dict[int, Handler] = {
    KafkaApi.ADD_PARTITIONS_TO_TXN: add_partitions,
    KafkaApi.ADD_OFFSETS_TO_TXN: add_offsets,
    KafkaApi.END_TXN: end,
    KafkaApi.TXN_OFFSET_COMMIT: commit_offsets,
    KafkaApi.DESCRIBE_TRANSACTIONS: describe,
    KafkaApi.LIST_TRANSACTIONS: list_transactions,
}
