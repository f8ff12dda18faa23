"""Kafka's keys and values of `__consumer_offsets`: byte for byte, and read back."""

import pytest

from barnabas.consumer_groups.offsets.offsets_topic import NO_TIMESTAMP, decoded, shown, shown_state
from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.group_state.offsets_log import LogEntry, first_log_offset
from barnabas.kraft.metadata.records import (
    CurrentAssignmentRecord,
    GroupRecord,
    MemberRecord,
    OffsetCommitRecord,
    Record,
    RemoveGroupRecord,
    RemoveOffsetRecord,
)
from barnabas.log.vocabulary.errors import InvalidRecordError

AT = {"slot": 3, "coordinator_epoch": 1, "group_id": "g"}
COMMIT = OffsetCommitRecord(
    **AT, topic="t", partition=2, offset=7, leader_epoch=5, metadata="é", commit_timestamp_ms=1_000
)
GROUP = GroupRecord(**AT, group_epoch=4, assignment_epoch=4, protocol="classic", protocol_name="range", leader_id="m")
MEMBER = MemberRecord(
    **AT, member_id="m", instance_id=None, client_id="c", client_host="/h", rack=None, subscribed_topics=("t",),
    subscribed_pattern=None, rebalance_timeout_ms=300, session_timeout_ms=200, classic_metadata={"range": b"SUB"},
)  # fmt: skip
CURRENT = CurrentAssignmentRecord(
    **AT, member_id="m", member_epoch=4, previous_member_epoch=3, state="stable", assigned=(), pending_revocation=(),
    classic_assignment=b"ASSIGNED",
)  # fmt: skip


def entry(record: Record) -> LogEntry:
    return LogEntry(log_offset=9, record=record)


def test_a_commit_as_kafka_writes_it() -> None:
    found = shown(entry(COMMIT))
    assert found.key == b"\x00\x01" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x02"
    assert found.value == (
        b"\x00\x03" + (7).to_bytes(8) + (5).to_bytes(4) + b"\x00\x02" + "é".encode() + (1_000).to_bytes(8)
    )
    assert (found.log_offset, found.timestamp_ms) == (9, 1_000)
    assert decoded(found.key, found.value) == {
        "type": "offset", "group": "g", "topic": "t", "partition": 2,
        "value": {"offset": 7, "leader_epoch": 5, "metadata": "é", "commit_timestamp_ms": 1_000},
    }  # fmt: skip


def test_a_group_as_kafka_writes_it() -> None:
    found = shown(LogEntry(log_offset=9, record=GROUP, members=((MEMBER, CURRENT),)))
    assert found.key == b"\x00\x02" + b"\x00\x01g"
    assert found.value == b"".join(
        (
            b"\x00\x03", b"\x00\x08consumer", (4).to_bytes(4), b"\x00\x05range", b"\x00\x01m", b"\xff" * 8,
            (1).to_bytes(4), b"\x00\x01m", b"\xff\xff", b"\x00\x01c", b"\x00\x02/h", (300).to_bytes(4),
            (200).to_bytes(4), (3).to_bytes(4), b"SUB", (8).to_bytes(4), b"ASSIGNED",
        )
    )  # fmt: skip
    told = decoded(found.key, found.value)
    assert told["value"] == {
        "protocol_type": "consumer", "generation": 4, "protocol": "range", "leader": "m", "empty_since_ms": -1,
        "members": [{"member": "m", "instance": None, "client_id": "c", "host": "/h"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("removal", "made"), [(RemoveOffsetRecord(**AT, topic="t", partition=2), COMMIT), (RemoveGroupRecord(**AT), GROUP)]
)
def test_a_removal_is_a_tombstone_under_the_same_key(removal: Record, made: Record) -> None:
    found = shown(entry(removal))
    assert (found.key, found.value, found.timestamp_ms) == (shown(entry(made)).key, None, NO_TIMESTAMP)
    assert decoded(found.key, None)["value"] is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\x00\x09", b""), (b"\x00\x01\x00\x05g", b""), (shown(entry(COMMIT)).key, b"\x00\x09")],
)
def test_what_is_no_record_of_the_topic_is_said_so(key: bytes | None, value: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        decoded(key, value)


def test_the_current_values_stand_where_their_records_stood() -> None:
    slots = GroupSlots()
    first = OffsetCommitRecord(
        **AT, topic="t", partition=2, offset=1, leader_epoch=5, metadata="", commit_timestamp_ms=5
    )
    other = OffsetCommitRecord(
        **AT, topic="t", partition=3, offset=2, leader_epoch=5, metadata="", commit_timestamp_ms=6
    )
    for index, record in enumerate((GROUP, MEMBER, first, other, COMMIT), 1):
        slots.replay(record, index)
    found = shown_state(slots.slot(3), first=0, end=first_log_offset(99))
    assert [item.log_offset for item in found] == [first_log_offset(1), first_log_offset(4), first_log_offset(5)]
    value = decoded(found[0].key, found[0].value)["value"]
    assert isinstance(value, dict) and len(value["members"]) == 1
    assert shown_state(slots.slot(3), first=first_log_offset(4), end=first_log_offset(5)) == [found[1]]
