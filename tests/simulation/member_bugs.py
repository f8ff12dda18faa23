"""Bugs of the members of groups, found by the simulations of tests/unit/consumer_groups."""

from collections.abc import Iterable
from unittest.mock import patch

from unit.consumer_groups import simulation as member_simulation
from unit.consumer_groups.classic_simulation import ClassicSimulation

from barnabas.consumer_groups.classic import membership as classic_membership
from barnabas.consumer_groups.classic.group import ClassicGroup
from barnabas.consumer_groups.classic.rebalancing import ClassicRebalancing
from barnabas.consumer_groups.members import assigned_offsets, heartbeat_checks, membership
from barnabas.consumer_groups.members.parked_heartbeats import ParkedHeartbeats
from barnabas.consumer_groups.model.decision import Decision
from barnabas.consumer_groups.model.settings import GroupSettings
from barnabas.consumer_groups.model.states import GroupPhase
from barnabas.consumer_groups.subscriptions import subscriptions
from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.consumer_groups.subscriptions.pattern_matches import Pattern, PatternMatches
from barnabas.kraft.group_state.group_slots import PartitionKey, SlotState
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.group_messages import NO_OFFSET, CommittedOffset, ConsumerGroupHeartbeatRequest

from .planted import Plant, planted


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


def _looks_at_every_field(request: ConsumerGroupHeartbeatRequest, settings: GroupSettings) -> None:
    """A leave is refused for what does not matter to it."""
    heartbeat_checks.check_request(request, settings)
    heartbeat_checks._check_subscription(request, settings)
    if request.rebalance_timeout_ms == 0:
        raise InvalidRequestError("rebalance timeout 0 ms; it must be positive")


def _knows_no_commit(state: SlotState, group_id: str, key: PartitionKey, topic_id: str) -> CommittedOffset:
    """An assignment tells the member to begin where `auto_offset_reset` says."""
    return CommittedOffset(topic=key[0], partition=key[1], offset=NO_OFFSET, topic_id=topic_id)


def _instead(module: object, name: str, planted: object) -> Plant:
    return lambda: patch.object(module, name, planted)


BUGS = [
    *planted(
        "members",
        lambda seed: member_simulation.Simulation(seed).run(),
        {
            "what the budget was too small for is never matched": _instead(
                subscriptions, "PatternMatches", _DropsTheRest
            ),
            "a new pattern is tried on new topics only": _instead(
                subscriptions, "PatternMatches", _LooksAtNewTopicsOnly
            ),
            "a decision matches for too long": _instead(member_simulation, "MatchBudget", _NeverEmpty),
            "a leave is refused": _instead(membership, "check_request", _looks_at_every_field),
            "an assignment comes without its offsets": _instead(assigned_offsets, "committed_offset", _knows_no_commit),
            "parked heartbeats hear of nothing": _instead(membership, "ParkedHeartbeats", _TellsNobody),
            "a superseded heartbeat is answered last": _instead(membership, "ParkedHeartbeats", _ForgetsWhoWaits),
        },
    ),
    *planted(
        "classic members",
        lambda seed: ClassicSimulation(seed).run(),
        {
            "a new generation is not stored": _instead(
                classic_membership, "ClassicRebalancing", _ForgetsNewGenerations
            ),
            "commits of any generation": _instead(classic_membership, "_check_generation", _takes_any_generation),
        },
    ),
]
