"""The view of one slot in `__consumer_offsets`: the offsets of its records, and the newest records in full.

A record's offset is its quorum index, shifted by POSITION_BITS, plus its position among the group records of that command,
because a command may have several; so offsets are the same on every broker and only grow, with gaps. The newest records are kept
in full (`SlotTail`); for older ones, the slot's current values are served at the offsets of their commits, as in a compacted
topic.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..metadata.records import (
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    OffsetCommitRecord,
    Record,
    RemoveGroupRecord,
    RemoveOffsetRecord,
)

if TYPE_CHECKING:
    from .group_slots import SlotState

POSITION_BITS = 20  # a decision in parts may have several hundred thousand records
MAX_TAIL_RECORDS = 1_000  # of one slot, 50,000 in all: some tens of megabytes on a busy broker
# Of the texts in the records of one slot, 12 MiB in all: the metadata of a commit may have four kilobytes, which clients choose.
MAX_TAIL_TEXT_BYTES = 256 * 1024
NO_LOG_OFFSET = -1

SHOWN_RECORDS = (OffsetCommitRecord, RemoveOffsetRecord, GroupRecord, RemoveGroupRecord)
"""The records that have a form in Kafka's topic."""


def first_log_offset(index: int) -> int:
    """The first log offset of the command at that quorum index."""
    return index << POSITION_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    log_offset: int
    record: Record
    members: tuple[tuple[MemberRecord, CurrentAssignmentRecord | None], ...] = ()  # of a group, when it was read


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLog:
    """The result of a read at an offset. `head`: the offset is before `start_offset`, so the state itself must be read."""

    start_offset: int  # of the records that are kept in full
    end_offset: int
    entries: tuple[LogEntry, ...] = ()
    head: "SlotState | None" = None


def read_log(tail: "SlotTail", state: "SlotState", log_offset: int, limit: int) -> tuple[LogEntry, ...]:
    """Records of the tail, those of groups with the members that they have now."""
    return tuple(_with_members(entry, state) for entry in tail.after(log_offset, limit))


def _with_members(entry: LogEntry, state: "SlotState") -> LogEntry:
    if not isinstance(entry.record, GroupRecord):
        return entry
    group = state.groups.get(entry.record.group_id)
    if group is None or group.log_offset != entry.log_offset:
        return entry  # there is a newer record, which is read with the members
    members = tuple((member, group.currents.get(member_id)) for member_id, member in group.members.items())
    return replace(entry, members=members)


def _text_bytes(record: OffsetCommitRecord) -> int:
    """Of the metadata, which clients can make long."""
    text = record.metadata
    return len(text) if text.isascii() else 4 * len(text)


class SlotTail:
    """The newest records of one slot. Every record of the slot at or after `start_offset` is here."""

    def __init__(self) -> None:
        self._entries: deque[LogEntry] = deque()
        self._text_bytes = 0  # of the entries
        self.start_offset = 0
        self.end_offset = 0  # after the newest record

    def append(self, log_offset: int, record: Record) -> None:
        assert log_offset >= self.end_offset
        self.end_offset = log_offset + 1
        self._entries.append(LogEntry(log_offset=log_offset, record=record))
        if isinstance(record, OffsetCommitRecord):
            self._text_bytes += _text_bytes(record)
        while len(self._entries) > MAX_TAIL_RECORDS or self._text_bytes > MAX_TAIL_TEXT_BYTES:
            oldest = self._entries.popleft()
            if isinstance(oldest.record, OffsetCommitRecord):
                self._text_bytes -= _text_bytes(oldest.record)
            self.start_offset = oldest.log_offset + 1

    def restart(self, log_offset: int) -> None:
        """A snapshot contained a value of that offset: older records are known by their values only."""
        self._entries.clear()
        self._text_bytes = 0
        self.start_offset = self.end_offset = max(self.end_offset, log_offset + 1)

    def after(self, log_offset: int, limit: int) -> tuple[LogEntry, ...]:
        """At most `limit` records from that offset on."""
        found: deque[LogEntry] = deque()
        for entry in reversed(self._entries):  # a reader is usually a few records behind
            if entry.log_offset < log_offset:
                break
            found.appendleft(entry)
        return tuple(found)[:limit]
