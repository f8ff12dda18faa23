"""What the state of a slot means for a connector: lost changes are an error with the cure, and dangers are named in time."""

import re
from dataclasses import replace
from typing import Any

import pytest

from barnabas.net.programs.connect.postgres.catalog import Slot, check_slot, check_timeline, is_captured
from barnabas.net.programs.connect.postgres.changes.coverage import Range
from barnabas.net.programs.connect.postgres.changes.faults import SlotLostError
from barnabas.net.programs.connect.postgres.changes.position import Part, Position, TableProgress
from barnabas.net.programs.connect.postgres.health import troubles

SLOT = Slot(
    name="s",
    plugin="pgoutput",
    database="db",
    active_pid=7,
    confirmed_lsn=100,
    wal_status="reserved",
    lag_bytes=5,
    retained_bytes=9,
    safe_bytes=None,
    current_lsn=500,
)


def test_a_slot_that_has_everything_from_the_position_on() -> None:
    check_slot(SLOT, "s", 100)
    check_slot(SLOT, "s", 500)
    assert troubles(SLOT, 10, is_running=True) == []


@pytest.mark.parametrize(
    ("slot", "lsn", "says"),
    [
        (None, 100, "slot s does not exist any more"),
        (replace(SLOT, wal_status="lost"), 100, "max_slot_wal_keep_size"),
        (SLOT, 99, "slot s stands at 0/64, and this connector at 0/63: another program has used the slot"),
        (SLOT, 501, "restored from an older backup"),
    ],
)
def test_lost_changes_stop_the_connector_and_the_error_says_what_to_do(slot: Slot | None, lsn: int, says: str) -> None:
    with pytest.raises(SlotLostError, match=says) as stopped:
        check_slot(slot, "s", lsn)
    assert "barnabas connect reset FILE" in stopped.value.message


@pytest.mark.parametrize(
    ("slot", "is_running", "says"),
    [
        (replace(SLOT, lag_bytes=11), True, "11 bytes behind"),
        (replace(SLOT, wal_status="extended", safe_bytes=70), True, "lost after 70 more bytes"),
        (replace(SLOT, wal_status="lost"), True, "barnabas connect reset FILE"),
        (replace(SLOT, active_pid=None), False, r"pg_drop_replication_slot\('s'\)"),
    ],
)
def test_dangers_are_named_with_their_cure(slot: Slot, is_running: bool, says: str) -> None:
    (found,) = troubles(slot, 10, is_running=is_running)
    assert re.search(says, found)


def test_patterns_of_tables() -> None:
    assert is_captured(["public.*"], "public.t") and not is_captured(["public.a*", "s.t"], "public.t")


def read_at(lsn: int) -> TableProgress:
    return TableProgress(oid=1, key=("id",), key_types=("int4",), ranges=(Range(lower=None, upper=None, lsn=lsn),))


@pytest.mark.parametrize(
    ("fields", "end_lsn", "is_there"),
    [
        ({}, 100, True),  # the end of a commit is where the next record begins
        ({}, 99, False),
        ({"part": Part(commit_lsn=200, changes=3)}, 200, False),  # the commit begins where the log of the standby ended
        ({"part": Part(commit_lsn=200, changes=3)}, 201, True),
        ({"tables": {"t": read_at(150)}}, 149, False),
        ({"tables": {"t": read_at(150)}}, 150, True),
        ({}, None, False),
    ],
)
def test_a_promoted_server_must_have_what_was_read(fields: dict[str, Any], end_lsn: int | None, is_there: bool) -> None:
    position = Position(system_id="1", database="d", slot="s", lsn=100, timeline=2, **fields)
    ends = {1: 50} if end_lsn is None else {1: 50, 2: end_lsn}
    if is_there:
        check_timeline(position, 3, ends)
        return
    with pytest.raises(SlotLostError, match="its log is of timeline 3, and timeline 2.*`barnabas connect reset FILE`"):
        check_timeline(position, 3, ends)
