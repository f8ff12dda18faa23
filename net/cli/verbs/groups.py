"""`barnabas group ...`: consumer groups, their lag, and why they rebalanced. `seek` moves their offsets."""

from collections.abc import Sequence
from typing import Final

from barnabas.log.vocabulary.group_messages import TopicPartitions
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.protocol.group_responses import DescribeGroupResponse
from barnabas.net.protocol.lag import Lag

from ..frame.command import Context, Verb, name_argument, no_arguments
from ..frame.exit_codes import ExitCode
from ..frame.output import Row
from .group_explain import explain, explain_arguments
from .seek import SEEK

_LAG_COLUMNS: Final = ("topic", "partition", "committed", "log_end_offset", "lag", "lag_seconds", "member")


async def _list(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        groups = await admin.list_groups()
    rows = [
        {"group": group.group_id, "state": group.state, "protocol": group.protocol, "members": group.member_count}
        for group in sorted(groups, key=lambda group: group.group_id)
    ]
    context.out.rows(rows, ("group", "state", "protocol", "members"))
    return ExitCode.OK


async def _describe(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        group = await admin.describe_group(context.arguments.name)
        lags = await admin.group_offsets(group.group_id)
    owners = _owners(group)
    rows = [_lag_row(place, lag, owners.get(place)) for place, lag in sorted(lags.items())]
    members = _member_rows(group)
    summary: Row = {
        "group": group.group_id,
        "state": group.state,
        "coordinator": group.coordinator,
        "assignor": group.assignor,
        "epoch": group.group_epoch,
        "lag": sum(lag.lag for lag in lags.values()),
        "lag_seconds": max((lag.lag_seconds for lag in lags.values() if lag.lag_seconds is not None), default=None),
    }
    if context.out.is_json:
        context.out.record({**summary, "members": members, "partitions": rows})
        return ExitCode.OK
    context.out.record({**summary, "members": len(members)})
    for table, columns in ((members, ("member", "client_id", "host", "epoch", "assigned")), (rows, _LAG_COLUMNS)):
        if table:
            context.out.text()
            context.out.rows(table, columns)
    return ExitCode.OK


def _owners(group: DescribeGroupResponse) -> dict[TopicPartition, str]:
    return {
        TopicPartition(owned.topic, partition): member.member_id
        for member in group.members
        for owned in member.assigned
        for partition in owned.partitions
    }


def _lag_row(place: TopicPartition, lag: Lag, member: str | None) -> Row:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "committed": lag.committed if lag.has_committed else None,
        "log_start_offset": lag.log_start_offset,
        "log_end_offset": lag.log_end_offset,
        "lag": lag.lag,
        "lag_seconds": lag.lag_seconds,
        "lag_is_estimate": lag.is_estimate,
        "member": member,
    }


def _member_rows(group: DescribeGroupResponse) -> list[Row]:
    return [
        {
            "member": member.member_id,
            "instance": member.instance_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "epoch": member.member_epoch,
            "topics": member.subscribed_topics,
            "assigned": _partition_names(member.assigned),
            "target": _partition_names(member.target),
        }
        for member in group.members
    ]


def _partition_names(owned: Sequence[TopicPartitions]) -> list[str]:
    return [f"{item.topic}-{partition}" for item in owned for partition in item.partitions]


async def _delete(context: Context) -> int:
    name = context.arguments.name
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.delete_group(name)
    context.out.line(f"deleted group {name}", {"group": name, "deleted": True})
    return ExitCode.OK


_ONE_GROUP = name_argument("GROUP")

VERBS = (
    Verb(name="list", summary="list the groups", arguments=no_arguments, run=_list),
    Verb(name="describe", summary="members, offsets and lag", arguments=_ONE_GROUP, run=_describe),
    Verb(
        name="explain",
        summary="why the group rebalanced, and partitions without a reader",
        arguments=explain_arguments,
        run=explain,
    ),
    SEEK,
    Verb(name="delete", summary="delete a group without members", arguments=_ONE_GROUP, run=_delete),
)
