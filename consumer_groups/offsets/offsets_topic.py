"""A slot's state in Kafka's format: keys and values of `__consumer_offsets`, encoded and decoded.

OffsetCommitKey 1 and OffsetCommitValue 3, GroupMetadataKey 2 and GroupMetadataValue 3 (Kafka's message definitions of these
names); a removal is a tombstone, a key without a value. Groups of both protocols are encoded as GroupMetadata: the
generation is the group epoch, and the members are those that the group has when it is read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from barnabas.kraft.group_state.group_slots import SlotState
from barnabas.kraft.group_state.offsets_log import LogEntry
from barnabas.kraft.metadata.records import (
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    OffsetCommitRecord,
    RemoveGroupRecord,
    RemoveOffsetRecord,
)
from barnabas.log.vocabulary.errors import InvalidRecordError

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION = 3  # of both
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """One record of the topic. `value` None: a tombstone."""

    log_offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


def shown(entry: LogEntry) -> ShownRecord:
    record = entry.record
    timestamp_ms = NO_TIMESTAMP
    value: bytes | None = None
    if isinstance(record, OffsetCommitRecord | RemoveOffsetRecord):
        key = _offset_key(record.group_id, record.topic, record.partition)
        if isinstance(record, OffsetCommitRecord):
            timestamp_ms = record.commit_timestamp_ms
            value = _offset_value(record)
    else:
        assert isinstance(record, GroupRecord | RemoveGroupRecord)
        key = struct.pack(">h", GROUP_KEY_VERSION) + _string(record.group_id)
        if isinstance(record, GroupRecord):
            timestamp_ms = record.empty_since_ms
            value = _group_value(record, entry.members)
    return ShownRecord(log_offset=entry.log_offset, timestamp_ms=timestamp_ms, key=key, value=value)


def shown_state(state: SlotState, *, first: int, end: int) -> list[ShownRecord]:
    """The current values whose records have offsets from `first` (inclusive) to `end` (exclusive), in order. May run in another
    thread."""
    found = [shown(entry) for entry in _entries(state) if first <= entry.log_offset < end]
    found.sort(key=lambda item: item.log_offset)
    return found


def _entries(state: SlotState) -> Iterator[LogEntry]:
    for record in state.records():
        if isinstance(record, OffsetCommitRecord):
            yield LogEntry(log_offset=record.log_offset, record=record)
        elif isinstance(record, GroupRecord):
            group = state.groups[record.group_id]
            members = tuple((member, group.currents.get(member_id)) for member_id, member in group.members.items())
            yield LogEntry(log_offset=record.log_offset, record=record, members=members)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return b"".join(
        (struct.pack(">h", OFFSET_KEY_VERSION), _string(group_id), _string(topic), struct.pack(">i", partition))
    )


def _offset_value(record: OffsetCommitRecord) -> bytes:
    return b"".join(
        (
            struct.pack(">hqi", VALUE_VERSION, record.offset, record.leader_epoch),
            _string(record.metadata),
            struct.pack(">q", record.commit_timestamp_ms),
        )
    )


def _group_value(
    record: GroupRecord, members: tuple[tuple[MemberRecord, CurrentAssignmentRecord | None], ...]
) -> bytes:
    parts = [
        struct.pack(">h", VALUE_VERSION),
        _string(record.protocol_type),
        struct.pack(">i", record.group_epoch),
        _string(record.protocol_name or None),
        _string(record.leader_id or None),
        struct.pack(">qi", record.empty_since_ms, len(members)),
    ]
    for member, current in members:
        subscription = (member.classic_metadata or {}).get(record.protocol_name, b"")
        assignment = b"" if current is None or current.classic_assignment is None else current.classic_assignment
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(subscription),
            _bytes(assignment),
        )
    return b"".join(parts)


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


# --- reading: what `topic consume --formatter offsets` shows ----------------------------------------------------------


def decoded(key: bytes | None, value: bytes | None) -> dict[str, object]:
    """A record of the topic as plain fields; `value` None for a tombstone. Raises InvalidRecordError."""
    try:
        return _decoded(key or b"", value)
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidRecordError(f"not a record of __consumer_offsets: {error}") from error


def _decoded(key: bytes, value: bytes | None) -> dict[str, object]:
    reader = _Reader(key)
    version = reader.number(">h")
    if version in (0, OFFSET_KEY_VERSION):
        told: dict[str, object] = {
            "type": "offset",
            "group": reader.string(),
            "topic": reader.string(),
            "partition": reader.number(">i"),
        }
        return {**told, "value": None if value is None else _decoded_offset(_Reader(value))}
    if version == GROUP_KEY_VERSION:
        told = {"type": "group", "group": reader.string()}
        return {**told, "value": None if value is None else _decoded_group(_Reader(value))}
    raise InvalidRecordError(f"unknown key version {version}; supported: 0 to 2")


def _decoded_offset(reader: "_Reader") -> dict[str, object]:
    _check_version(reader.number(">h"))
    return {
        "offset": reader.number(">q"),
        "leader_epoch": reader.number(">i"),
        "metadata": reader.string(),
        "commit_timestamp_ms": reader.number(">q"),
    }


def _decoded_group(reader: "_Reader") -> dict[str, object]:
    _check_version(reader.number(">h"))
    told: dict[str, object] = {
        "protocol_type": reader.string(),
        "generation": reader.number(">i"),
        "protocol": reader.string(),
        "leader": reader.string(),
        "empty_since_ms": reader.number(">q"),
    }
    members = []
    for _ in range(reader.number(">i")):
        members.append(
            {
                "member": reader.string(),
                "instance": reader.string(),
                "client_id": reader.string(),
                "host": reader.string(),
            }
        )
        reader.number(">q")  # the two time-outs
        for _ in ("subscription", "assignment"):
            reader.take(reader.number(">i"))
    return {**told, "members": members}


def _check_version(version: int) -> None:
    if version != VALUE_VERSION:
        raise InvalidRecordError(f"unknown value version {version}; supported: {VALUE_VERSION}")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return int(found)

    def string(self) -> str | None:
        size = self.number(">h")
        return None if size < 0 else self.take(size).decode()

    def take(self, size: int) -> bytes:
        if size < 0 or self._position + size > len(self._data):
            raise struct.error(f"{size} bytes expected, {len(self._data) - self._position} left")
        found = self._data[self._position : self._position + size]
        self._position += size
        return found
