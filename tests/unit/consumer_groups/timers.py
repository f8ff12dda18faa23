"""What must hold of a coordinator's timers after every decision: each belongs to something that exists and waits for it."""

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.states import AWAY_EPOCH, MemberState


def check_timers(coordinator: GroupCoordinator) -> None:
    groups = coordinator.state.groups
    members = {(group_id, member_id) for group_id, group in groups.items() for member_id in group.members}
    revoking = {
        (group_id, member_id)
        for group_id, group in groups.items()
        for member_id, current in group.currents.items()
        if current.state == MemberState.UNREVOKED_PARTITIONS and current.member_epoch != AWAY_EPOCH
    }
    timers, targets = coordinator._membership.timers, coordinator._targets
    classic = {group_id for group_id, group in groups.items() if group.is_classic}
    assert {key for key in timers.sessions._deadline_ms if key[0] not in classic} == {
        key for key in members if key[0] not in classic
    }, "every member has a session, and nothing else has"
    assert set(timers.revocations._deadline_ms) == revoking
    assert set(timers.told_ms) <= members
    assert {group_id for group_id, _ in targets.due._deadline_ms} <= groups.keys(), "a group that is gone is due"
    assert targets._assigned_at_ms.keys() <= groups.keys()
