"""`__consumer_offsets`, read only: partition N is slot N, served by any broker, because every broker replays all slots.

The newest records of a slot are served unchanged. For older offsets (or offsets before the snapshot that this broker started
from), the slot's current values are served, each at the offset of its own record, as in a compacted topic. Therefore, offsets
have gaps, a reader never finds an offset out of range, and only readers that are not far behind see tombstones.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.consumer_groups.offsets.offsets_topic import ShownRecord, shown, shown_state
from barnabas.kraft.metadata.image import SLOT_COUNT
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.format.record_batch import patch
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from barnabas.net.metadata.metadata_service import MetadataService

MAX_RECORDS_PER_READ = 2_000  # limits the work for one response
MAX_CACHED_HEADS = 4  # sorted current values of slots that are read from their beginning
RECORD_OVERHEAD_BYTES = 90  # of a batch of one record
NO_LEADER_EPOCH = -1  # of these batches: they are never truncated, so readers need not check


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsRead:
    records: bytes
    high_watermark: int


@dataclass(frozen=True, slots=True)
class _Head:
    """Current values of a slot whose records are before `end`."""

    end: int
    records: list[ShownRecord]


class OffsetsTopic:
    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata
        self._heads: OrderedDict[int, _Head] = OrderedDict()
        self._waiters: dict[asyncio.Future[None], None] = {}
        metadata.subscribe(self._published)

    async def read(self, slot: int, log_offset: int, max_bytes: int) -> OffsetsRead:
        """Record batches from this offset on, with at least one record if there is one.

        Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError.
        """
        records, high_watermark = await self._records(slot, log_offset)
        return OffsetsRead(records=_batches(_limited(records, max_bytes)), high_watermark=high_watermark)

    async def end_offset(self, slot: int) -> int:
        _check(slot, 0)
        return (await self._metadata.source.slot_log(slot, 0, 0)).end_offset

    async def first_at_or_after(self, slot: int, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that was committed at this time or later."""
        log_offset = 0
        while True:
            records, _ = await self._records(slot, log_offset)
            if not records:
                return None
            for record in records:
                if record.timestamp_ms >= timestamp_ms:
                    return record.log_offset, record.timestamp_ms
            log_offset = records[-1].log_offset + 1

    async def wait(self, timeout_ms: int) -> None:
        """Wait until any group or offset has changed, or until the timeout."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.pop(waiter, None)

    def _published(self, publication: MetadataPublication) -> None:
        if publication.restored:
            self._heads.clear()
        if publication.restored or publication.group_records:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _records(self, slot: int, log_offset: int) -> tuple[Sequence[ShownRecord], int]:
        _check(slot, log_offset)
        cached = self._heads.get(slot)
        asked = log_offset
        if cached is not None and cached.records and cached.records[0].log_offset < log_offset < cached.end:
            found = [item for item in cached.records if item.log_offset >= log_offset]
            if found:  # a continued scan; a new one gets the current values
                return found[:MAX_RECORDS_PER_READ], cached.end
            asked = cached.end
        log = await self._metadata.source.slot_log(slot, asked, MAX_RECORDS_PER_READ)
        if log.head is None:
            return [shown(entry) for entry in log.entries], log.end_offset
        head = await asyncio.to_thread(shown_state, log.head, first=asked, end=log.start_offset)
        self._heads[slot] = _Head(log.start_offset, head)
        self._heads.move_to_end(slot)
        if len(self._heads) > MAX_CACHED_HEADS:
            self._heads.popitem(last=False)
        if head:
            return head[:MAX_RECORDS_PER_READ], log.end_offset
        log = await self._metadata.source.slot_log(slot, log.start_offset, MAX_RECORDS_PER_READ)
        return [shown(entry) for entry in log.entries], log.end_offset


def _check(slot: int, log_offset: int) -> None:
    if not 0 <= slot < SLOT_COUNT:
        raise UnknownTopicOrPartitionError(f"__consumer_offsets has the partitions 0 to {SLOT_COUNT - 1}")
    if log_offset < 0:
        raise OffsetOutOfRangeError(f"offset {log_offset} is negative")


def _limited(records: Sequence[ShownRecord], max_bytes: int) -> Sequence[ShownRecord]:
    size_bytes = 0
    for number, record in enumerate(records):
        size_bytes += RECORD_OVERHEAD_BYTES + len(record.key) + len(record.value or b"")
        if number and size_bytes > max_bytes:
            return records[:number]
    return records


def _batches(records: Sequence[ShownRecord]) -> bytes:
    """A batch for each run of consecutive offsets: a batch has no gaps."""
    data = bytearray()
    start = 0
    for end in range(1, len(records) + 1):
        if end < len(records) and records[end].log_offset == records[end - 1].log_offset + 1:
            continue
        run = records[start:end]
        batch = encode_batch(
            [record.value for record in run],
            keys=[record.key for record in run],
            timestamps_ms=[record.timestamp_ms for record in run],
        )
        position = len(data)
        data += batch
        patch(data, position, base_offset=run[0].log_offset, leader_epoch=NO_LEADER_EPOCH)
        start = end
    return bytes(data)
