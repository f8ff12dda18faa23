"""`barnabas group ...`: consumer groups, their lag, why they rebalanced, and moving their offsets."""

import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.log.topic_partition import TopicPartition
from barnabas.net.protocol.requests import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, OwnedPartitions
from barnabas.net.protocol.responses import DescribeGroupResponse

from .command import Context, Verb, name_argument, no_arguments
from .consume import positions
from .exit_codes import CommandError, ExitCode, not_available_yet
from .group_explain import explain, explain_arguments
from .output import Row
from .sdk import AdminPort, PartitionLag

_LAG_COLUMNS: Final = ("topic", "partition", "committed", "log_end_offset", "lag", "lag_seconds", "member")
_SEEK_TARGET: Final = re.compile(r"start|end|@\d+|[+-]?\d+")


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
    rows = [_lag_row(lag, owners.get(TopicPartition(lag.topic, lag.partition))) for lag in lags]
    members = _member_rows(group)
    summary: Row = {
        "group": group.group_id,
        "state": group.state,
        "coordinator": group.coordinator,
        "assignor": group.assignor,
        "epoch": group.group_epoch,
        "lag": sum(lag.lag for lag in lags),
        "lag_seconds": max((lag.lag_seconds for lag in lags if lag.lag_seconds is not None), default=None),
    }
    if context.out.is_json:
        context.out.record({**summary, "members": members, "partitions": rows})
        return ExitCode.OK
    context.out.record({**summary, "members": len(members)})
    for table, columns in ((members, ("member", "client_id", "host", "epoch", "assigned")), (rows, _LAG_COLUMNS)):
        if table:
            print(file=context.out.stdout)
            context.out.rows(table, columns)
    return ExitCode.OK


def _owners(group: DescribeGroupResponse) -> dict[TopicPartition, str]:
    return {
        TopicPartition(owned.topic, partition): member.member_id
        for member in group.members
        for owned in member.assigned
        for partition in owned.partitions
    }


def _lag_row(lag: PartitionLag, member: str | None) -> Row:
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed if lag.committed >= 0 else None,
        "log_start_offset": lag.log_start_offset,
        "log_end_offset": lag.log_end_offset,
        "lag": lag.lag,
        "lag_seconds": lag.lag_seconds,
        "lag_is_estimate": lag.lag_is_estimate,
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


def _partition_names(owned: Sequence[OwnedPartitions]) -> list[str]:
    return [f"{item.topic}-{partition}" for item in owned for partition in item.partitions]


def _seek_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="GROUP", help="the group")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", metavar="WHERE", help="start, end, @timestamp in ms, an offset N, or +N and -N relative")
    what.add_argument("--undo", action="store_true", help="take back the last seek")
    parser.add_argument("-t", "--topic", action="append", default=[], metavar="TOPIC", help="only these; or new ones")
    parser.add_argument("--preview", action="store_true", help="show what would change, change nothing")


async def _seek(context: Context) -> int:
    wanted = context.arguments
    if wanted.undo:
        raise not_available_yet("group seek --undo; note the offsets that `group describe` shows before you seek")
    if not _SEEK_TARGET.fullmatch(wanted.to):
        raise CommandError(f"--to {wanted.to}: give start, end, @timestamp in ms, N, +N or -N", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        before = await _committed(admin, wanted.name, wanted.topic)
        if not before:
            raise CommandError(f"group {wanted.name} has no committed offsets; name topics with -t TOPIC")
        after = await _targets(admin, before, wanted.to)
        if not wanted.preview:
            await admin.reset_offsets(wanted.name, after)
    rows: list[Row] = [
        {"topic": place.topic, "partition": place.partition, "before": before[place], "after": offset}
        for place, offset in sorted(after.items())
    ]
    context.out.rows(rows, ("topic", "partition", "before", "after"))
    context.out.note("nothing was changed (--preview)" if wanted.preview else f"group {wanted.name} was moved")
    return ExitCode.OK


async def _committed(admin: AdminPort, group: str, topics: Sequence[str]) -> dict[TopicPartition, int | None]:
    """Every partition that the seek concerns, with what is committed there."""
    found: dict[TopicPartition, int | None] = {}
    for topic in topics:
        count = len((await admin.describe_topic(topic)).partitions)
        found.update({TopicPartition(topic, partition): None for partition in range(count)})
    for lag in await admin.group_offsets(group):
        if not topics or lag.topic in topics:
            found[TopicPartition(lag.topic, lag.partition)] = lag.committed if lag.committed >= 0 else None
    return found


async def _targets(
    admin: AdminPort, before: Mapping[TopicPartition, int | None], where: str
) -> dict[TopicPartition, int]:
    """New offsets, held within what the log has: a group behind either end would be reset by its own policy."""
    if where[0] in "+-":
        step = int(where)
        found = {place: offset + step for place, offset in before.items() if offset is not None}
    else:
        found = dict(await positions(admin, before, where))
    lowest = await admin.list_offsets(dict.fromkeys(found, EARLIEST_TIMESTAMP))
    highest = await admin.list_offsets(dict.fromkeys(found, LATEST_TIMESTAMP))
    return {place: min(max(offset, lowest[place]), highest[place]) for place, offset in found.items()}


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
    Verb(name="explain", summary="why it rebalanced, what nobody reads", arguments=explain_arguments, run=explain),
    Verb(name="seek", summary="move committed offsets", arguments=_seek_arguments, run=_seek),
    Verb(name="delete", summary="delete a group without members", arguments=_ONE_GROUP, run=_delete),
)
