"""Who shall own which partitions: pure functions from members with their topics to an assignment.

They stand at the bottom of the tree because both sides of a group use the very same code: the coordinator for groups that it
assigns (`consumer_groups.assignors`), and the leader among the members of a classic group (`net.client.assignors`); neither
may import the other. Each function owns every partition of every subscribed topic exactly once, depends on nothing but its
arguments, and orders static members by their instance id, so that a restart (a new member id) moves nothing.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

PartitionKey = tuple[str, int]
PartitionSet = frozenset[PartitionKey]
NO_PARTITIONS: PartitionSet = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it. `owned` is its target so far: a sticky assignor starts from there."""

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
]  # Loads (negative where the most loaded comes first) with positions in the order of ranks.


def assign_range(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """For each topic, consecutive ranges to its subscribers in order; the first ones get one more where it is uneven.

    Topics with equally many partitions and the same subscribers are split alike, so that a member can join them (in the
    sense of databases) without any shuffle. It is Kafka's default.
    """
    owned: dict[str, list[PartitionKey]] = {}
    by_topic: dict[str, list[str]] = {}
    for subscriber in sorted(subscribers, key=lambda one: one.rank):
        owned[subscriber.member_id] = []
        for topic in subscriber.topics:
            by_topic.setdefault(topic, []).append(subscriber.member_id)
    for topic, members in by_topic.items():
        share, larger = divmod(topics.get(topic, 0), len(members))
        first = 0
        for position, member_id in enumerate(members):
            end = first + share + (position < larger)
            owned[member_id].extend((topic, partition) for partition in range(first, end))
            first = end
    return {member_id: frozenset(keys) for member_id, keys in owned.items()}


def assign_round_robin(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """All partitions of all topics in order, dealt out like cards; who does not subscribe to a topic is passed over.

    With equal subscriptions nobody has more than one partition more than another. It keeps nothing where it was.
    """
    ordered = sorted(subscribers, key=lambda one: one.rank)
    owned: dict[str, list[PartitionKey]] = {subscriber.member_id: [] for subscriber in ordered}
    position = 0
    for topic in sorted(frozenset[str]().union(*(one.topics for one in ordered)) & topics.keys()):
        for partition in range(topics[topic]):
            while topic not in ordered[position].topics:
                position = (position + 1) % len(ordered)
            owned[ordered[position].member_id].append((topic, partition))
            position = (position + 1) % len(ordered)
    return {member_id: frozenset(keys) for member_id, keys in owned.items()}


def assign_sticky(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """Equal numbers of partitions, as far as subscriptions allow; whoever has a partition keeps it where that is fair.

    With equal subscriptions the number of moves is the least that balance allows: who has more than its share gives up the
    excess and nothing else. With unequal ones: start from what is owned, give what is left to the least loaded, then move
    single partitions from more to less loaded members while that lessens the difference. Every such move lowers the sum of
    squared loads, so it ends; when it does, nobody could take a partition from a member that has two more than he has.
    """
    ordered = sorted(subscribers, key=lambda one: one.rank)
    work = _Sticky(ordered, topics)
    existing = frozenset(topics)
    if len({subscriber.topics & existing for subscriber in ordered}) <= 1:
        work.trim_to_quotas()
        work.give_out()
    else:
        work.give_out()
        while work.move_some():
            pass
    return {subscriber.member_id: work.owned(position) for position, subscriber in enumerate(ordered)}


class _Sticky:
    """One run. Members are positions in the order of their ranks; the first of equals wins everywhere."""

    def __init__(self, ordered: list[Subscriber], topics: Mapping[str, int]) -> None:
        self._eligible: dict[str, list[int]] = {}
        for position, subscriber in enumerate(ordered):
            for topic in subscriber.topics & topics.keys():
                self._eligible.setdefault(topic, []).append(position)
        self._unowned = {topic: set(range(topics[topic])) for topic in sorted(self._eligible)}
        self._owned: list[dict[str, list[int]]] = [self._kept(subscriber) for subscriber in ordered]  # Lists ascend.
        self._loads = [sum(map(len, owned.values())) for owned in self._owned]

    def owned(self, position: int) -> PartitionSet:
        return frozenset((topic, number) for topic, numbers in self._owned[position].items() for number in numbers)

    def _kept(self, subscriber: Subscriber) -> dict[str, list[int]]:
        """What may stay where it is; the first in order has it where two claim the same."""
        kept: dict[str, list[int]] = {}
        for topic, partition in sorted(subscriber.owned):
            if topic in subscriber.topics and partition in self._unowned.get(topic, ()):
                self._unowned[topic].discard(partition)
                kept.setdefault(topic, []).append(partition)
        return kept

    def trim_to_quotas(self) -> None:
        """Take from everybody what is over its share. The shares that are larger by one go to who has that much already."""
        if not self._owned:
            return
        share, larger = divmod(sum(self._loads) + sum(map(len, self._unowned.values())), len(self._owned))
        for position, load in enumerate(self._loads):
            quota = share
            if load > share and larger:
                quota, larger = share + 1, larger - 1
            for _ in range(load - quota):
                topic = max(self._owned[position])
                self._unowned[topic].add(self._take_last(position, topic))

    def give_out(self) -> None:
        """What nobody has, to the least loaded member of each topic."""
        for topic, partitions in self._unowned.items():
            if not partitions:
                continue
            heap: _Heap = [(self._loads[position], position) for position in self._eligible[topic]]
            heapq.heapify(heap)
            for partition in sorted(partitions):
                load, position = heap[0]
                self._give(position, topic, partition)
                heapq.heapreplace(heap, (load + 1, position))
            partitions.clear()

    def move_some(self) -> bool:
        """One pass over the members from the most loaded on: each gives what it can. Returns whether anything moved.

        One partition at a time and always from the top, or else some would also move between members that need no change.
        """
        takers = {
            topic: [(self._loads[position], position) for position in members]
            for topic, members in self._eligible.items()
        }
        for heap in takers.values():
            heapq.heapify(heap)
        givers: _Heap = [(-load, position) for position, load in enumerate(self._loads)]
        heapq.heapify(givers)
        has_moved = False
        while givers:
            load, giver = heapq.heappop(givers)
            if -load != self._loads[giver]:
                continue  # It has taken some meanwhile; the next pass looks at it again.
            if self._gives_one(giver, takers):
                has_moved = True
                heapq.heappush(givers, (-self._loads[giver], giver))
        return has_moved

    def _gives_one(self, giver: int, takers: dict[str, _Heap]) -> bool:
        for topic in sorted(self._owned[giver]):
            heap = takers[topic]
            while heap[0][0] != self._loads[heap[0][1]]:  # An old load, of another topic's doing.
                heapq.heapreplace(heap, (self._loads[heap[0][1]], heap[0][1]))
            load, taker = heap[0]
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
