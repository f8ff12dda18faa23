"""`send_many`: whole columns go into batches in a few calls, with no step of bytecode per record."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from barnabas.log.format.record_batch import HEADER_SIZE
from barnabas.log.records.codec import largest, rows_by_partition

from ..connection.errors import RecordTooLargeError
from ..connection.record_checks import checked_headers
from ..connection.records import HEADER_OVERHEAD, Headers
from .handles import BatchHandles
from .record_accumulator import RECORD_OVERHEAD, Batch, PartitionQueue

Values = Sequence[bytes | None]
Keys = Sequence[bytes | None] | None
HeaderColumn = Sequence[Headers] | None
T = TypeVar("T")


class Intake(Protocol[T]):
    """What is needed of a producer; `T` is what it knows of a topic."""

    @property
    def topics(self) -> Mapping[str, T]: ...
    async def learn(self, topic: str) -> T: ...
    @property
    def lock(self) -> AbstractContextManager[object]: ...
    @property
    def max_record_bytes(self) -> int: ...
    @property
    def wall_ms(self) -> int: ...
    def queue_for(self, state: T, key: bytes | None, partition: int | None) -> PartitionQueue: ...
    def partition_count(self, state: T) -> int: ...
    def open_batch(self, queue: PartitionQueue, size_bytes: int = 0) -> Batch | None: ...
    def make_room(self, state: T, queue: PartitionQueue) -> None: ...
    def filled(self, state: T, queue: PartitionQueue, batch: Batch) -> None: ...
    @property
    def block_deadline_ms(self) -> int: ...
    async def ease(self, queue: PartitionQueue) -> None: ...
    async def wait_for_room(self, deadline_ms: int) -> None: ...


async def send_many(
    intake: Intake[T],
    topic: str,
    values: Values,
    keys: Keys = None,
    *,
    headers: HeaderColumn = None,
    partition: int | None = None,
) -> BatchHandles:
    """As `send_columns`, with headers that are not checked yet."""
    state = intake.topics.get(topic) or await intake.learn(topic)
    checked = None if headers is None else [checked_headers(pairs) for pairs in headers]
    return await send_columns(intake, state, values, keys, headers=checked, partition=partition)


async def send_columns(
    intake: Intake[T],
    state: T,
    values: Values,
    keys: Keys = None,
    *,
    headers: HeaderColumn = None,
    partition: int | None = None,
) -> BatchHandles:
    """Put the records into batches; returns their handles in the order of `values`.

    All go to `partition` if it is given, else by their keys, or without keys to the sticky partition of each batch.
    """
    _check_lengths(values, keys, headers)
    _check_sizes(values, keys, headers, intake.max_record_bytes)  # All of them, before the first is on its way.
    if keys is None or partition is not None:
        return BatchHandles(await _fill(intake, state, partition, values, keys, headers))
    runs: list[tuple[Batch, int, int]] = []
    order: list[list[int]] = []
    by_partition = rows_by_partition(keys, intake.partition_count(state))
    for number, rows in enumerate(by_partition):
        if rows:
            sticky_or_one = None if number == len(by_partition) - 1 else number
            runs += await _fill(intake, state, sticky_or_one, values, keys, headers, rows)
            order.append(rows)
    return BatchHandles(runs, order)


async def _fill(
    intake: Intake[T],
    state: T,
    partition: int | None,
    values: Values,
    keys: Keys,
    headers: HeaderColumn,
    rows: Sequence[int] | None = None,
) -> list[tuple[Batch, int, int]]:
    """Fill batch after batch with all rows, or with `rows`, of one partition or (None) of the sticky ones; returns (batch, first
    index, count) of each."""
    runs: list[tuple[Batch, int, int]] = []
    count = len(values) if rows is None else len(rows)
    start = 0
    deadline_ms: int | None = None  # Of the next record that finds no room.
    while start < count:
        queue = intake.queue_for(state, None, partition)
        with intake.lock:  # No thread's record comes between these.
            batch = queue.open
            if batch is None:
                row = start if rows is None else rows[start]
                batch = intake.open_batch(queue, _size_of_row(values, keys, headers, row))
            if batch is not None:
                first = batch.record_count
                taken = batch.extend(values, keys, headers, intake.wall_ms, start=start, rows=rows)
                if taken:
                    runs.append((batch, first, taken))
                    intake.filled(state, queue, batch)
                    start += taken
                    deadline_ms = None
                if start < count:
                    intake.make_room(state, queue)
        if batch is None:
            deadline_ms = intake.block_deadline_ms if deadline_ms is None else deadline_ms
            await intake.wait_for_room(deadline_ms)
        elif start < count:
            await intake.ease(queue)
    return runs


def _size_of_row(values: Values, keys: Keys, headers: HeaderColumn, row: int) -> int:
    """An estimate, in bytes."""
    size = RECORD_OVERHEAD + len(values[row] or b"") + len((keys and keys[row]) or b"")
    return size if headers is None else size + headers_size(headers[row])


def headers_size(headers: Headers) -> int:
    """An estimate, in bytes."""
    return sum(HEADER_OVERHEAD + len(name) + len(data or b"") for name, data in headers)


def _check_sizes(values: Values, keys: Keys, headers: HeaderColumn, max_bytes: int) -> None:
    """Raises TypeError, RecordTooLargeError. Nearly always the sum of the largest parts is small enough."""
    size = RECORD_OVERHEAD + largest(values) + largest(keys or ()) + max(map(headers_size, headers or ()), default=0)
    if size > max_bytes:
        size = max(_size_of_row(values, keys, headers, row) for row in range(len(values)))
    if size > max_bytes:
        raise RecordTooLargeError(f"a record of {size} bytes; at most {max_bytes} are taken")


def _check_lengths(values: Values, keys: Keys, headers: HeaderColumn) -> None:
    for what, column in (("values", values), ("keys", keys), ("headers", headers)):
        if column is not None and (isinstance(column, bytes | str) or not hasattr(column, "__len__")):
            raise TypeError(
                f"{what} must be a list, not {type(column).__name__}: pass list({what}), or use send for one record"
            )
    for what, other in (("keys", keys), ("headers", headers)):
        if other is not None and len(other) != len(values):
            raise ValueError(f"{len(values)} values and {len(other)} {what}; there must be as many of each")


def max_record_bytes(max_request_bytes: int) -> int:
    """The largest record that still fits into a request with the header of its batch."""
    return max_request_bytes - HEADER_SIZE
