"""Committed offsets of groups, translated to the copies of their records.

The copy of a record has another offset than the original: transactions end with markers, and the source may have gaps. Each copy
names the offset of its original, and these rise in every partition, so a binary search finds the first copy of what a group has
not read.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..client.admin.admin import Admin
from ..client.consumer.consumer import Consumer
from .provenance import offset_in
from .source import Source

logger = logging.getLogger("barnabas.mirror")

LOOK_TIMEOUT_MS: Final = 5_000  # for one record of the copy
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
                    moved += await self._sync_group(admin, group, wanted, positions)
        return moved

    async def _sync_group(
        self, admin: Admin, group: str, wanted: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int]
    ) -> int:
        here = await _offsets_here(admin, group)
        if here is None:
            return 0  # it has members here: its offsets are its own
        moves: dict[TopicPartition, int] = {}
        for place, offset in wanted.items():
            known = self._known.get((group, place))
            copy = TopicPartition(self._prefix + place.topic, place.partition)
            if known is not None and known[0] == offset and here.get(copy) == known[1]:
                continue
            is_at_end = offset >= positions[place]
            target = await self._end(admin, copy) if is_at_end else await self._copy_of(admin, copy, offset)
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
        """The offset of the first copy of a record from this offset of the source on; the end, if there is none."""
        starts = await admin.list_offsets(copy.topic, timestamp_ms=-2)
        low, high = starts[copy].offset, await self._end(admin, copy)
        async with Consumer(
            bootstrap=self._bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            partition_max_bytes=LOOK_BYTES,
            **self._security,
        ) as consumer:
            consumer.assign([copy])
            while low < high:
                middle = (low + high) // 2
                found = await self._first_copy(consumer, copy, middle, high)
                if found is None or found[1] >= original:
                    high = middle if found is None or found[0] >= middle else found[0]
                else:
                    low = found[0] + 1
        return low

    async def _first_copy(
        self, consumer: Consumer, copy: TopicPartition, start: int, end: int
    ) -> tuple[int, int] | None:
        """(offset, offset of the original) of the first copy from `start` on and before `end`. Records of other producers are
        passed over, however many: the search does not come back to them."""
        consumer.seek(copy, start)
        while await consumer.position(copy) < end:
            records = (await consumer.poll(timeout_ms=LOOK_TIMEOUT_MS, max_records=1_000)).get(copy)
            if not records:
                return None
            for record in records:
                original = offset_in(record.headers, self._source.cluster_id)
                if record.offset >= end:
                    return None
                if original is not None:
                    return record.offset, original
        return None


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
