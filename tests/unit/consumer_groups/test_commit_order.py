"""A commit that arrives behind a newer one of its client is not taken; what the memory of that costs is bounded."""

import pytest

from barnabas.consumer_groups.model.messages import CommitPlace
from barnabas.consumer_groups.offsets.commit_order import CommitOrder
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, NotCoordinatorError, StaleMemberEpochError

from .test_coordinator import GROUP, Bench
from .test_offsets import at, fetched


def place(sequence: int, *, committer: str = "c", coordinator_epoch: int = 3) -> CommitPlace:
    return CommitPlace(committer=committer, sequence=sequence, coordinator_epoch=coordinator_epoch)


def test_a_number_is_taken_once_and_in_order() -> None:
    order = CommitOrder(3)
    for sequence in (1, 2, 5):
        order.check("g", place(sequence))
        order.taken("g", place(sequence))
    for late in (0, 2, 4, 5):
        with pytest.raises(CoordinatorNotAvailableError, match=f"commit {late} arrived after commit 5"):
            order.check("g", place(late))
    order.check("g", place(6))


def test_other_clients_and_other_groups_have_numbers_of_their_own() -> None:
    order = CommitOrder(3)
    order.taken("g", place(5))
    order.check("g", place(1, committer="d"))
    order.check("h", place(1))


@pytest.mark.parametrize("epoch", [2, 4])
def test_a_commit_that_was_sent_to_another_coordinator_is_refused(epoch: int) -> None:
    """This one has no memory of what that one has taken."""
    with pytest.raises(NotCoordinatorError, match=f"sent to coordinator epoch {epoch} of group 'g', this is epoch 3"):
        CommitOrder(3).check("g", place(1, coordinator_epoch=epoch))


def test_who_has_not_committed_for_longest_is_forgotten() -> None:
    order = CommitOrder(3, max_committers=2)
    for committer in ("a", "b", "a", "c"):
        order.taken("g", place(5, committer=committer))
    order.check("g", place(1, committer="b"))
    for known in ("a", "c"):
        with pytest.raises(CoordinatorNotAvailableError):
            order.check("g", place(5, committer=known))


def commit(bench: Bench, offset: int, sequence: int, *, member_id: str = "", member_epoch: int = -1) -> None:
    result = bench.coordinator.commit_offsets(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=member_epoch,
        offsets=(at(offset),),
        now_ms=bench.now_ms,
        place=place(sequence, coordinator_epoch=bench.coordinator.coordinator_epoch),
    )
    bench.commit(result.records)


def test_the_coordinator_keeps_the_newer_offset() -> None:
    bench = Bench()
    commit(bench, 10, 2)
    with pytest.raises(CoordinatorNotAvailableError):
        commit(bench, 5, 1)
    assert fetched(bench) == 10
    commit(bench, 3, 3)  # A smaller offset that is committed later is what the application wants.
    assert fetched(bench) == 3


def test_a_commit_that_is_refused_for_its_member_does_not_count() -> None:
    bench = Bench()
    client = bench.join("m")
    with pytest.raises(StaleMemberEpochError):
        commit(bench, 9, 2, member_id=client.member, member_epoch=client.epoch + 1)
    commit(bench, 5, 1, member_id=client.member, member_epoch=client.epoch)
    assert fetched(bench) == 5
