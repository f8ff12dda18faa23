"""Thousands of seeds of `simulation.Simulation` and of `classic_simulation`. A failure names its seed; `Simulation(seed).run()`
repeats it."""

from collections.abc import Iterable

import pytest

from barnabas.consumer_groups.classic import membership as classic_membership
from barnabas.consumer_groups.classic.group import ClassicGroup
from barnabas.consumer_groups.classic.rebalancing import ClassicRebalancing
from barnabas.consumer_groups.members import heartbeat_checks, membership
from barnabas.consumer_groups.members.parked_heartbeats import ParkedHeartbeats
from barnabas.consumer_groups.model.decision import Decision
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.consumer_groups.subscriptions import subscriptions
from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.consumer_groups.subscriptions.pattern_matches import Pattern, PatternMatches
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest

from . import simulation
from .classic_simulation import ClassicSimulation
from .simulation import Simulation

BLOCKS = 10
SEEDS_PER_BLOCK = 200


@pytest.mark.parametrize("kind", [Simulation, ClassicSimulation])
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_keeps_the_invariants_and_settles(
    block: int, kind: type[Simulation] | type[ClassicSimulation]
) -> None:
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        try:
            kind(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


class _ForgetsNewGenerations(ClassicRebalancing):
    """Tells members of a generation before it is stored: the next coordinator gives its number to others."""

    def store_members(self, group: ClassicGroup, decision: Decision) -> None:
        if group.group_id not in self._state.groups or group.phase is not GroupPhase.COMPLETING_REBALANCE:
            super().store_members(group, decision)


def _takes_any_generation(group: ClassicGroup, generation: int) -> None:
    """Who was left out of a rebalance still commits."""


class _TellsNobody(ParkedHeartbeats):
    """Members whose heartbeat is parked hear of nothing before it ends."""

    def changed(self, group_id: str, now_ms: int) -> None:
        pass


class _ForgetsWhoWaits(ParkedHeartbeats):
    """A newer heartbeat leaves the older one parked, which is then answered as if it were the last."""

    def supersede(self, group_id: str, member_id: str, decision: Decision) -> None:
        self._parked.get(group_id, {}).pop(member_id, None)


class _NeverEmpty(MatchBudget):
    """A decision matches until all is done, however long that takes."""

    is_left = True


class _DropsTheRest(PatternMatches):
    """What the budget was too small for is never matched."""

    def _try(self, text: str, known: Pattern) -> None:
        super()._try(text, known)
        known.untried.clear()


class _LooksAtNewTopicsOnly(PatternMatches):
    """A pattern that is new is not tried on the topics that exist already."""

    def add(self, text: str, presumed: Iterable[str] = ()) -> None:
        super().add(text, presumed)
        self._patterns[text].untried.clear()
        self._incomplete.pop(text, None)


@pytest.mark.parametrize("planted", [_DropsTheRest, _LooksAtNewTopicsOnly])
def test_planted_bugs_of_patterns_are_found(planted: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "PatternMatches", planted)
    _find(planted)


def test_a_decision_that_matches_for_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "MatchBudget", _NeverEmpty)
    _find(_NeverEmpty)


def _looks_at_every_field(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """A leave is refused for what does not matter to it."""
    heartbeat_checks.check_request(request, settings)
    heartbeat_checks._check_subscription(request, settings)
    if request.rebalance_timeout_ms == 0:
        raise InvalidRequestError("rebalance timeout 0 ms; it must be positive")


def test_a_leave_that_is_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "check_request", _looks_at_every_field)
    _find(_looks_at_every_field)


def _find(planted: object) -> None:
    for seed in range(SEEDS_PER_BLOCK):
        try:
            Simulation(seed).run()
        except Exception:
            return
    pytest.fail(f"{planted} was not found in {SEEDS_PER_BLOCK} seeds")


@pytest.mark.parametrize("planted", [_TellsNobody, _ForgetsWhoWaits])
def test_planted_bugs_of_parked_heartbeats_are_found(planted: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "ParkedHeartbeats", planted)
    _find(planted)


@pytest.mark.parametrize(
    ("module", "name", "planted"),
    [
        (classic_membership, "ClassicRebalancing", _ForgetsNewGenerations),
        (classic_membership, "_check_generation", _takes_any_generation),
    ],
)
def test_planted_bugs_of_classic_groups_are_found(
    module: object, name: str, planted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, planted)
    for seed in range(SEEDS_PER_BLOCK):
        try:
            ClassicSimulation(seed).run()
        except Exception:
            return
    pytest.fail(f"{planted} was not found in {SEEDS_PER_BLOCK} seeds")
