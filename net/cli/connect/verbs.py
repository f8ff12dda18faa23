"""`barnabas connect ...`: connectors of PostgreSQL, each described by a file: tables into topics, and topics into tables."""

import logging
import os
from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from barnabas.net.programs.connect.postgres.changes.faults import ConfigFileError
    from barnabas.net.programs.connect.postgres.changes.settings import SinkSettings, SourceSettings


def _file_argument(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the connector's file (TOML)")


def _run_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument(
        "--metrics", default="", metavar="HOST:PORT", help="serve the metrics of a source's slot there, for Prometheus"
    )


def _reset_arguments(parser: ArgumentParser) -> None:
    _file_argument(parser)
    parser.add_argument(
        "--table", action="append", metavar="SCHEMA.NAME", help="only this table; may be repeated; default: all tables"
    )


async def _run(context: Context) -> int:
    """Until Ctrl-C or an error that does not pass by itself."""
    from barnabas.net.programs.connect.postgres.changes.faults import ConnectorError
    from barnabas.net.programs.connect.postgres.changes.settings import SourceSettings

    settings = _settings(context)
    from barnabas.net.programs.connect.postgres.delivery import TopicWriter
    from barnabas.net.programs.connect.postgres.sink import run_sink
    from barnabas.net.programs.connect.postgres.source import run_source

    logging.basicConfig(
        level=os.environ.get("BARNABAS_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        if isinstance(settings, SourceSettings):
            bootstrap, security = _bootstrap(context, settings), context.connector.security
            async with _reported(context, settings, bootstrap):
                await run_source(settings, partial(TopicWriter, settings, bootstrap, security))
        else:
            await run_sink(settings, _bootstrap(context, settings), context.connector.security)
    except ConnectorError as error:
        raise CommandError(error.message) from error
    return ExitCode.OK


@asynccontextmanager
async def _reported(context: Context, settings: "SourceSettings", bootstrap: str) -> AsyncIterator[None]:
    """How the slot is: to the cluster, for `barnabas doctor`, and as metrics."""
    from barnabas.net.programs.connect.postgres.slot_reports import SlotReporter, rendered

    from ..pipeline.metrics_server import PATH, served

    reporter = SlotReporter(
        program=f"connector {settings.name}",
        dsn=settings.dsn,
        slot=settings.slot,
        warn_bytes=settings.health.warn_lag_bytes,
        bootstrap=bootstrap,
        security=context.connector.security,
    )
    async with reporter.running(), served(lambda: rendered([reporter]), context.arguments.metrics) as port:
        if port:
            context.out.note(f"metrics on port {port}, path {PATH}")
        yield


async def _reset(context: Context) -> int:
    from barnabas.net.programs.connect.postgres.changes.faults import ConnectorError

    settings = _source(context)
    from barnabas.net.programs.connect.postgres.operations import reset

    try:
        chosen = await reset(
            settings, _bootstrap(context, settings), context.connector.security, context.arguments.table
        )
    except ConnectorError as error:
        raise CommandError(error.message) from error
    context.out.line(
        f"the next run truncates and reads again: {', '.join(chosen)}", {"connector": settings.name, "tables": chosen}
    )
    return ExitCode.OK


async def _status(context: Context) -> int:
    """Exit code 3 if somebody has to act."""
    from barnabas.net.programs.connect.postgres.changes.faults import ConnectorError

    settings = _source(context)
    from barnabas.net.programs.connect.postgres.operations import status

    try:
        found = await status(settings, _bootstrap(context, settings), context.connector.security)
    except ConnectorError as error:
        raise CommandError(error.message) from error
    context.out.record(found.row)
    for trouble in found.troubles:
        context.out.note(trouble)
    return ExitCode.UNHEALTHY if found.troubles else ExitCode.OK


def _settings(context: Context) -> "SourceSettings | SinkSettings":
    from barnabas.net.client.arrow.extra import require
    from barnabas.net.programs.connect.postgres.changes.faults import ConfigFileError
    from barnabas.net.programs.connect.postgres.changes.settings import read_file

    require("psycopg", extra="postgres", feature="barnabas connect")
    try:
        return read_file(context.arguments.file)
    except ConfigFileError as error:
        raise CommandError(_located(error, context.arguments.file), ExitCode.USAGE) from error


def _located(error: "ConfigFileError", file: Path) -> str:
    """With the line and column of the key that is wrong, as errors of pipelines have them."""
    from barnabas.net.programs.pipeline.toml_lines import places_of_keys

    if not error.key:
        return error.message
    place = places_of_keys(file.read_text(encoding="utf-8")).get(error.key)
    if place is None:
        return error.message
    return error.message.replace(f"{file}:", f"{file}:{place.line}:{place.column}:", 1)


def _source(context: Context) -> "SourceSettings":
    from barnabas.net.programs.connect.postgres.changes.settings import SOURCE, SourceSettings

    settings = _settings(context)
    if not isinstance(settings, SourceSettings):
        raise CommandError(f"{context.arguments.file} is no file of a {SOURCE}", ExitCode.USAGE)
    return settings


def _bootstrap(context: Context, settings: "SourceSettings | SinkSettings") -> str:
    """Of the file, if the command line and the environment say nothing."""
    said = context.arguments.bootstrap or os.environ.get("BARNABAS_BOOTSTRAP")
    return context.bootstrap if said or not settings.bootstrap else settings.bootstrap


VERBS = (
    Verb(name="run", summary="run a connector in the foreground", arguments=_run_arguments, run=_run, timed=False),
    Verb(name="status", summary="position and slot of a source connector", arguments=_file_argument, run=_status),
    Verb(
        name="reset",
        summary="read tables again: topics get a truncation, then all rows",
        arguments=_reset_arguments,
        run=_reset,
    ),
)
