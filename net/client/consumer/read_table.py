"""`read_table`: records of a topic as an Arrow table, or as a stream of record batches. Blocking, for scripts and notebooks."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Unpack, overload

from ..arrow.extra import batch_builder
from ..connection.client import DEFAULT_BOOTSTRAP, Client
from ..connection.loop_thread import LoopThread, loop_thread
from ..connection.security import SecurityOptions
from ..positions.offset_lookup import isolation_level
from .table_range import TIMEOUT_MS, Position, TableQuery
from .table_scan import TopicScan

if TYPE_CHECKING:  # of an extra
    import pyarrow

    from ..arrow.tables import BatchBuilder

CLIENT_ID = "barnabas-table"


@overload
def read_table(
    topic: str,
    *,
    start: Position = ...,
    end: Position = ...,
    columns: Sequence[str] | None = ...,
    partitions: Iterable[int] | None = ...,
    isolation: str = ...,
    stream: Literal[False] = ...,
    bootstrap: str | Iterable[str] = ...,
    timeout_ms: int = ...,
    **security: Unpack[SecurityOptions],
) -> "pyarrow.Table": ...
@overload
def read_table(
    topic: str,
    *,
    start: Position = ...,
    end: Position = ...,
    columns: Sequence[str] | None = ...,
    partitions: Iterable[int] | None = ...,
    isolation: str = ...,
    stream: Literal[True],
    bootstrap: str | Iterable[str] = ...,
    timeout_ms: int = ...,
    **security: Unpack[SecurityOptions],
) -> "pyarrow.RecordBatchReader": ...


def read_table(
    topic: str,
    *,
    start: Position = "start",
    end: Position = "end",
    columns: Sequence[str] | None = None,
    partitions: Iterable[int] | None = None,
    isolation: str = "read_uncommitted",
    stream: bool = False,
    bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
    timeout_ms: int = TIMEOUT_MS,
    **security: Unpack[SecurityOptions],
) -> "pyarrow.Table | pyarrow.RecordBatchReader":
    """Return the records from `start` on and before `end`, which is fixed when the call begins.

    A position is an offset (of every partition), offsets by partition, a datetime, "@" and milliseconds, "start" or "end".
    Positions outside of the log are moved to its start or its end. `columns` selects from topic, partition, offset, timestamp,
    key, value, headers.

    The table has the partitions one after the other, each in the order of offsets. With `stream`, a reader returns record
    batches of several partitions in turn while it fetches the next ones: memory does not grow with the topic. Broker failures
    are retried for `timeout_ms`; no record is left out or returned twice. Both results have the Arrow PyCapsule interface,
    by which polars, pandas and DuckDB take them without a copy.

    `isolation`: "read_uncommitted" or "read_committed"; `bootstrap`: addresses of brokers; `security`: `ssl_cafile`,
    `sasl_mechanism` and so on, as for `Consumer`. Raises MissingExtraError without pyarrow (`pip install 'barnabas[arrow]'`),
    OffsetOutOfRangeError if records are deleted while they are read, TopicRecreatedError if the topic is deleted and created
    again meanwhile, UnreadableBatchError.
    """
    tables = batch_builder("read_table", columns)
    query = TableQuery(
        topic=topic,
        start=start,
        end=end,
        partitions=None if partitions is None else tuple(partitions),
        isolation_level=isolation_level(isolation),
        timeout_ms=timeout_ms,
    )
    loop = loop_thread()
    client = Client(bootstrap, client_id=CLIENT_ID, **security)
    scan = loop.call(_open(client, query))
    batches = _batches(loop, client, scan, tables)
    if stream:
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(tables.schema, (batch for _, batch in batches))
    found: dict[int, list[pyarrow.RecordBatch]] = {}
    for number, batch in batches:
        found.setdefault(number, []).append(batch)
    return tables.table(batch for number in sorted(found) for batch in found[number])


async def _open(client: Client, query: TableQuery) -> TopicScan:
    await client.start()
    try:
        return await TopicScan.of(client, query)
    except BaseException:
        await client.close()
        raise


def _batches(
    loop: LoopThread, client: Client, scan: TopicScan, tables: "BatchBuilder"
) -> "Iterator[tuple[int, pyarrow.RecordBatch]]":
    """Decoded in the thread of the caller, while the next chunks are in flight."""
    try:
        while (part := loop.call(scan.next_part())) is not None:
            for columns in part.columns():
                yield part.partition.partition, tables.batch(part.partition, columns)
    finally:
        # Not `loop.call`: the collector may close this generator in any thread, also in that of the loop.
        asyncio.run_coroutine_threadsafe(_close(client, scan), loop.loop)


async def _close(client: Client, scan: TopicScan) -> None:
    await scan.close()
    await client.close()
