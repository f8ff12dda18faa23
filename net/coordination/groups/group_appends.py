"""Quorum appends of all coordinators of this broker: at most one is in flight, and decisions made meanwhile go into the next one.

Therefore, an idle broker appends at once, and a busy one as often as the quorum commits, whatever the number of its slots. Each
slot has its own outcome: a slot that is refused (it has moved) fails alone; if the outcome of the whole append is not known, all
slots in the append fail, and no other.

A slot without records may be part of an append: the controller only says whether this broker still coordinates it, and commits a
record that proves that it is the controller. Of many such questions that wait, one append asks all.

A decision is always applied as a whole. One that is too long for a quorum command is sent in parts that are applied together
with the last part (`StagedDecisionRecord`), unless the state after each part is valid (`_may_be_cut`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from barnabas.consumer_groups.model.messages import CoordinatorResult
from barnabas.kraft.group_state.group_slots import MAX_STAGED_PARTS, MAX_STAGED_RECORDS
from barnabas.kraft.metadata.records import (
    OffsetCommitRecord,
    PendingOffsetsEndedRecord,
    Record,
    RecordBatch,
    RemoveGroupRecord,
    RemoveOffsetRecord,
    StagedDecisionRecord,
    encode_batch,
)
from barnabas.kraft.metadata.requests import AppendGroupRecords, GroupRecordsAppended, SlotAppend
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, error_for
from barnabas.net.base.figures.histogram import Histogram
from barnabas.net.metadata.broker_to_controller import ControllerChannel

logger = logging.getLogger("barnabas.groups")

APPEND_TIMEOUT_MS = 5_000
MAX_RECORDS_PER_APPEND = 4_000  # limits the duration of one append
# Each becomes up to MAX_PENDING_OFFSETS commits when it is applied. All those of one append must fit between two indexes of the
# quorum (POSITION_BITS).
MAX_ENDS_PER_APPEND = 50
MAX_ENDED_OFFSETS_PER_APPEND = 20_000  # of all those ends together: 60 ms of every voter. One end may have as many
MAX_BYTES_PER_APPEND = 900 * 1024  # the limit of a quorum command is 1 MiB
_COMMIT_BYTES = 90  # of a committed offset without its strings: at most eight numbers of nine bytes, and headers


@dataclass(slots=True)
class Waiting:
    """One decision whose answer waits until its records, and those before them, are committed."""

    result: CoordinatorResult[object]
    answer: "asyncio.Future[object]"  # receives the result's response
    size_bytes: int = 0  # upper bound of the size of the records in a command
    end_count: int = 0  # of ends of pending offsets
    ended_offsets: int = 0  # by them

    def __post_init__(self) -> None:
        self.ended_offsets = self.result.ended_offsets
        for record in self.result.records:
            self.size_bytes += _size_bytes(record)
            self.end_count += isinstance(record, PendingOffsetsEndedRecord)


@dataclass(slots=True, kw_only=True, eq=False)
class SlotQueue:
    """The decisions of one slot, in order. `committed` and `failed` are called with the decisions of an append."""

    slot: int
    coordinator_epoch: int
    committed: Callable[[list[Waiting]], None]
    failed: Callable[[list[Waiting], BarnabasError], None]
    waiting: list[Waiting] = field(default_factory=list)
    under_way: list[Waiting] = field(default_factory=list)
    committed_offset: int = 0  # of the metadata: every committed decision is at it or before it
    is_closed: bool = False

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.under_way

    def close(self) -> list[Waiting]:
        """Accept no more decisions. Return those of which nothing was sent; those in flight will still get their outcome."""
        self.is_closed = True
        left, self.waiting = self.waiting, []
        return left

    def abandon(self) -> list[Waiting]:
        """Close the queue, and drop the outcome of decisions in flight. Return all decisions that were waiting or in flight."""
        left, self.under_way = self.under_way, []
        return left + self.close()


@dataclass(slots=True)
class _Room:
    """The remaining room in one append."""

    records: int = MAX_RECORDS_PER_APPEND
    size_bytes: int = MAX_BYTES_PER_APPEND
    ends: int = MAX_ENDS_PER_APPEND
    ended_offsets: int = MAX_ENDED_OFFSETS_PER_APPEND
    is_empty: bool = True

    def takes(self, item: Waiting) -> bool:
        if not self.is_empty and (
            len(item.result.records) > self.records
            or item.size_bytes > self.size_bytes
            or item.end_count > self.ends
            or item.ended_offsets > self.ended_offsets
        ):
            return False
        self.records -= len(item.result.records)
        self.size_bytes -= item.size_bytes
        self.ends -= item.end_count
        self.ended_offsets -= item.ended_offsets
        self.is_empty = self.is_empty and not item.result.records
        return True


class GroupAppends:
    """One per broker."""

    def __init__(
        self,
        *,
        node_id: int,
        controller: ControllerChannel,
        spawn: Callable[..., "asyncio.Task[None]"],
        times: Histogram | None = None,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._spawn = spawn
        self._times = times or Histogram()
        self._ready: dict[SlotQueue, None] = {}  # queues with waiting decisions, in order of arrival
        self._is_running = False

    def add(self, queue: SlotQueue, item: Waiting) -> None:
        assert not queue.is_closed
        queue.waiting.append(item)
        self._ready[queue] = None
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # other decisions of this pass of the loop go into the same append
            while self._ready:
                await self._append_next()
        finally:
            self._is_running = False

    async def _append_next(self) -> None:
        queues = self._take()
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        try:
            refused = await self._append(queues)
        except BarnabasError as error:
            refused = dict.fromkeys((queue.slot for queue in queues), error)
        self._times.note(now_s() - began_s)
        for queue in queues:
            items, queue.under_way = queue.under_way, []
            if queue.slot in refused:
                logger.warning("group slot=%d append failed: %s", queue.slot, refused[queue.slot])
                queue.failed(items, refused[queue.slot])
            else:
                queue.committed(items)

    def _take(self) -> list[SlotQueue]:
        """Take whole decisions for one append: as many as fit, and at least one."""
        room = _Room()
        taken: list[SlotQueue] = []
        for queue in list(self._ready):
            del self._ready[queue]
            while queue.waiting and room.takes(queue.waiting[0]):
                queue.under_way.append(queue.waiting.pop(0))
            if queue.under_way:
                taken.append(queue)
            if queue.waiting:
                self._ready[queue] = None  # the append is full: this queue goes to the end of the line
                break
        return taken

    async def _append(self, queues: list[SlotQueue]) -> dict[int, BarnabasError]:
        """Append, and return the refused slots with the reason."""
        by_slot: dict[int, tuple[int, list[Record], int]] = {}
        for queue in queues:
            records: list[Record] = []
            size_bytes, must_confirm = 0, False
            for item in queue.under_way:
                records += item.result.records
                size_bytes += item.size_bytes
                must_confirm |= item.result.must_confirm
            if records or must_confirm:
                by_slot[queue.slot] = (queue.coordinator_epoch, records, size_bytes)
        refused: dict[int, BarnabasError] = {}
        for request in self._requests(by_slot):
            answer = await self._controller.call(request, timeout_ms=APPEND_TIMEOUT_MS, repeat_when_unknown=False)
            assert isinstance(answer, GroupRecordsAppended)
            for queue in queues:
                queue.committed_offset = max(queue.committed_offset, answer.offset)
            refused.update((item.slot, error_for(item.error, item.message)) for item in answer.refused)
            if refused:
                break  # several requests belong to one slot, and later parts must not follow a gap
        return refused

    def _requests(self, by_slot: dict[int, tuple[int, list[Record], int]]) -> Iterator[AppendGroupRecords]:
        """The requests of one append; usually one. Only the decision of a single slot can be too long for one request."""
        if len(by_slot) == 1:
            ((slot, (epoch, records, size_bytes)),) = by_slot.items()
            for part in parts_of(slot, epoch, records, size_bytes):
                yield AppendGroupRecords(node_id=self._node_id, slots=(SlotAppend.of(slot, epoch, part),))
        elif by_slot:
            slots = tuple(SlotAppend.of(slot, epoch, tuple(records)) for slot, (epoch, records, _) in by_slot.items())
            yield AppendGroupRecords(node_id=self._node_id, slots=slots)


def parts_of(slot: int, coordinator_epoch: int, records: list[Record], size_bytes: int) -> Iterable[tuple[Record, ...]]:
    """The appends for one slot's records, whose size is at most `size_bytes`. Raises InvalidRequestError if the decision is too
    large."""
    if len(records) <= MAX_RECORDS_PER_APPEND and size_bytes <= MAX_BYTES_PER_APPEND:
        return [tuple(records)]
    if _may_be_cut(records):
        return _cut(records)
    if len(records) > MAX_STAGED_RECORDS:
        raise InvalidRequestError(
            f"one change of the group has {len(records)} records, but at most {MAX_STAGED_RECORDS} can be applied at once; "
            "change fewer members or partitions in one request"
        )
    whole = encode_batch(RecordBatch(controller_epoch=0, records=tuple(records)))
    chunks = [whole[start : start + MAX_BYTES_PER_APPEND] for start in range(0, len(whole), MAX_BYTES_PER_APPEND)]
    if len(chunks) > MAX_STAGED_PARTS:
        raise InvalidRequestError(
            f"the group is too large: one change of it takes {len(whole)} bytes of the quorum's log, but at most "
            f"{MAX_STAGED_PARTS * MAX_BYTES_PER_APPEND} are allowed; reduce the topics that its members subscribe to"
        )
    return [
        (
            StagedDecisionRecord(
                slot=slot, coordinator_epoch=coordinator_epoch, part=part, part_count=len(chunks), batch=chunk
            ),
        )
        for part, chunk in enumerate(chunks)
    ]


def _may_be_cut(records: list[Record]) -> bool:
    """Return whether the state after each part is valid: offsets are committed and deleted one by one, and a group is deleted
    after its offsets."""
    return all(isinstance(record, OffsetCommitRecord | RemoveOffsetRecord | RemoveGroupRecord) for record in records)


def _cut(records: list[Record]) -> list[tuple[Record, ...]]:
    parts: list[tuple[Record, ...]] = []
    part: list[Record] = []
    part_bytes = 0
    for record in records:
        size_bytes = _size_bytes(record)
        if part and (len(part) == MAX_RECORDS_PER_APPEND or part_bytes + size_bytes > MAX_BYTES_PER_APPEND):
            parts.append(tuple(part))
            part, part_bytes = [], 0
        part.append(record)
        part_bytes += size_bytes
    return [*parts, tuple(part)] if part else parts


def _size_bytes(record: Record) -> int:
    """An upper bound of its size in a command. Commits come in thousands, so their size is estimated without encoding them."""
    if isinstance(record, OffsetCommitRecord):
        texts = (record.group_id, record.topic, record.metadata)
        return _COMMIT_BYTES + sum(len(text) if text.isascii() else 4 * len(text) for text in texts)
    return len(encode_batch(RecordBatch(controller_epoch=0, records=(record,))))
