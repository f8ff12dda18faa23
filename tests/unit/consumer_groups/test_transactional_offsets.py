"""Offsets that transactions commit for groups: pending until the end, permits, and what may not happen to them meanwhile."""

import pytest

from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.offsets import transactional_offsets
from barnabas.consumer_groups.offsets.transactional_offsets import MAX_PENDING_OFFSETS, Permit, TransactionalOffsets
from barnabas.log.vocabulary.errors import (
    CoordinatorLoadInProgressError,
    ErrorCode,
    NonEmptyGroupError,
    NotCoordinatorError,
    PolicyViolationError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.transaction_messages import TransactionalOffsetCommitRequest

from .coordinator_bench import GROUP, SLOT, Bench
from .test_offsets import at, commit, fetched, reset

PRODUCER = 70


class World:
    def __init__(self, *, settings: GroupSettings | None = None, max_permits: int = 10) -> None:
        self.bench = Bench(settings=settings)
        self.bench.slots.on_slot_moved(SLOT, self.bench.epoch)
        self.max_permits = max_permits
        self.renew()

    def renew(self) -> None:
        coordinator = self.bench.coordinator
        self.offsets = TransactionalOffsets(
            state=coordinator.state, offsets=coordinator.offsets, max_permits=self.max_permits
        )

    def permit(self, producer_id: int = PRODUCER) -> Permit:
        return self.offsets.permit(group_id=GROUP, producer_id=producer_id).response

    def commit(
        self,
        offset: int,
        *,
        partition: int = 0,
        topic: str = "t",
        permit: Permit | None = None,
        producer_id: int = PRODUCER,
        producer_epoch: int = 0,
        member_id: str = "",
        member_epoch: int = -1,
    ) -> tuple[PartitionOutcome, ...]:
        request = TransactionalOffsetCommitRequest(
            transactional_id="tx",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            group_id=GROUP,
            member_id=member_id,
            member_epoch=member_epoch,
            partitions=(at(offset, partition=partition, topic=topic),),
        )
        found = self.permit(producer_id) if permit is None else permit
        result = self.offsets.commit(request, permit=found, now_ms=self.bench.now_ms)
        self.bench.commit(result.records)
        return result.response

    def end(self, *, is_commit: bool = True, producer_id: int = PRODUCER, marker_epoch: int = 0) -> int:
        """How many records the end takes."""
        result = self.offsets.end(
            group_id=GROUP,
            producer_id=producer_id,
            marker_epoch=marker_epoch,
            uses_v2=marker_epoch > 0,
            is_commit=is_commit,
            now_ms=self.bench.now_ms,
        )
        self.bench.commit(result.records)
        assert self.bench.coordinator.state == self.bench.slots.slot(SLOT)
        return len(result.records)

    def unstable(self) -> frozenset[tuple[str, int]]:
        return self.offsets.fetch_stable(group_id=GROUP, partitions=None).response.unstable


@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_count_when_their_transaction_is_committed_and_readers_can_wait_for_it(is_commit: bool) -> None:
    world = World()
    commit(world.bench, at(5))
    assert world.commit(9) == (PartitionOutcome(topic="t", partition=0),)
    world.commit(3, partition=1)
    assert fetched(world.bench) == 5
    told = world.offsets.fetch_stable(group_id=GROUP, partitions=None).response
    assert [(item.partition, item.offset) for item in told.offsets] == [(0, 5), (1, -1)]
    assert told.unstable == {("t", 0), ("t", 1)}
    assert world.end(is_commit=is_commit) == 1
    assert world.end(is_commit=is_commit) == 0, "a repeated end writes nothing"
    assert (fetched(world.bench), fetched(world.bench, 1)) == ((9, 3) if is_commit else (5, -1))
    assert world.unstable() == frozenset()


def test_an_offset_that_arrives_behind_the_end_of_its_transaction_is_refused() -> None:
    world = World()
    early = world.permit()
    world.end()
    for _ in range(2):
        with pytest.raises(CoordinatorLoadInProgressError):
            world.commit(9, permit=early)
        world.permit()  # of the next transaction, which does not make the old one valid
    world.commit(9)
    assert world.unstable() == {("t", 0)}


def test_the_end_of_another_producer_and_a_newer_permit_leave_a_permit_valid() -> None:
    world = World()
    first = world.permit()
    world.end(producer_id=PRODUCER + 1)
    world.permit()
    world.commit(9, permit=first)
    world.commit(10, permit=first)
    world.end()
    assert fetched(world.bench) == 10


def test_a_late_end_of_the_second_version_leaves_the_next_transaction_alone() -> None:
    world = World()
    world.commit(9, producer_epoch=0)
    world.end(marker_epoch=1)
    world.commit(12, producer_epoch=1)
    assert world.end(marker_epoch=1) == 0, "the marker of the first transaction, once more"
    assert fetched(world.bench) == 9 and world.unstable() == {("t", 0)}
    world.end(marker_epoch=2)
    assert fetched(world.bench) == 12


def test_permits_are_forgotten_with_their_coordinator_and_the_oldest_beyond_their_number() -> None:
    world = World(max_permits=2)
    first = world.permit(1)
    world.permit(2)
    world.permit(3)
    with pytest.raises(CoordinatorLoadInProgressError):
        world.commit(9, permit=first, producer_id=1)
    before = world.permit(4)
    world.bench.fail_over()
    world.renew()
    world.permit(4)  # the successor counts from the beginning: its permits are others
    with pytest.raises(CoordinatorLoadInProgressError):
        world.commit(9, permit=before, producer_id=4)


def test_the_members_of_a_group_are_checked_as_for_an_ordinary_commit() -> None:
    """KIP-447: a member that has lost its partitions must not commit their offsets."""
    world = World()
    client = world.bench.join("a")
    with pytest.raises(StaleMemberEpochError):
        world.commit(9, member_id="a", member_epoch=client.epoch + 1)
    with pytest.raises(UnknownMemberIdError):
        world.commit(9, member_id="nobody", member_epoch=1)
    world.commit(9, member_id="a", member_epoch=client.epoch)
    world.commit(10)  # a producer of an old client knows no member
    assert world.commit(1, topic="unknown")[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.end()
    assert fetched(world.bench) == 10


def test_pending_offsets_are_neither_deleted_nor_undone_and_their_group_stays() -> None:
    world = World()
    commit(world.bench, at(5))
    reset(world.bench, at(4))
    world.commit(9)
    coordinator, now_ms = world.bench.coordinator, world.bench.now_ms
    (outcome,) = coordinator.delete_offsets(group_id=GROUP, partitions=(("t", 0),), now_ms=now_ms).response
    assert outcome.error == ErrorCode.UNSTABLE_OFFSET_COMMIT
    with pytest.raises(UnstableOffsetCommitError):
        coordinator.undo_reset(group_id=GROUP, now_ms=now_ms)
    with pytest.raises(NonEmptyGroupError):
        coordinator.delete_group(group_id=GROUP, now_ms=now_ms)
    world.end()
    assert fetched(world.bench) == 9
    world.bench.commit(coordinator.delete_group(group_id=GROUP, now_ms=now_ms).records)
    assert fetched(world.bench) == -1


def test_a_group_that_has_pending_offsets_alone_exists() -> None:
    world = World()
    world.commit(9)
    with pytest.raises(NonEmptyGroupError):
        world.bench.coordinator.delete_group(group_id=GROUP, now_ms=world.bench.now_ms)


def test_a_reset_overrules_what_is_pending() -> None:
    world = World()
    commit(world.bench, at(5))
    world.commit(9)
    reset(world.bench, at(2))
    assert world.unstable() == frozenset()
    world.end()
    assert fetched(world.bench) == 2


def test_pending_offsets_do_not_expire() -> None:
    world = World(settings=GroupSettings(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=100))
    commit(world.bench, at(5))
    world.commit(9, partition=0)
    for _ in range(30):
        world.bench.tick(100)
    assert fetched(world.bench) == 5
    world.end(is_commit=False)
    for _ in range(3):
        world.bench.tick(100)
    assert fetched(world.bench) == -1 and GROUP not in world.bench.slots.slot(SLOT).groups


def test_a_group_of_another_slot_is_refused() -> None:
    with pytest.raises(NotCoordinatorError):
        World().offsets.permit(group_id="another", producer_id=1)


def test_the_offsets_of_open_transactions_of_a_group_have_a_limit() -> None:
    world = World()
    world.bench.change_topics({"t": MAX_PENDING_OFFSETS + 1})
    world.renew()

    def commit_of(*numbers: int) -> TransactionalOffsetCommitRequest:
        return TransactionalOffsetCommitRequest(
            transactional_id="tx",
            producer_id=PRODUCER,
            producer_epoch=0,
            group_id=GROUP,
            member_id="",
            member_epoch=-1,
            partitions=tuple(at(1, partition=number) for number in numbers),
        )

    world.offsets.commit(commit_of(*range(MAX_PENDING_OFFSETS)), permit=world.permit(), now_ms=world.bench.now_ms)
    with pytest.raises(PolicyViolationError, match=f"at most {MAX_PENDING_OFFSETS} are allowed"):
        world.offsets.commit(commit_of(MAX_PENDING_OFFSETS), permit=world.permit(), now_ms=world.bench.now_ms)


def test_an_end_tells_how_many_offsets_it_commits_for_the_limit_of_an_append() -> None:
    world = World()
    partitions = (at(1, partition=0), at(2, partition=1))
    request = TransactionalOffsetCommitRequest(
        transactional_id="tx",
        producer_id=PRODUCER,
        producer_epoch=0,
        group_id=GROUP,
        member_id="",
        member_epoch=-1,
        partitions=partitions,
    )
    world.bench.change_topics({"t": 2})
    world.renew()
    taken = world.offsets.commit(request, permit=world.permit(), now_ms=world.bench.now_ms)
    world.bench.commit(taken.records)
    for count in (2, 0):  # the second one is a repetition
        ended = world.offsets.end(
            group_id=GROUP,
            producer_id=PRODUCER,
            marker_epoch=0,
            uses_v2=False,
            is_commit=True,
            now_ms=world.bench.now_ms,
        )
        world.bench.commit(ended.records)
        assert ended.ended_offsets == count


def test_as_many_permits_as_allowed_are_kept() -> None:
    world = World(max_permits=2)
    first, second = world.permit(PRODUCER), world.permit(PRODUCER + 1)
    world.commit(3, permit=first)
    world.commit(4, permit=second, producer_id=PRODUCER + 1)
    world.permit(PRODUCER + 2)
    with pytest.raises(CoordinatorLoadInProgressError):
        world.commit(5, permit=first)


def test_starts_of_transactions_that_something_else_ended_are_swept_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late commit overrules the offsets of a transaction: its end has nothing to do, and may never come."""
    monkeypatch.setattr(transactional_offsets, "SWEEP_ABOVE", 4)
    world, most_pending, sweeps = World(), 0, 0
    pending = world.offsets._state.pending
    genuine = type(pending).transactions

    def transactions(*asked: object) -> object:
        nonlocal sweeps
        sweeps += 1
        return genuine(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(type(pending), "transactions", transactions)
    for number in range(120):
        world.commit(number, producer_id=number)
        if number % 40 == 39:
            world.end(producer_id=number)
        live = {known for known, _ in genuine(pending, GROUP)}
        started = {producer_id for _, producer_id in world.offsets._started_ms}
        most_pending = max(most_pending, len(live))
        assert live <= started and len(started) <= max(4, 2 * most_pending) + 1
    assert 2 <= sweeps <= 12  # each time that there are twice as many
