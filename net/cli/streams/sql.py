"""`barnabas sql QUERY`: topics as tables of DuckDB. Filters on partition, offset and timestamp select what is read at all."""

import asyncio
import difflib
import os
from argparse import ArgumentParser
from collections.abc import Collection, Mapping
from typing import Any

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError
from . import sql_follow


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help='a SELECT statement; quote names of topics with dots: "a.b"')
    parser.add_argument(
        "--values",
        choices=("json", "text", "raw"),
        default="json",
        help="json: fields of values are columns, as the first values have them; text; raw: bytes. default: json",
    )
    parser.add_argument("--csv", action="store_true", help="print CSV")
    sql_follow.arguments(parser)


async def _run(context: Context) -> int:
    """Print the rows of the result."""
    from barnabas.net.client.arrow.extra import require

    for library in ("duckdb", "pyarrow"):
        require(library, extra="sql", feature="barnabas sql")
    import duckdb

    from ..sql.tables_of import tables_of

    connection = duckdb.connect()
    try:
        named = tables_of(connection, context.arguments.query)
        topics = await _topics(context, named)
        if context.arguments.follow:
            work = sql_follow.follow(context, connection, topics)
        else:
            work = asyncio.to_thread(_answer, context, connection, topics)
        try:
            await work
        except asyncio.CancelledError:
            connection.interrupt()
            raise
    except duckdb.Error as error:
        raise CommandError(f"the query failed: {error}") from error
    finally:
        connection.close()
    return 0


async def _topics(context: Context, named: list[str]) -> Mapping[str, int]:
    """The number of partitions of each topic that the query names. Raises CommandError for names of nothing."""
    async with context.connector.admin(context.bootstrap) as admin:
        existing = await admin.list_topics(include_internal=True)
        found = {}
        for name in named:
            topic = topic_of(name, existing)
            if topic is not None:
                found[topic] = len((await admin.describe_topic(topic)).partitions)
            elif not os.path.exists(name):  # DuckDB reads files by their names.
                near = [topic for topic in existing if topic.lower() == name.lower()]
                near = near or difflib.get_close_matches(name, existing) or ["see `barnabas topic list`"]
                raise CommandError(f"there is no topic {name!r}; near names: {', '.join(near)}")
    alike = [name for name in found if [other.lower() for other in found].count(name.lower()) > 1]
    if alike:
        raise CommandError(f"topics {' and '.join(alike)} are one name in SQL: query them one after the other")
    return found


def topic_of(name: str, existing: Collection[str]) -> str | None:
    """The topic of this name, or the only one that has it in other letters: SQL does not distinguish them."""
    if name in existing:
        return name
    near = [topic for topic in existing if topic.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def _answer(context: Context, connection: Any, topics: Mapping[str, int]) -> None:
    from ..sql.results import ROWS_AT_A_TIME, show
    from ..sql.topic_dataset import TopicDataset
    from ..sql.views import add_view

    for topic, count in topics.items():
        read = context.connector.table_reader(context.bootstrap, topic)
        add_view(connection, topic, TopicDataset(range(count), read), context.arguments.values)
    rows = connection.sql(context.arguments.query).to_arrow_reader(ROWS_AT_A_TIME)
    show(context.out, rows, as_csv=context.arguments.csv)


VERBS = {"sql": Verb(name="sql", summary="query topics with SQL", arguments=_arguments, run=_run, timed=False)}
