"""The oracle of the rebalance log: replaying all moves that it tells over who read what at the beginning gives who reads what
now, and no pause is negative."""

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.model.decision import read_by
from barnabas.consumer_groups.model.rebalance_log import REBALANCES_KEPT_PER_GROUP
from barnabas.kraft.group_state.group_slots import PartitionKey, partition_keys

Readers = dict[PartitionKey, str]


def readers_of(coordinator: GroupCoordinator, group_id: str, *, with_away: bool = False) -> Readers:
    """Who may be reading; with_away: or was the last to do so, and will be back."""
    live = coordinator._classic.members.groups.get(group_id)
    if live is not None:
        return {key: member.member_id for member in live.members.values() for key in member.holds}
    group = coordinator.state.groups.get(group_id)
    found: Readers = {}
    for member_id, current in {} if group is None else group.currents.items():
        keys = partition_keys(current) if with_away else read_by(current)
        found.update(dict.fromkeys(keys, member_id))
    return found


def check_moves(coordinator: GroupCoordinator, group_id: str, before: Readers) -> int:
    """Returns how many moves were checked."""
    rebalances = coordinator.describe_group(group_id=group_id).response.rebalances
    if len(rebalances) == REBALANCES_KEPT_PER_GROUP:
        return 0  # the oldest are forgotten
    readers = dict(before)
    moves = [move for item in rebalances for move in item.moves]
    for move in moves:
        key = (move.topic, move.partition)
        assert readers.pop(key, "") == move.from_member, f"{move} does not follow from what was told before"
        assert (move.pause_ms is None) == (move.to_member == "")
        assert move.pause_ms is None or move.pause_ms >= 0
        if move.to_member:
            readers[key] = move.to_member
    gaps = coordinator._log.gaps_of(group_id)
    for key, gap in gaps.items():
        assert readers.pop(key, "") == gap.member_id
    assert readers == readers_of(coordinator, group_id), "the moves are not the difference of the assignments"
    return len(moves)
