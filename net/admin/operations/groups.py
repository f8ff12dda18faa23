"""A consumer group over HTTP: remove a member, forget the offsets of a topic; the partitions of a share group."""

from http import HTTPStatus
from typing import Final

from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL, SharePartitionView, known
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.admin.group_members import delete_offsets, remove_member
from barnabas.net.server.access.own_rules import visible_group

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route
from ..frame.errors import bad_request, not_found
from ..routes.groups import CONSUMER, GROUP


async def _remove(call: Call) -> Reply:
    group_id, member_id = call.path["consumer_group_id"], call.path["consumer_id"]

    async def remove(admin: Admin) -> None:
        members = (await admin.describe_group(group_id)).members
        found = next((item for item in members if item.member_id == member_id), None)
        if found is None:
            raise not_found(f"group {group_id} has no member {member_id}")
        await remove_member(admin, group_id, found)

    await call.ask(remove)
    return Reply(status=HTTPStatus.NO_CONTENT)


async def _forget(call: Call) -> Reply:
    group_id, topic = call.path["consumer_group_id"], call.path["topic_name"]
    only = call.query.get("partition_id")

    async def forget(admin: Admin) -> list[TopicPartition]:
        known = [place for place in await admin.group_offsets(group_id, only_reachable=True) if place.topic == topic]
        places = known if only is None else [place for place in known if place.partition == only]
        if not places:
            raise not_found(f"group {group_id} has no committed offset there")
        await delete_offsets(admin, group_id, places)
        return places

    if only is not None and only < 0:
        raise bad_request("partition_id must not be negative")
    places = await call.ask(forget)
    return Reply(body={"topic_name": topic, "partition_ids": sorted(place.partition for place in places)})


async def _share_partitions(call: Call) -> Reply:
    group_id = call.path["consumer_group_id"]
    found = await call.ask(lambda admin: admin.describe_group(group_id, shares=True))
    if found.protocol != SHARE_PROTOCOL:
        raise bad_request(f"group {group_id} is not a share group; its offsets are at /consumer-groups/{group_id}/lags")
    if call.access is not None:
        found = visible_group(found, call.access)
    path = ("consumer-groups", group_id, "share-partitions")
    return call.listed(
        "BarnabasSharePartitionList", path, [_share_partition(call, group_id, view) for view in found.shares]
    )


def _share_partition(call: Call, group_id: str, view: SharePartitionView) -> Json:
    return call.item(
        "BarnabasSharePartition",
        ("consumer-groups", group_id, "share-partitions", view.topic, view.partition),
        {
            "consumer_group_id": group_id,
            "topic_name": view.topic,
            "partition_id": view.partition,
            "start_offset": view.start_offset,
            "log_end_offset": known(view.log_end_offset),
            "lag": known(view.lag),
            "acquired": known(view.acquired),
            "deliveries": [{"deliveries": item.deliveries, "records": item.count} for item in view.deliveries],
        },
    )


_SHARE_PARTITION: Final = shapes.item(
    "BarnabasSharePartition",
    shapes.text("consumer_group_id", "The share group."),
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.whole("start_offset", "Every record before it is acknowledged or archived."),
    shapes.whole("log_end_offset", "The end of the log; null: the leader does not answer.", null=True),
    shapes.whole("lag", "Records that are neither acknowledged nor archived; null: unknown.", null=True),
    shapes.whole("acquired", "Of these, records that members hold now; null: unknown.", null=True),
    shapes.rows(
        "deliveries",
        "Of these, records that were given out at least once.",
        shapes.whole("deliveries", "How often."),
        shapes.whole("records", "Number of records."),
    ),
)

ROUTES = (
    Route(
        method="GET",
        path=f"{GROUP}/share-partitions",
        handler=_share_partitions,
        summary="What a share group has done in each partition",
        answer=shapes.listed("BarnabasSharePartitionList", _SHARE_PARTITION),
    ),
    Route(
        method="DELETE",
        path=CONSUMER,
        handler=_remove,
        summary="Remove a member that does not leave by itself",
        status=HTTPStatus.NO_CONTENT,
    ),
    Route(
        method="DELETE",
        path=f"{GROUP}/offsets/{{topic_name}}",
        handler=_forget,
        summary="Forget the offsets of a topic that no member reads",
        query=(Field(name="partition_id", type="integer", description="Only of this partition."),),
        answer=(
            shapes.text("topic_name", "The topic."),
            shapes.wholes("partition_ids", "Whose offsets are forgotten."),
        ),
    ),
)
