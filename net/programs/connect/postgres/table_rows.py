"""`TableRows`: the rows of captured tables as they are now, all in one snapshot of the server, as records of the kind `r`."""

import logging
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from .catalog import add_types, check_server, published_tables
from .changes.coverage import Range
from .changes.envelope import EnvelopeNames, Outgoing, TableEncoder, reading_origin
from .changes.settings import SourceSettings
from .changes.values import Types
from .health import waits_told
from .server import close, connect, named
from .snapshot import SnapshotReaders, TableAlteredError, exported

logger = logging.getLogger("barnabas.connect")

ATTEMPTS: Final = (
    5  # each one waits for the transactions that are open: who alters tables without a pause gets an error
)
_ALL = (Range(lower=None, upper=None),)


class TableRows:
    """`open`, then `next` until there is nothing left, then `close`. It needs no slot, and leaves none behind."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = replace(settings, dsn=named(settings.dsn, settings.publication))
        self._held = AsyncExitStack()
        self._readers: SnapshotReaders
        self._lsn = 0
        self._encoders: dict[str, TableEncoder] = {}  # by table

    async def open(self) -> None:
        """Raises psycopg.Error, ConnectorError."""
        await self._held.enter_async_context(waits_told(self._settings))
        for _ in range(ATTEMPTS - 1):
            try:
                await self._open()
            except TableAlteredError as error:
                logger.info("looking again reason=%s", error)
            else:
                return
        await self._open()

    async def _open(self) -> None:
        settings, types = self._settings, Types()
        connection = await connect(settings.dsn)
        try:
            await check_server(connection)
            tables = list((await published_tables(connection, settings.publication, settings.tables)).values())
            oids = {column.type_oid for table in tables for column in table.relation.columns}
            await add_types(connection, types, list(oids))
            names = EnvelopeNames(prefix=settings.prefix, database=connection.info.dbname, has_tombstones=False)
        finally:
            await close(connection)
        self._encoders = {table.name: TableEncoder(table.relation, table.key, types, names) for table in tables}
        reading = exported(settings, tables, [_ALL for _ in tables])
        self._readers, self._lsn = await self._held.enter_async_context(reading)

    async def next(self) -> list[Outgoing] | None:
        """Rows of one table; None at the end. Raises psycopg.Error."""
        read = await self._readers.next(None)
        if read is None:
            return None
        now_ms = int(time.time() * 1000)
        origin, encoder = reading_origin(self._lsn, now_ms, 1), self._encoders[read.table.name]
        return [
            record
            for row in read.rows
            for record in encoder.inserted(row, origin, lsn=self._lsn, order=0, now_ms=now_ms)
        ]

    async def close(self) -> None:
        await self._held.aclose()
