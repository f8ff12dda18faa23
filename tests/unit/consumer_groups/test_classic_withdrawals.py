"""Joins whose client has gone: a newcomer is out at once, a member of a generation stays until its session ends."""

import pytest

from barnabas.log.vocabulary.errors import RebalanceInProgressError, UnknownMemberIdError

from .classic_world import GROUP, ClassicClient, ClassicWorld

CROWD = 200


@pytest.fixture
def world() -> ClassicWorld:
    return ClassicWorld()


def connection_closes(world: ClassicWorld, client: ClassicClient) -> None:
    world.commit(world.coordinator.withdraw(group_id=GROUP, ticket=client.ticket, now_ms=world.now_ms))


@pytest.mark.parametrize("known_id", [False, True])
@pytest.mark.parametrize("instance_id", [None, "i"])
def test_a_newcomer_is_out_when_its_connection_closes(
    world: ClassicWorld, known_id: bool, instance_id: str | None
) -> None:
    """The others do not wait for it, and it is in no generation."""
    a, b = world.group_of("a", "b")
    newcomer = world.client("n", known_id=known_id, instance_id=instance_id).join()
    a.join()
    connection_closes(world, newcomer)
    b.join()
    assert newcomer.answer is None
    assert {one.member_id for one in a.joined().members} == {a.member_id, b.member_id}
    assert a.generation == b.joined().generation == 2


def test_the_rebalance_ends_when_the_last_one_that_was_waited_for_has_gone(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    newcomer, other = world.client("n").join(), world.client("o")
    world.commit(world.coordinator.join_group(other.request(), 99, world.now_ms))  # its id is waited for
    a.join()
    b.join()
    assert a.answer is None
    connection_closes(world, newcomer)
    assert a.answer is None
    world.pass_ms(other.session_timeout_ms)
    assert {one.member_id for one in a.joined().members} == {a.member_id, b.member_id}


def test_a_crowd_of_newcomers_that_has_gone_leaves_nothing(world: ClassicWorld) -> None:
    crowd = [world.client(f"c{number}", known_id=False).join() for number in range(CROWD)]
    for client in crowd:
        connection_closes(world, client)
    assert world.phase == "dead"
    assert GROUP not in world.slots.slot(world.coordinator.slot).groups
    members = world.coordinator._classic.members
    assert not members.groups and len(members.sessions._heap) < CROWD // 2
    assert members.sessions.next_deadline_ms() is None


def test_a_newcomer_that_has_gone_is_unknown_when_it_comes_back_under_its_id(world: ClassicWorld) -> None:
    world.group_of("a", "b")
    newcomer = world.client("n").join()
    assert newcomer.member_id
    connection_closes(world, newcomer)
    with pytest.raises(UnknownMemberIdError):
        newcomer.join()
    newcomer.member_id = ""
    newcomer.join()
    assert newcomer.answer is None  # it waits for the others


def test_a_member_that_joins_again_stays_when_its_connection_closes(world: ClassicWorld) -> None:
    a, b = world.group_of("a", "b")
    world.client("n").join()
    a.join()
    connection_closes(world, a)
    a.join()  # over a new connection, with the same id
    b.join()
    assert a.joined().generation == 2
    assert a.member_id in {one.member_id for one in (*a.joined().members, *b.joined().members)}


def test_a_member_that_does_not_come_back_is_out_after_its_session(world: ClassicWorld) -> None:
    """Its join counts no longer than its session, however long the others may take to join."""
    a, b = world.group_of("a", "b")
    newcomer = world.client("n", rebalance_timeout_ms=300_000).join()
    a.join()
    connection_closes(world, a)
    world.pass_ms(a.session_timeout_ms - 1)
    assert "member_expired" not in world.causes()
    with pytest.raises(RebalanceInProgressError):
        b.beat()
    world.pass_ms(1)
    assert "member_expired" in world.causes()
    assert newcomer.answer is None


def test_a_request_that_is_not_parked_may_be_withdrawn(world: ClassicWorld) -> None:
    a, _ = world.group_of("a", "b")
    result = world.coordinator.withdraw(group_id=GROUP, ticket=a.ticket, now_ms=world.now_ms)
    assert not result.records and not result.answers
    assert world.phase == "stable"
