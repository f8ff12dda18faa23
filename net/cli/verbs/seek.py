"""`barnabas group seek`: move the committed offsets of a group, also while it runs; preview and undo."""

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import UTC, datetime

from barnabas.net.client.admin.group_seek import TARGETS, NothingCommittedError, is_target, seek_group, undo_seek
from barnabas.net.client.admin.offset_seek import COLUMNS, SeekStep

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="GROUP", help="the group")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--to",
        metavar="WHERE",
        help="start, end, @timestamp in ms, an offset N, or +N and -N relative to the committed offset",
    )
    what.add_argument("--undo", action="store_true", help="undo the last seek, or the last undo")
    parser.add_argument(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="only this topic (repeatable); may be new to the group",
    )
    parser.add_argument("--preview", action="store_true", help="show the changes without making them")


async def _seek(context: Context) -> int:
    wanted = context.arguments
    if wanted.undo:
        return await _undo(context)
    if not is_target(wanted.to):
        raise CommandError(f"--to {wanted.to}: give {TARGETS}", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        try:
            moved = await seek_group(admin, wanted.name, wanted.to, topics=wanted.topic, preview=wanted.preview)
        except NothingCommittedError as error:
            raise CommandError(f"{error.message} with -t TOPIC") from None
    _show(context, moved)
    for step in moved:
        if step.after != step.asked:
            held = f"the log has {step.log_start_offset} to {step.log_end_offset}"
            context.out.note(f"{step.place}: asked for {step.asked}, {held}")
    context.out.note("nothing was changed (--preview)" if wanted.preview else f"group {wanted.name} was moved")
    return ExitCode.OK


async def _undo(context: Context) -> int:
    wanted = context.arguments
    if wanted.topic:
        raise CommandError("-t does not go with --undo: a seek is undone as a whole", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        undone, moved = await undo_seek(admin, wanted.name, preview=wanted.preview)
    _show(context, moved)
    at = datetime.fromtimestamp(undone.at_ms / 1000, UTC).isoformat(timespec="seconds")
    told = "would undo" if wanted.preview else "undid"
    context.out.note(f"{told} the seek of {at} by {undone.by}; run the command again to redo it")
    return ExitCode.OK


def _show(context: Context, moved: Sequence[SeekStep]) -> None:
    rows: list[Row] = [step.row() for step in moved]
    context.out.rows(rows, COLUMNS)
    again, skipped = sum(step.read_again for step in moved), sum(step.skipped for step in moved)
    context.out.note(f"{skipped} records are skipped, {again} are read again")


SEEK = Verb(name="seek", summary="move committed offsets", arguments=_arguments, run=_seek)
