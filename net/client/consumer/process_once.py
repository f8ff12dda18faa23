"""`process_once`: apply each record to a database exactly once, despite crashes, by storing offsets with the effects.

    async with process_once(consumer, connection) as records:
        async for record, cursor in records:
            cursor.execute("INSERT INTO invoices VALUES (?, ?)", (record.key, record.value))

The records of one poll, and the offset of the last of them in the table `barnabas_offsets`, are one transaction. The
database, not the group, decides where reading continues: after anything that moves the consumer (a rebalance, `group seek`, a
reset, a seek of the application), it seeks back to the first record after the last processed one. Between two polls offsets
may be missing only if nothing has moved the consumer: those records were removed by compaction. Records that retention
removed before they were processed are an error, and so is a topic that was deleted and created again, whose id differs from
that in the row.

A transaction first moves the offset from where this owner stopped to where it will stop. If the stored offset differs, this
member is not the owner any more (it was away for too long and has not noticed): it processes none of the records, and
continues from the database. The lock of the row blocks a second owner until the first has committed or is gone. So with two
owners at once each record is processed by one of them, with all of its effects or none.

`ProcessOnce` works with blocking and asyncio consumers and connections: it awaits results that are awaitable.
`BlockingProcessOnce` runs the same coroutines when no result is awaitable.
"""

import logging
import sys
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.client import inside_of
from ..connection.either_kind import run_blocking, settled
from ..connection.errors import BarnabasError, InvalidRequestError, OffsetOutOfRangeError, TopicRecreatedError
from ..connection.records import ConsumerRecord, ReadingOrigin

logger = logging.getLogger("barnabas.consumer")

MAX_RECORDS = (
    100  # of one transaction: after a crash at most this many are repeated, after their effects were rolled back
)
MAX_SEEKS = 10  # in a row without effect: a rebalance may undo one, but not this many
POLL_MS = 1_000  # how often a blocking iteration wakes up, so that Ctrl-C works
_NOTHING_PROCESSED: Final = -1
_PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}  # of DB-API 2 (PEP 249)
_CREATE: Final = """CREATE TABLE IF NOT EXISTS barnabas_offsets (
    group_id TEXT NOT NULL, topic TEXT NOT NULL, partition_id INTEGER NOT NULL, last_offset BIGINT NOT NULL,
    topic_id TEXT NOT NULL DEFAULT '', PRIMARY KEY (group_id, topic, partition_id))"""
_IS_CURRENT: Final = "SELECT topic_id FROM barnabas_offsets WHERE 1 = 0"
_MIGRATE: Final = (
    "ALTER TABLE barnabas_offsets ADD COLUMN topic_id TEXT NOT NULL DEFAULT ''"  # tables of older versions have none
)
_INSERT: Final = (
    "INSERT INTO barnabas_offsets (group_id, topic, partition_id, last_offset, topic_id)"
    " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_ROW: Final = "WHERE group_id = ? AND topic = ? AND partition_id = ?"
_SELECT: Final = f"SELECT last_offset, topic_id FROM barnabas_offsets {_ROW}"
# A row written by an older version has no topic id: it is assumed to belong to the current topic.
_MOVE: Final = (
    f"UPDATE barnabas_offsets SET last_offset = ?, topic_id = ? {_ROW} AND last_offset = ? AND topic_id IN (?, '')"
)
T = TypeVar("T")


class OnceReading(Protocol):
    def poll_with_origins(self, *, max_records: int, timeout_ms: float) -> Any: ...
    def origin(self, partition: TopicPartition, /) -> ReadingOrigin: ...


class OnceConsumer(Protocol):
    """`barnabas.Consumer` or `barnabas.sync.Consumer`."""

    @property
    def group(self) -> str | None: ...
    @property
    def _inside(self) -> "OnceReading": ...
    def position(self, partition: TopicPartition, /) -> Any: ...
    def beginning_offsets(self, partition: TopicPartition, /) -> Any: ...
    def seek(self, partition: TopicPartition, offset: int, /, *, topic_id: str = "") -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """In the open transaction the stored offset is `last_offset`, and was `before` at its start. Both are inclusive."""

    before: int
    last_offset: int
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A row. `topic_id` is "" if the row was written before the table had this column."""

    last_offset: int
    topic_id: str


class _Database:
    """The statements, on a connection of DB-API 2 (sqlite3, psycopg) or its asyncio twin (psycopg.AsyncConnection)."""

    def __init__(self, connection: Any, group: str) -> None:
        driver = _driver_of(connection)
        self._placeholder = _PLACEHOLDERS[driver.paramstyle]
        self._error: type[Exception] = driver.Error
        self._connection = connection
        self._group = group

    async def create_table(self) -> None:
        """Create the table, or add missing columns to an older one; other processes may be doing the same concurrently."""
        for statement in (_CREATE, _MIGRATE):
            if not await self._has_table():
                try:
                    await self._execute(statement)
                    await self.commit()
                except self._error:
                    await (
                        self.rollback()
                    )  # another process may have done it at the same time; otherwise the last check raises the error
        await self._execute(_IS_CURRENT)
        await self.rollback()

    async def _has_table(self) -> bool:
        try:
            await self._execute(_IS_CURRENT)
        except self._error:
            return False
        finally:
            await self.rollback()
        return True

    async def stored(self, place: TopicPartition) -> _Stored | None:
        """The last offset that was processed."""
        row = await settled((await self._execute(_SELECT, *self._key(place))).fetchone())
        return None if row is None else _Stored(last_offset=int(row[0]), topic_id=str(row[1]))

    async def begin(self, place: TopicPartition, position: int, topic_id: str) -> _Stored:
        """The stored offset; if there is none, everything before `position` counts as processed from now on."""
        found = await self.stored(place)
        if found is None:
            await self._execute(_INSERT, *self._key(place), position - 1, topic_id)
            found = await self.stored(place)
        await self.commit()
        assert found is not None, "the row was inserted or found just before"
        return found

    async def move(self, place: TopicPartition, topic_id: str, *, before: int, last_offset: int) -> bool:
        """Lock the row and move the offset; False if the stored offset is not the expected one, or belongs to another topic."""
        cursor = await self._execute(_MOVE, last_offset, topic_id, *self._key(place), before, topic_id)
        return bool(cursor.rowcount == 1)

    async def cursor(self) -> Any:
        return await settled(self._connection.cursor())

    async def commit(self) -> None:
        await settled(self._connection.commit())

    async def rollback(self) -> None:
        await settled(self._connection.rollback())

    def _key(self, place: TopicPartition) -> tuple[str, str, int]:
        return self._group, place.topic, place.partition

    async def _execute(self, statement: str, *parameters: object) -> Any:
        cursor = await self.cursor()
        await settled(cursor.execute(statement.replace("?", self._placeholder), parameters))
        return cursor


def _driver_of(connection: Any) -> Any:
    """The DB-API module that the connection's class comes from. Raises InvalidRequestError for an unsupported connection."""
    for cls in type(connection).__mro__:
        module = sys.modules.get(cls.__module__.partition(".")[0])
        if getattr(module, "paramstyle", None) in _PLACEHOLDERS:
            if _is_autocommit(module, connection):
                raise InvalidRequestError(
                    "the connection is in autocommit mode, which cannot roll back: turn autocommit off"
                )
            return module
    raise InvalidRequestError(
        f"{type(connection).__name__} is not a connection of a supported driver: use sqlite3 or psycopg"
    )


def _is_autocommit(driver: Any, connection: Any) -> bool:
    if driver.__name__ == "sqlite3":
        return connection.isolation_level is None and getattr(connection, "autocommit", -1) is not False
    return getattr(connection, "autocommit", False) is True


class ProcessOnce:
    """An asynchronous iterator of (record, cursor). Leaving it cleanly commits the current record, an exception rolls it back."""

    def __init__(self, consumer: OnceConsumer, connection: Any, *, max_records: int = MAX_RECORDS) -> None:
        if consumer.group is None:
            raise InvalidRequestError(
                "process_once needs a consumer with a group: the group's name is the key of the stored offsets"
            )
        self._consumer = consumer
        self._group = consumer.group
        self._database = _Database(connection, consumer.group)
        self._max_records = max_records
        self._processed: dict[TopicPartition, _Stored] = {}  # the database rows of the assigned partitions
        self._origin_approved: dict[
            TopicPartition, ReadingOrigin
        ] = {}  # origins from which reading continues after the processed records
        self._seeks: dict[TopicPartition, int] = {}  # since the last record at the expected offset
        self._claims: dict[TopicPartition, _Claim] = {}  # of the open transaction
        self._batch: Sequence[tuple[TopicPartition, ConsumerRecord]] = ()
        self._handed_out = 0  # of the batch, records returned to the application
        self._cursor: Any = None
        self._poll_ms = (
            0  # the first poll only shows where the consumer is: an application may leave before a long one ends
        )

    async def __aenter__(self) -> Self:
        await self._database.create_table()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        await self._end(is_clean=kind is None)

    def __aiter__(self) -> Self:
        return self

    @property
    def is_last(self) -> bool:
        """Whether the record returned last is the last one of its transaction, which the next step commits."""
        return self._handed_out == len(self._batch)

    async def __anext__(self) -> tuple[ConsumerRecord, Any]:
        while (found := await self._next()) is None:
            pass
        return found

    async def _next(self) -> tuple[ConsumerRecord, Any] | None:
        """The next record; None if a poll returned none."""
        if self._handed_out == len(self._batch):
            await self._commit()
            polled = inside_of(self._consumer).poll_with_origins(
                max_records=self._max_records, timeout_ms=self._poll_ms
            )
            await self._begin(*await settled(polled))
            self._poll_ms = POLL_MS
            if not self._batch:
                return None
        record = self._batch[self._handed_out][1]
        self._handed_out += 1
        return record, self._cursor

    # --- a transaction -----------------------------------------------------------------------------------------------

    async def _begin(
        self, found: dict[TopicPartition, list[ConsumerRecord]], origins: dict[TopicPartition, ReadingOrigin]
    ) -> None:
        """Claim the polled records of assigned partitions. `origins` are those of the records: a consumer that is not asyncio's
        may have jumped since the poll, so its current origins belong to later records."""
        first = {place: records[0].offset for place, records in found.items()}
        try:
            batch = await self._claim_all(found, origins)
        except BaseException:
            for place, offset in first.items():  # a later `process_once` with this consumer must find these records
                self._go(place, offset, origins[place].topic_id if place in origins else "")
            raise
        self._batch, self._handed_out = batch, 0
        if batch:
            self._cursor = await self._database.cursor()
        else:
            await self._database.rollback()

    async def _claim_all(
        self, found: dict[TopicPartition, list[ConsumerRecord]], origins: dict[TopicPartition, ReadingOrigin]
    ) -> list[tuple[TopicPartition, ConsumerRecord]]:
        await self._follow_assignment(found, origins)
        batch: list[tuple[TopicPartition, ConsumerRecord]] = []
        for place, records in sorted(found.items()):  # in a fixed order, so that two owners cannot deadlock
            if await self._claim(place, records, origins[place].topic_id):
                self._seeks.pop(place, None)
                batch += [(place, record) for record in records]
        return batch

    async def _follow_assignment(
        self, found: dict[TopicPartition, list[ConsumerRecord]], origins: dict[TopicPartition, ReadingOrigin]
    ) -> None:
        """Drop partitions that are assigned to other members. For new partitions, or after a jump since the last seek of this
        object, seek to the database's offset. Records left in `found` follow the processed ones, with gaps only by compaction."""
        self._processed = {place: stored for place, stored in self._processed.items() if place in origins}
        for place in [place for place in found if place not in origins]:
            del found[place]
        for place, origin in origins.items():
            records = found.get(place)
            if not origin.is_known:
                if records:
                    del found[place]
                    self._go(place, records[0].offset, origin.topic_id)
                continue
            if place in self._processed and self._processed[place].topic_id != origin.topic_id:
                del self._processed[place]  # look up the row of the topic that has the name now
            if place not in self._processed and not await self._begin_place(place, origin, records):
                found.pop(place, None)
                continue
            is_behind = records is not None and records[0].offset <= self._processed[place].last_offset
            if origin != self._origin_approved.get(place) or is_behind:
                found.pop(place, None)
                await self._return(place)

    async def _begin_place(
        self, place: TopicPartition, origin: ReadingOrigin, records: Sequence[ConsumerRecord] | None
    ) -> bool:
        """Look up the processed offset of a newly assigned partition. False: its position is not known yet."""
        try:
            position = records[0].offset if records else await settled(self._consumer.position(place))
        except BarnabasError as error:
            logger.info("position not known yet partition=%s reason=%s", place, error.message)
            return False
        stored = await self._database.begin(place, position, origin.topic_id)
        self._check_topic(place, stored, origin.topic_id)
        self._processed[place] = _Stored(last_offset=stored.last_offset, topic_id=origin.topic_id)
        self._origin_approved.pop(place, None)
        if position == stored.last_offset + 1:
            self._origin_approved[place] = origin
        return True

    async def _return(self, place: TopicPartition) -> None:
        """Reading is elsewhere: seek to the record after the last processed one. Raises OffsetOutOfRangeError if it is gone."""
        processed = self._processed[place].last_offset
        try:
            start = (await settled(self._consumer.beginning_offsets(place)))[place]
        except BarnabasError as error:
            if not error.retriable:
                raise
            logger.info("start of the log not known yet partition=%s reason=%s", place, error.message)
            return
        if start > processed + 1:
            raise OffsetOutOfRangeError(
                f"the database has processed {place} up to offset {processed}, and the log begins at {start}: the records between"
                " were removed (by retention or DeleteRecords) before they were processed. To go on without them, set"
                f" last_offset to {start - 1} in the row of group {self._group!r} in barnabas_offsets"
            )
        if self._seeks.get(place, 0) >= MAX_SEEKS:
            raise OffsetOutOfRangeError(
                f"the database has processed {place} up to offset {processed}, and reading cannot continue there. Was the topic"
                f" created again, or its log truncated? Then delete the rows of group {self._group!r} in barnabas_offsets"
            )
        self._seek(place)

    def _check_topic(self, place: TopicPartition, stored: _Stored, topic_id: str) -> None:
        if stored.topic_id not in ("", topic_id):
            raise TopicRecreatedError(
                f"topic {place.topic!r} was deleted and created again: the database has processed {place} up to offset"
                f" {stored.last_offset} of topic id {stored.topic_id}, and the topic's id is {topic_id} now. To read the new"
                f" topic, delete the rows of group {self._group!r} and this topic in barnabas_offsets"
            )

    async def _claim(self, place: TopicPartition, records: Sequence[ConsumerRecord], topic_id: str) -> bool:
        before, last_offset = self._processed[place].last_offset, records[-1].offset
        if await self._database.move(place, topic_id, before=before, last_offset=last_offset):
            self._claims[place] = _Claim(before=before, last_offset=last_offset, topic_id=topic_id)
            return True
        stored = await self._database.stored(place)
        self._processed.pop(place)
        if stored is None:
            self._origin_approved.pop(place, None)
            return False
        self._check_topic(place, stored, topic_id)
        logger.warning(
            "another member has processed records of this member's partition group=%s partition=%s up_to=%d",
            self._group,
            place,
            stored.last_offset,
        )
        self._processed[place] = _Stored(last_offset=stored.last_offset, topic_id=topic_id)
        self._seek(place)
        return False

    async def _commit(self) -> None:
        if self._claims:
            await self._database.commit()
            self._processed |= {
                place: _Stored(last_offset=claim.last_offset, topic_id=claim.topic_id)
                for place, claim in self._claims.items()
            }
        self._forget_transaction()

    async def _end(self, *, is_clean: bool) -> None:
        """Commit the records returned so far, or none; unprocessed records are returned again."""
        done: dict[TopicPartition, int] = {}
        try:
            if is_clean:
                done = {place: record.offset for place, record in self._batch[: self._handed_out]}
                for place, claim in self._claims.items():
                    offset = done.get(place, claim.before)
                    if offset != claim.last_offset:
                        await self._database.move(place, claim.topic_id, before=claim.last_offset, last_offset=offset)
                await self._database.commit()
                self._processed |= {
                    place: _Stored(last_offset=offset, topic_id=self._claims[place].topic_id)
                    for place, offset in done.items()
                }
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
        stored = self._processed[place]
        offset = stored.last_offset + 1
        self._seeks[place] = self._seeks.get(place, 0) + 1
        self._origin_approved.pop(place, None)
        origin = self._go(place, offset, stored.topic_id)
        if origin is not None and (origin.offset, origin.topic_id) == (
            offset,
            stored.topic_id,
        ):  # otherwise it has jumped again
            self._origin_approved[place] = origin

    def _go(self, place: TopicPartition, offset: int, topic_id: str) -> ReadingOrigin | None:
        """For an offset of a deleted topic, seek to the start of the topic that has its name now."""
        try:
            self._consumer.seek(place, offset, topic_id=topic_id)
            return inside_of(self._consumer).origin(place)
        except BarnabasError as error:
            logger.info("partition not assigned any more partition=%s reason=%s", place, error.message)
            return None


class BlockingProcessOnce:
    """`ProcessOnce` without asyncio: a context manager and iterator, in the caller's thread, as sqlite3 wants it."""

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
    needed = "an asyncio connection or consumer needs `async with barnabas.process_once(...)`"
    return run_blocking(coroutine, otherwise=needed)


def process_once(consumer: OnceConsumer, connection: Any, *, max_records: int = MAX_RECORDS) -> ProcessOnce:
    """Process each record exactly once into the database of this connection: `async with`, then `async for`.

    `consumer` has a group, and `auto_commit=False`. `connection` is a connection of sqlite3 or psycopg, or psycopg's
    AsyncConnection, not in autocommit mode; only this object may commit on it. A blocking connection blocks the event loop,
    including heartbeats, while the database works. One transaction has at most `max_records`.
    """
    return ProcessOnce(consumer, connection, max_records=max_records)
