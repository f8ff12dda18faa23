"""Move the committed offsets of a group, also while it runs, with preview and undo.

The command (`group seek`) and the HTTP API show the results of these functions.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.group_messages import UndoOffsetResetResponse
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

from .offset_seek import SeekStep, held_within, steps

if TYPE_CHECKING:  # commands import this module without importing a client
    from .admin import Admin

# 18 digits fit into 64 bits, also when added to an offset.
_TARGET: Final = re.compile(r"start|end|@?[0-9]{1,18}|[+-][0-9]{1,18}")
TARGETS: Final = "start, end, @timestamp in ms, N, +N or -N"
Offsets = Mapping[TopicPartition, int]


class NothingCommittedError(InvalidRequestError):
    """The group has no committed offsets, so the caller must name topics."""


def is_target(text: str) -> bool:
    """Whether `seek_group` accepts this target; TARGETS lists the accepted forms."""
    return _TARGET.fullmatch(text) is not None


async def seek_group(
    admin: "Admin", group_id: str, where: str, *, topics: Sequence[str] = (), preview: bool = False
) -> list[SeekStep]:
    """Move the offsets of a group in `topics` (none: all that it has committed or reads), and return the steps.

    `preview` changes nothing. Raises NothingCommittedError, UnknownTopicOrPartitionError.
    """
    before = await _committed(admin, group_id, topics)
    if not before:
        raise NothingCommittedError(f"group {group_id} has no committed offsets; name topics")
    target = await _target(admin, before, where)
    starts, ends = await _ends(admin, target)
    after = held_within(target, starts, ends)
    if not preview:
        await admin.reset_offsets(group_id, after)
    return steps(before, after, starts, ends, target)


async def undo_seek(
    admin: "Admin",
    group_id: str,
    *,
    preview: bool = False,
    check: Callable[[Collection[str]], None] = lambda topics: None,
) -> tuple[UndoOffsetResetResponse, list[SeekStep]]:
    """Undo the last seek, or the last undo. `check` gets the topics of the seek, and raises an error to prevent the undo. Raises
    InvalidRequestError if no seek is known."""
    undone = await admin.undo_reset(group_id, validate_only=True)
    topics = {item.topic for item in undone.offsets}
    check(topics)
    if not preview:
        undone = await admin.undo_reset(group_id, topics=topics)
    before = {TopicPartition(item.topic, item.partition): _offset(item.before) for item in undone.offsets}
    after = {TopicPartition(item.topic, item.partition): _offset(item.after) for item in undone.offsets}
    starts, ends = await _ends(admin, before)
    return undone, steps(before, after, starts, ends)


def _offset(answered: int) -> int | None:
    return None if answered < 0 else answered


async def positions(
    admin: "Admin", partitions: Iterable[TopicPartition], where: str, *, isolation_level: str = "read_uncommitted"
) -> Offsets:
    """Resolve `start`, `end`, `N` or `@timestamp` to an offset per partition; after the last timestamp: the end."""
    if where.isdigit():
        return dict.fromkeys(partitions, int(where))
    timestamp = {"start": EARLIEST_TIMESTAMP, "end": LATEST_TIMESTAMP}.get(where)
    time_ms = int(where[1:]) if timestamp is None else timestamp
    found = await _offsets_at(admin, partitions, time_ms, isolation_level)
    behind = [item for item, offset in found.items() if offset < 0]
    return found | await _offsets_at(admin, behind, LATEST_TIMESTAMP, isolation_level)


async def _committed(admin: "Admin", group_id: str, topics: Sequence[str]) -> dict[TopicPartition, int | None]:
    """Every partition of the seek, with its committed offset."""
    found: dict[TopicPartition, int | None] = {}
    for topic in topics:
        count = len((await admin.describe_topic(topic)).partitions)
        found.update({TopicPartition(topic, partition): None for partition in range(count)})
    for place, lag in (await admin.group_offsets(group_id)).items():
        if not topics or place.topic in topics:
            found[place] = _offset(lag.committed)
    return found


async def _target(admin: "Admin", before: Mapping[TopicPartition, int | None], where: str) -> Offsets:
    if where[0] in "+-":
        step = int(where)
        return {place: offset + step for place, offset in before.items() if offset is not None}
    return await positions(admin, before, where)


async def _ends(admin: "Admin", places: Iterable[TopicPartition]) -> tuple[Offsets, Offsets]:
    asked = list(places)
    return await _offsets_at(admin, asked, EARLIEST_TIMESTAMP), await _offsets_at(admin, asked, LATEST_TIMESTAMP)


async def _offsets_at(
    admin: "Admin",
    partitions: Iterable[TopicPartition],
    timestamp_ms: int,
    isolation_level: str = "read_uncommitted",
) -> dict[TopicPartition, int]:
    """Offsets by time (or EARLIEST, LATEST); -1 if there is none."""
    asked = dict.fromkeys(partitions, timestamp_ms)
    if not asked:
        return {}
    found = await admin.find_offsets(asked, isolation_level=isolation_level)
    return {place: item.offset for place, item in found.items()}
