"""`barnabas mirror TOPIC... --source HOST:PORT`: topics of another cluster into this one, each record once."""

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from barnabas.log.vocabulary.errors import BarnabasError

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode
from .copying import checked_name, compression_argument, log_to_stderr, until_signalled

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.programs.mirror.mirror import MirrorConfig


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "topics", metavar="TOPIC", nargs="+", help="topics of the source, or quoted patterns: 'orders.*'"
    )
    parser.add_argument(
        "--source", required=True, metavar="HOST:PORT,...", help="the cluster to copy from: Kafka, or another Barnabas"
    )
    parser.add_argument(
        "--source-config",
        metavar="FILE",
        help="options of librdkafka for the source, such as its login: key=value lines",
    )
    parser.add_argument(
        "--name", default="mirror", metavar="NAME", help="under which positions are kept (default: %(default)s)"
    )
    parser.add_argument(
        "--prefix", default="", metavar="TEXT", help="put before the names of the copies (default: none)"
    )
    parser.add_argument(
        "--groups", action="append", metavar="PATTERN", help="groups whose offsets are translated (default: all)"
    )
    parser.add_argument("--no-groups", action="store_true", help="translate the offsets of no group")
    parser.add_argument(
        "--from",
        dest="start",
        choices=("start", "end"),
        default="start",
        help="where a partition begins that was never copied (default: %(default)s)",
    )
    compression_argument(parser)
    parser.add_argument("--once", action="store_true", help="stop when all is copied that the source has now")


async def _run(context: Context) -> int:
    """Copy until a signal arrives."""
    from barnabas.net.programs.mirror.mirror import Mirror

    log_to_stderr()
    mirror = Mirror(_config(context))
    is_ended = False
    try:
        await until_signalled(mirror.run, mirror.stop)
        is_ended = True
    finally:
        done = mirror.progress
        if is_ended or done.records or done.offsets_moved:  # not if it could not begin
            left_out = f", {done.left_out} left out that were here already" if done.left_out else ""
            context.out.note(f"mirrored {done.records} records{left_out}, moved {done.offsets_moved} offsets of groups")
    return ExitCode.OK


def _config(context: Context) -> "MirrorConfig":
    from barnabas.net.programs.mirror.mirror import MirrorConfig

    wanted = context.arguments
    if wanted.no_groups and wanted.groups:
        raise CommandError("give --groups or --no-groups, not both", ExitCode.USAGE)
    return MirrorConfig(
        name=checked_name(wanted.name),
        topics=tuple(wanted.topics),
        source=wanted.source,
        source_options=_options(wanted.source_config),
        prefix=wanted.prefix,
        groups=() if wanted.no_groups else tuple(wanted.groups or ("*",)),
        from_end=wanted.start == "end",
        is_once=wanted.once,
        bootstrap=context.bootstrap,
        compression=wanted.compression,
        security=context.connector.security,
    )


def _options(path: str | None) -> dict[str, str]:
    from barnabas.net.base.settings.properties import parse_properties

    if path is None:
        return {}
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, BarnabasError) as error:
        raise CommandError(f"--source-config {path}: {error}", ExitCode.USAGE) from error


VERBS = {
    "mirror": Verb(
        name="mirror",
        summary="copy topics of another cluster, Kafka's or ours, each record once, with the offsets of groups",
        arguments=_arguments,
        run=_run,
        timed=False,
    )
}
