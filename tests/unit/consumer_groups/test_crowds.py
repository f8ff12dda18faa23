"""A group of a thousand members (KIP-848): what one of them asks costs what it does in a small group."""

import cProfile
import pstats
import random
from collections import Counter

import pytest

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.messages import MemberEpoch
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.kraft.group_state.group_slots import GroupState, slot_of
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

GROUP = "crowd"
CROWD = 1_000
SAMPLE = 20  # requests whose calls are counted
SESSION_MS = 45_000


class Crowd:
    """Members of one group, which beat by themselves."""

    def __init__(self, *, pattern: bool = False, static: bool = False) -> None:
        self.pattern, self.static = pattern, static
        self.now_ms = 0
        self.epochs: dict[int, int] = {}
        self.coordinator = GroupCoordinator(
            slot=slot_of(GROUP),
            coordinator_epoch=1,
            records=[],
            rng=random.Random(1),
            topics={"t": 8},
            now_ms=0,
            settings=GroupSettings(assignment_interval_ms=1_000),
        )

    def beat(self, number: int, *, epoch: int | None = None) -> ConsumerGroupHeartbeatResponse:
        is_join = number not in self.epochs
        told = self.coordinator.heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=f"m{number}",
                instance_id=f"i{number}" if self.static else None,
                member_epoch=epoch if epoch is not None else self.epochs.get(number, MemberEpoch.JOIN),
                subscribed_topics=None if self.pattern or not is_join else ("t",),
                subscribed_pattern="t|u.*" if self.pattern and is_join else None,
                owned=None if is_join else (),  # it lets go at once of what it is told to
                rebalance_timeout_ms=60_000 if is_join else -1,
                session_timeout_ms=SESSION_MS if is_join else -1,
            ),
            self.now_ms,
        ).response
        self.epochs[number] = told.member_epoch
        return told

    def calls(self, numbers: range) -> int:
        profile = cProfile.Profile()
        profile.enable()
        for number in numbers:
            self.beat(number)
        profile.disable()
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    def grow(self, size: int) -> None:
        for number in range(len(self.epochs), size):
            self.beat(number)

    def settle(self) -> None:
        """Until every member has its target."""
        self.now_ms += 2_000
        self.coordinator.tick(self.now_ms)
        for _ in range(2):
            for number in self.epochs:
                self.beat(number)

    @property
    def state(self) -> GroupState:
        return self.coordinator.state.groups[GROUP]


@pytest.mark.parametrize("pattern", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_a_join_does_not_look_at_all_other_members(pattern: bool, static: bool) -> None:
    crowd = Crowd(pattern=pattern, static=static)
    crowd.grow(2 * SAMPLE)
    first = crowd.calls(range(2 * SAMPLE, 3 * SAMPLE))
    crowd.grow(CROWD)
    assert crowd.calls(range(CROWD, CROWD + SAMPLE)) < 1.5 * first


@pytest.mark.parametrize("static", [False, True])
def test_a_heartbeat_does_not_look_at_all_other_members(static: bool) -> None:
    """Neither in the steady state, nor while the last ones are on their way to their targets."""
    small, large = Crowd(static=static), Crowd(static=static)
    small.grow(3 * SAMPLE)
    large.grow(CROWD)
    for crowd in (small, large):
        crowd.settle()
        crowd.beat(len(crowd.epochs))  # one more: all get a new epoch
        crowd.now_ms += 2_000
        crowd.coordinator.tick(crowd.now_ms)
        for number in range(len(crowd.epochs) - SAMPLE):
            crowd.beat(number)
    moving = [crowd.calls(range(len(crowd.epochs) - SAMPLE, len(crowd.epochs) - 1)) for crowd in (small, large)]
    assert moving[1] < 1.5 * moving[0]
    steady = [crowd.calls(range(len(crowd.epochs) - SAMPLE, len(crowd.epochs) - 1)) for crowd in (small, large)]
    assert steady[1] < 1.5 * steady[0]


def test_what_is_derived_from_members_is_what_they_say() -> None:
    crowd = Crowd(static=True)
    crowd.grow(12)
    for number in range(0, 12, 3):
        crowd.beat(number, epoch=MemberEpoch.LEAVE_STATIC)
        del crowd.epochs[number]
    for number in range(1, 12, 3):
        crowd.beat(number, epoch=MemberEpoch.LEAVE)
        del crowd.epochs[number]
    crowd.settle()
    crowd.beat(0)
    for group in (crowd.state, crowd.state.copy()):
        assert group.holders == {f"i{name[1:]}": name for name in group.members}
        assert group.steps == Counter((one.member_epoch, one.state) for one in group.currents.values())
    assert crowd.coordinator.describe_group(group_id=GROUP).response.phase != "empty"
