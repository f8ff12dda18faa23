"""Transactions of producers: paths of Barnabas that Confluent's API does not have."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from barnabas.log.vocabulary.access.acls import ResourceKind
from barnabas.net.wire.protocol.transaction_operations import ListedTransaction

from ..frame import shapes
from ..frame.call import Call, Json, Reply, Route
from .clusters import CLUSTER

TRANSACTIONS = f"{CLUSTER}/transactions"
HANGING = f"{CLUSTER}/hanging-transactions"


def _fields(item: ListedTransaction) -> Json:
    return {
        "transactional_id": item.transactional_id,
        "state": item.state,
        "producer_id": item.producer_id,
        "producer_epoch": item.producer_epoch,
        "coordinator_id": item.coordinator,
        "timeout_ms": item.timeout_ms,
        "duration_ms": None if item.duration_ms < 0 else item.duration_ms,
        "partition_count": item.partition_count,
        "group_count": item.group_count,
        "prepared_for": item.prepared_for or None,
    }


async def _list(call: Call) -> Reply:
    if not call.shows_some(ResourceKind.TRANSACTIONAL_ID):
        return _listed(call, (), 0)
    found = await call.ask(lambda admin: admin.transactions.list())
    return _listed(call, found.transactions, found.left_out)


def _listed(call: Call, transactions: Sequence[ListedTransaction], left_out: int) -> Reply:
    data = [
        call.item("BarnabasTransaction", ("transactions", item.transactional_id), _fields(item))
        for item in transactions
    ]
    reply = call.listed("BarnabasTransactionList", ("transactions",), data)
    assert isinstance(reply.body, dict)
    reply.body["left_out"] = left_out
    return reply


async def _describe(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.transactions.describe(call.path["transactional_id"]))
    partitions = [
        {
            "topic_name": item.partition.topic,
            "partition_id": item.partition.partition,
            "last_stable_offset": item.last_stable_offset,
            "high_watermark": item.high_watermark,
            "lag": item.lag,
        }
        for item in found.partitions
    ]
    fields = _fields(found.summary) | {
        "started_ms": None if found.said.started_ms < 0 else found.said.started_ms,
        "groups": list(found.said.groups),
        "partitions": partitions,
    }
    return Reply(body=call.item("BarnabasTransaction", ("transactions", found.summary.transactional_id), fields))


async def _abort(call: Call) -> Reply:
    await call.ask(lambda admin: admin.transactions.abort(call.path["transactional_id"]))
    return Reply(status=HTTPStatus.NO_CONTENT)


async def _hanging(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.transactions.hanging())
    data = [
        call.item(
            "BarnabasHangingTransaction",
            ("topics", item.topic, "partitions", item.partition, "hanging-transactions", item.producer_id),
            {
                "topic_name": item.topic,
                "partition_id": item.partition,
                "producer_id": item.producer_id,
                "producer_epoch": item.producer_epoch,
                "first_offset": item.first_offset,
                "age_ms": item.age_ms,
            },
        )
        for item in found
    ]
    return call.listed("BarnabasHangingTransactionList", ("hanging-transactions",), data)


async def _abort_hanging(call: Call) -> Reply:
    topic, index, _ = call.partition()
    producer_id = call.number("producer_id")
    await call.ask(lambda admin: admin.transactions.abort_hanging(topic.name, index, producer_id=producer_id))
    return Reply(status=HTTPStatus.NO_CONTENT)


_TRANSACTION: Final = shapes.item(
    "BarnabasTransaction",
    shapes.text("transactional_id", "The transactional id."),
    shapes.text("state", "Ongoing, Empty, ..."),
    shapes.whole("producer_id", "The producer."),
    shapes.whole("producer_epoch", "Counts its instances."),
    shapes.whole("coordinator_id", "The broker that keeps its state."),
    shapes.whole("timeout_ms", "The longest time that a transaction may be open."),
    shapes.whole("duration_ms", "How long it is open; null: it is not.", null=True),
    shapes.whole("partition_count", "Partitions in it."),
    shapes.whole("group_count", "Groups in it."),
    shapes.text("prepared_for", "What a prepared transaction waits for; null: it is not prepared.", null=True),
)
_OPEN: Final = (
    *_TRANSACTION,
    shapes.whole("started_ms", "When it began, in milliseconds since 1970; null: it has not.", null=True),
    shapes.texts("groups", "Groups whose offsets it commits."),
    shapes.rows(
        "partitions",
        "Partitions that it writes to.",
        shapes.text("topic_name", "The topic."),
        shapes.whole("partition_id", "The partition."),
        shapes.whole("last_stable_offset", "Where readers of committed records wait."),
        shapes.whole("high_watermark", "Where other readers are."),
        shapes.whole("lag", "Offsets between both."),
    ),
)
_HUNG: Final = shapes.item(
    "BarnabasHangingTransaction",
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.whole("producer_id", "The producer."),
    shapes.whole("producer_epoch", "Counts its instances."),
    shapes.whole("first_offset", "Where it begins."),
    shapes.whole("age_ms", "How old its first record is."),
)

ROUTES = (
    Route(
        method="GET",
        path=TRANSACTIONS,
        handler=_list,
        summary="All transactional ids, and their transactions",
        answer=shapes.listed(
            "BarnabasTransactionList",
            _TRANSACTION,
            shapes.whole("left_out", "Transactions that did not fit into the answer."),
        ),
    ),
    Route(
        method="GET",
        path=TRANSACTIONS + "/{transactional_id}",
        handler=_describe,
        summary="One transactional id, and the partitions of its open transaction with their last stable offsets",
        answer=_OPEN,
    ),
    Route(
        method="DELETE",
        path=TRANSACTIONS + "/{transactional_id}",
        handler=_abort,
        summary="Abort the open transaction of an id, and fence its producer",
        status=HTTPStatus.NO_CONTENT,
    ),
    Route(
        method="GET",
        path=HANGING,
        handler=_hanging,
        summary="Transactions in partitions that no coordinator knows: readers of committed records wait for them",
        answer=shapes.listed("BarnabasHangingTransactionList", _HUNG),
    ),
    Route(
        method="DELETE",
        path=f"{CLUSTER}/topics/{{topic_name}}/partitions/{{partition_id}}/hanging-transactions/{{producer_id}}",
        handler=_abort_hanging,
        summary="Abort a transaction that hangs in a partition",
        status=HTTPStatus.NO_CONTENT,
    ),
)
