"""What a pipeline names and a cluster or a database must have: looked up before Spark starts, and told at its place in the file.

Here are the topics; `postgres_checks` has the sources and sinks in PostgreSQL, which need psycopg. What the columns of the result
must fit is known only to Spark, so the driver of `plan` and `run` checks it, and `located` finds the place.
"""

import asyncio
import re
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError, InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.net.programs.pipeline.spec import PostgresSource, SqlSource, TableSink, TopicSink, TopicSource

from ...base.near_words import did_you_mean
from ...client.connection.errors import NoBrokersAvailableError

if TYPE_CHECKING:
    from barnabas.net.programs.pipeline.document_table import DocumentTable, Problem
    from barnabas.net.programs.pipeline.files import PipelineFile
    from barnabas.net.programs.pipeline.spec import PipelineSpec, SourceSpec
    from barnabas.net.programs.pipeline.toml_lines import KeyPath

    from ..frame.connector import Connector

POSTGRESQL: Final = "postgresql:"
SQLITE: Final = "sqlite:"
OFFLINE: Final = "or check the file alone, with `barnabas pipeline validate --offline`"
_STEP: Final = re.compile(r"step (\d+) \(")
_SOURCE: Final = re.compile(r"source (\w+)(?:\.(\w+))?: ")
_KEY: Final = re.compile(r"(?:sink|errors)(?:\.\w+)+")


async def world_problems(found: "PipelineFile", connector: "Connector", bootstrap: str) -> "list[Problem]":
    """In the order of the file."""
    document = found.document()
    await _check_topics(document, found, connector, bootstrap)
    if _needs_postgres(found.spec):
        await _check_databases(document, found)
    for source in found.spec.sources:
        if isinstance(source.origin, SqlSource):
            await asyncio.to_thread(_check_relation, document, found, source)
    if isinstance(found.spec.sink, TableSink) and found.spec.sink.database.startswith(SQLITE):
        folder = (found.base / found.spec.sink.database.removeprefix(SQLITE)).parent
        if not folder.is_dir():
            document.refuse("sink.database", f"is in the folder {folder}, which does not exist: create it (mkdir -p)")
    return sorted(document.problems, key=lambda problem: problem.place)


def located(found: "PipelineFile", error: str) -> str:
    """An error of the driver, behind the place of the key or the step that it begins with; else as it is."""
    path: KeyPath | None = None
    if step := _STEP.match(error):
        path = ("steps", int(step[1]) - 1)
    elif source := _SOURCE.match(error):
        path = (*source_path(found.spec, source[1]), *([source[2]] if source[2] else []))
    elif key := _KEY.match(error):
        path = tuple(key[0].split("."))
    if path is None:
        return error
    place = found.document().place_of(path)
    return f"{found.path}:{place.line}:{place.column}: {error}"


def source_path(spec: "PipelineSpec", name: str) -> "KeyPath":
    """[source], or one of several."""
    return ("sources", name) if spec.has_named_sources else ("source",)


# --- topics ---------------------------------------------------------------------------------------------------------------


async def _check_topics(
    document: "DocumentTable", found: "PipelineFile", connector: "Connector", bootstrap: str
) -> None:
    spec = found.spec
    others = [source for source in spec.sources if getattr(source.origin, "bootstrap", "")]
    for source in others:
        await _check_other_cluster(document, found, source)
    sources = [source for source in spec.sources if isinstance(source.origin, TopicSource) and source not in others]
    written = {("errors", "topic"): spec.errors.topic}
    if isinstance(spec.sink, TopicSink):
        written["sink", "topic"] = spec.sink.topic
    if not sources and not any(written.values()):
        return
    try:
        async with connector.admin(bootstrap) as admin:
            known = await admin.list_topics(include_internal=True)
    except BarnabasError as error:
        words = f"{error.message}: start the brokers, correct the address, {OFFLINE}"
        document.refuse("bootstrap", words, may_pass=_may_pass(error))
        return
    for source in sources:
        _check_source(document, source_path(spec, source.name), source, known)
    for path, topic in written.items():
        if topic:
            _check_topic(document, path, topic, known)


async def _check_other_cluster(document: "DocumentTable", found: "PipelineFile", source: "SourceSpec") -> None:
    from ..frame.client_file import read_client_file
    from ..frame.connector import Connector

    origin, path = source.origin, source_path(found.spec, source.name)
    assert isinstance(origin, TopicSource)
    try:
        security = read_client_file(found.base / origin.config).security if origin.config else None
    except InvalidConfigError as error:
        document.refuse_path((*path, "config"), error.message)
        return
    try:
        async with Connector(security).admin(origin.bootstrap) as admin:
            known = await admin.list_topics(include_internal=True)
    except BarnabasError as error:
        words = f"{error.message}: start the brokers, correct the address, {OFFLINE}"
        document.refuse_path((*path, "bootstrap"), words, may_pass=_may_pass(error))
        return
    _check_source(document, path, source, known)


def _may_pass(error: BarnabasError) -> bool:
    return error.retriable or isinstance(error, NoBrokersAvailableError)


def _check_source(document: "DocumentTable", path: "KeyPath", source: "SourceSpec", known: list[str]) -> None:
    origin = source.origin
    assert isinstance(origin, TopicSource)
    for number, topic in enumerate(origin.topics):
        _check_topic(document, (*path, "topics", number), topic, known)
    if not origin.name_pattern:
        return
    try:
        pattern = name_pattern(origin.name_pattern)
    except InvalidRegularExpressionError:
        return  # which reading the file has told
    if not any(pattern.matches(topic) for topic in known):
        document.refuse_path((*path, "pattern"), f"{origin.name_pattern!r} matches no topic: create one, or correct it")


def _check_topic(document: "DocumentTable", path: "KeyPath", topic: str, known: list[str]) -> None:
    if topic not in known:
        document.refuse_path(
            path,
            f"there is no topic {topic!r}, or this login may not see it{did_you_mean(topic, known)}: correct the name, or run"
            f" `barnabas topic create {topic}`",
        )


# --- databases ------------------------------------------------------------------------------------------------------------


def _check_relation(document: "DocumentTable", found: "PipelineFile", source: "SourceSpec") -> None:
    """A source in SQL: its table or query, and the columns by which it is read."""
    from barnabas.net.programs.connect.relations.relation import RelationError, UnreachableError, described_columns

    origin, path = source.origin, source_path(found.spec, source.name)
    assert isinstance(origin, SqlSource)
    try:
        described_columns(origin, found.base)
    except RelationError as error:
        document.refuse_path((*path, *error.key.split(".")), str(error))
    except UnreachableError as error:
        document.refuse_path((*path, "database"), str(error), may_pass=True)
    except ImportError as error:
        words = f"PostgreSQL needs psycopg ({error}): pip install 'barnabas[postgres]', {OFFLINE}"
        document.refuse_path((*path, "database"), words)


def _needs_postgres(spec: "PipelineSpec") -> bool:
    is_sink = isinstance(spec.sink, TableSink) and spec.sink.database.startswith(POSTGRESQL)
    return is_sink or any(isinstance(source.origin, PostgresSource) for source in spec.sources)


async def _check_databases(document: "DocumentTable", found: "PipelineFile") -> None:
    spec = found.spec
    try:
        from .postgres_checks import check_sink, check_source
    except ImportError as error:
        key = "sink.database" if isinstance(spec.sink, TableSink) else source_path(spec, spec.sources[0].name)[0]
        document.refuse(str(key), f"PostgreSQL needs psycopg ({error}): pip install 'barnabas[postgres]', {OFFLINE}")
        return
    progress = found.state_folder().read_progress()
    for source in spec.sources:
        if isinstance(source.origin, PostgresSource):
            await check_source(
                document, source_path(spec, source.name), source, is_batch=spec.is_batch, has_run=progress.batches > 0
            )
    if isinstance(spec.sink, TableSink) and spec.sink.database.startswith(POSTGRESQL):
        await check_sink(document, spec.sink, spec.sink.database.removeprefix(POSTGRESQL))
