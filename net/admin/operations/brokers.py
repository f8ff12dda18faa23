"""/v3/.../brokers/{broker_id}/barnabas/...: drain, fill and decommission a broker; moves and how far they are."""

from dataclasses import replace
from http import HTTPStatus
from typing import Final

from barnabas.net.wire.protocol.responses import PartitionMove

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route
from ..routes.clusters import BROKER, CLUSTER, broker_of

THROTTLE: Final = Field(
    name="throttle_bytes_per_s",
    type="integer",
    description="Copy limit of each broker in bytes per second, until all moves have ended; none: no limit.",
)


async def _drain(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    await call.ask(lambda admin: admin.shut_down_broker(node_id))
    return Reply(status=HTTPStatus.ACCEPTED, body={"broker_id": node_id, "draining": True})


async def _decommission(call: Call) -> Reply:
    node_id, throttle = broker_of(call).node_id, call.query.get(THROTTLE.name, 0)
    await call.ask(lambda admin: admin.decommission_broker(node_id, throttle_bytes_per_s=throttle))
    return Reply(status=HTTPStatus.ACCEPTED, body={"broker_id": node_id, "decommissioning": True})


async def _keep(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    await call.ask(lambda admin: admin.decommission_broker(node_id, cancel=True))
    return Reply(status=HTTPStatus.NO_CONTENT)


async def _fill(call: Call) -> Reply:
    node_id, throttle = broker_of(call).node_id, call.query.get(THROTTLE.name, 0)
    count = await call.ask(lambda admin: admin.fill_broker(node_id, throttle_bytes_per_s=throttle))
    return Reply(status=HTTPStatus.ACCEPTED, body={"broker_id": node_id, "moves_count": count})


async def _unregister(call: Call) -> Reply:
    node_id = broker_of(call).node_id
    await call.ask(lambda admin: admin.unregister_broker(node_id))
    return Reply(status=HTTPStatus.NO_CONTENT)


async def _moves(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.describe_moves())
    answer = call.listed("BarnabasMoveList", ("barnabas", "moves"), [_move(call, move) for move in found.moves])
    assert isinstance(answer.body, dict)
    return Reply(body={**answer.body, THROTTLE.name: found.throttle_bytes_per_s})


def _move(call: Call, move: PartitionMove) -> Json:
    path = ("topics", move.topic, "partitions", move.partition, "reassignment")
    return call.item(
        "BarnabasMove",
        path,
        {
            "topic_name": move.topic,
            "partition_id": move.partition,
            "leader": move.leader if move.leader >= 0 else None,
            "replicas": list(move.replicas),
            "adding_replicas": list(move.adding),
            "removing_replicas": list(move.removing),
            "catching_up": [
                {
                    "broker_id": item.node_id,
                    "records_left": item.records_left if item.records_left >= 0 else None,
                    "bytes_left": item.bytes_left if item.bytes_left >= 0 else None,
                }
                for item in move.catching_up
            ],
        },
    )


_ACCEPTED: Final = (shapes.whole("broker_id", "The broker."),)
_MOVE: Final = shapes.item(
    "BarnabasMove",
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.whole("leader", "The leader; null: none.", null=True),
    shapes.wholes("replicas", "All replicas, those that leave too."),
    shapes.wholes("adding_replicas", "Brokers that it moves to."),
    shapes.wholes("removing_replicas", "Brokers that it leaves."),
    shapes.rows(
        "catching_up",
        "New replicas, and what they still copy.",
        shapes.whole("broker_id", "The broker."),
        shapes.whole("records_left", "Records to copy; null: unknown.", null=True),
        shapes.whole("bytes_left", "Bytes to copy; null: unknown.", null=True),
    ),
)

ROUTES = (
    Route(
        method="POST",
        path=f"{BROKER}/barnabas/drain",
        handler=_drain,
        summary="Have a broker hand over its leaderships and stop",
        answer=(*_ACCEPTED, shapes.flag("draining", "True.")),
        status=HTTPStatus.ACCEPTED,
    ),
    Route(
        method="POST",
        path=f"{BROKER}/barnabas/decommission",
        handler=_decommission,
        summary="Move all replicas off a broker; when it has none, drain it, then delete it",
        query=(THROTTLE,),
        answer=(*_ACCEPTED, shapes.flag("decommissioning", "True.")),
        status=HTTPStatus.ACCEPTED,
    ),
    Route(
        method="DELETE",
        path=f"{BROKER}/barnabas/decommission",
        handler=_keep,
        summary="Cancel the decommission of a broker; replicas that have moved stay where they are",
        status=HTTPStatus.NO_CONTENT,
    ),
    Route(
        method="POST",
        path=f"{BROKER}/barnabas/fill",
        handler=_fill,
        summary="Move a fair share of replicas to a broker",
        query=(THROTTLE,),
        answer=(*_ACCEPTED, shapes.whole("moves_count", "Moves that have begun.")),
        status=HTTPStatus.ACCEPTED,
    ),
    Route(
        method="DELETE",
        path=BROKER,
        handler=_unregister,
        summary="Remove a stopped broker that holds no replicas from the cluster",
        status=HTTPStatus.NO_CONTENT,
    ),
    Route(
        method="GET",
        path=f"{CLUSTER}/barnabas/moves",
        handler=_moves,
        summary="Moves in progress, and what is left to copy",
        answer=shapes.listed("BarnabasMoveList", _MOVE, replace(THROTTLE, required=True)),
    ),
)
