"""What Kafka's APIs of transactions need."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from barnabas.log.vocabulary.access.acls import Operation
from barnabas.log.vocabulary.errors import AuthorizationError, ErrorCode
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaApi, KafkaResponse

from .access import Access
from .kafka_items import items, itself, name_of, needs, of_cluster
from .own_rules import DENIED, GROUP, TOPIC, TRANSACTION, refuse_topic
from .rules import Partly, Rule, both, named, shown

_BATCHED_SINCE: Final = 4  # AddPartitionsToTxn: between brokers


def _add_partitions(request: Any, access: Access) -> Partly | None:
    """Version 4 is for brokers. One refused topic refuses all, as with Kafka."""
    body = request.body
    if request.version >= _BATCHED_SINCE:
        access.require_broker()
        return None
    error = ErrorCode.OPERATION_NOT_ATTEMPTED
    topics = body.v3_and_below_topics
    if not access.may(Operation.WRITE, TRANSACTION, body.v3_and_below_transactional_id):
        refused = access.refusal(Operation.WRITE, TRANSACTION, body.v3_and_below_transactional_id)
        error, denied = refused.code, set()
    else:
        denied = {topic.name for topic in topics if not access.may_topic(Operation.WRITE, topic.name)}
        if not denied:
            return None
    for name in denied:
        refuse_topic(access, Operation.WRITE, name)

    def finish(response: None) -> KafkaResponse[Any]:
        answer = bodies.AddPartitionsToTxnResponse
        results = [
            answer.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    answer.AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=DENIED if topic.name in denied else int(error),
                    )
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]
        return KafkaResponse(body=answer(results_by_topic_v3_and_below=results))

    return Partly(None, finish)


def _commit(request: Any, access: Access) -> Partly | None:
    """Its response has errors of partitions only."""
    body = request.body
    for operation, kind, name in (
        (Operation.WRITE, TRANSACTION, body.transactional_id),
        (Operation.READ, GROUP, body.group_id),
    ):
        if not access.may(operation, kind, name):
            code = int(access.refusal(operation, kind, name).code)
            return Partly(None, partial(_uncommitted, body.topics, code))
    return _TOPICS_OF_COMMIT(request, access)


def _uncommitted(topics: Any, code: int, response: None) -> KafkaResponse[Any]:
    body = bodies.TxnOffsetCommitResponse(topics=[_uncommitted_topic(topic, code) for topic in topics])
    return KafkaResponse(body=body)


def _uncommitted_topic(topic: Any, code: int) -> Any:
    answer = bodies.TxnOffsetCommitResponse
    return answer.TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            answer.TxnOffsetCommitResponsePartition(partition_index=item.partition_index, error_code=code)
            for item in topic.partitions
        ],
    )


_TOPICS_OF_COMMIT: Final = items(
    "TxnOffsetCommit",
    "topics",
    "topics",
    needs(Operation.READ, TOPIC, name_of),
    lambda item, error: _uncommitted_topic(item, int(error.code)),
)


def _described_transactions(request: Any, access: Access) -> Partly | None:
    if access.is_super:
        return None
    found = _TRANSACTIONS(request, access)

    def finish(response: KafkaResponse[Any] | None) -> KafkaResponse[Any]:
        for state in () if response is None else response.body.transaction_states:
            state.topics = [item for item in state.topics if access.may_topic(Operation.DESCRIBE, item.topic)]
        made = response if found is None else found.finish(response)
        assert made is not None, "a request that was passed on has a response"
        return made

    return Partly(request if found is None else found.request, finish)


_TRANSACTIONS: Final = items(
    "DescribeTransactions",
    "transactional_ids",
    "transaction_states",
    needs(Operation.DESCRIBE, TRANSACTION, itself),
    lambda item, error: bodies.DescribeTransactionsResponse.TransactionState(
        transactional_id=item, error_code=error.code
    ),
)


def _listed_transactions(response: KafkaResponse[Any], access: Access) -> KafkaResponse[Any]:
    states = response.body.transaction_states
    response.body.transaction_states = [
        item for item in states if access.may(Operation.DESCRIBE, TRANSACTION, item.transactional_id)
    ]
    return response


def _refused_marker(item: Any, error: AuthorizationError) -> Any:
    answer = bodies.WriteTxnMarkersResponse
    return answer.WritableTxnMarkerResult(
        producer_id=item.producer_id,
        topics=[
            answer.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    answer.WritableTxnMarkerPartitionResult(partition_index=number, error_code=error.code)
                    for number in topic.partition_indexes
                ],
            )
            for topic in item.topics
        ],
    )


def _group_id(request: Any) -> str:
    return str(request.body.group_id)


def _transactional_id(request: Any) -> str:
    return str(request.body.transactional_id)


KAFKA_TRANSACTION_RULES: Final[dict[int, Rule]] = {
    KafkaApi.ADD_PARTITIONS_TO_TXN: _add_partitions,
    KafkaApi.ADD_OFFSETS_TO_TXN: both(
        named(Operation.WRITE, TRANSACTION, _transactional_id), named(Operation.READ, GROUP, _group_id)
    ),
    KafkaApi.END_TXN: named(Operation.WRITE, TRANSACTION, _transactional_id),
    KafkaApi.TXN_OFFSET_COMMIT: _commit,
    KafkaApi.WRITE_TXN_MARKERS: items(
        "WriteTxnMarkers", "markers", "markers", of_cluster(Operation.ALTER), _refused_marker
    ),
    KafkaApi.DESCRIBE_TRANSACTIONS: _described_transactions,
    KafkaApi.LIST_TRANSACTIONS: shown(_listed_transactions),
}
