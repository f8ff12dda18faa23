"""Assignors: pure functions from members and their topics to an assignment of partitions.

They are in the lowest layer because both sides of a group use the same code: the coordinator for groups that it assigns
(`consumer_groups.model.assignors`), and the leader of a classic group (`net.client.group.assignors`); neither may import the
other. Each function assigns every partition of every subscribed topic exactly once, depends only on its arguments, and orders
static members by their instance id, so that a restart (a new member id) moves nothing.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

PartitionKey = tuple[str, int]
PartitionSet = frozenset[PartitionKey]
NO_PARTITIONS: PartitionSet = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it. `owned` is its current target, from which a sticky assignor starts."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: PartitionSet = NO_PARTITIONS

    @property
    def rank(self) -> tuple[str, str]:
        return (self.instance_id or self.member_id, self.member_id)


Assignment = dict[str, PartitionSet]  # by member id; every member has a key
GroupAssignor = Callable[[Iterable[Subscriber], Mapping[str, int]], Assignment]
_Heap = list[
    tuple[int, int]
]  # Loads (negative where the most loaded member comes first) with positions in the order of ranks.


def assign_range(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """For each topic, consecutive ranges to its subscribers in order; a remainder goes to the first ones.

    Topics with equal numbers of partitions and the same subscribers are divided in the same way, so that a member can join them
    (in the database sense) without a shuffle. It is Kafka's default.
    """
    ordered = sorted(subscribers, key=lambda one: one.rank)
    owned: list[list[PartitionKey]] = [[] for _ in ordered]
    for topic, positions in _eligible(ordered, topics).items():
        share, larger = divmod(topics[topic], len(positions))
        first = 0
        for order, position in enumerate(positions if share else positions[:larger]):
            end = first + share + (order < larger)
            owned[position].extend((topic, partition) for partition in range(first, end))
            first = end
    return {subscriber.member_id: frozenset(keys) for subscriber, keys in zip(ordered, owned, strict=True)}


def assign_round_robin(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """All partitions of all topics in order, assigned to members in turn; members without a subscription to a topic are skipped.

    With equal subscriptions, numbers of partitions differ by one at most. Existing ownership is ignored.
    """
    ordered = sorted(subscribers, key=lambda one: one.rank)
    owned: list[list[PartitionKey]] = [[] for _ in ordered]
    eligible = _eligible(ordered, topics)
    turn = 0
    for topic in sorted(eligible):
        positions = eligible[topic]
        index = bisect_left(positions, turn)
        for partition in range(topics[topic]):
            position = positions[index % len(positions)]
            owned[position].append((topic, partition))
            turn = position + 1
            index += 1
    return {subscriber.member_id: frozenset(keys) for subscriber, keys in zip(ordered, owned, strict=True)}


def assign_sticky(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """Equal numbers of partitions, as far as subscriptions allow. Members keep their partitions where the balance allows it.

    With equal subscriptions, the number of moves is the minimum that balance requires: a member with more than its share gives up
    only the excess. With unequal ones: start from the owned partitions, give the rest to the least loaded members, then move
    single partitions from more to less loaded members while that reduces the difference. Every such move lowers the sum of
    squared loads, so the moves end. After the last one, no member could take a partition from a member that has at least two
    more.
    """
    ordered = sorted(subscribers, key=lambda one: one.rank)
    work = _Sticky(ordered, topics)
    existing = frozenset(topics)
    if len({names & existing for names in {subscriber.topics for subscriber in ordered}}) <= 1:
        work.trim_to_quotas()
        work.give_out()
    else:
        work.give_out()
        while work.move_some():
            pass
    return {subscriber.member_id: work.owned(position) for position, subscriber in enumerate(ordered)}


def _eligible(ordered: list[Subscriber], topics: Mapping[str, int]) -> dict[str, list[int]]:
    """Existing topic -> positions of its subscribers, ascending. Topics with the same subscribers share one list.

    So the cost depends on the number of *different* subscriptions, not on the number of members that share one.
    """
    classes: dict[frozenset[str], list[int]] = {}
    for position, subscriber in enumerate(ordered):
        classes.setdefault(subscriber.topics, []).append(position)
    members = list(classes.values())
    of_topic: dict[str, list[int]] = {}  # the index of its class
    for number, names in enumerate(classes):
        for topic in names:
            if topic in topics:
                of_topic.setdefault(topic, []).append(number)
    merged: dict[tuple[int, ...], list[int]] = {(number,): positions for number, positions in enumerate(members)}
    found: dict[str, list[int]] = {}
    for topic, numbers in of_topic.items():
        key = tuple(numbers)
        if key not in merged:
            merged[key] = sorted(position for number in numbers for position in members[number])
        found[topic] = merged[key]
    return found


class _Sticky:
    """One run. Members are positions in the order of their ranks; between equals, the first always wins."""

    def __init__(self, ordered: list[Subscriber], topics: Mapping[str, int]) -> None:
        self._eligible = _eligible(ordered, topics)
        self._unowned = {topic: set(range(topics[topic])) for topic in sorted(self._eligible)}
        self._owned: list[dict[str, list[int]]] = [self._kept(subscriber) for subscriber in ordered]  # Lists ascend.
        self._loads = [sum(map(len, owned.values())) for owned in self._owned]

    def owned(self, position: int) -> PartitionSet:
        return frozenset((topic, number) for topic, numbers in self._owned[position].items() for number in numbers)

    def _kept(self, subscriber: Subscriber) -> dict[str, list[int]]:
        """The partitions that the member may keep; if two members claim a partition, the first in order keeps it."""
        kept: dict[str, list[int]] = {}
        for topic, partition in sorted(subscriber.owned):
            if topic in subscriber.topics and partition in self._unowned.get(topic, ()):
                self._unowned[topic].discard(partition)
                kept.setdefault(topic, []).append(partition)
        return kept

    def trim_to_quotas(self) -> None:
        """Take from every member the excess over its share. The shares that are larger by one go to members that own that many
        already."""
        if not self._owned:
            return
        share, larger = divmod(sum(self._loads) + sum(map(len, self._unowned.values())), len(self._owned))
        for position, load in enumerate(self._loads):
            quota = share
            if load > share and larger:
                quota, larger = share + 1, larger - 1
            if load > quota:
                self._take_back(position, load - quota)

    def _take_back(self, position: int, excess: int) -> None:
        """The last partitions of the last topics."""
        for topic in sorted(self._owned[position], reverse=True):
            while excess and topic in self._owned[position]:
                self._unowned[topic].add(self._take_last(position, topic))
                excess -= 1
            if not excess:
                return

    def give_out(self) -> None:
        """Give unowned partitions to the least loaded subscriber of each topic."""
        heaps = self._heaps(topic for topic, partitions in self._unowned.items() if partitions)
        for topic, partitions in self._unowned.items():
            for partition in sorted(partitions):
                heap = heaps[id(self._eligible[topic])]
                load, position = self._least_loaded(heap)
                self._give(position, topic, partition)
                heapq.heapreplace(heap, (load + 1, position))
            partitions.clear()

    def _heaps(self, topics: Iterable[str]) -> dict[int, _Heap]:
        """Loads and members of each set of subscribers; topics with the same subscribers share one."""
        heaps: dict[int, _Heap] = {}
        for topic in topics:
            positions = self._eligible[topic]
            if id(positions) not in heaps:
                heaps[id(positions)] = heap = [(self._loads[position], position) for position in positions]
                heapq.heapify(heap)
        return heaps

    def _least_loaded(self, heap: _Heap) -> tuple[int, int]:
        while heap[0][0] != self._loads[heap[0][1]]:  # An outdated load: another set of subscribers has changed it.
            heapq.heapreplace(heap, (self._loads[heap[0][1]], heap[0][1]))
        return heap[0]

    def move_some(self) -> bool:
        """One pass over the members from the most loaded on: each gives what it can. Return whether anything moved.

        One partition at a time and always from the top, or else some would also move between members that need no change.
        """
        takers = self._heaps(self._eligible)
        givers: _Heap = [(-load, position) for position, load in enumerate(self._loads)]
        heapq.heapify(givers)
        has_moved = False
        while givers:
            load, giver = heapq.heappop(givers)
            if -load != self._loads[giver]:
                continue  # It got partitions meanwhile; the next pass checks it again.
            if self._gives_one(giver, takers):
                has_moved = True
                heapq.heappush(givers, (-self._loads[giver], giver))
        return has_moved

    def _gives_one(self, giver: int, takers: dict[int, _Heap]) -> bool:
        for topic in sorted(self._owned[giver]):
            heap = takers[id(self._eligible[topic])]
            load, taker = self._least_loaded(heap)
            if load + 1 < self._loads[giver]:
                self._give(taker, topic, self._take_last(giver, topic))
                heapq.heapreplace(heap, (load + 1, taker))
                return True
        return False

    def _give(self, position: int, topic: str, partition: int) -> None:
        insort(self._owned[position].setdefault(topic, []), partition)
        self._loads[position] += 1

    def _take_last(self, position: int, topic: str) -> int:
        numbers = self._owned[position][topic]
        partition = numbers.pop()
        if not numbers:
            del self._owned[position][topic]
        self._loads[position] -= 1
        return partition
