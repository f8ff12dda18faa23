"""`barnabas collect FILES --topic TOPIC`: lines of log files into a topic, each once."""

import os
import socket
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from ..frame.command import Context, Verb
from ..frame.exit_codes import ExitCode
from .copying import checked_name, compression_argument, log_to_stderr, until_signalled

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.programs.collect.collector import Collector, CollectorConfig


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="files or quoted patterns: '/var/log/nginx/*.log', '/srv/**/*.log'"
    )
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="the topic of the lines")
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the name of this collector, under which its positions are kept; default: HOST-TOPIC",
    )
    parser.add_argument(
        "--from",
        dest="start",
        choices=("start", "end"),
        default="start",
        help="where the first start of a collector begins in the files that are there (default: %(default)s)",
    )
    parser.add_argument(
        "--parse",
        choices=("access", "json", "syslog"),
        help="access: the logs of nginx and Apache; values become JSON objects, with the time of the event (default: none)",
    )
    parser.add_argument(
        "--on-error",
        choices=("keep", "skip", "stop"),
        default="keep",
        help="lines that cannot be parsed; keep: as they are, with a header (default: %(default)s)",
    )
    parser.add_argument(
        "--first-line", metavar="RE2", help="records of several lines: each begins with a line in which this is found"
    )
    compression_argument(parser)
    parser.add_argument("--once", action="store_true", help="stop when all files have been read to their ends")


async def _run(context: Context) -> int:
    """Collect until a signal arrives."""
    from barnabas.net.programs.collect.collector import Collector

    log_to_stderr()
    collector = Collector(_config(context))
    try:
        await until_signalled(collector.run, collector.stop)
    finally:
        context.out.note(_told(collector))
    return ExitCode.OK


def _told(collector: "Collector") -> str:
    done = collector.progress
    unparsed = f", {done.unparsed} of them not parsed" if done.unparsed else ""
    return f"collected {done.records} records{unparsed}"


def _config(context: Context) -> "CollectorConfig":
    from barnabas.net.programs.collect.collector import CollectorConfig

    wanted = context.arguments
    name = wanted.name if wanted.name is not None else f"{socket.gethostname()}-{wanted.topic}"
    return CollectorConfig(
        name=checked_name(name),
        patterns=tuple(os.path.abspath(item) for item in wanted.files),
        topic=wanted.topic,
        bootstrap=context.bootstrap,
        parser=wanted.parse,
        on_error=wanted.on_error,
        first_line=wanted.first_line,
        compression=wanted.compression,
        from_end=wanted.start == "end",
        is_once=wanted.once,
        security=context.connector.security,
    )


VERBS = {
    "collect": Verb(
        name="collect",
        summary="send the lines of log files to a topic, each once, through rotation and restarts",
        arguments=_arguments,
        run=_run,
        timed=False,
    )
}
