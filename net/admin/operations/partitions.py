"""A partition over HTTP: move it, choose its leader, delete its oldest records."""

from http import HTTPStatus
from typing import Final

from ..frame import shapes
from ..frame.call import Call, Field, Reply, Route
from ..frame.errors import bad_request
from ..routes.topics import PARTITION
from .brokers import THROTTLE

MAX_REPLICAS: Final = 1_000  # in a request


def _replicas(call: Call) -> list[int]:
    given = call.body["replicas"]
    if not 0 < len(given) <= MAX_REPLICAS or not all(type(node) is int and node >= 0 for node in given):
        raise bad_request("replicas must be a list of broker ids, the preferred leader first, such as [1, 2, 3]")
    return list(given)


async def _move(call: Call) -> Reply:
    topic, index, _ = call.partition()
    replicas, throttle = _replicas(call), call.body.get(THROTTLE.name) or 0
    await call.ask(
        lambda admin: admin.assign_replicas(topic.name, index, replicas, throttle_bytes_per_s=max(0, throttle))
    )
    body = {"topic_name": topic.name, "partition_id": index, "replicas": replicas}
    return Reply(status=HTTPStatus.ACCEPTED, body=body)


async def _cancel(call: Call) -> Reply:
    topic, index, _ = call.partition()
    await call.ask(lambda admin: admin.assign_replicas(topic.name, index, ()))
    return Reply(status=HTTPStatus.NO_CONTENT)


async def _lead(call: Call) -> Reply:
    topic, index, _ = call.partition()
    target, accept_loss = call.body.get("broker_id"), bool(call.body.get("accept_loss"))
    if accept_loss and target is not None:
        raise bad_request("with accept_loss, the longest log of the replicas that are there leads: leave out broker_id")
    await call.ask(lambda admin: admin.elect_leader(topic.name, index, target=target, unclean=accept_loss))
    found = await call.ask(lambda admin: admin.describe_topic(topic.name))
    leader = found.partitions[index].leader
    return Reply(body={"topic_name": topic.name, "partition_id": index, "leader": leader if leader >= 0 else None})


async def _delete_records(call: Call) -> Reply:
    topic, index, _ = call.partition()
    before = call.query.get("before_offset")
    if before is None:
        raise bad_request("the parameter before_offset is missing: records before this offset are deleted")
    start = await call.ask(lambda admin: admin.delete_records(topic.name, index, before_offset=before))
    return Reply(body={"topic_name": topic.name, "partition_id": index, "start_offset": start})


_PLACE: Final = (shapes.text("topic_name", "The topic."), shapes.whole("partition_id", "The partition."))

ROUTES = (
    Route(
        method="POST",
        path=f"{PARTITION}/reassignment",
        handler=_move,
        summary="Move a partition to other brokers",
        body=(
            Field(name="replicas", type="array", description="broker ids, the preferred leader first", required=True),
            THROTTLE,
        ),
        answer=(*_PLACE, shapes.wholes("replicas", "Where it moves.")),
        status=HTTPStatus.ACCEPTED,
    ),
    Route(
        method="DELETE",
        path=f"{PARTITION}/reassignment",
        handler=_cancel,
        summary="Cancel a move: the partition stays where it was",
        status=HTTPStatus.NO_CONTENT,
    ),
    Route(
        method="POST",
        path=f"{PARTITION}/leader",
        handler=_lead,
        summary="Choose the leader of a partition",
        body=(
            Field(name="broker_id", type="integer", description="an in-sync replica; none: the preferred one"),
            Field(
                name="accept_loss",
                type="boolean",
                description="give up what the replicas that are away have: the longest log of the others leads",
            ),
        ),
        answer=(*_PLACE, shapes.whole("leader", "The leader; null: none.", null=True)),
    ),
    Route(
        method="DELETE",
        path=f"{PARTITION}/records",
        handler=_delete_records,
        summary="Delete the oldest records of a partition",
        query=(Field(name="before_offset", type="integer", description="Records before it are deleted."),),
        answer=(*_PLACE, shapes.whole("start_offset", "The new start of the log.")),
    ),
)
