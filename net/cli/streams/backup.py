"""`barnabas cluster backup|verify-backup|restore DIR`: a cluster as files in a folder, and back."""

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode
from .copying import compression_argument, log_to_stderr, until_signalled

DAMAGE_SHOWN: Final = 20


def _folder_argument(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of the backup")


def _backup_arguments(parser: ArgumentParser) -> None:
    _folder_argument(parser)
    parser.add_argument(
        "--topic",
        action="append",
        metavar="PATTERN",
        help="topics whose records are taken, as names or quoted patterns (default: all); settings are taken of all topics",
    )
    parser.add_argument("--no-records", action="store_true", help="take metadata only")


async def _backup(context: Context) -> int:
    """A second run adds what is new; a run that was interrupted goes on."""
    from barnabas.net.programs.backup.contents import has_records
    from barnabas.net.programs.backup.taking import Taking, TakingConfig

    wanted = context.arguments
    if wanted.no_records and wanted.topic:
        raise CommandError("give --topic or --no-records, not both", ExitCode.USAGE)
    log_to_stderr()
    taking = Taking(
        TakingConfig(
            bootstrap=context.bootstrap,
            folder=wanted.folder,
            topics=() if wanted.no_records else tuple(wanted.topic or ("*",)),
            security=context.connector.security,
        )
    )
    contents = await taking.run()
    done = taking.taken
    told = {
        "folder": str(wanted.folder),
        "run": contents.run,
        "topics": done.topics,
        "partitions": done.partitions,
        "offsets_read": done.offsets,
        "bytes_read": done.bytes,
        "offsets_lost": done.lost,
        "groups": len(contents.groups),
        "has_records": has_records(contents.topics),
    }
    context.out.record(told)
    return ExitCode.OK


async def _verify(context: Context) -> int:
    """Exit code 3 if a file is damaged."""
    from barnabas.net.programs.backup.verifying import verify

    found = await asyncio.to_thread(verify, context.arguments.folder)
    context.out.record(
        {
            "sound": not found.damage,
            "cluster": found.contents.cluster_id,
            "run": found.contents.run,
            "taken_at_ms": found.contents.taken_at_ms,
            "topics": len(found.contents.topics),
            "groups": len(found.contents.groups),
            "records": found.records,
            "bytes": found.size_bytes,
            "damage": _first(found.damage),
        }
    )
    return ExitCode.UNHEALTHY if found.damage else ExitCode.OK


def _first(texts: Sequence[str]) -> list[str]:
    more = len(texts) - DAMAGE_SHOWN
    return [*texts[:DAMAGE_SHOWN], *([f"and {more} more files"] if more > 0 else [])]


def _restore_arguments(parser: ArgumentParser) -> None:
    _folder_argument(parser)
    parser.add_argument(
        "--replace", action="store_true", help="delete topics that the cluster and the backup have, with their records"
    )
    compression_argument(parser)


async def _restore(context: Context) -> int:
    """After an interruption, the same command goes on."""
    from barnabas.net.programs.backup.restoring import Restoring, RestoringConfig

    wanted = context.arguments
    log_to_stderr()
    restoring = Restoring(
        RestoringConfig(
            bootstrap=context.bootstrap,
            folder=wanted.folder,
            replace=wanted.replace,
            compression=wanted.compression,
            security=context.connector.security,
        )
    )
    is_complete = await until_signalled(restoring.run, restoring.stop)
    done = restoring.restored
    context.out.record(
        {
            "complete": is_complete,
            "topics": done.topics,
            "records": done.records,
            "groups": done.groups,
            "warnings": done.warnings,
        }
    )
    if not is_complete:
        raise CommandError("stopped before the end; the same command goes on")
    return ExitCode.OK


VERBS: Final = (
    Verb(
        name="backup",
        summary="topics, records, groups, permissions and quotas into a folder; again, only what is new",
        arguments=_backup_arguments,
        run=_backup,
        timed=False,
    ),
    Verb(
        name="verify-backup",
        summary="compare a backup with its checksums; needs no cluster",
        arguments=_folder_argument,
        run=_verify,
        timed=False,
    ),
    Verb(
        name="restore",
        summary="a backup into an empty cluster, each record once, with the offsets of groups",
        arguments=_restore_arguments,
        run=_restore,
        timed=False,
    ),
)
