"""Committed offsets of groups, translated to the copies of their records.

The copy of a record has another offset than the original: transactions end with markers, and the source may have gaps. Each copy
names the offset of its original, and these rise in every partition, so a binary search finds the first copy of what a group has
not read.
"""

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer

from .provenance import offset_in
from .source import Source

logger = logging.getLogger("barnabas.mirror")

LOOK_TIMEOUT_S: Final = 5.0  # for one record of the copy
POLL_MS: Final = 100
FIRST_STEP: Final = 16
LOOK_BYTES: Final = 64 * 1024


class GroupOffsets:
    def __init__(
        self, source: Source, *, groups: Sequence[str], prefix: str, bootstrap: str, security: Mapping[str, Any]
    ) -> None:
        self._source = source
        self._groups = groups
        self._prefix = prefix
        self._bootstrap = bootstrap
        self._security = security
        self._known: dict[tuple[str, TopicPartition], tuple[int, int]] = {}  # original offset, offset of the copy

    async def sync(self, positions: Mapping[TopicPartition, int]) -> int:
        """Bring groups that nobody uses here to where they are at the source; return how many offsets have moved. `positions`:
        how far each partition was mirrored."""
        moved = 0
        async with Admin(self._bootstrap, **self._security) as admin:
            for group in await self._source.groups(self._groups):
                committed = await self._source.committed(group)
                wanted = {place: min(at, positions[place]) for place, at in committed.items() if place in positions}
                if wanted:
                    moved += await self._sync_group(admin, group, wanted)
        return moved

    async def _sync_group(self, admin: Admin, group: str, wanted: Mapping[TopicPartition, int]) -> int:
        here = await _offsets_here(admin, group)
        if here is None:
            return 0  # it has members here: its offsets are its own
        moves: dict[TopicPartition, int] = {}
        for place, offset in wanted.items():
            known = self._known.get((group, place))
            copy = TopicPartition(self._prefix + place.topic, place.partition)
            if known is not None and known[0] == offset and here.get(copy) == known[1]:
                continue
            try:
                target = await self._copy_of(admin, copy, offset)
            except BarnabasError as error:
                logger.warning("event=offset_skipped group=%s partition=%s reason=%s", group, copy, error)
                continue
            self._known[group, place] = (offset, target)
            if target > here.get(copy, -1):
                moves[copy] = target
        if moves and await self._commit(group, moves):
            logger.info("event=group group=%s offsets=%d", group, len(moves))
            return len(moves)
        return 0

    async def _commit(self, group: str, moves: Mapping[TopicPartition, int]) -> bool:
        """As a consumer without a membership, whose commit is refused if the group has got members meanwhile."""
        async with Consumer(bootstrap=self._bootstrap, group=group, auto_commit=False, **self._security) as consumer:
            consumer.assign(list(moves))
            try:
                await consumer.commit(moves)
            except (UnknownMemberIdError, FencedMemberEpochError, IllegalGenerationError) as error:
                logger.info("event=group_skipped group=%s reason=%s", group, error)
                return False
        return True

    async def _end(self, admin: Admin, copy: TopicPartition) -> int:
        return (await admin.list_offsets(copy.topic))[copy].offset

    async def _copy_of(self, admin: Admin, copy: TopicPartition, original: int) -> int:
        """The offset of the first copy of a record from this offset of the source on; if there is none, that behind the last
        copy. Records of other producers that follow the last copy before are not passed over."""
        starts = await admin.list_offsets(copy.topic, timestamp_ms=-2)
        start, end = starts[copy].offset, await self._end(admin, copy)
        async with Consumer(
            bootstrap=self._bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            partition_max_bytes=LOOK_BYTES,
            **self._security,
        ) as consumer:
            consumer.assign([copy])
            low, high, step = start, end, FIRST_STEP
            while low < high:  # Most groups are near the end.
                place = max(start, end - step)
                found = await self._first_copy(consumer, copy, place, end)
                if found is not None and found[1] < original:
                    low = found[0] + 1
                    break
                high = place
                step *= 8
            while low < high:
                middle = (low + high) // 2
                found = await self._first_copy(consumer, copy, middle, high)
                if found is None or found[1] >= original:
                    high = middle
                else:
                    low = found[0] + 1
            return await self._first_shown(consumer, copy, low, end)

    async def _first_copy(
        self, consumer: Consumer, copy: TopicPartition, start: int, end: int
    ) -> tuple[int, int] | None:
        """(offset, offset of the original) of the first copy from `start` on and before `end`; records of other producers are
        passed over."""
        async for record in _records(consumer, copy, start, end):
            original = offset_in(record.headers, self._source.cluster_id)
            if original is not None:
                return record.offset, original
        return None

    async def _first_shown(self, consumer: Consumer, copy: TopicPartition, start: int, end: int) -> int:
        """The offset of the first record that readers see: markers of transactions are no lag."""
        async for record in _records(consumer, copy, start, end):
            return record.offset
        return end


async def _records(
    consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> AsyncIterator[ConsumerRecord]:
    """Raises RequestTimedOutError."""
    consumer.seek(partition, start)
    until_s = time.monotonic() + LOOK_TIMEOUT_S
    while await consumer.position(partition) < end:
        if time.monotonic() > until_s:
            raise RequestTimedOutError(f"{partition} could not be read at offset {start}")
        for record in (await consumer.poll(timeout_ms=POLL_MS, max_records=1_000)).get(partition, ()):
            if record.offset >= end:
                return
            yield record


async def _offsets_here(admin: Admin, group: str) -> dict[TopicPartition, int] | None:
    """What the group has committed in this cluster; None while it has members here."""
    try:
        described = await admin.describe_group(group)
    except GroupIdNotFoundError:
        return {}
    except BarnabasError as error:
        logger.warning("event=group_skipped group=%s reason=%s", group, error)
        return None
    if described.members:
        return None
    return {place: lag.committed for place, lag in (await admin.group_offsets(group)).items() if lag.committed >= 0}
