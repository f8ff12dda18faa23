"""`barnabas group seek`: moves the committed offsets of a group, also while it runs; shows what that means; takes it back."""

import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.groups.offset_seek import COLUMNS, SeekStep, held_within, steps
from barnabas.net.protocol.requests import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row
from .consume import offsets_at, positions

if TYPE_CHECKING:  # help must not pay for the client's modules
    from barnabas.net.client.admin.admin import Admin

_SEEK_TARGET: Final = re.compile(r"start|end|@\d+|[+-]?\d+")
Offsets = Mapping[TopicPartition, int]


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="GROUP", help="the group")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", metavar="WHERE", help="start, end, @timestamp in ms, an offset N, or +N and -N relative")
    what.add_argument("--undo", action="store_true", help="take back the last seek, or the last undo")
    parser.add_argument("-t", "--topic", action="append", default=[], metavar="TOPIC", help="only these; or new ones")
    parser.add_argument("--preview", action="store_true", help="show what would change, change nothing")


async def _seek(context: Context) -> int:
    wanted = context.arguments
    if wanted.undo:
        return await _undo(context)
    if not _SEEK_TARGET.fullmatch(wanted.to):
        raise CommandError(f"--to {wanted.to}: give start, end, @timestamp in ms, N, +N or -N", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        before = await _committed(admin, wanted.name, wanted.topic)
        if not before:
            raise CommandError(f"group {wanted.name} has no committed offsets; name topics with -t TOPIC")
        target = await _target(admin, before, wanted.to)
        starts, ends = await _ends(admin, target)
        after = held_within(target, starts, ends)
        if not wanted.preview:
            await admin.reset_offsets(wanted.name, after)
    _show(context, steps(before, after, starts, ends))
    for place, offset in sorted(after.items()):
        if offset != target[place]:
            context.out.note(f"{place}: asked for {target[place]}, the log has {starts[place]} to {ends[place]}")
    context.out.note("nothing was changed (--preview)" if wanted.preview else f"group {wanted.name} was moved")
    return ExitCode.OK


async def _undo(context: Context) -> int:
    wanted = context.arguments
    if wanted.topic:
        raise CommandError("-t does not go with --undo: a seek is taken back as a whole", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        undone = await admin.undo_reset(wanted.name, validate_only=wanted.preview)
        before = {TopicPartition(item.topic, item.partition): _offset(item.before) for item in undone.offsets}
        after = {TopicPartition(item.topic, item.partition): _offset(item.after) for item in undone.offsets}
        starts, ends = await _ends(admin, before)
    _show(context, steps(before, after, starts, ends))
    at = datetime.fromtimestamp(undone.at_ms / 1000, UTC).isoformat(timespec="seconds")
    told = "would take back" if wanted.preview else "took back"
    context.out.note(f"{told} the seek of {at} by {undone.by}; the same command again brings it back")
    return ExitCode.OK


def _offset(told: int) -> int | None:
    return None if told < 0 else told


def _show(context: Context, moved: Sequence[SeekStep]) -> None:
    rows: list[Row] = [step.row() for step in moved]
    context.out.rows(rows, COLUMNS)
    again, skipped = sum(step.read_again for step in moved), sum(step.skipped for step in moved)
    context.out.note(f"{skipped} records are skipped, {again} are read again")


async def _committed(admin: "Admin", group: str, topics: Sequence[str]) -> dict[TopicPartition, int | None]:
    """Every partition that the seek concerns, with what is committed there."""
    found: dict[TopicPartition, int | None] = {}
    for topic in topics:
        count = len((await admin.describe_topic(topic)).partitions)
        found.update({TopicPartition(topic, partition): None for partition in range(count)})
    for place, lag in (await admin.group_offsets(group)).items():
        if not topics or place.topic in topics:
            found[place] = _offset(lag.committed)
    return found


async def _target(admin: "Admin", before: Mapping[TopicPartition, int | None], where: str) -> Offsets:
    if where[0] in "+-":
        step = int(where)
        return {place: offset + step for place, offset in before.items() if offset is not None}
    return await positions(admin, before, where)


async def _ends(admin: "Admin", places: Mapping[TopicPartition, object]) -> tuple[Offsets, Offsets]:
    if not places:
        return {}, {}
    starts = await offsets_at(admin, places, EARLIEST_TIMESTAMP)
    return starts, await offsets_at(admin, places, LATEST_TIMESTAMP)


SEEK = Verb(name="seek", summary="move committed offsets", arguments=_arguments, run=_seek)
