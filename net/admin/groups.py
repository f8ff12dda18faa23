"""Consumer groups, their members and their lag."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from barnabas.kraft.image import MetadataImage
from barnabas.log.errors import ErrorCode
from barnabas.log.murmur2 import murmur2_positive
from barnabas.log.topic_partition import TopicPartition
from barnabas.net.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DeleteGroupRequest,
    DescribeGroupRequest,
    ListGroupsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetFetchRequest,
)
from barnabas.net.protocol.responses import (
    DescribeGroupResponse,
    EmptyResponse,
    GroupMember,
    ListedGroup,
    ListGroupsResponse,
    ListOffsetsResponse,
    OffsetFetchResponse,
)

from .call import Call, Json, Reply, Route
from .clusters import CLUSTER
from .errors import kafka_error, not_found

GROUPS = f"{CLUSTER}/consumer-groups"
GROUP = GROUPS + "/{consumer_group_id}"
CONSUMER = GROUP + "/consumers/{consumer_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a group has come in one partition, and who reads it."""

    place: TopicPartition
    committed: int
    log_start_offset: int
    log_end_offset: int
    member: GroupMember | None

    @property
    def lag(self) -> int:
        """Records still to be read."""
        return max(self.log_end_offset - max(self.committed, self.log_start_offset), 0)


async def _describe(call: Call) -> DescribeGroupResponse:
    return await call.ask(DescribeGroupRequest(group_id=call.path["consumer_group_id"]), DescribeGroupResponse)


async def offsets_at(call: Call, places: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
    """Offsets of that time. A partition that cannot answer now (no leader, say) is left out."""
    if not places:
        return {}
    wanted = tuple(
        ListOffsetsPartition(topic=place.topic, partition=place.partition, timestamp_ms=timestamp_ms)
        for place in places
    )
    answer = await call.ask(ListOffsetsRequest(partitions=wanted), ListOffsetsResponse)
    return {TopicPartition(item.topic, item.partition): item.offset for item in answer.partitions if not item.error}


async def lags_of(call: Call, group: DescribeGroupResponse) -> list[Lag]:
    """The lag of a group in each partition where it has committed."""
    fetched = await call.ask(OffsetFetchRequest(group_id=group.group_id), OffsetFetchResponse)
    committed = {TopicPartition(item.topic, item.partition): item.offset for item in fetched.partitions}
    places = sorted(place for place, offset in committed.items() if offset >= 0)
    starts = await offsets_at(call, places, EARLIEST_TIMESTAMP)
    ends = await offsets_at(call, places, LATEST_TIMESTAMP)
    owners = {
        TopicPartition(owned.topic, partition): member
        for member in group.members
        for owned in member.assigned
        for partition in owned.partitions
    }
    return [
        Lag(
            place=place,
            committed=committed[place],
            log_start_offset=starts.get(place, 0),
            log_end_offset=ends[place],
            member=owners.get(place),
        )
        for place in places
        if place in ends
    ]


def _group(call: Call, name: str, state: str, assignor: str, coordinator: int) -> Json:
    return call.item(
        "KafkaConsumerGroup",
        ("consumer-groups", name),
        {
            "consumer_group_id": name,
            "is_simple": False,
            "partition_assignor": assignor,
            "state": state.upper().replace(" ", "_"),
            "coordinator": call.related("brokers", coordinator) if coordinator >= 0 else None,
            "consumers": call.related("consumer-groups", name, "consumers"),
            "lag_summary": call.related("consumer-groups", name, "lag-summary"),
        },
    )


def _coordinator(image: MetadataImage, group: ListedGroup) -> int:
    return image.slots[murmur2_positive(group.group_id.encode()) % len(image.slots)].coordinator


async def _list(call: Call) -> Reply:
    groups = (await call.ask(ListGroupsRequest(), ListGroupsResponse)).groups
    data = [
        _group(call, group.group_id, group.state, "", _coordinator(call.image, group))
        for group in sorted(groups, key=lambda group: group.group_id)
    ]
    return call.listed("KafkaConsumerGroupList", ("consumer-groups",), data)


async def _get(call: Call) -> Reply:
    group = await _describe(call)
    return Reply(body=_group(call, group.group_id, group.state, group.assignor, group.coordinator))


async def _delete(call: Call) -> Reply:
    await call.ask(DeleteGroupRequest(group_id=call.path["consumer_group_id"]), EmptyResponse)
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


def _lag(call: Call, group: str, lag: Lag) -> Json:
    return call.item(
        "KafkaConsumerLag",
        ("consumer-groups", group, "lags", lag.place.topic, "partitions", lag.place.partition),
        {
            "consumer_group_id": group,
            "topic_name": lag.place.topic,
            "partition_id": lag.place.partition,
            "consumer_id": lag.member.member_id if lag.member else "",
            "instance_id": lag.member.instance_id if lag.member else None,
            "client_id": lag.member.client_id if lag.member else "",
            "current_offset": lag.committed,
            "log_end_offset": lag.log_end_offset,
            "lag": lag.lag,
        },
    )


async def _lags(call: Call) -> Reply:
    group = await _describe(call)
    data = [_lag(call, group.group_id, lag) for lag in await lags_of(call, group)]
    return call.listed("KafkaConsumerLagList", ("consumer-groups", group.group_id, "lags"), data)


async def _get_lag(call: Call) -> Reply:
    group = await _describe(call)
    wanted = TopicPartition(call.path["topic_name"], call.number("partition_id"))
    for lag in await lags_of(call, group):
        if lag.place == wanted:
            return Reply(body=_lag(call, group.group_id, lag))
    raise kafka_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"group {group.group_id} has committed nothing in {wanted}")


async def _lag_summary(call: Call) -> Reply:
    group = await _describe(call)
    lags = await lags_of(call, group)
    if not lags:
        raise not_found(f"group {group.group_id} has committed nothing, so it has no lag")
    worst = max(lags, key=lambda lag: lag.lag)
    path = ("consumer-groups", group.group_id)
    summary = call.item(
        "KafkaConsumerGroupLagSummary",
        (*path, "lag-summary"),
        {
            "consumer_group_id": group.group_id,
            "max_lag_consumer_id": worst.member.member_id if worst.member else "",
            "max_lag_instance_id": worst.member.instance_id if worst.member else None,
            "max_lag_client_id": worst.member.client_id if worst.member else "",
            "max_lag_topic_name": worst.place.topic,
            "max_lag_partition_id": worst.place.partition,
            "max_lag": worst.lag,
            "total_lag": sum(lag.lag for lag in lags),
            "max_lag_partition": call.related("topics", worst.place.topic, "partitions", worst.place.partition),
        },
    )
    return Reply(body=summary)


ROUTES = (
    Route(method="GET", path=GROUPS, handler=_list, summary="All consumer groups"),
    Route(method="GET", path=GROUP, handler=_get, summary="One consumer group"),
    Route(method="DELETE", path=GROUP, handler=_delete, summary="Delete a group", status=HTTPStatus.NO_CONTENT),
    Route(method="GET", path=f"{GROUP}/consumers", handler=_list_consumers, summary="Members of a group"),
    Route(method="GET", path=CONSUMER, handler=_get_consumer, summary="One member"),
    Route(method="GET", path=f"{CONSUMER}/assignments", handler=_assignments, summary="Partitions of a member"),
    Route(method="GET", path=f"{GROUP}/lags", handler=_lags, summary="Lag of a group in each partition"),
    Route(
        method="GET",
        path=f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}",
        handler=_get_lag,
        summary="Lag of a group in one partition",
    ),
    Route(method="GET", path=f"{GROUP}/lag-summary", handler=_lag_summary, summary="Total and worst lag of a group"),
)
