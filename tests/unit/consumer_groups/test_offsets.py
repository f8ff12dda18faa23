"""Committed offsets through the coordinator: who may commit, limits, reset of a live group, deletion."""

import pytest
from msgspec.structs import replace

from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    InvalidRequestError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from barnabas.log.vocabulary.group_messages import CommittedOffset, OffsetToCommit, PartitionOutcome

from .coordinator_bench import GROUP, SLOT, Bench, Client, T, settle


def commit(
    bench: Bench, *offsets: OffsetToCommit, member_id: str = "", member_epoch: int = -1
) -> tuple[PartitionOutcome, ...]:
    result = bench.coordinator.commit_offsets(
        group_id=GROUP, member_id=member_id, member_epoch=member_epoch, offsets=offsets, now_ms=bench.now_ms
    )
    bench.commit(result.records)
    return result.response


def commit_as(bench: Bench, client: Client, offset: int) -> tuple[PartitionOutcome, ...]:
    return commit(bench, at(offset), member_id=client.member, member_epoch=client.epoch)


def at(offset: int, *, partition: int = 0, topic: str = "t", metadata: str = "") -> OffsetToCommit:
    return OffsetToCommit(topic=topic, partition=partition, offset=offset, leader_epoch=2, metadata=metadata)


def fetched(bench: Bench, partition: int = 0) -> int:
    (committed,) = bench.coordinator.offsets.fetch(GROUP, partitions=(("t", partition),))
    return committed.offset


def reset(bench: Bench, *offsets: OffsetToCommit) -> tuple[CommittedOffset, ...]:
    result = bench.coordinator.reset_offsets(group_id=GROUP, offsets=offsets, now_ms=bench.now_ms)
    bench.commit(result.records)
    return result.response


def test_a_commit_from_outside_makes_an_empty_group() -> None:
    bench = Bench()
    assert commit(bench, at(5, metadata="note")) == (PartitionOutcome(topic="t", partition=0),)
    (committed,) = bench.coordinator.offsets.fetch(GROUP)
    assert committed == CommittedOffset(
        topic="t", partition=0, offset=5, leader_epoch=2, metadata="note", commit_timestamp_ms=bench.now_ms
    )
    assert bench.phase() is GroupPhase.EMPTY
    (listed,) = bench.coordinator.list_groups().response
    assert (listed.group_id, listed.member_count) == (GROUP, 0)


def test_what_was_never_committed_is_minus_one() -> None:
    bench = Bench()
    assert fetched(bench) == -1
    assert bench.coordinator.offsets.fetch(GROUP) == ()


def test_a_group_takes_members_after_commits_from_outside() -> None:
    bench = Bench()
    commit(bench, at(5))
    assert bench.join("a").owned == T
    assert fetched(bench) == 5


def test_only_members_of_the_current_epoch_commit_for_a_group_that_has_members() -> None:
    bench = Bench()
    client = bench.join("a")
    commit_as(bench, client, 7)
    with pytest.raises(UnknownMemberIdError):
        commit(bench, at(9))
    with pytest.raises(UnknownMemberIdError):
        commit(bench, at(9), member_id="nobody", member_epoch=1)
    for epoch in (0, 2):
        with pytest.raises(StaleMemberEpochError):
            commit(bench, at(9), member_id="a", member_epoch=epoch)
    assert fetched(bench) == 7


def test_a_member_that_revokes_can_commit_before_it_lets_go() -> None:
    bench = Bench()
    first = bench.join("a")
    bench.join("b")
    bench.heartbeat(first.request())
    commit_as(bench, first, 11)
    assert fetched(bench) == 11


def test_a_removed_member_and_one_that_is_away_cannot_commit() -> None:
    bench = Bench()
    away = bench.join("a", instance_id="i")
    bench.heartbeat(away.request(member_epoch=-2))
    for epoch in (-2, -1, 1):
        with pytest.raises(StaleMemberEpochError):
            commit(bench, at(9), member_id="a", member_epoch=epoch)
    bench.tick(bench.settings.session_timeout_ms)
    with pytest.raises(UnknownMemberIdError):
        commit_as(bench, away, 9)


def test_faults_are_told_by_partition_and_the_others_are_committed() -> None:
    bench = Bench()
    outcomes = commit(
        bench,
        at(1),
        at(1, partition=4),
        at(1, topic="unknown"),
        at(-1, partition=1),
        at(1, partition=2, metadata="é" * 2_049),
        at(1, partition=3, metadata="é" * 2_048),
    )
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
    ]
    assert [fetched(bench, partition) for partition in range(4)] == [1, -1, -1, 1]


def test_a_commit_of_nothing_but_faults_makes_no_group() -> None:
    bench = Bench()
    commit(bench, at(-1))
    assert bench.phase() is GroupPhase.DEAD


def test_offsets_survive_a_failover() -> None:
    bench = Bench()
    commit(bench, at(5))
    bench.fail_over()
    assert fetched(bench) == 5


def test_a_reset_of_a_live_group_fences_its_members_and_moves_nothing() -> None:
    bench = Bench()
    first, second = bench.join("a"), bench.join("b")
    settle(first, second)
    commit_as(bench, first, 50)
    before = first.owned, second.owned
    (old,) = reset(bench, at(10))
    assert old.offset == 50, "what to reset to for an undo"
    with pytest.raises(StaleMemberEpochError):
        commit_as(bench, first, 51)
    with pytest.raises(FencedMemberEpochError):
        first.beat()
    assert fetched(bench) == 10
    bench.now_ms += 100
    again = bench.join("a"), bench.join("b")
    settle(*again)
    assert tuple(client.owned for client in again) == before
    assert bench.phase() is GroupPhase.STABLE
    commit_as(bench, again[0], 12)
    assert fetched(bench) == 12
    assert bench.causes()[-1] is RebalanceCause.OFFSETS_RESET


def test_a_reset_amid_a_hand_over_does_not_stop_it() -> None:
    bench = Bench()
    first = bench.join("a")
    bench.join("b")
    bench.heartbeat(first.request())
    reset(bench, at(10))
    again = bench.join("a"), bench.join("b")
    settle(*again)
    assert again[0].owned | again[1].owned == T
    assert bench.phase() is GroupPhase.STABLE


def test_a_reset_of_an_empty_group_only_sets_offsets() -> None:
    bench = Bench()
    commit(bench, at(5))
    reset(bench, at(0))
    assert fetched(bench) == 0
    assert bench.phase() is GroupPhase.EMPTY


def test_a_reset_is_all_or_nothing() -> None:
    bench = Bench()
    commit(bench, at(5))
    with pytest.raises(InvalidRequestError):
        reset(bench, at(0), at(0, partition=77))
    assert fetched(bench) == 5
    with pytest.raises(GroupIdNotFoundError):
        bench = Bench()
        reset(bench, at(0))


def test_a_group_with_members_is_not_deleted_and_an_empty_one_goes_with_its_offsets() -> None:
    bench = Bench()
    client = bench.join("a")
    commit_as(bench, client, 5)
    with pytest.raises(NonEmptyGroupError):
        bench.coordinator.delete_group(group_id=GROUP, now_ms=bench.now_ms)
    bench.heartbeat(client.request(member_epoch=-1))
    bench.commit(bench.coordinator.delete_group(group_id=GROUP, now_ms=bench.now_ms).records)
    assert fetched(bench) == -1
    assert bench.phase() is GroupPhase.DEAD
    assert not bench.slots.records_of(SLOT)
    with pytest.raises(GroupIdNotFoundError):
        bench.coordinator.delete_group(group_id=GROUP, now_ms=bench.now_ms)


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    bench = Bench(topics={"t": 1, "u": 1})
    client = bench.join("a")
    commit(bench, at(5), at(6, topic="u"), member_id="a", member_epoch=client.epoch)
    result = bench.coordinator.delete_offsets(
        group_id=GROUP, partitions=(("t", 0), ("u", 0), ("u", 1)), now_ms=bench.now_ms
    )
    bench.commit(result.records)
    assert [outcome.error for outcome in result.response] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert [offset.topic for offset in bench.coordinator.offsets.fetch(GROUP)] == ["t"]


@pytest.mark.parametrize("recreated", [False, True])
def test_offsets_of_a_deleted_topic_are_forgotten_even_if_it_is_created_again(recreated: bool) -> None:
    bench = Bench()
    commit(bench, at(5))
    bench.change_topics({"t": 4} if recreated else {}, frozenset({"t"}) if recreated else frozenset())
    assert fetched(bench) == -1
    assert bench.slots.slot(SLOT).offsets == {}


def test_a_fetch_that_says_which_member_it_is_must_be_in_its_epoch() -> None:
    """A member that is out must not begin where the group is now (KIP-848)."""
    bench = Bench()
    client = bench.join("a")
    for member_id, epoch, error in (
        ("a", client.epoch + 1, StaleMemberEpochError),
        ("a", client.epoch - 1, StaleMemberEpochError),
        ("a", -1, StaleMemberEpochError),
        ("ghost", client.epoch, UnknownMemberIdError),
        ("", 0, UnknownMemberIdError),
    ):
        with pytest.raises(error):
            bench.coordinator.offsets.fetch(GROUP, member_id=member_id, member_epoch=epoch)
    bench.coordinator.offsets.fetch(GROUP, member_id="a", member_epoch=client.epoch)
    bench.coordinator.offsets.fetch(GROUP)


@pytest.mark.parametrize(("topic_id", "error"), [("", 0), ("new", 0), ("old", ErrorCode.INCONSISTENT_TOPIC_ID)])
def test_an_offset_of_a_former_topic_is_not_committed_for_the_one_of_its_name(topic_id: str, error: int) -> None:
    """A member that has not heard of the change commits behind it; the topic's old offsets are forgotten already."""
    bench = Bench()
    result = bench.coordinator.commit_offsets(
        group_id=GROUP, member_id="", member_epoch=-1, offsets=(replace(at(5), topic_id=topic_id),), now_ms=bench.now_ms,
        topic_ids={"t": "new"},
    )  # fmt: skip
    bench.commit(result.records)
    assert [outcome.error for outcome in result.response] == [error]
    assert fetched(bench) == (-1 if error else 5)
