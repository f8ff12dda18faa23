"""`barnabas topic export` and `barnabas topic import`: all records of a range to a file, and the rows of a file as records.

Both work batch by batch: memory does not grow with the topic or the file. A file appears under its name once it is whole.
"""

import asyncio
from argparse import ArgumentParser
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ..frame.command import Context, number_from
from ..frame.exit_codes import CommandError, ExitCode, exit_code_of, message_of
from ..frame.patience import Patience
from ..frame.progress import Progress

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.consumer.table_range import Position

MAX_TABLES_IN_FLIGHT: Final = 8  # Sent and not yet acknowledged; enough to keep the pipeline full.


def export_arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("file", metavar="FILE", help="the file to write: .parquet, .csv, .ndjson")
    parser.add_argument("--as", dest="kind", choices=("parquet", "csv", "ndjson"), help="format; default: by suffix")
    where = "start, end, an offset N, @timestamp in ms, or an ISO time with its zone"
    parser.add_argument("--start", default="start", metavar="WHERE", help=f"first record: {where}")
    parser.add_argument("--end", default="end", metavar="WHERE", help=f"where to stop, before this: {where}")
    parser.add_argument(
        "-p", "--partition", type=number_from(0), action="append", metavar="N", help="only this one (repeatable)"
    )


def import_arguments(parser: ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("file", metavar="FILE", help="the file to read: .parquet, .csv, .ndjson")
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("--as", dest="kind", choices=("parquet", "csv", "ndjson"), help="format; default: by suffix")
    parser.add_argument("--key", metavar="COLUMN", help="the column of keys; default: key, if the file has values")
    parser.add_argument("--value", metavar="COLUMN", help="the column of values; default: value, else rows as JSON")
    parser.add_argument("--keep-partitions", action="store_true", help="use the file's column partition")
    parser.add_argument("--create", action="store_true", help="let the broker create a topic that does not exist")


def position_from(text: str) -> "Position":
    """Raises CommandError for what is no position."""
    if text.isdigit():
        return int(text)
    if text in ("start", "end") or (text[:1] == "@" and text[1:].isdigit()):
        return text
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise CommandError(
            f"{text}: give start, end, an offset, @timestamp in ms, or a time such as 2026-01-31T12:00Z", ExitCode.USAGE
        )
    return found


async def run_export(context: Context) -> int:
    """Write all records of the range; report their number."""
    from barnabas.net.client.arrow.extra import batch_builder
    from barnabas.net.client.consumer.table_range import TableQuery
    from barnabas.net.client.consumer.table_scan import TopicScan

    wanted = context.arguments
    tables = batch_builder("topic export")
    from ..records.table_files import closing_in, format_of, in_thread, unfinished, writer

    kind = format_of(wanted.file, wanted.kind)
    query = TableQuery(
        topic=wanted.name,
        start=position_from(wanted.start),
        end=position_from(wanted.end),
        partitions=None if wanted.partition is None else tuple(wanted.partition),
        timeout_ms=round(wanted.timeout * 1_000),
    )
    patience = Patience(wanted.timeout, note=context.out.note, trouble=lambda: "")
    count = 0
    async with context.connector.client(context.bootstrap) as client:
        ranges = await patience.wait(query.ranges(client), f"the leaders of {wanted.name}")
        progress = Progress(context.out.stderr, "records", sum(item.end - item.start for item in ranges))
        scan = TopicScan(client, query, ranges)
        try:
            with unfinished(wanted.file) as path, ThreadPoolExecutor(1) as thread:
                async with closing_in(thread, await in_thread(thread, writer, path, kind, tables.schema)) as file:
                    while (part := await patience.wait(scan.next_part(), f"records of {wanted.name}")) is not None:
                        for columns in part.columns():
                            await in_thread(thread, file.write, tables.batch(part.partition, columns))
                            count += columns.count
                            progress.advance(columns.count, columns.count)
        finally:
            progress.finish()
            await scan.close()
    context.out.note(f"exported {count} records to {wanted.file}")
    return ExitCode.OK


async def run_import(context: Context) -> int:
    """Send all rows; report how many were acknowledged."""
    from barnabas.net.client.arrow.extra import require

    wanted = context.arguments
    require("pyarrow", extra="arrow", feature="topic import")
    from ..records.table_files import format_of, pieces

    rows, total = await asyncio.to_thread(pieces, wanted.file, format_of(wanted.file, wanted.kind))
    progress = Progress(context.out.stderr, "records", total)
    patience = Patience(wanted.timeout, note=context.out.note, trouble=lambda: "")
    waiting: deque[Awaitable[object]] = deque()
    count = 0
    try:
        if not wanted.create:  # the broker may create topics by itself, and a typo must not
            async with context.connector.admin(context.bootstrap) as admin:
                await patience.wait(admin.describe_topic(wanted.name), f"a broker at {context.bootstrap}")
        async with context.connector.producer(context.bootstrap, acks="all") as producer:
            while (piece := await asyncio.to_thread(next, rows, None)) is not None:
                batch, amount = piece
                sending = producer.send_table(wanted.name, _Capsule(batch), **_columns(wanted, batch.schema.names))
                waiting.append(await patience.wait(sending, f"room to send to {wanted.name}"))
                count += batch.num_rows
                progress.advance(amount, batch.num_rows)
                while len(waiting) > MAX_TABLES_IN_FLIGHT:
                    await patience.wait(waiting.popleft(), "acknowledgements")
            await patience.wait(producer.flush(), "acknowledgements")
            while waiting:
                await patience.wait(waiting.popleft(), "acknowledgements")
    except Exception as error:
        if not count:
            raise
        message = f"{message_of(error)}; up to {count} records before were sent"
        raise CommandError(message, exit_code_of(error)) from error
    finally:
        progress.finish()
    context.out.note(f"acknowledged {count} records")
    return ExitCode.OK


class _Capsule:
    """One record batch as a stream."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow

        return pyarrow.Table.from_batches([self._batch]).__arrow_c_stream__(requested_schema)


def _columns(wanted: Any, names: list[str]) -> dict[str, str | None]:
    """What is what: as `topic export` names them, where the file has values; else only what the arguments name."""
    is_records = "value" in names and wanted.value is None
    found: dict[str, str | None] = {"key": wanted.key, "value": "value" if is_records else wanted.value}
    if is_records:
        found["key"] = wanted.key or ("key" if "key" in names else None)
        found["headers"] = "headers" if "headers" in names else None
        found["timestamp"] = "timestamp" if "timestamp" in names else None
    if wanted.keep_partitions:
        if "partition" not in names:
            raise CommandError("--keep-partitions: the file has no column partition, or rows without it")
        found["partition"] = "partition"
    return found
