"""The states of groups and members, and their valid transitions.

A member's state is part of its current assignment, hence a record of the quorum; a group's phase is derived from its
epochs and members and is not stored.

    member  (none) --joins--> STABLE or UNRELEASED
            STABLE: it owns the target of its epoch (the group's target may be newer; the next heartbeat tells the member)
            UNREVOKED_PARTITIONS: it must release partitions; its epoch does not advance until it has confirmed that
            UNRELEASED_PARTITIONS: at the target's epoch, but some of its partitions are still held by others
"""

from enum import StrEnum
from typing import Final

from barnabas.kraft.group_state.group_slots import GroupState

AWAY_EPOCH: Final = -2  # the member epoch of a static member that left temporarily


class MemberState(StrEnum):
    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


_ANY_MEMBER_STATE = frozenset(MemberState)

# None: not a member. A new member owns nothing, so it never has anything to release.
MEMBER_TRANSITIONS: dict[MemberState | None, frozenset[MemberState]] = {
    None: frozenset({MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS}),
    MemberState.STABLE: _ANY_MEMBER_STATE,
    MemberState.UNREVOKED_PARTITIONS: _ANY_MEMBER_STATE,
    MemberState.UNRELEASED_PARTITIONS: _ANY_MEMBER_STATE,
}


class GroupPhase(StrEnum):
    EMPTY = "empty"  # no members; it may have offsets
    ASSIGNING = "assigning"  # the target assignment is older than the group epoch
    RECONCILING = "reconciling"  # members have not all reached the target assignment
    STABLE = "stable"  # every member owns what the target assignment says
    PREPARING_REBALANCE = "preparing_rebalance"  # classic groups: members join
    COMPLETING_REBALANCE = "completing_rebalance"  # classic groups: the leader has not sent the assignment yet
    DEAD = "dead"  # there is no such group


_WITH_MEMBERS = frozenset(
    {GroupPhase.ASSIGNING, GroupPhase.RECONCILING, GroupPhase.STABLE, GroupPhase.COMPLETING_REBALANCE}
)

# Phases that the quorum stores, so PREPARING_REBALANCE is not among them. One decision may pass through several phases (join,
# assign, settle); the table lists the valid phases before and after a whole decision.
GROUP_TRANSITIONS: dict[GroupPhase, frozenset[GroupPhase]] = {
    GroupPhase.DEAD: _WITH_MEMBERS | {GroupPhase.DEAD, GroupPhase.EMPTY},
    GroupPhase.EMPTY: _WITH_MEMBERS | {GroupPhase.EMPTY, GroupPhase.DEAD},
    GroupPhase.ASSIGNING: _WITH_MEMBERS | {GroupPhase.EMPTY},
    GroupPhase.RECONCILING: _WITH_MEMBERS | {GroupPhase.EMPTY},
    GroupPhase.COMPLETING_REBALANCE: _WITH_MEMBERS | {GroupPhase.EMPTY},
    GroupPhase.STABLE: _WITH_MEMBERS | {GroupPhase.EMPTY},
}


def phase_of(state: GroupState | None) -> GroupPhase:
    if state is None:
        return GroupPhase.DEAD
    if not state.members:
        return GroupPhase.EMPTY
    is_assigned = state.group.assignment_epoch == state.group.group_epoch
    if state.is_classic:
        return GroupPhase.STABLE if is_assigned else GroupPhase.COMPLETING_REBALANCE
    if not is_assigned:
        return GroupPhase.ASSIGNING
    # A static member that is away does not delay the group: its partitions stay reserved for it.
    arrived = (
        state.steps[state.group.assignment_epoch, MemberState.STABLE] + state.steps[AWAY_EPOCH, MemberState.STABLE]
    )
    return GroupPhase.STABLE if arrived == len(state.members) else GroupPhase.RECONCILING
