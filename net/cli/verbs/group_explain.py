"""`barnabas group explain`: what the group waits for now, and its last rebalances."""

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Final

from barnabas.consumer_groups.model.rebalance_causes import CAUSES
from barnabas.log.vocabulary.group_messages import OwnerChange, RebalanceEvent, RebalanceReason
from barnabas.net.wire.protocol.group_responses import DescribeGroupResponse, GroupMember

from ...client.group.group_explanation import explanation, time_text
from ..frame.command import Context
from ..frame.exit_codes import CommandError, ExitCode

NEWEST_TOLD: Final = 10  # rebalances in the text; --all and JSON show all that are kept
MOVES_TOLD: Final = 20  # moves of one rebalance in the text; likewise
SLOW_MS: Final = 10_000  # a member that lags its assignment by more than this is reported
SILENT_MS: Final = 10_000
SHORT_ID: Final = 8  # characters of a member id: enough to tell members of one client id apart


def explain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="GROUP", nargs="?", help="the group")
    parser.add_argument(
        "--all", action="store_true", help=f"show all kept rebalances, not only the newest {NEWEST_TOLD}"
    )
    parser.add_argument("--causes", action="store_true", help="print the meaning of each cause code, and what to do")


async def explain(context: Context) -> int:
    """Why the group rebalanced, what moved, and whether a partition has no reader now."""
    if context.arguments.causes:
        rows = [{"cause": code.value, "meaning": text.meaning, "advice": text.advice} for code, text in CAUSES.items()]
        context.out.rows(rows, ("cause", "meaning", "advice"))
        return ExitCode.OK
    if context.arguments.name is None:
        raise CommandError("give the name of a group, or --causes", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        group = await admin.explain_group(context.arguments.name)
    if context.out.is_json:
        context.out.record(explanation(group))
        return ExitCode.OK
    for line in story(group, every=context.arguments.all):
        context.out.text(line)
    return ExitCode.OK


def story(group: DescribeGroupResponse, *, every: bool) -> Iterator[str]:
    names = _names(group)
    yield f"group {group.group_id} is {group.state}, epoch {group.group_epoch}, coordinated by broker {group.coordinator}"
    yield from _now(group, names)
    yield ""
    told = group.rebalances if every else group.rebalances[-NEWEST_TOLD:]
    if not told:
        yield "no rebalance since this coordinator took over"
    elif len(told) < len(group.rebalances):
        yield f"the newest {len(told)} of {len(group.rebalances)} rebalances (--all shows the others too)"
    for event in told:
        yield from _event(event, names, every=every)


def _now(group: DescribeGroupResponse, names: dict[str, str]) -> Iterator[str]:
    if not group.members:
        yield "now: no members, so no partition is read"
        return
    if not group.unowned:
        yield f"now: {len(group.members)} members, every partition is read"
    else:
        yield f"now: {len(group.members)} members, {len(group.unowned)} partitions have no reader:"
    for item in group.unowned:
        waited = f" ({names[item.member_id]})" if item.member_id in names else ""
        since = f" for {_seconds(item.since_ms)}" if item.since_ms >= 0 else ""
        ends = f"; ends within {_seconds(item.ends_in_ms)}" if item.ends_in_ms >= 0 else ""
        yield f"  {item.topic}-{item.partition}  {item.reason}{since}{waited}: {item.text}{ends}"
    for member in group.members:
        yield from _member(member, names[member.member_id])


def _member(member: GroupMember, name: str) -> Iterator[str]:
    if member.is_away:
        yield f"  {name} is away; its session ends in {_seconds(member.session_left_ms)}"
    elif member.silent_ms > SILENT_MS:
        left = _seconds(member.session_left_ms)
        yield f"  {name} has been silent for {_seconds(member.silent_ms)}; its session ends in {left}"
    if member.slow_ms > SLOW_MS:
        waits = _seconds(member.slow_ms)
        yield f"  {name} is slow: for {waits} it has not taken over its assignment (it polls too rarely)"


def _event(event: RebalanceEvent, names: dict[str, str], *, every: bool) -> Iterator[str]:
    yield f"#{event.rebalance_id} {time_text(event.at_ms)} epoch {event.group_epoch}: {_outcome(event)}"
    for reason in event.reasons:
        who = f" {names[reason.member_id]}" if reason.member_id else ""
        yield f"    {reason.cause}{who}" + (f": {reason.detail}" if reason.detail else "")
    told = event.moves if every else event.moves[:MOVES_TOLD]
    for move in told:
        yield f"    {_move(move, names)}"
    if len(told) < event.moved_count:
        yield f"    ... and {event.moved_count - len(told)} more"


def _outcome(event: RebalanceEvent) -> str:
    if event.is_superseded:
        end = "ran into the next one"
    elif event.stable_after_ms is None:
        end = "under way"
    else:
        end = f"stable after {_seconds(event.stable_after_ms)}"
    if not event.moved_count:
        return f"nothing moved, {end}"
    return f"{event.moved_count} partitions moved, the longest pause was {_seconds(event.longest_pause_ms)}, {end}"


def _move(move: OwnerChange, names: dict[str, str]) -> str:
    source = names.get(move.from_member, move.from_member) or "no member"
    target = names.get(move.to_member, move.to_member) or "no member"
    pause = "" if move.pause_ms is None else f"  paused {_seconds(move.pause_ms)}"
    return f"{move.topic}-{move.partition}  {source} -> {target}{pause}"


def _names(group: DescribeGroupResponse) -> dict[str, str]:
    """Member id -> display name; includes former members that a cause names."""
    found: dict[str, str] = {}
    told: list[GroupMember | RebalanceReason] = [reason for event in group.rebalances for reason in event.reasons]
    for item in [*told, *group.members]:
        if item.member_id:
            name = item.instance_id or item.client_id
            short = item.member_id[-SHORT_ID:]
            found[item.member_id] = f"{name}/{short}@{item.client_host}" if name else f"{short}@{item.client_host}"
    return found


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < 1000 else f"{duration_ms / 1000:.1f} s"
