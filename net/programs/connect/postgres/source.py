"""`Source`: one run of a source connector, from its committed position: the snapshot of what was not read yet, then the stream.

A run ends with an error. If the error passes by itself, `run_source` starts the next run, which does what a new process would do:
so there is one way back from every failure, and the committed position alone decides where it leads.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import psycopg

from barnabas.net.base.retries import Backoff
from barnabas.net.client.connection.errors import (
    BarnabasError,
    NoBrokersAvailableError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionTimedOutError,
)

from .catalog import (
    PublishedTable,
    add_types,
    check_server,
    check_slot,
    check_timeline,
    is_captured,
    published_tables,
    seen_transactions,
    slot_of,
)
from .change_writer import ChangeWriter
from .changes.change_stream import Catalog, ChangeStream, SeenTransactions, TableNotReadError
from .changes.coverage import Range, goes_on
from .changes.envelope import EnvelopeNames, TableEncoder, reading_origin
from .changes.faults import SchemaConflictError, ServerSetupError, SlotInUseError, StoppedByOtherError
from .changes.lsn import NO_LSN, lsn_text
from .changes.pgoutput import Relation, decode
from .changes.position import Position, TableProgress
from .changes.settings import SourceSettings
from .changes.values import Types
from .health import SlotWatch, waits_told
from .replication import Received, ReplicationConnection, ReplicationStream, SystemIdentity
from .server import Connection, close, connect, first_line, named, passes, setup_error
from .snapshot import ReadRows, SnapshotReaders, exported

logger = logging.getLogger("barnabas.connect")

PAUSE: Final = Backoff(first_ms=200, max_ms=10_000)  # between runs
STEADY_S: Final = 30.0  # a run that lasted this long was no failed attempt: the next pause is the first again
RECEIVE_TIMEOUT_S: Final = 1.0  # at most, between two looks at what is due


async def run_source(
    settings: SourceSettings,
    new_writer: Callable[[], ChangeWriter],
    *,
    slot_patience_s: float = math.inf,
    required: tuple[str, ...] = (),
) -> None:
    """Until it is cancelled. `new_writer` makes the writer of each run, which starts and closes it. `required`: columns that the
    reader of the changes needs in each table.

    Raises ConnectorError, and errors of Barnabas that do not pass by themselves. That another program has the slot is such an
    error if it lasts for `slot_patience_s`.
    """
    settings = replace(settings, dsn=named(settings.dsn, settings.slot))
    failures, again, rng = 0, frozenset[str](), Random()
    in_use_since_s: float | None = None
    while True:
        started_s = time.monotonic()
        source = Source(settings, new_writer(), again=again, required=required)
        try:
            await source.run()
        except TableNotReadError as error:
            again = frozenset((error.table,)) if error.is_again else frozenset()
            logger.info("starting over connector=%s reason=%s", settings.name, error)
            continue
        except (psycopg.Error, BarnabasError, OSError) as error:
            again = source.again
            reason = _passing_reason(error, settings)
            in_use_since_s = (in_use_since_s or started_s) if isinstance(error, psycopg.errors.ObjectInUse) else None
            if in_use_since_s is not None and time.monotonic() >= in_use_since_s + slot_patience_s:
                raise SlotInUseError(reason) from error
            failures = 1 if time.monotonic() - started_s > STEADY_S else failures + 1
            delay_ms = PAUSE.delay_ms(failures, rng.random)
            logger.warning("starting over connector=%s in_ms=%d reason=%s", settings.name, delay_ms, reason)
            await asyncio.sleep(delay_ms / 1000)


def _passing_reason(error: psycopg.Error | BarnabasError | OSError, settings: SourceSettings) -> str:
    """Raises what does not pass by itself."""
    if isinstance(error, psycopg.Error):
        if not passes(error):
            raise setup_error(error) from error
        if isinstance(error, psycopg.errors.ObjectInUse):
            return (
                f"another program has the slot ({first_line(error)}): if this does not pass, end that program, or give each"
                " connector a slot of its own (key slot)"
            )
        return first_line(error)
    cause: BaseException = error
    if isinstance(error, TransactionAbortedError) and isinstance(error.__cause__, BarnabasError):
        cause = error.__cause__
    if isinstance(cause, RecordTooLargeError):
        raise SchemaConflictError(
            f"a row is larger than a record may be ({cause.message}): raise delivery.max_record_bytes, and max.message.bytes of"
            " its topic (barnabas topic alter)"
        ) from error
    if isinstance(cause, TransactionTimedOutError):
        return f"{first_line(cause)}; if this goes on, raise delivery.transaction_timeout_ms"
    if isinstance(cause, ProducerFencedError):
        raise StoppedByOtherError(
            f"another process runs connector {settings.name} now: it has taken over from this one, which stops. If both were"
            " started on purpose, give them different names"
        ) from error
    retried = (TransactionAbortedError, TransactionOutcomeUnknownError, NoBrokersAvailableError, OSError)
    if isinstance(cause, BarnabasError) and not cause.retriable and not isinstance(cause, retried):
        raise error
    return first_line(cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a run begins with."""

    position: Position
    tables: dict[str, PublishedTable]
    seen: SeenTransactions  # the catalog had these tables after them, or later


class Source:
    def __init__(
        self, settings: SourceSettings, writer: ChangeWriter, *, again: frozenset[str], required: tuple[str, ...] = ()
    ) -> None:
        """`again`: tables that have to be read again; empty as soon as the committed position says so."""
        self._settings = settings
        self.again = again
        self._required = required
        self._writer = writer
        self._types = Types()
        self._watch = SlotWatch(settings)
        self._last_commit_s = 0.0
        self._database = ""

    async def run(self) -> None:
        connection = await connect(self._settings.dsn)
        try:
            await check_server(connection)
            await self._writer.start()
            await add_types(connection, self._types, [])
            async with waits_told(self._settings):
                plan = await self._plan(connection)
                await self._writer.create_topics(self._topic(table) for table in plan.tables.values())
                position = await self._truncate_again(plan)
                position = await self._read_tables(plan.tables, position)
            await self._follow(plan, position)
        finally:
            await self._writer.close()
            await close(connection)

    # --- where to begin -----------------------------------------------------------------------------------------------

    async def _plan(self, connection: Connection) -> _Plan:
        settings = self._settings
        seen = await seen_transactions(connection)
        tables = await published_tables(connection, settings.publication, settings.tables)
        position = await self._writer.committed_position()
        known = {} if position is None or position.lsn == NO_LSN else position.tables
        _check_required(self._required, {name: table for name, table in tables.items() if name not in known})
        replication = await ReplicationConnection.open(settings.dsn)
        try:
            identity = await replication.identify()
            self._database = identity.database
            slot = await slot_of(connection, settings.slot)
            if slot is not None and slot.active_pid is not None:  # do not read tables for a stream that cannot begin
                raise psycopg.errors.ObjectInUse(f"slot {settings.slot} is active for PID {slot.active_pid}")
            if position is None or position.lsn == NO_LSN:
                position = await self._first_position(replication, connection, identity, position)
            else:
                _check_database(position, identity)
                check_slot(slot, settings.slot, position.lsn)
                if position.timeline not in (0, identity.timeline):
                    check_timeline(position, identity.timeline, await replication.timeline_ends(identity.timeline))
                position = replace(position, timeline=identity.timeline)
        finally:
            await replication.close()
        self._check_topics(tables)
        for name, table in tables.items():
            position = self._planned(position, name, table)
        for name in position.tables.keys() - tables.keys():
            # Its changes are not captured now. If the table comes back, the topic lacks them.
            position = position.with_table(name, replace(position.tables[name], is_again=True))
        self._watch.started(position, tables, settings.topics.configs)
        return _Plan(position=position, tables=tables, seen=seen)

    def _check_topics(self, tables: dict[str, PublishedTable]) -> None:
        """Raises ServerSetupError for two tables of one topic."""
        names: dict[str, str] = {}
        for name, table in tables.items():
            other = names.setdefault(self._topic(table), name)
            if other != name:
                raise ServerSetupError(
                    f"tables {other} and {name} have the same topic, {self._topic(table)}, because topic names take letters,"
                    " digits, '.', '_' and '-' only: capture them by two connectors with different prefixes (key tables)"
                )

    async def _first_position(
        self,
        replication: ReplicationConnection,
        connection: Connection,
        identity: SystemIdentity,
        reset: Position | None,
    ) -> Position:
        """A slot that exists already is one that this connector has made before it committed its first position."""
        settings = self._settings
        slot = await slot_of(connection, settings.slot)
        if slot is None:
            lsn = await replication.create_slot(settings.slot)
            logger.info("slot created slot=%s lsn=%s", settings.slot, lsn_text(lsn))
        else:
            check_slot(slot, settings.slot, slot.confirmed_lsn)
            lsn = slot.confirmed_lsn
        first = Position(
            system_id=identity.system_id,
            database=identity.database,
            slot=settings.slot,
            lsn=lsn,
            timeline=identity.timeline,
        )
        if reset is None:
            return first
        return replace(first, generation=reset.generation, tables=reset.tables)

    def _planned(self, position: Position, name: str, table: PublishedTable) -> Position:
        """The position with what is known of this table. Raises SchemaConflictError."""
        known = position.tables.get(name)
        if known is None:
            return position.with_table(name, self._new_progress(table, position))
        if known.is_again or known.oid != table.relation.oid or name in self.again:
            return position.with_table(name, replace(table.progress, is_again=True))
        if known.key != table.key or not goes_on(known.key_types, table.key_types):
            raise SchemaConflictError(
                f"the key of table {name} was ({', '.join(known.key)}) of types ({', '.join(known.key_types)}), and is now"
                f" ({', '.join(table.key)}) of types ({', '.join(table.key_types)}): records with old and new keys in one topic"
                f" do not belong together. Run `barnabas connect reset FILE --table {name}`: the topic gets a truncation, and the"
                " table is read again"
            )
        return position.with_table(name, replace(known, key_types=table.key_types))

    def _new_progress(self, table: PublishedTable, position: Position) -> TableProgress:
        if self._settings.snapshot.mode == "never":
            return replace(table.progress, ranges=(Range(lower=None, upper=None, lsn=position.lsn),))
        return table.progress

    async def _truncate_again(self, plan: _Plan) -> Position:
        """Tables that are read again begin with a truncation in their topics, in one transaction with the position."""
        position = plan.position
        if any(position.tables[name].is_again for name in plan.tables):
            position = replace(position, generation=position.generation + 1)
        for name, table in plan.tables.items():
            if position.tables[name].is_again:
                origin = reading_origin(position.lsn, _now_ms(), position.generation, is_snapshot=False)
                encoder = TableEncoder(table.relation, table.key, self._types, self._names)
                await self._writer.send(encoder.truncated(origin, lsn=position.lsn, order=0, now_ms=_now_ms()))
                position = position.with_table(name, replace(position.tables[name], is_again=False))
        await self._writer.commit(position)
        self.again = frozenset()
        return position

    # --- the snapshot -------------------------------------------------------------------------------------------------

    async def _read_tables(self, tables: dict[str, PublishedTable], position: Position) -> Position:
        wanted = [table for name, table in tables.items() if not position.tables[name].coverage.is_complete]
        if not wanted:
            return position
        settings = self._settings
        for table in wanted:
            unknown = [column.type_oid for column in table.relation.columns if not self._types.knows(column.type_oid)]
            if unknown:
                await self._learn(unknown)
        gaps = [position.tables[table.name].coverage.gaps() for table in wanted]
        async with exported(settings, wanted, gaps) as (readers, lsn):
            return await self._write_rows(readers, position, lsn)

    async def _write_rows(self, readers: SnapshotReaders, position: Position, lsn: int) -> Position:
        origin = reading_origin(lsn, _now_ms(), position.generation)
        encoders: dict[str, TableEncoder] = {}
        count, started_s = 0, time.monotonic()
        while (read := await self._next_rows(readers, position)) is not None:
            name = read.table.name
            if name not in encoders:
                encoders[name] = TableEncoder(read.table.relation, read.table.key, self._types, self._names)
            now_ms, encoder = _now_ms(), encoders[name]
            for row in read.rows:
                await self._writer.send(encoder.inserted(row, origin, lsn=lsn, order=0, now_ms=now_ms))
            count += len(read.rows)
            position = position.with_range(name, read.range)
            if self._writer.count >= self._settings.delivery.max_records or self._writer.is_full:
                await self._writer.commit(position)
        await self._writer.commit(position)
        seconds = time.monotonic() - started_s
        logger.info("snapshot ends connector=%s rows=%d seconds=%.1f", self._settings.name, count, seconds)
        return position

    async def _next_rows(self, readers: SnapshotReaders, position: Position) -> ReadRows | None:
        """No transaction stays open while the database is slow."""
        if self._writer.is_open:
            try:
                return await readers.next(RECEIVE_TIMEOUT_S)
            except TimeoutError:
                await self._writer.commit(position)
        return await readers.next(None)

    # --- the stream ---------------------------------------------------------------------------------------------------

    async def _follow(self, plan: _Plan, position: Position) -> None:
        settings = self._settings
        replication = await ReplicationConnection.open(settings.dsn)
        confirmed_lsn = self._writer.confirmable_lsn
        stream = await replication.start(settings.slot, settings.publication, position.lsn, confirmed_lsn=confirmed_lsn)
        logger.info("stream begins connector=%s slot=%s lsn=%s", settings.name, settings.slot, lsn_text(position.lsn))
        changes = ChangeStream(
            position,
            self._types,
            self._names,
            catalog=Catalog(tables=plan.tables.keys(), seen=plan.seen, columns=_columns(plan.tables)),
            required=self._required,
            is_captured=lambda table: is_captured(settings.tables, table),
        )
        keeping = asyncio.create_task(self._keep_alive(stream))
        watching = asyncio.create_task(self._watch.run(settings.dsn))
        try:
            await self._pump(stream, changes)
        finally:
            keeping.cancel()
            watching.cancel()
            await asyncio.gather(keeping, watching, return_exceptions=True)
            await stream.close()

    async def _pump(self, stream: ReplicationStream, changes: ChangeStream) -> None:
        """Records go out as they come; a transaction ends between two source transactions, when it is full or old enough."""
        delivery = self._settings.delivery
        opened_s = self._last_commit_s = time.monotonic()
        while True:
            stream.confirm(self._writer.confirmable_lsn)
            wait_s = RECEIVE_TIMEOUT_S
            if self._writer.is_open and changes.is_between_transactions:
                wait_s = max(0.0, min(wait_s, opened_s + delivery.linger_ms / 1000 - time.monotonic()))
            received = await stream.receive(wait_s)
            was_open = self._writer.is_open
            for item in received:
                await self._received(item, changes)
                if self._writer.count >= self._limit(changes) or self._writer.is_full:
                    await self._commit(stream, changes)
                    was_open = False
            if self._writer.is_open and not was_open:
                opened_s = time.monotonic()
            await stream.send_status()
            if self._is_due(opened_s, changes):
                await self._commit(stream, changes)

    def _limit(self, changes: ChangeStream) -> int:
        delivery = self._settings.delivery
        return delivery.max_records if changes.is_between_transactions else delivery.max_transaction_records

    def _is_due(self, opened_s: float, changes: ChangeStream) -> bool:
        now_s = time.monotonic()
        if not changes.is_between_transactions:
            patience_s = self._settings.delivery.transaction_timeout_ms / 2_000
            return self._writer.is_open and now_s >= opened_s + patience_s
        if self._writer.is_open:
            return now_s >= opened_s + self._settings.delivery.linger_ms / 1000
        return (
            changes.position.lsn > self._watch.committed_lsn
            and now_s >= self._last_commit_s + self._writer.idle_commit_s
        )

    async def _received(self, item: Received, changes: ChangeStream) -> None:
        if item.data is None:
            if changes.is_between_transactions:
                changes.idle_until(item.lsn)
            return
        message = decode(item.data)
        if message is None:
            return
        left_out = len(changes.left_out)
        if isinstance(message, Relation) and (unknown := changes.unknown_types(message)):
            await self._learn(unknown)
        records = changes.received(message, lsn=item.lsn, now_ms=_now_ms())
        if len(changes.left_out) > left_out:
            names = ", ".join(sorted(changes.left_out))
            logger.warning(
                "changes left out tables=%s reason=they do not exist any more, and were not read before", names
            )
        for what in changes.altered:
            logger.warning("%s: if their values differ, run `barnabas connect reset FILE --table NAME`", what)
        changes.altered.clear()
        if records:
            await self._writer.send(records)

    async def _commit(self, stream: ReplicationStream, changes: ChangeStream) -> None:
        """The server may forget what is before a position only when the writer says so: not before the position is committed."""
        records = self._writer.count
        if not changes.is_between_transactions:
            logger.warning(
                "a source transaction is committed in parts connector=%s records=%d", self._settings.name, records
            )
        await self._writer.commit(changes.position_within)
        stream.confirm(self._writer.confirmable_lsn)
        await stream.send_status()
        self._last_commit_s = time.monotonic()
        self._watch.committed(changes.position.lsn, records)

    async def _keep_alive(self, stream: ReplicationStream) -> None:
        """Also while a transaction waits for the brokers. An error of the connection ends the pump, which reads from it."""
        while True:
            await asyncio.sleep(RECEIVE_TIMEOUT_S)
            try:
                await stream.send_status()
            except psycopg.Error as error:
                logger.info("status not sent reason=%s", first_line(error))
                return

    # --- small things -------------------------------------------------------------------------------------------------

    async def _learn(self, oids: list[int]) -> None:
        connection = await connect(self._settings.dsn)
        try:
            gone = await add_types(connection, self._types, oids)
        finally:
            await close(connection)
        for name in gone:
            logger.warning(
                "type %s does not exist any more: changes from before it was dropped have strings in its arrays", name
            )

    @property
    def _names(self) -> EnvelopeNames:
        return EnvelopeNames(
            prefix=self._settings.prefix,
            database=self._database,
            has_tombstones=self._settings.delivery.tombstones,
        )

    def _topic(self, table: PublishedTable) -> str:
        return self._names.topic(table.relation)


def _columns(tables: dict[str, PublishedTable]) -> dict[str, list[str]]:
    return {name: [column.name for column in table.relation.columns] for name, table in tables.items()}


def _check_required(required: tuple[str, ...], tables: dict[str, PublishedTable]) -> None:
    """Of tables that are new; in those that were read before, the stream tells since when. Raises SchemaConflictError."""
    for table, columns in _columns(tables).items():
        missing = next((name for name in required if name not in columns), None)
        if missing is not None:
            raise SchemaConflictError(
                f"table {table} has no column {missing!r} that is published, which the reader of its changes needs (its columns"
                f" are {', '.join(columns)}): correct the name. If it was dropped or renamed, name the columns that the table has"
                " now, and run `barnabas connect reset FILE`: all tables are read again"
            )


def _check_database(position: Position, identity: SystemIdentity) -> None:
    if (position.system_id, position.database) != (identity.system_id, identity.database):
        raise ServerSetupError(
            f"the connector has read database {position.database} of system {position.system_id}, and the dsn leads to database"
            f" {identity.database} of system {identity.system_id}: correct the dsn, or run `barnabas connect reset FILE`, which"
            " reads all tables again"
        )


def _now_ms() -> int:
    return int(time.time() * 1000)
