"""One step of one member towards its target assignment (KIP-848, "Member reconciliation"): a pure function.

First the member releases: partitions that are no longer in its target become pending revocation, and its epoch does not
advance until the member confirms that it no longer owns them. Only then does its epoch advance, and it takes the partitions
of its target that no other member holds. Those that others still hold (assigned, or pending revocation) follow with later
heartbeats.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.kraft.group_state.group_slots import PartitionKey
from barnabas.kraft.metadata.records import CurrentAssignmentRecord

from ..model.partitions import NO_PARTITIONS, PartitionSet, to_set
from ..model.states import MEMBER_TRANSITIONS, MemberState

NO_EPOCH = -1  # a previous member epoch that no heartbeat can carry


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a member holds. `assigned` and `pending_revocation` are disjoint; the latter only when UNREVOKED."""

    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: PartitionSet = NO_PARTITIONS
    pending_revocation: PartitionSet = NO_PARTITIONS

    @staticmethod
    def of(record: CurrentAssignmentRecord) -> "Holding":
        return Holding(
            member_epoch=record.member_epoch,
            previous_member_epoch=record.previous_member_epoch,
            state=MemberState(record.state),
            assigned=to_set(record.assigned),
            pending_revocation=to_set(record.pending_revocation),
        )


def advance(
    holding: Holding,
    *,
    member_id: str,
    target: PartitionSet,
    target_epoch: int,
    owned: PartitionSet | None,
    owners: Mapping[PartitionKey, str],
) -> Holding:
    """Return what the member holds after this heartbeat. `owned` None: not reported, so it may still own anything."""
    if _still_owns(owned, holding.pending_revocation):
        return holding
    if holding.state is MemberState.STABLE and holding.member_epoch == target_epoch:
        return holding
    kept = holding.assigned & target
    revoked = holding.assigned - target
    if _still_owns(owned, revoked):
        after = Holding(
            member_epoch=holding.member_epoch,
            previous_member_epoch=holding.previous_member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
        )
    else:
        after = _adopt(holding, member_id, kept, target, target_epoch, owners)
    assert after.state in MEMBER_TRANSITIONS[holding.state]
    assert not after.assigned & after.pending_revocation
    return after


def _still_owns(owned: PartitionSet | None, revoked: PartitionSet) -> bool:
    return bool(revoked) if owned is None else not owned.isdisjoint(revoked)


def _adopt(
    holding: Holding,
    member_id: str,
    kept: PartitionSet,
    target: PartitionSet,
    target_epoch: int,
    owners: Mapping[PartitionKey, str],
) -> Holding:
    free = frozenset(key for key in target - kept if owners.get(key, member_id) == member_id)
    complete = kept | free == target
    moved_on = holding.member_epoch != target_epoch
    return Holding(
        member_epoch=target_epoch,
        # Kept while the epoch does not advance, so that a member whose answers are lost repeatedly is not fenced.
        previous_member_epoch=holding.member_epoch if moved_on else holding.previous_member_epoch,
        state=MemberState.STABLE if complete else MemberState.UNRELEASED_PARTITIONS,
        assigned=kept | free,
    )
