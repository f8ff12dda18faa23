"""Plans the moves of replicas when a broker leaves or a new one joins. Pure: partitions and brokers in, moves out.

Both plans move as few replicas as possible. A move replaces one replica by another at the same position in the list, so that the
order of preference, and with it the balance of leaders, does not change. A machine never gets a second replica of a partition; a
move never puts more replicas of a partition into one rack than necessary.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from barnabas.log.vocabulary.topic_partition import TopicPartition

from .placement import Site


class PlacedPartition(NamedTuple):
    """The replicas of a partition, or those after its current reassignment; the preferred leader first. A plan has one for every
    partition of the cluster, and a tuple is made in half the time."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    topic_partition: TopicPartition
    replicas: tuple[int, ...]  # after the move


class ReplicaCounts:
    """The numbers of replicas and preferred leaders of each broker while a plan is made."""

    def __init__(self, partitions: Sequence[PlacedPartition], brokers: Iterable[int]) -> None:
        """Counted in C: the plan is made every half second while a broker leaves, and there may be 200,000 partitions."""
        placed = [partition.replicas for partition in partitions]
        self.replicas: Counter[int] = Counter(dict.fromkeys(brokers, 0))
        self.replicas.update(chain.from_iterable(placed))
        self.leaders: Counter[int] = Counter(dict.fromkeys(brokers, 0))
        self.leaders.update(map(itemgetter(0), placed))

    def replaced(self, partition: PlacedPartition, old: int, new: int) -> None:
        self.replicas[old] -= 1
        self.replicas[new] += 1
        if partition.replicas[0] == old:
            self.leaders[old] -= 1
            self.leaders[new] += 1


def plan_drain(
    partitions: Sequence[PlacedPartition],
    sites: Mapping[int, Site],
    receivers: Collection[int],
    *,
    leaving: int,
    limit: int,
) -> tuple[Move, ...]:
    """Moves that remove `leaving` from at most `limit` partitions, to `receivers`. `sites`: of all brokers.

    A partition that no broker can take has no move: the plan is made again when the brokers have changed.
    """
    counts = ReplicaCounts(partitions, receivers)
    moves: list[Move] = []
    without_heir: set[tuple[int, ...]] = set()  # so that a plan without a move costs no more than another
    for partition in partitions:
        if leaving not in partition.replicas or partition.replicas in without_heir:
            continue
        if len(moves) == limit:
            break
        heir = _heir(partition, leaving, receivers, sites, counts)
        if heir is None:
            without_heir.add(partition.replicas)
        else:
            counts.replaced(partition, leaving, heir)
            moves.append(_replace(partition, leaving, heir))
    return tuple(moves)


def _heir(
    partition: PlacedPartition,
    leaving: int,
    receivers: Collection[int],
    sites: Mapping[int, Site],
    counts: ReplicaCounts,
) -> int | None:
    """Different racks first, then the broker with the fewest replicas; a preferred leader goes to the broker that leads least."""
    others = [sites[replica] for replica in partition.replicas if replica != leaving and replica in sites]
    racks, machines = Counter(site.rack for site in others), {site.machine for site in others}
    was_preferred = partition.replicas[0] == leaving

    def order(node_id: int) -> tuple[int, int, int, int]:
        leaders, replicas = counts.leaders[node_id], counts.replicas[node_id]
        load = (leaders, replicas) if was_preferred else (replicas, leaders)
        return racks[sites[node_id].rack], *load, node_id

    free = (
        node_id for node_id in receivers if node_id not in partition.replicas and sites[node_id].machine not in machines
    )
    return min(free, key=order, default=None)


def plan_fill(
    partitions: Sequence[PlacedPartition],
    sites: Mapping[int, Site],
    members: Collection[int],
    *,
    newcomer: int,
    limit: int,
) -> tuple[Move, ...]:
    """Moves, at most `limit`, that give `newcomer` as many replicas, and preferred leaderships, as `members` (it is one) have on
    average (rounded down). Each is taken from the broker that has the most at that moment. `sites`: of all brokers."""
    givers = [node_id for node_id in members if node_id != newcomer]
    counts = ReplicaCounts(partitions, members)
    fair_replicas = sum(counts.replicas[node_id] for node_id in members) // len(members)
    fair_leaders = sum(counts.leaders[node_id] for node_id in members) // len(members)
    free = _Free(partitions, sites, newcomer)
    moves: list[Move] = []
    for is_leader in (True, False):
        while counts.replicas[newcomer] < fair_replicas and (not is_leader or counts.leaders[newcomer] < fair_leaders):
            if len(moves) == limit:
                return tuple(moves)
            found = _to_give(free, givers, counts, newcomer, is_leader=is_leader)
            if found is None:
                break
            partition, giver = found
            counts.replaced(partition, giver, newcomer)
            moves.append(_replace(partition, giver, newcomer))
    return tuple(moves)


class _Free:
    """The replicas that a new broker may take over, in the order of the partitions. A topic of many partitions has few different
    lists of replicas, and what may be taken depends on these alone: otherwise a plan would read all partitions for each move."""

    def __init__(self, partitions: Sequence[PlacedPartition], sites: Mapping[int, Site], newcomer: int) -> None:
        self._partitions = partitions
        self._given: set[int] = set()
        by_replicas: dict[tuple[int, ...], list[int]] = {}
        for position, (_, replicas) in enumerate(partitions):
            by_replicas.setdefault(replicas, []).append(position)
        held: dict[tuple[int, bool], list[list[int]]] = {}
        for replicas, positions in by_replicas.items():
            if newcomer in replicas:
                continue
            for place, giver in enumerate(replicas):
                if giver in sites and _keeps_apart(replicas, giver, newcomer, sites):
                    held.setdefault((giver, place == 0), []).append(positions)
        self._held = {key: heapq.merge(*lists) for key, lists in held.items()}

    def take(self, giver: int, *, is_leader: bool) -> PlacedPartition | None:
        """The first partition of which `giver` can give its replica; each partition is taken once."""
        for position in self._held.get((giver, is_leader), ()):
            if position not in self._given:
                self._given.add(position)
                return self._partitions[position]
        return None


def _to_give(
    free: _Free, givers: Sequence[int], counts: ReplicaCounts, newcomer: int, *, is_leader: bool
) -> tuple[PlacedPartition, int] | None:
    """Choose a replica (a leader or a follower) of the broker that holds the most of them, and more than the new broker."""
    held = counts.leaders if is_leader else counts.replicas
    for giver in sorted(givers, key=lambda node_id: (-held[node_id], node_id)):
        if held[giver] <= held[newcomer]:
            return None
        partition = free.take(giver, is_leader=is_leader)
        if partition is not None:
            return partition, giver
    return None


def _keeps_apart(replicas: tuple[int, ...], giver: int, newcomer: int, sites: Mapping[int, Site]) -> bool:
    others = [sites[replica] for replica in replicas if replica != giver and replica in sites]
    if sites[newcomer].machine in {site.machine for site in others}:
        return False
    racks = Counter(site.rack for site in others)
    return racks[sites[newcomer].rack] <= racks[sites[giver].rack]


def _replace(partition: PlacedPartition, old: int, new: int) -> Move:
    replicas = tuple(new if replica == old else replica for replica in partition.replicas)
    return Move(topic_partition=partition.topic_partition, replicas=replicas)
