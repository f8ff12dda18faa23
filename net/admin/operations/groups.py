"""A consumer group over HTTP: remove a member, forget the offsets of a topic."""

from http import HTTPStatus

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.admin.group_members import delete_offsets, remove_member

from ..frame import shapes
from ..frame.call import Call, Field, Reply, Route
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


ROUTES = (
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
