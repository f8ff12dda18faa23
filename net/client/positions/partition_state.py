"""What a consumer knows of one partition: where it is, what is buffered, what must be found out. Pure.

    0 <= processed <= position <= fetch_offset, once known

`position` is the next record for the application, `fetch_offset` the next for the network, and `processed` is what
auto-commit may commit: behind the last record that the application is done with. Every jump starts a new `version`, so
that an answer to a fetch or a commit from before the jump is recognized. No two states share a version.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from operator import length_hint
from typing import TypeVar

from barnabas.log.format.record_batch import LENGTH, LENGTH_POSITION, LOG_OVERHEAD, BatchHeader, check_crc, read_header
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.records.codec import decode, lists_of, records_of
from barnabas.log.records.columns import Columns
from barnabas.log.vocabulary.errors import CorruptRecordError
from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import UnreadableBatchError
from ..connection.records import ConsumerRecord, RecordColumns, record_class

Lists = tuple[list[int], list[int], list[bytes | None], list[bytes | None]]
Decoded = TypeVar("Decoded")
UNKNOWN = -1
_versions = count(1)


class PartitionState:
    __slots__ = (
        "_chunk_position",
        "_chunks",
        "_records",
        "_records_end",
        "buffered_bytes",
        "committed",
        "fetch_offset",
        "handed_out_topic_id",
        "high_watermark",
        "in_flight",
        "is_backing_off",
        "is_paused",
        "is_quiet",
        "lacks_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "origin_offset",
        "partition",
        "position",
        "position_epoch",
        "processed",
        "record_type",
        "reset_timestamp_ms",
        "told",
        "topic_id",
        "version",
    )

    def __init__(self, partition: TopicPartition, *, max_bytes: int) -> None:
        self.partition = partition
        self.record_type = record_class(*partition)
        self.max_bytes = max_bytes  # Asked for in one fetch; grows for a batch that is larger.
        self.position = UNKNOWN
        self.position_epoch = -1  # Leader epoch of the last batch handed out; committed with the position.
        self.processed = UNKNOWN
        self.origin_offset = UNKNOWN  # Where the last jump went: from there to the position nothing was left out.
        self.topic_id = ""  # Of the topic that the position is of, as metadata told it; "" while it is not known.
        self.handed_out_topic_id = ""  # Of the topic that the application's records are of; "" before the first.
        self.committed = UNKNOWN  # What we committed last; spares commits that say nothing new.
        self.told: CommittedOffset | None = None  # By the coordinator with the assignment; to be used once.
        self.fetch_offset = UNKNOWN
        self.last_fetched_epoch = -1
        self.reset_timestamp_ms: int | None = None  # The position is to be looked up by this time (or -1, -2).
        self.lacks_offset = False  # Nothing is committed and no reset allowed: only a jump of the application helps.
        self.is_paused = False
        self.is_backing_off = False
        self.in_flight = False
        self.is_quiet = False  # The last answer brought little or nothing.
        self.version = next(_versions)
        self.high_watermark = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.buffered_bytes = 0
        # Whole batches, checked by length only, what is to be left out of them, and how many records they say they have.
        self._chunks: deque[tuple[bytes, AbortedFilter, int]] = deque()
        self._chunk_position = 0  # In the first chunk.
        self._records: list[ConsumerRecord] = []  # Decoded and not handed out yet.
        self._records_end = UNKNOWN  # The offset behind the batch that was decoded last.

    # --- jumps -------------------------------------------------------------------------------------------------------

    def seek(self, offset: int, *, epoch: int = -1, topic_id: str = "") -> None:
        """`topic_id`: of the topic that the offset is of; "": of the one that is read already."""
        self._forget()
        self.topic_id = topic_id or self.topic_id
        self.position = self.processed = self.fetch_offset = self.origin_offset = offset
        self.position_epoch = self.last_fetched_epoch = epoch
        self.reset_timestamp_ms = None

    def seek_to_time(self, timestamp_ms: int) -> None:
        """The position is to be looked up; until then there is none."""
        self._forget()
        self.position = self.processed = self.fetch_offset = self.origin_offset = UNKNOWN
        self.position_epoch = self.last_fetched_epoch = -1
        self.reset_timestamp_ms = timestamp_ms

    @property
    def must_be_found(self) -> bool:
        return self.position < 0 and not self.lacks_offset

    def _forget(self) -> None:
        self.version = next(_versions)
        self.committed = UNKNOWN
        self.told = None
        self.lacks_offset = False
        self.in_flight = self.is_quiet = False
        self._chunks.clear()
        self._chunk_position = 0
        self._records = []
        self._records_end = UNKNOWN
        self.buffered_bytes = 0

    # --- what was fetched --------------------------------------------------------------------------------------------

    @property
    def is_fetchable(self) -> bool:
        """Nothing is on its way, and less is buffered than one fetch brings: so at most two fetches lie here."""
        return (
            self.fetch_offset >= 0
            and not self.in_flight
            and not self.is_paused
            and not self.is_backing_off
            and not self.is_full
        )

    @property
    def has_records(self) -> bool:
        return not self.is_paused and bool(self._records or self._chunks)

    @property
    def is_full(self) -> bool:
        return self.buffered_bytes >= self.max_bytes

    def buffered_records(self, limit: int) -> int:
        """How many records a `take` would find, about (those before the position, and of aborted transactions, count); no more
        are counted beyond the limit. Cheap: each change of the buffer asks it of all partitions."""
        found, position = len(self._records), self._chunk_position
        for chunk, _, record_count in self._chunks:
            if found >= limit:
                break
            found += _records_from(chunk, position, limit - found) if position else record_count
            position = 0
        return found

    def fetched(self, data: bytes, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """Take whole batches in, leave a cut one at the end; the next fetch goes on behind the last whole one. `aborted`: the
        (producer id, first offset) of transactions to leave out.

        Raises CorruptRecordError where the header of the first batch is damaged; what comes before one is taken in.
        """
        end = record_count = 0
        last: BatchHeader | None = None
        try:
            while (size_bytes := _batch_size(data, end)) is not None:
                last = read_header(data, end)
                end += size_bytes
                record_count += last.record_count
        except CorruptRecordError:
            if last is None:
                raise
        if last is None:
            self.max_bytes *= 2  # A batch that is larger than what we asked for: ask for more.
            return
        self.fetch_offset = max(self.fetch_offset, last.next_offset)
        self.last_fetched_epoch = last.leader_epoch
        chunk = data if end == len(data) else data[:end]
        self._chunks.append((chunk, AbortedFilter(aborted), record_count))
        self.buffered_bytes += len(chunk)

    # --- handing out -------------------------------------------------------------------------------------------------

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """Return up to so many records, of several batches, and move the position behind them. May be empty.

        Raises UnreadableBatchError when the next batch is damaged; what comes before it is handed out first.
        """
        self.handed_out_topic_id = self.topic_id
        records, self._records = self._records, []
        while len(records) < max_records and self._chunks:
            try:
                records += self._next(self._records_of) or []
            except CorruptRecordError:
                if not records:
                    raise
                break
        if len(records) > max_records:
            self._records = records[max_records:]
            del records[max_records:]
            self.position = records[-1].offset + 1
        else:
            self.position = max(self.position, self._records_end)
        return records

    def put_back(self, records: list[ConsumerRecord]) -> None:
        """Records that were taken and not handed out come next again."""
        if records:
            self._records = records + self._records
            self.position = records[0].offset

    def take_columns(self) -> RecordColumns:
        """As `take`, one batch as columns."""
        topic, partition = self.partition
        self.handed_out_topic_id = self.topic_id
        if self._records:
            records, self._records = self._records, []
            self.position = self._records_end
            columns = _columns_of(records)
        else:
            columns = self._next(self._lists_of) or ([], [], [], [])
        return RecordColumns(
            topic=topic,
            partition=partition,
            offsets=columns[0],
            timestamps_ms=columns[1],
            keys=columns[2],
            values=columns[3],
        )

    def take_decoded(self, max_bytes: int) -> Columns | list[ConsumerRecord]:
        """As `take`, the batches of one fetch answer, in Arrow's layout: up to `max_bytes` of decompressed records, and at least
        one batch. Records that an earlier call decoded, and that were not handed out, come first, as they are."""
        self.handed_out_topic_id = self.topic_id
        if self._records:
            records, self._records = self._records, []
            self.position = max(self.position, self._records_end)
            return records
        chunk, aborted, _ = self._chunks[0]
        rest = memoryview(chunk)[self._chunk_position :]
        try:
            columns = decode([rest], self.position, aborted=aborted, max_bytes=max_bytes)
        except CorruptRecordError as error:
            header = read_header(chunk, self._chunk_position)
            first = max(header.base_offset, self.position)
            raise UnreadableBatchError(self.partition, first, header.next_offset, error.message) from error
        self.position = self._records_end = max(self.position, columns.next_offset)
        if columns.leader_epoch >= 0:
            self.position_epoch = columns.leader_epoch
        self._drop(columns.consumed_bytes)
        return columns

    def _drop(self, size_bytes: int) -> None:
        """Whole batches at the front of the buffer were decoded."""
        self.buffered_bytes -= size_bytes
        self._chunk_position += size_bytes
        while self._chunks and self._chunk_position >= len(self._chunks[0][0]):
            self._chunk_position -= len(self._chunks.popleft()[0])

    def _next(self, decode: Callable[[bytes, BatchHeader], Decoded]) -> Decoded | None:
        """The records of the next batch from the position on; None if it has none. Moves the position behind the batch.

        Raises UnreadableBatchError; the position then stays before the damaged batch.
        """
        if not self._chunks:
            return None
        chunk, aborted, _ = self._chunks[0]
        header = read_header(chunk, self._chunk_position)
        found: Decoded | None = None
        try:
            check_crc(chunk, header)
            # Each batch is shown to the filter, also if its records are behind the position: it may end a transaction.
            if not aborted.leaves_out(header, chunk) and header.next_offset > self.position:
                found = decode(chunk, header)
        except CorruptRecordError as error:
            first = max(header.base_offset, self.position)
            raise UnreadableBatchError(self.partition, first, header.next_offset, error.message) from error
        self.position = self._records_end = max(self.position, header.next_offset)
        self.position_epoch = header.leader_epoch
        self._drop(header.size_bytes)
        return found

    def _records_of(self, chunk: bytes, header: BatchHeader) -> list[ConsumerRecord]:
        return records_of(chunk, header, self.record_type, self.position, check=False)

    def _lists_of(self, chunk: bytes, header: BatchHeader) -> Lists:
        return lists_of(chunk, header, self.position, check=False)


class Cursor:
    """A batch that `async for` is walking through. How far it got is read off the iterator: nothing is counted per
    record."""

    __slots__ = ("_records", "iterator", "state")

    def __init__(self, state: PartitionState, records: list[ConsumerRecord]) -> None:
        self.state = state
        self._records = records
        self.iterator = iter(records)

    @property
    def handed_out(self) -> int:
        return len(self._records) - length_hint(self.iterator)

    @property
    def is_open(self) -> bool:
        """There are records left to hand out."""
        return length_hint(self.iterator) > 0

    @property
    def position(self) -> int:
        """The next record for the application."""
        index = self.handed_out
        return self._records[index].offset if index < len(self._records) else self.state.position

    @property
    def processed(self) -> int:
        """The record in the application's hands is not done yet."""
        index = self.handed_out
        return self._records[index - 1].offset if index else self.state.processed

    def stop(self) -> list[ConsumerRecord]:
        """End the walk behind the record in hand; returns those that were not handed out, as they were stored."""
        self._records = self._records[: self.handed_out]
        return [record.raw for record in self.iterator]


def _columns_of(records: list[ConsumerRecord]) -> Lists:
    return (
        [record.offset for record in records],
        [record.timestamp_ms for record in records],
        [record.key for record in records],
        [record.value for record in records],
    )


def _records_from(chunk: bytes, position: int, limit: int) -> int:
    """How many records the batches from `position` on say they have; none are read beyond the limit."""
    found = 0
    while found < limit and position < len(chunk):
        header = read_header(chunk, position)
        found += header.record_count
        position += header.size_bytes
    return found


def _batch_size(data: bytes, position: int) -> int | None:
    """The size of the batch at `position`; None where it is cut."""
    if len(data) - position < LOG_OVERHEAD:
        return None
    size_bytes: int = LENGTH.unpack_from(data, position + LENGTH_POSITION)[0] + LOG_OVERHEAD
    if size_bytes <= LOG_OVERHEAD:
        raise CorruptRecordError(f"a record batch claims {size_bytes} bytes")
    return size_bytes if size_bytes <= len(data) - position else None
