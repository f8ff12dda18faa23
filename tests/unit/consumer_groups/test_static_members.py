"""Members with an instance id: they come back, stay away, and keep their name."""

import pytest

from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.log.vocabulary.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    UnreleasedInstanceIdError,
)

from .coordinator_bench import Bench, T, settle


def test_a_static_member_that_comes_back_gets_what_it_had() -> None:
    bench = Bench()
    first, second = bench.join("a", instance_id="i"), bench.join("b")
    settle(first, second)
    epochs = second.epoch
    bench.heartbeat(first.request(member_epoch=-2))
    settle(second)
    assert second.epoch == epochs
    assert bench.phase() is GroupPhase.STABLE
    back = bench.join("a2", instance_id="i")
    assert back.owned == first.owned
    settle(back, second)
    assert second.epoch == epochs
    assert bench.causes()[-2:] == [RebalanceCause.STATIC_MEMBER_AWAY, RebalanceCause.STATIC_MEMBER_RETURNED]
    with pytest.raises(FencedInstanceIdError):
        first.beat()


def test_a_static_member_may_come_back_under_its_old_member_id() -> None:
    bench = Bench()
    first, second = bench.join("a", instance_id="i"), bench.join("b")
    settle(first, second)
    bench.heartbeat(first.request(member_epoch=-2))
    with pytest.raises(FencedMemberEpochError):
        bench.heartbeat(first.request())
    assert bench.join("a", instance_id="i").owned == first.owned


def test_a_static_member_that_stays_away_is_removed_after_its_session() -> None:
    bench = Bench()
    first, second = bench.join("a", instance_id="i", session_timeout_ms=5_000), bench.join("b")
    settle(first, second)
    bench.heartbeat(first.request(member_epoch=-2))
    bench.tick(5_000)
    second.beat()
    assert second.owned == T


def test_an_instance_id_that_is_in_use_is_not_given_away() -> None:
    bench = Bench()
    bench.join("a", instance_id="i")
    with pytest.raises(UnreleasedInstanceIdError):
        bench.join("b", instance_id="i")


def test_a_static_member_that_leaves_while_it_revokes_releases_the_partitions() -> None:
    bench = Bench()
    first = bench.join("a", instance_id="a")
    second = bench.join("b")
    bench.heartbeat(first.request())
    bench.heartbeat(first.request(member_epoch=-2))
    second.beat()
    assert second.owned == {("t", 2), ("t", 3)}
