"""The transitions of one partition: its ISR, its eligible leader replicas, its leader.

Pure functions over `PartitionImage`; the control managers decide when to call them. The rules are KIP-966's:

    in-sync replicas (ISR)    have everything that is committed and follow the leader; all of them are active brokers
    eligible replicas (ELR)   left an ISR that was too small for the high watermark to move (below min.insync.replicas),
                              so they have everything committed too; a lossy restart takes a broker out
    the longest log           only when both are empty: brokers report how far their logs reach (`log_ends`)
    offline replicas          their disk has failed (KIP-858): in no ISR and never elected, not even uncleanly; one that is
                              eligible stays so, because its data may come back

A leader comes from the ISR, then from the ELR, then it has the longest log, and it is any live replica only with
`unclean.leader.election.enable`. Every choice after the ELR may lack acknowledged records, so such an election is counted in the
partition (`unclean_elections`) and shown with the partition.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from .image import NO_LEADER, PartitionImage
from .records import PartitionChangeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """The conditions of an election for a partition of one topic."""

    active: frozenset[int]  # brokers that may lead and be in an ISR
    min_insync_replicas: int = 1
    unclean: bool = False
    lost: frozenset[int] = frozenset()  # brokers that may have lost acknowledged records
    full: frozenset[int] = frozenset()  # brokers with a full disk: they lead only if no other in-sync replica can
    longest: int | None = None  # the replica with the longest log; asked for only where no other one may lead

    def enough(self, partition: PartitionImage) -> int:
        """The ISR size from which the high watermark moves, so that no replica outside of the ISR stays eligible."""
        return min(self.min_insync_replicas, len(partition.replicas))

    def able(self, partition: PartitionImage) -> frozenset[int]:
        """The brokers that may lead this partition and be in its ISR."""
        return self.active.difference(partition.offline_replicas) if partition.offline_replicas else self.active


def with_isr(partition: PartitionImage, isr: Iterable[int], rules: ElectionRules) -> PartitionImage:
    """The partition with another ISR, and the ELR that follows from it."""
    wanted = tuple(isr)
    eligible: tuple[int, ...] = ()
    if len(wanted) < rules.enough(partition):
        had = {*partition.isr, *partition.eligible_leader_replicas} - set(wanted) - rules.lost
        eligible = tuple(replica for replica in partition.replicas if replica in had)
    return replace(partition, isr=wanted, eligible_leader_replicas=eligible)


def without_inactive(partition: PartitionImage, rules: ElectionRules) -> PartitionImage:
    """The partition after all replicas that are inactive, offline or have lost data have left the ISR."""
    able = rules.able(partition)
    isr = (replica for replica in partition.isr if replica in able and replica not in rules.lost)
    return with_isr(partition, isr, rules)


def elect(partition: PartitionImage, rules: ElectionRules, leaders: "Counter[int]") -> PartitionImage:
    """The partition with a leader that the rules allow: the one that it has, if they do; NO_LEADER if there is none.

    Among several in-sync replicas the broker with the fewest leaderships wins. `leaders` is kept up to date.
    """
    able = rules.able(partition)
    if partition.leader in partition.isr and partition.leader in able:
        return partition
    candidates = [replica for replica in partition.isr if replica in able]
    if candidates:
        order = partition.replicas.index
        chosen = min(candidates, key=lambda node: (node in rules.full, leaders[node], order(node)))
        return led_by(partition, chosen, leaders)
    last_resort = _outside_isr(partition, rules)
    if last_resort is not None:
        alone = with_isr(partition, (last_resort,), rules)
        if last_resort not in partition.eligible_leader_replicas:
            # It may lack committed records: from here on, its log is authoritative, and no other replica is eligible.
            unclean_elections = partition.unclean_elections + 1
            alone = replace(alone, eligible_leader_replicas=(), unclean_elections=unclean_elections)
        return led_by(alone, last_resort, leaders)
    return led_by(partition, NO_LEADER, leaders)


def is_nothing_known(partition: PartitionImage) -> bool:
    """Is no replica known to have everything that is committed?"""
    return not partition.isr and not partition.eligible_leader_replicas


def _outside_isr(partition: PartitionImage, rules: ElectionRules) -> int | None:
    able = rules.able(partition)
    eligible = [node for node in partition.eligible_leader_replicas if node in able]
    if eligible:
        return eligible[0]
    if is_nothing_known(partition) and rules.longest in able.intersection(partition.replicas):
        return rules.longest
    if rules.unclean:
        best_first = (rules.longest, partition.last_known_leader, *partition.replicas)
        return next((node for node in best_first if node in able and node in partition.replicas), None)
    return None


def led_by(partition: PartitionImage, leader: int, leaders: "Counter[int]") -> PartitionImage:
    """The partition with that leader; without one, it stores the last leader."""
    if leader == partition.leader:
        return partition
    if partition.leader != NO_LEADER:
        leaders[partition.leader] -= 1
    if leader != NO_LEADER:
        leaders[leader] += 1
        return replace(partition, leader=leader, last_known_leader=NO_LEADER)
    return replace(partition, leader=NO_LEADER, last_known_leader=partition.leader)


def complete_reassignment(partition: PartitionImage, rules: ElectionRules) -> PartitionImage:
    """End a reassignment that can end: all added replicas are in sync, and enough of the remaining ones."""
    if not partition.adding_replicas and not partition.removing_replicas:
        return partition
    leaving = set(partition.removing_replicas)
    isr = tuple(replica for replica in partition.isr if replica not in leaving)
    target = tuple(replica for replica in partition.replicas if replica not in leaving)
    # Not before the remaining ISR can acknowledge alone: the copies of replicas that leave are removed.
    if not isr or len(isr) < min(rules.min_insync_replicas, len(target)):
        return partition
    if not set(partition.adding_replicas).issubset(isr):
        return partition
    eligible = tuple(replica for replica in partition.eligible_leader_replicas if replica in target)
    ended = replace(
        partition, replicas=target, eligible_leader_replicas=eligible, adding_replicas=(), removing_replicas=()
    )
    return with_isr(ended, isr, rules)


def difference(topic_id: str, number: int, old: PartitionImage, new: PartitionImage) -> PartitionChangeRecord | None:
    """The record that turns `old` into `new`, or None. Its replay computes the epochs.

    A permanent removal of replicas also increments the leader epoch (as in Kafka): a removed replica may still fetch.
    """
    bump = new.leader != old.leader or not set(old.replicas).issubset(new.replicas)
    record = PartitionChangeRecord(
        topic_id=topic_id,
        partition=number,
        isr=new.isr if new.isr != old.isr else None,
        leader=new.leader if bump else None,
        replicas=new.replicas if new.replicas != old.replicas else None,
        eligible_leader_replicas=_changed(old.eligible_leader_replicas, new.eligible_leader_replicas),
        adding_replicas=_changed(old.adding_replicas, new.adding_replicas),
        removing_replicas=_changed(old.removing_replicas, new.removing_replicas),
        last_known_leader=new.last_known_leader if new.last_known_leader != old.last_known_leader else None,
        offline_replicas=_changed(old.offline_replicas, new.offline_replicas),
        unclean=new.unclean_elections > old.unclean_elections,
    )
    unchanged = PartitionChangeRecord(topic_id=topic_id, partition=number)
    return None if record == unchanged else record


def _changed(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    return new if new != old else None
