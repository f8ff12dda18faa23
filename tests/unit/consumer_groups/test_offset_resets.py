"""Undoing a reset of offsets: back and forth, under a new coordinator, with members that run."""

import pytest

from barnabas.consumer_groups.model.rebalance_log import RebalanceCause
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.kraft.group_state.group_slots import MAX_KEPT_RESETS
from barnabas.kraft.metadata.records import OffsetResetRecord
from barnabas.log.vocabulary.errors import FencedMemberEpochError, GroupIdNotFoundError, InvalidRequestError
from barnabas.log.vocabulary.group_messages import UndoneOffset, UndoOffsetResetResponse

from .coordinator_bench import GROUP, SLOT, Bench
from .test_offsets import at, commit, commit_as, fetched, reset


def undo(bench: Bench, *, validate_only: bool = False) -> UndoOffsetResetResponse:
    result = bench.coordinator.undo_reset(
        group_id=GROUP, now_ms=bench.now_ms, by="somebody@host", validate_only=validate_only
    )
    bench.commit(result.records)
    return result.response


def test_an_undo_brings_back_what_was_and_undoing_it_makes_the_reset_again() -> None:
    bench = Bench()
    commit(bench, at(50, metadata="note"))
    reset(bench, at(3), at(4, partition=1))
    reset_at_ms = bench.now_ms
    bench.now_ms += 500
    bench.fail_over()
    told = undo(bench)
    assert told == UndoOffsetResetResponse(
        reset_id=0,
        at_ms=reset_at_ms,
        by="",
        offsets=(
            UndoneOffset(topic="t", partition=0, before=3, after=50),
            UndoneOffset(topic="t", partition=1, before=4, after=-1),
        ),
    )
    (committed,) = bench.coordinator.offsets.fetch(GROUP)
    assert (committed.offset, committed.leader_epoch, committed.metadata) == (50, 2, "note")
    again = undo(bench)
    assert (again.reset_id, again.by) == (1, "somebody@host")
    assert (fetched(bench, 0), fetched(bench, 1)) == (3, 4)


def test_commits_after_the_reset_are_told_and_lost_by_the_undo() -> None:
    bench = Bench()
    commit(bench, at(50))
    reset(bench, at(3))
    commit(bench, at(20))
    assert undo(bench).offsets == (UndoneOffset(topic="t", partition=0, before=20, after=50),)
    assert undo(bench).offsets == (UndoneOffset(topic="t", partition=0, before=50, after=20),)


def test_an_undo_brings_back_the_very_first_offset() -> None:
    bench = Bench()
    commit(bench, at(0))
    reset(bench, at(3))
    undo(bench)
    assert fetched(bench) == 0
    assert len(bench.coordinator.offsets.fetch(GROUP)) == 1, "0 is an offset, -1 is none"


def test_a_preview_of_an_undo_changes_nothing() -> None:
    bench = Bench()
    commit(bench, at(50))
    reset(bench, at(3))
    assert undo(bench, validate_only=True) == undo(bench, validate_only=True)
    assert fetched(bench) == 3


def test_members_that_run_are_fenced_by_an_undo_as_by_a_reset() -> None:
    bench = Bench()
    client = bench.join("a")
    commit_as(bench, client, 50)
    reset(bench, at(3))
    client = bench.join("a2")
    undo(bench)
    with pytest.raises(FencedMemberEpochError):
        bench.heartbeat(client.request())
    assert bench.causes().count(RebalanceCause.OFFSETS_RESET) == 2
    assert fetched(bench) == 50


def test_members_that_are_fenced_are_assigned_at_once_also_in_a_storm_of_joins() -> None:
    """They rejoin with the epoch of an assignment: the next one must not be put off."""
    bench = Bench(settings=GroupSettings(assignment_interval_ms=60_000, members_assigned_at_once=0))
    client = bench.join("a")
    commit_as(bench, client, 50)
    bench.join("b")
    assert bench.phase() is GroupPhase.ASSIGNING
    reset(bench, at(3))
    group = bench.slots.slot(SLOT).groups[GROUP]
    assert group.group.assignment_epoch == group.group.group_epoch
    assert bench.phase() is not GroupPhase.ASSIGNING


def test_nothing_to_undo_is_said_so() -> None:
    bench = Bench()
    with pytest.raises(GroupIdNotFoundError):
        undo(bench)
    commit(bench, at(1))
    with pytest.raises(InvalidRequestError, match="no recorded reset"):
        undo(bench)


def test_a_topic_that_was_created_again_does_not_get_the_offsets_of_the_old_one() -> None:
    bench = Bench(topics={"t": 1, "u": 1})
    commit(bench, at(50), at(60, topic="u"))
    reset(bench, at(3), at(4, topic="u"))
    bench.slots.delete_topic("u")
    bench.change_topics(bench.topics, recreated=frozenset({"u"}))
    assert undo(bench).offsets == (UndoneOffset(topic="t", partition=0, before=3, after=50),)
    assert bench.coordinator.state == bench.slots.slot(SLOT)


def test_resets_are_kept_up_to_a_limit_and_go_with_the_group() -> None:
    bench = Bench()
    commit(bench, at(0))
    for number in range(MAX_KEPT_RESETS + 5):
        reset(bench, at(number))
    kept = bench.slots.slot(SLOT).resets[GROUP]
    assert len(kept) == MAX_KEPT_RESETS and isinstance(kept[-1], OffsetResetRecord)
    assert kept[-1].reset_id == MAX_KEPT_RESETS + 4
    bench.commit(bench.coordinator.delete_group(group_id=GROUP, now_ms=bench.now_ms).records)
    assert bench.slots.slot(SLOT).resets == {}


def test_an_undo_moves_no_topic_that_was_not_named() -> None:
    """Its client may not read it; the whole is refused, and the error tells no name."""
    bench = Bench()
    commit(bench, at(50))
    reset(bench, at(3))
    for topics in ((), ("other",)):
        with pytest.raises(InvalidRequestError, match=r"moved 1 topics that the request does not name"):
            bench.coordinator.undo_reset(group_id=GROUP, now_ms=bench.now_ms, topics=topics)
    bench.commit(bench.coordinator.undo_reset(group_id=GROUP, now_ms=bench.now_ms, topics=("t", "other")).records)
    assert fetched(bench, 0) == 50
