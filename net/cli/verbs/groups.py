"""`barnabas group ...`: consumer groups, their lag, and why they rebalanced. `seek` moves their offsets."""

import asyncio
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import TopicPartitions
from barnabas.log.vocabulary.share.messages import SHARE_PROTOCOL, SharePartitionView, known
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse
from barnabas.net.wire.protocol.lag import Lag

from ...base.near_words import did_you_mean
from ...client.admin.group_members import delete_offsets, remove_member
from ..frame.command import Context, Verb, name_argument, number_from
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row
from .group_explain import explain, explain_arguments
from .seek import SEEK

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

MAX_GROUPS_WITH_LAG: Final = 1_000  # each costs a few requests
LAGS_AT_ONCE: Final = 16
LAG_WAIT_S: Final = 5.0  # for one group
_NO_LAG: Final[Row] = {"lag": None, "lag_seconds": None}
_SHARE_COLUMNS: Final = ("topic", "partition", "start_offset", "log_end_offset", "lag", "acquired", "deliveries")
_LAG_COLUMNS: Final = ("topic", "partition", "committed", "log_end_offset", "lag", "lag_seconds", "member")


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-lag", action="store_true", help="do not ask for the lag, which is a request for each group"
    )


async def _list(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        groups = await admin.list_groups()
        asked = [] if context.arguments.no_lag else [group.group_id for group in groups][:MAX_GROUPS_WITH_LAG]
        lags = await lags_of(admin, asked, min(LAG_WAIT_S, context.arguments.timeout / 3))
    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "protocol": group.protocol,
            "members": group.member_count,
            **lags.get(group.group_id, _NO_LAG),
        }
        for group in sorted(groups, key=lambda group: group.group_id)
    ]
    lag = () if context.arguments.no_lag else ("lag", "lag_seconds")
    context.out.rows(rows, ("group", "state", "protocol", "members", *lag))
    if len(groups) > MAX_GROUPS_WITH_LAG and not context.arguments.no_lag:
        context.out.note(f"lag is shown for the first {MAX_GROUPS_WITH_LAG} groups; /metrics has all of them")
    return ExitCode.OK


async def lags_of(admin: "Admin", group_ids: Sequence[str], wait_s: float) -> dict[str, Row]:
    """The sum and the age of each group's lag. A group that cannot be asked in time has none: the list is still of use."""
    gate = asyncio.Semaphore(LAGS_AT_ONCE)

    async def ask(group_id: str) -> Row:
        async with gate:
            try:
                async with asyncio.timeout(wait_s):
                    lags = await admin.group_offsets(group_id, only_reachable=True)
            except (TimeoutError, BarnabasError):
                return _NO_LAG
        return {"lag": sum(lag.lag for lag in lags.values()), "lag_seconds": _age_s(lags)}

    return dict(zip(group_ids, await asyncio.gather(*map(ask, group_ids)), strict=True))


def _age_s(lags: Mapping[TopicPartition, Lag]) -> float | None:
    return max((lag.lag_seconds for lag in lags.values() if lag.lag_seconds is not None), default=None)


async def _describe(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        group = await admin.describe_group(context.arguments.name, shares=True)
        if group.protocol == SHARE_PROTOCOL:
            return _describe_shares(context, group)
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
        "lag_seconds": _age_s(lags),
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


def _describe_shares(context: Context, group: DescribeGroupResponse) -> int:
    """None where a leader does not answer."""
    rows: list[Row] = [
        {
            "topic": view.topic,
            "partition": view.partition,
            "start_offset": view.start_offset,
            "log_end_offset": known(view.log_end_offset),
            "lag": known(view.lag),
            "acquired": known(view.acquired),
            "deliveries": {str(item.deliveries): item.count for item in view.deliveries},
        }
        for view in group.shares
    ]
    members = _member_rows(group)
    summary: Row = {
        "group": group.group_id,
        "protocol": group.protocol,
        "state": group.state,
        "coordinator": group.coordinator,
        "epoch": group.group_epoch,
        "lag": sum(view.lag for view in group.shares if view.lag >= 0),
        "acquired": sum(view.acquired for view in group.shares if view.acquired >= 0),
    }
    if context.out.is_json:
        context.out.record({**summary, "members": members, "partitions": rows})
        return ExitCode.OK
    context.out.record({**summary, "members": len(members)})
    shown = [{**row, "deliveries": _delivered(view)} for row, view in zip(rows, group.shares, strict=True)]
    for table, columns in ((members, ("member", "client_id", "host", "epoch", "assigned")), (shown, _SHARE_COLUMNS)):
        if table:
            context.out.text()
            context.out.rows(table, columns)
    return ExitCode.OK


def _delivered(view: SharePartitionView) -> str:
    """`2 records 1x, 1 record 3x`: undone records that were given out, by how often."""
    return ", ".join(
        f"{item.count} record{'' if item.count == 1 else 's'} {item.deliveries}x" for item in view.deliveries
    )


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


def _remove_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="GROUP", help="the group")
    parser.add_argument("member", metavar="MEMBER", nargs="*", help="ids of members, or instance ids")
    parser.add_argument("--all", action="store_true", help="all members")


async def _remove(context: Context) -> int:
    """A removed member that still runs notices it at its next heartbeat, and joins again: stop it first."""
    wanted = context.arguments
    if bool(wanted.member) == wanted.all:
        raise CommandError("name the members, or give --all", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        known = {
            name: member
            for member in (await admin.describe_group(wanted.name)).members
            for name in (member.instance_id, member.member_id)
            if name
        }
        for name in wanted.member:
            if name not in known:
                near = did_you_mean(name, known)
                raise CommandError(
                    f"group {wanted.name} has no member {name}{near}; see barnabas group describe {wanted.name}"
                )
        chosen = known.values() if wanted.all else [known[name] for name in wanted.member]
        for member in {member.member_id: member for member in chosen}.values():
            await remove_member(admin, wanted.name, member)
            told: Row = {"group": wanted.name, "member": member.member_id, "removed": True}
            context.out.line(f"removed {member.member_id} from {wanted.name}", told)
    return ExitCode.OK


def _delete_offsets_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="GROUP", help="the group")
    parser.add_argument(
        "-t",
        "--topic",
        action="append",
        required=True,
        metavar="TOPIC",
        help="a topic that no member reads (repeatable)",
    )
    parser.add_argument(
        "-p", "--partition", type=number_from(0), action="append", metavar="N", help="only this partition (repeatable)"
    )


async def _delete_offsets(context: Context) -> int:
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        committed = [place for place, lag in (await admin.group_offsets(wanted.name)).items() if lag.has_committed]
        chosen = [
            place
            for place in sorted(committed)
            if place.topic in wanted.topic and (wanted.partition is None or place.partition in wanted.partition)
        ]
        for topic in wanted.topic:
            if not any(place.topic == topic for place in chosen):
                near = did_you_mean(topic, {place.topic for place in committed})
                raise CommandError(
                    f"group {wanted.name} has no such offset in {topic}{near}; see barnabas group describe"
                )
        await delete_offsets(admin, wanted.name, chosen)
    for place in chosen:
        told: Row = {"group": wanted.name, "topic": place.topic, "partition": place.partition, "deleted": True}
        context.out.line(f"{wanted.name} has no offset in {place} now", told)
    return ExitCode.OK


_ONE_GROUP = name_argument("GROUP")

VERBS = (
    Verb(name="list", summary="list the groups with their lag", arguments=_list_arguments, run=_list),
    Verb(name="describe", summary="members, offsets and lag", arguments=_ONE_GROUP, run=_describe),
    Verb(
        name="explain",
        summary="why the group rebalanced, and partitions without a reader",
        arguments=explain_arguments,
        run=explain,
    ),
    SEEK,
    Verb(
        name="delete-offsets",
        summary="forget the offsets of topics that the group no longer reads",
        arguments=_delete_offsets_arguments,
        run=_delete_offsets,
    ),
    Verb(
        name="remove-member",
        summary="remove members that do not leave by themselves",
        arguments=_remove_arguments,
        run=_remove,
    ),
    Verb(name="delete", summary="delete a group without members", arguments=_ONE_GROUP, run=_delete),
)
