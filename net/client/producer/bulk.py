"""`send_many`: whole columns go into batches by slices, with no step of bytecode per record where there are no keys."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Protocol, TypeVar

from barnabas.log.format.record_batch import HEADER_SIZE

from ..connection.errors import RecordTooLargeError
from ..connection.records import Headers
from .handles import BatchHandles
from .record_accumulator import HEADER_OVERHEAD, RECORD_OVERHEAD, Batch, PartitionQueue

Values = Sequence[bytes | None]
Keys = Sequence[bytes | None] | None
HeaderColumn = Sequence[Headers] | None
T = TypeVar("T", contravariant=True)


class Intake(Protocol[T]):
    """What is needed of a producer; `T` is what it knows of a topic."""

    @property
    def max_record_bytes(self) -> int: ...
    @property
    def wall_ms(self) -> int: ...
    def queue_for(self, state: T, key: bytes | None, partition: int | None) -> PartitionQueue: ...
    def open_batch(self, queue: PartitionQueue, size_bytes: int = 0) -> Batch | None: ...
    def seal(self, state: T, queue: PartitionQueue) -> None: ...
    def filled(self, state: T, queue: PartitionQueue, batch: Batch) -> None: ...
    @property
    def block_deadline_ms(self) -> int: ...
    async def ease(self, queue: PartitionQueue) -> None: ...
    async def wait_for_room(self, deadline_ms: int) -> None: ...


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
    _check_types(values, keys, headers)
    sizes = _sizes(values, keys, headers)
    _check_sizes(sizes, intake.max_record_bytes)  # All of them, before the first is on its way.
    if keys is None or partition is not None:
        return BatchHandles(await _fill(intake, state, partition, sizes, values, keys, headers))
    by_queue: dict[PartitionQueue, list[int]] = {}
    for position, key in enumerate(keys):
        by_queue.setdefault(intake.queue_for(state, key, None), []).append(position)
    runs: list[tuple[Batch, int, int]] = []
    order = [0] * len(values)
    placed = 0
    for queue, positions in by_queue.items():
        for number, position in enumerate(positions, placed):
            order[position] = number
        placed += len(positions)
        runs += await _fill(
            intake,
            state,
            queue.partition.partition,
            [sizes[position] for position in positions],
            [values[position] for position in positions],
            [keys[position] for position in positions],
            None if headers is None else [headers[position] for position in positions],
        )
    return BatchHandles(runs, order)


async def _fill(
    intake: Intake[T],
    state: T,
    partition: int | None,
    sizes: list[int],
    values: Values,
    keys: Keys,
    headers: HeaderColumn,
) -> list[tuple[Batch, int, int]]:
    """Fill batch after batch, of one partition or (None) of the sticky ones; returns (batch, first index, count) of
    each."""
    ends = list(accumulate(map(add, sizes, repeat(RECORD_OVERHEAD))))  # Bytes up to and with each record.
    runs: list[tuple[Batch, int, int]] = []
    start = filled = 0
    deadline_ms: int | None = None  # Of the wait for free memory.
    while start < len(values):
        queue = intake.queue_for(state, None, partition)
        batch = queue.open or intake.open_batch(queue, sizes[start] + RECORD_OVERHEAD)
        if batch is None:
            deadline_ms = intake.block_deadline_ms if deadline_ms is None else deadline_ms
            await intake.wait_for_room(deadline_ms)
            continue
        end = bisect_right(ends, filled + batch.room, lo=start)
        if end > start:
            runs.append((batch, len(batch.values), end - start))
            part = slice(start, end)
            _extend(batch, values[part], keys and keys[part], headers and headers[part], intake.wall_ms)
            intake.filled(state, queue, batch)
            batch.room -= ends[end - 1] - filled
            filled = ends[end - 1]
            start = end
            deadline_ms = None
        if start < len(values):
            intake.seal(state, queue)
            await intake.ease(queue)
    return runs


def _extend(batch: Batch, values: Values, keys: Keys, headers: HeaderColumn, now_ms: int) -> None:
    index, count = len(batch.values), len(values)
    if keys is not None and batch.keys is None:
        batch.keys = [None] * index
    if headers is not None and batch.headers is None:
        batch.headers = [()] * index
    if now_ms != batch.stamp_ms:
        batch.restamp(now_ms)
    batch.values += values
    if batch.keys is not None:
        batch.keys += keys if keys is not None else repeat(None, count)
    if batch.headers is not None:
        batch.headers += headers if headers is not None else repeat((), count)


def _sizes(values: Values, keys: Keys, headers: HeaderColumn) -> list[int]:
    sizes = _lengths(values)
    if keys is not None:
        sizes = list(map(add, sizes, _lengths(keys)))
    if headers is not None:
        sizes = list(map(add, sizes, map(headers_size, headers)))
    return sizes


def _lengths(column: Sequence[bytes | None]) -> list[int]:
    try:
        return list(map(len, column))  # type: ignore[arg-type]
    except TypeError:
        return [len(data or b"") for data in column]


def headers_size(headers: Headers) -> int:
    """An estimate, in bytes."""
    return sum(HEADER_OVERHEAD + len(name) + len(data or b"") for name, data in headers)


def _check_sizes(sizes: list[int], max_bytes: int) -> None:
    largest = max(sizes, default=0) + RECORD_OVERHEAD
    if largest > max_bytes:
        raise RecordTooLargeError(f"a record of {largest} bytes; at most {max_bytes} are taken")


def _check_types(values: Values, keys: Keys, headers: HeaderColumn) -> None:
    for what, column in (("values", values), ("keys", keys or ())):
        wrong = set(map(type, column)) - {bytes, type(None)}
        if wrong:
            raise TypeError(f"send_many takes {what} of bytes or None, not {wrong.pop().__name__}: encode them first")
    for what, other in (("keys", keys), ("headers", headers)):
        if other is not None and len(other) != len(values):
            raise ValueError(f"{len(values)} values and {len(other)} {what}; there must be as many of each")


def max_record_bytes(max_request_bytes: int) -> int:
    """The largest record that still fits into a request with the header of its batch."""
    return max_request_bytes - HEADER_SIZE
