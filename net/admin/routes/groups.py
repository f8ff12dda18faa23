"""Consumer groups, their members and their lag."""

from http import HTTPStatus
from typing import Final

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.acls import ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.server.access.own_rules import visible_group
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, GroupMember, ListedGroup

from ..frame import shapes
from ..frame.call import Call, Json, Reply, Route
from ..frame.errors import kafka_error, not_found
from ..frame.lags import GroupLag, lags_of
from ..frame.paging import PAGE, paged
from .clusters import CLUSTER

GROUPS = f"{CLUSTER}/consumer-groups"
GROUP = GROUPS + "/{consumer_group_id}"
CONSUMER = GROUP + "/consumers/{consumer_id}"


async def _describe(call: Call) -> DescribeGroupResponse:
    found = await call.ask(lambda admin: admin.describe_group(call.path["consumer_group_id"]))
    return found if call.access is None else visible_group(found, call.access)


def _group(call: Call, name: str, state: str, assignor: str, coordinator: int, protocol: str) -> Json:
    return call.item(
        "KafkaConsumerGroup",
        ("consumer-groups", name),
        {
            "consumer_group_id": name,
            "is_simple": False,
            "partition_assignor": assignor,
            "state": state.upper().replace(" ", "_"),
            "protocol": protocol,
            "coordinator": call.related("brokers", coordinator) if coordinator >= 0 else None,
            "consumers": call.related("consumer-groups", name, "consumers"),
            "lag_summary": call.related("consumer-groups", name, "lag-summary"),
        },
    )


def _coordinator(image: MetadataImage, group: ListedGroup) -> int:
    return image.slots[slot_of(group.group_id)].coordinator


async def _list(call: Call) -> Reply:
    groups = await call.ask(lambda admin: admin.list_groups()) if call.shows_some(ResourceKind.GROUP) else []
    # Before pages are made: the address of the next page has the name of a group.
    found = {group.group_id: group for group in groups if call.shows_group(group.group_id)}
    return paged(
        call,
        "KafkaConsumerGroupList",
        ("consumer-groups",),
        sorted(found),
        lambda name: _group(
            call, name, found[name].state, "", _coordinator(call.image, found[name]), found[name].protocol
        ),
    )


async def _get(call: Call) -> Reply:
    group = await _describe(call)
    return Reply(body=_group(call, group.group_id, group.state, group.assignor, group.coordinator, group.protocol))


async def _delete(call: Call) -> Reply:
    await call.ask(lambda admin: admin.delete_group(call.path["consumer_group_id"]))
    return Reply(status=HTTPStatus.NO_CONTENT)


def _consumer(call: Call, group: str, member: GroupMember) -> Json:
    path = ("consumer-groups", group, "consumers", member.member_id)
    return call.item(
        "KafkaConsumer",
        path,
        {
            "consumer_group_id": group,
            "consumer_id": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "member_epoch": member.member_epoch,
            "assignments": call.related(*path, "assignments"),
        },
    )


def _member(call: Call, group: DescribeGroupResponse) -> GroupMember:
    wanted = call.path["consumer_id"]
    for member in group.members:
        if member.member_id == wanted:
            return member
    raise not_found(f"group {group.group_id} has no member {wanted}")


async def _list_consumers(call: Call) -> Reply:
    group = await _describe(call)
    data = [_consumer(call, group.group_id, member) for member in group.members]
    return call.listed("KafkaConsumerList", ("consumer-groups", group.group_id, "consumers"), data)


async def _get_consumer(call: Call) -> Reply:
    group = await _describe(call)
    return Reply(body=_consumer(call, group.group_id, _member(call, group)))


async def _assignments(call: Call) -> Reply:
    group = await _describe(call)
    member = _member(call, group)
    path = ("consumer-groups", group.group_id, "consumers", member.member_id, "assignments")
    data = [
        call.item(
            "KafkaConsumerAssignment",
            (*path, owned.topic, partition),
            {
                "consumer_group_id": group.group_id,
                "consumer_id": member.member_id,
                "topic_name": owned.topic,
                "partition_id": partition,
            },
        )
        for owned in member.assigned
        for partition in owned.partitions
    ]
    return call.listed("KafkaConsumerAssignmentList", path, data)


def _lag(call: Call, group: str, found: GroupLag) -> Json:
    """Confluent's fields, and three of Barnabas. `current_offset` is -1 without a committed offset: everything is unread."""
    lag, member = found.lag, found.member
    return call.item(
        "KafkaConsumerLag",
        ("consumer-groups", group, "lags", found.place.topic, "partitions", found.place.partition),
        {
            "consumer_group_id": group,
            "topic_name": found.place.topic,
            "partition_id": found.place.partition,
            "consumer_id": member.member_id if member else "",
            "instance_id": member.instance_id if member else None,
            "client_id": member.client_id if member else "",
            "current_offset": lag.committed,
            "log_end_offset": lag.log_end_offset,
            "lag": lag.lag,
            "has_committed": lag.has_committed,
            "lag_seconds": lag.lag_seconds,
            "lag_is_estimate": lag.is_estimate,
        },
    )


async def _lags(call: Call) -> Reply:
    group = await _describe(call)
    data = [_lag(call, group.group_id, found) for found in await lags_of(call, group)]
    return call.listed("KafkaConsumerLagList", ("consumer-groups", group.group_id, "lags"), data)


async def _get_lag(call: Call) -> Reply:
    group = await _describe(call)
    wanted = TopicPartition(call.path["topic_name"], call.number("partition_id"))
    for found in await lags_of(call, group):
        if found.place == wanted:
            return Reply(body=_lag(call, group.group_id, found))
    raise kafka_error(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"group {group.group_id} neither owns nor has committed offsets for {wanted}",
    )


async def _lag_summary(call: Call) -> Reply:
    group = await _describe(call)
    lags = await lags_of(call, group)
    if not lags:
        raise not_found(f"group {group.group_id} owns no partition and has no committed offset, so it has no lag")
    worst = max(lags, key=lambda found: found.lag.lag)
    place, member = worst.place, worst.member
    path = ("consumer-groups", group.group_id)
    summary = call.item(
        "KafkaConsumerGroupLagSummary",
        (*path, "lag-summary"),
        {
            "consumer_group_id": group.group_id,
            "max_lag_consumer_id": member.member_id if member else "",
            "max_lag_instance_id": member.instance_id if member else None,
            "max_lag_client_id": member.client_id if member else "",
            "max_lag_topic_name": place.topic,
            "max_lag_partition_id": place.partition,
            "max_lag": worst.lag.lag,
            "max_lag_seconds": max(found.lag.lag_ms for found in lags) / 1000,
            "total_lag": sum(found.lag.lag for found in lags),
            "max_lag_partition": call.related("topics", place.topic, "partitions", place.partition),
        },
    )
    return Reply(body=summary)


_GROUP: Final = shapes.item(
    "KafkaConsumerGroup",
    shapes.text("consumer_group_id", "The group."),
    shapes.flag("is_simple", "False."),
    shapes.text("partition_assignor", "Who assigns partitions; empty in lists."),
    shapes.text("state", "STABLE, EMPTY, RECONCILING, ..."),
    shapes.text("protocol", "share: a share group. Otherwise how the members of a consumer group join."),
    shapes.link("coordinator", "The broker that keeps its state; null: none.", null=True),
    shapes.link("consumers", "Its members."),
    shapes.link("lag_summary", "Its lag."),
)
_CONSUMER: Final = shapes.item(
    "KafkaConsumer",
    shapes.text("consumer_group_id", "The group."),
    shapes.text("consumer_id", "The member."),
    shapes.text("instance_id", "Its static name.", null=True),
    shapes.text("client_id", "Its client id."),
    shapes.text("host", "Its address."),
    shapes.whole("member_epoch", "Counts its assignments."),
    shapes.link("assignments", "Its partitions."),
)
_ASSIGNMENT: Final = shapes.item(
    "KafkaConsumerAssignment",
    shapes.text("consumer_group_id", "The group."),
    shapes.text("consumer_id", "The member."),
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
)
_LAG: Final = shapes.item(
    "KafkaConsumerLag",
    shapes.text("consumer_group_id", "The group."),
    shapes.text("topic_name", "The topic."),
    shapes.whole("partition_id", "The partition."),
    shapes.text("consumer_id", "The member that reads it; empty: none."),
    shapes.text("instance_id", "The static name of the member.", null=True),
    shapes.text("client_id", "The client id of the member."),
    shapes.whole("current_offset", "The committed offset; -1: none."),
    shapes.whole("log_end_offset", "The end of the log."),
    shapes.whole("lag", "Records that it has not read."),
    shapes.flag("has_committed", "There is a committed offset."),
    shapes.number("lag_seconds", "Age of the oldest record that it has not read; null: unknown.", null=True),
    shapes.flag("lag_is_estimate", "The lag in seconds is estimated."),
)
_SUMMARY: Final = shapes.item(
    "KafkaConsumerGroupLagSummary",
    shapes.text("consumer_group_id", "The group."),
    shapes.text("max_lag_consumer_id", "The member with the largest lag; empty: none."),
    shapes.text("max_lag_instance_id", "Its static name.", null=True),
    shapes.text("max_lag_client_id", "Its client id."),
    shapes.text("max_lag_topic_name", "The topic with the largest lag."),
    shapes.whole("max_lag_partition_id", "The partition with the largest lag."),
    shapes.whole("max_lag", "The largest lag in one partition, in records."),
    shapes.number("max_lag_seconds", "Age of the oldest record that it has not read, in any partition."),
    shapes.whole("total_lag", "Records that it has not read."),
    shapes.link("max_lag_partition", "The partition with the largest lag."),
)

ROUTES = (
    Route(
        method="GET",
        path=GROUPS,
        handler=_list,
        summary="All consumer groups",
        query=PAGE,
        answer=shapes.listed("KafkaConsumerGroupList", _GROUP),
    ),
    Route(method="GET", path=GROUP, handler=_get, summary="One consumer group", answer=_GROUP),
    Route(method="DELETE", path=GROUP, handler=_delete, summary="Delete a group", status=HTTPStatus.NO_CONTENT),
    Route(
        method="GET",
        path=f"{GROUP}/consumers",
        handler=_list_consumers,
        summary="Members of a group",
        answer=shapes.listed("KafkaConsumerList", _CONSUMER),
    ),
    Route(method="GET", path=CONSUMER, handler=_get_consumer, summary="One member", answer=_CONSUMER),
    Route(
        method="GET",
        path=f"{CONSUMER}/assignments",
        handler=_assignments,
        summary="Partitions of a member",
        answer=shapes.listed("KafkaConsumerAssignmentList", _ASSIGNMENT),
    ),
    Route(
        method="GET",
        path=f"{GROUP}/lags",
        handler=_lags,
        summary="Lag of a group in each partition",
        answer=shapes.listed("KafkaConsumerLagList", _LAG),
    ),
    Route(
        method="GET",
        path=f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}",
        handler=_get_lag,
        summary="Lag of a group in one partition",
        answer=_LAG,
    ),
    Route(
        method="GET",
        path=f"{GROUP}/lag-summary",
        handler=_lag_summary,
        summary="Total and worst lag of a group",
        answer=_SUMMARY,
    ),
)
