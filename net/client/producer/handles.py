"""What `send` returns: a batch and an index into it, awaitable for the record's metadata. A million of them cost
little."""

import asyncio
import types
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, overload

from barnabas.log.records.codec import Receipt
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.records import RecordMetadata
from .record_accumulator import Batch


class Handle(Receipt):
    """Await it for the RecordMetadata; raises the typed error if the record could not be delivered.

    `Handle(batch, position)`: its position is the record's in its batch.
    """

    __slots__ = ()
    batch: Batch

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.batch.is_done:
            yield from until_done(self.batch)
        return self.batch.metadata_of(self.position)

    @property
    def is_done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        return self.batch.is_done

    def result(self) -> RecordMetadata:
        """Return the metadata or raise the error of a record that is done; asyncio.InvalidStateError if it is not
        yet."""
        if not self.batch.is_done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet; await the handle")
        return self.batch.metadata_of(self.position)


class BatchExtent(NamedTuple):
    """Where a whole record batch lies in the log. `base_offset` is -1 if it is not known (see RecordMetadata)."""

    partition: TopicPartition
    base_offset: int
    record_count: int


class BatchHandles(Sequence[Handle]):
    """The handles of many records that were sent at once, in the order of the values; made when they are asked for.

    Awaiting it waits for all of them and returns their metadata; it raises the first error.
    """

    __slots__ = ("_in_order", "_length", "_order", "runs")

    def __init__(self, runs: list[tuple[Batch, int, int]], order: list[list[int]] | None = None) -> None:
        """Runs of (batch, first index, count). `order`: the positions of the values in the order of the runs; None: the same."""
        self.runs = runs
        self._length = sum(count for _, _, count in runs)
        self._order = order
        self._in_order: list[Handle] | None = None  # Made at the first use, which many callers never make.

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Handle: ...
    @overload
    def __getitem__(self, index: slice) -> list[Handle]: ...
    def __getitem__(self, index: int | slice) -> Handle | list[Handle]:
        if isinstance(index, slice):
            return list(self)[index]
        if self._order is not None:
            return self._handles()[index]
        position = index if index >= 0 else index + self._length
        for batch, first, count in self.runs:
            if 0 <= position < count:
                return Handle(batch, first + position)
            position -= count
        raise IndexError(f"there are {self._length} handles; index {index} is out of range")

    def __iter__(self) -> Iterator[Handle]:
        return self._as_sent() if self._order is None else iter(self._handles())

    def _as_sent(self) -> Iterator[Handle]:
        for batch, first, count in self.runs:
            for index in range(first, first + count):
                yield Handle(batch, index)

    def _handles(self) -> list[Handle]:
        """In the order of the values."""
        if self._in_order is None:
            by_position = dict(zip(chain.from_iterable(self._order or ()), self._as_sent(), strict=True))
            self._in_order = [by_position[position] for position in range(self._length)]
        return self._in_order

    def __await__(self) -> Generator[Any, None, list[RecordMetadata]]:
        for batch, _, _ in self.runs:
            if not batch.is_done:
                yield from until_done(batch)
        return [handle.result() for handle in self]


async def extents(sent: Sequence[BatchHandles]) -> list[BatchExtent]:
    """Wait for all of them, and return the batches that they went into, in the order of sending.

    Raises the first error. The first and last batches may contain records of other callers of the producer.
    """
    batches = {id(batch): batch for handles in sent for batch, _, _ in handles.runs}.values()
    found: list[BatchExtent] = []
    for batch in batches:
        await finished(batch)
        for leaf in _leaves(batch):
            leaf.metadata_of(0)  # Raises what it failed with.
            found.append(BatchExtent(batch.partition, leaf.base_offset, leaf.record_count))
    return found


def _leaves(batch: Batch) -> Iterator[Batch]:
    """What was really sent of a batch that may have been too large."""
    if not batch.parts:
        yield batch
    for part in batch.parts:
        yield from _leaves(part)


def until_done(batch: Batch) -> Generator[Any, None, None]:
    """Wait for a batch. Each waiter has its own future, so that cancelling one waiter does not affect the others. A waiter may
    run on another loop than the producer, in another thread."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        if asyncio._get_running_loop() is loop:
            done()
        else:
            with suppress(RuntimeError):  # The other loop has ended, and nobody waits.
                loop.call_soon_threadsafe(done)

    batch.callbacks.append(wake)
    if batch.is_done:  # In another thread, meanwhile: the callback may have come too late.
        done()
    yield from future


@types.coroutine
def finished(batch: Batch) -> Generator[Any, None, None]:
    """Await it to wait for a batch, however it ends."""
    if not batch.is_done:
        yield from until_done(batch)
