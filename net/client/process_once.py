"""`process_once`: each record's effect in a database exactly once, whatever crashes, by keeping offsets beside the effects.

    async with process_once(consumer, connection) as records:
        async for record, cursor in records:
            cursor.execute("INSERT INTO invoices VALUES (?, ?)", (record.key, record.value))

The records of one poll are one transaction, and so is the offset of the last of them, in the table `barnabas_offsets`. The
database decides where reading goes on, not the group. A transaction begins by moving the offset from where this owner
stopped to where it will stop; who finds it elsewhere is not the owner any more (a member that was away for too long and has
not noticed), gets none of the records, and goes on where the database is. The row's lock holds off a second owner until the
first has committed or is gone. So of two owners at once every record has one, and its effects come all or not at all.

`ProcessOnce` is written once, over whatever the consumer and the connection return: what is awaitable is awaited.
`BlockingProcessOnce` runs the same coroutines where nothing is.
"""

import inspect
import logging
import sys
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from barnabas.log.topic_partition import TopicPartition

from .errors import BarnabasError, InvalidRequestError, OffsetOutOfRangeError
from .records import ConsumerRecord

logger = logging.getLogger("barnabas.consumer")

MAX_RECORDS = 100  # of one transaction: a crash repeats as many, and their effects are rolled back before that
MAX_SEEKS = 10  # in a row that lead nowhere: a rebalance may undo one, but not so many
POLL_MS = 1_000  # how often a blocking iteration comes up for air, so that Ctrl-C works
_NOTHING_PROCESSED: Final = -1
_PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}  # of DB-API 2 (PEP 249)
_CREATE: Final = """CREATE TABLE IF NOT EXISTS barnabas_offsets (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, partition_id INTEGER NOT NULL, last_offset BIGINT NOT NULL,
    PRIMARY KEY (group_id, topic, partition_id))"""
_EXISTS: Final = "SELECT 1 FROM barnabas_offsets WHERE 1 = 0"
_INSERT: Final = "INSERT INTO barnabas_offsets VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_ROW: Final = "WHERE group_id = ? AND topic = ? AND partition_id = ?"
_SELECT: Final = f"SELECT last_offset FROM barnabas_offsets {_ROW}"
_MOVE: Final = f"UPDATE barnabas_offsets SET last_offset = ? {_ROW} AND last_offset = ?"
T = TypeVar("T")


class OnceConsumer(Protocol):
    """`barnabas.Consumer` or `barnabas.sync.Consumer`."""

    @property
    def group(self) -> str | None: ...
    @property
    def assignment(self) -> list[TopicPartition]: ...
    def poll(self, *, max_records: int, timeout_ms: float) -> Any: ...
    def position(self, partition: TopicPartition, /) -> Any: ...
    def seek(self, partition: TopicPartition, offset: int, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """In the open transaction the stored offset is `last_offset`, and was `before` when it began. Both are inclusive."""

    before: int
    last_offset: int


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _Database:
    """The statements, on a connection of DB-API 2 (sqlite3, psycopg) or its asyncio twin (psycopg.AsyncConnection)."""

    def __init__(self, connection: Any, group: str) -> None:
        driver = _driver_of(connection)
        self._placeholder = _PLACEHOLDERS[driver.paramstyle]
        self._error: type[Exception] = driver.Error
        self._connection = connection
        self._group = group

    async def create_table(self) -> None:
        try:
            await self._execute(_CREATE)
            await self.commit()
        except self._error:
            await self.rollback()
            await self._execute(_EXISTS)  # somebody else made it at the same time; else this says what is wrong
            await self.rollback()

    async def stored(self, place: TopicPartition) -> int | None:
        """The last offset that was processed."""
        row = await _settled((await self._execute(_SELECT, *self._key(place))).fetchone())
        return None if row is None else int(row[0])

    async def begin(self, place: TopicPartition, position: int) -> int:
        """What is stored; where nothing is, everything before `position` counts as processed from now on."""
        found = await self.stored(place)
        if found is None:
            await self._execute(_INSERT, *self._key(place), position - 1)
            found = await self.stored(place)
        await self.commit()
        assert found is not None, "the row was there a moment ago"
        return found

    async def move(self, place: TopicPartition, *, before: int, last_offset: int) -> bool:
        """Lock the row and move the offset; False when it is not where we left it."""
        cursor = await self._execute(_MOVE, last_offset, *self._key(place), before)
        return bool(cursor.rowcount == 1)

    async def cursor(self) -> Any:
        return await _settled(self._connection.cursor())

    async def commit(self) -> None:
        await _settled(self._connection.commit())

    async def rollback(self) -> None:
        await _settled(self._connection.rollback())

    def _key(self, place: TopicPartition) -> tuple[str, str, int]:
        return self._group, place.topic, place.partition

    async def _execute(self, statement: str, *parameters: object) -> Any:
        cursor = await self.cursor()
        await _settled(cursor.execute(statement.replace("?", self._placeholder), parameters))
        return cursor


def _driver_of(connection: Any) -> Any:
    """The DB-API module that the connection's class comes from. Raises InvalidRequestError for what cannot do it."""
    for cls in type(connection).__mro__:
        module = sys.modules.get(cls.__module__.partition(".")[0])
        if getattr(module, "paramstyle", None) in _PLACEHOLDERS:
            if _is_autocommit(module, connection):
                raise InvalidRequestError(
                    "the connection is in autocommit mode, where nothing can be undone: switch it off"
                )
            return module
    raise InvalidRequestError(
        f"{type(connection).__name__} is no connection of a driver that process_once knows: use sqlite3 or psycopg"
    )


def _is_autocommit(driver: Any, connection: Any) -> bool:
    if driver.__name__ == "sqlite3":
        return connection.isolation_level is None and getattr(connection, "autocommit", -1) is not False
    return getattr(connection, "autocommit", False) is True


class ProcessOnce:
    """An asynchronous iterator of (record, cursor). Leaving it cleanly commits the record in hand, an exception undoes it."""

    def __init__(self, consumer: OnceConsumer, connection: Any, *, max_records: int = MAX_RECORDS) -> None:
        if consumer.group is None:
            raise InvalidRequestError("process_once needs a consumer with a group, under whose name offsets are stored")
        self._consumer = consumer
        self._group = consumer.group
        self._database = _Database(connection, consumer.group)
        self._max_records = max_records
        self._processed: dict[TopicPartition, int] = {}  # what the database says of the partitions that are ours
        self._seeks: dict[TopicPartition, int] = {}  # since the last record that was in place
        self._claims: dict[TopicPartition, _Claim] = {}  # of the open transaction
        self._batch: Sequence[tuple[TopicPartition, ConsumerRecord]] = ()
        self._handed_out = 0  # of the batch
        self._cursor: Any = None

    async def __aenter__(self) -> Self:
        await self._database.create_table()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        await self._end(is_clean=kind is None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[ConsumerRecord, Any]:
        while (found := await self._next()) is None:
            pass
        return found

    async def _next(self) -> tuple[ConsumerRecord, Any] | None:
        """The next record; None when a poll brought none."""
        if self._handed_out == len(self._batch):
            await self._commit()
            await self._begin(await _settled(self._consumer.poll(max_records=self._max_records, timeout_ms=POLL_MS)))
            if not self._batch:
                return None
        record = self._batch[self._handed_out][1]
        self._handed_out += 1
        return record, self._cursor

    # --- a transaction -----------------------------------------------------------------------------------------------

    async def _begin(self, found: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        """Claim what was polled, as far as it is ours."""
        await self._follow_assignment(found)
        batch: list[tuple[TopicPartition, ConsumerRecord]] = []
        for place, records in sorted(found.items()):  # in one order, so that two owners cannot wait for each other
            if place in self._processed and self._continues(place, records) and await self._claim(place, records):
                batch += [(place, record) for record in records]
        self._batch, self._handed_out = batch, 0
        if batch:
            self._cursor = await self._database.cursor()
        else:
            await self._database.rollback()

    async def _follow_assignment(self, found: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        """Where partitions are new, go to where the database is; those that are gone are somebody else's."""
        assigned = self._consumer.assignment
        self._processed = {place: offset for place, offset in self._processed.items() if place in set(assigned)}
        for place in assigned:
            if place not in self._processed:
                records = found.get(place)
                try:
                    position = records[0].offset if records else await _settled(self._consumer.position(place))
                except BarnabasError as error:
                    logger.info("position not known yet partition=%s reason=%s", place, error.message)
                    continue
                stored = await self._database.begin(place, position)
                self._processed[place] = stored
                if position != stored + 1:
                    found.pop(place, None)
                    self._seek(place)

    def _continues(self, place: TopicPartition, records: Sequence[ConsumerRecord]) -> bool:
        """Whether the records lie behind what is processed; if not, the consumer is sent there."""
        if records[0].offset > self._processed[place]:
            self._seeks.pop(place, None)
            return True
        if self._seeks.get(place, 0) >= MAX_SEEKS:
            raise OffsetOutOfRangeError(
                f"the database has processed {place} up to offset {self._processed[place]}, and the log has offset"
                f" {records[0].offset} next: was the topic made anew? Then delete the rows of group {self._group!r} in"
                " barnabas_offsets"
            )
        self._seek(place)
        return False

    async def _claim(self, place: TopicPartition, records: Sequence[ConsumerRecord]) -> bool:
        before, last_offset = self._processed[place], records[-1].offset
        if await self._database.move(place, before=before, last_offset=last_offset):
            self._claims[place] = _Claim(before=before, last_offset=last_offset)
            return True
        stored = await self._database.stored(place)
        logger.warning(
            "another member has processed records of ours group=%s partition=%s up_to=%s", self._group, place, stored
        )
        self._processed.pop(place)
        if stored is not None:
            self._processed[place] = stored
            self._seek(place)
        return False

    async def _commit(self) -> None:
        if self._claims:
            await self._database.commit()
            self._processed |= {place: claim.last_offset for place, claim in self._claims.items()}
        self._forget_transaction()

    async def _end(self, *, is_clean: bool) -> None:
        """Commit what was handed out, or nothing; what was not processed comes next again."""
        done: dict[TopicPartition, int] = {}
        try:
            if is_clean:
                done = {place: record.offset for place, record in self._batch[: self._handed_out]}
                for place, claim in self._claims.items():
                    offset = done.get(place, claim.before)
                    if offset != claim.last_offset:
                        await self._database.move(place, before=claim.last_offset, last_offset=offset)
                await self._database.commit()
                self._processed |= done
            else:
                await self._database.rollback()
        finally:
            unfinished = [place for place, claim in self._claims.items() if done.get(place) != claim.last_offset]
            self._forget_transaction()
            for place in unfinished:
                self._seek(place)

    def _forget_transaction(self) -> None:
        self._claims.clear()
        self._batch, self._handed_out = (), 0

    def _seek(self, place: TopicPartition) -> None:
        self._seeks[place] = self._seeks.get(place, 0) + 1
        try:
            self._consumer.seek(place, self._processed[place] + 1)
        except BarnabasError as error:
            logger.info("not ours any more partition=%s reason=%s", place, error.message)


class BlockingProcessOnce:
    """The same without asyncio: a context manager and iterator, in the caller's thread, as sqlite3 wants it."""

    def __init__(self, consumer: OnceConsumer, connection: Any, *, max_records: int = MAX_RECORDS) -> None:
        self._once = ProcessOnce(consumer, connection, max_records=max_records)

    def __enter__(self) -> Self:
        _run(self._once.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _run(self._once.__aexit__(kind, error, traceback))

    def __iter__(self) -> Iterator[tuple[ConsumerRecord, Any]]:
        return self

    def __next__(self) -> tuple[ConsumerRecord, Any]:
        return _run(self._once.__anext__())


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in which nothing is awaitable: it ends at its first step."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    coroutine.close()
    raise InvalidRequestError("an asyncio connection or consumer needs `async with barnabas.process_once(...)`")


def process_once(consumer: OnceConsumer, connection: Any, *, max_records: int = MAX_RECORDS) -> ProcessOnce:
    """Process each record exactly once into the database of this connection: `async with`, then `async for`.

    `connection` is one of sqlite3 or psycopg, also psycopg's AsyncConnection, not in autocommit mode, and nobody commits on
    it but this. A connection that is not asyncio's holds up the loop, heartbeats too, while the database works. At most
    `max_records` make one transaction.
    """
    return ProcessOnce(consumer, connection, max_records=max_records)
