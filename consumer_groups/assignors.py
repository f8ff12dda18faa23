"""Server-side assignors: pure functions from members with their topics to who shall own what.

Each owns every partition of every subscribed topic exactly once, depends on nothing but its arguments, and orders
static members by their instance id, so that a restart (a new member id) moves nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.group_slots import PartitionKey

from .partitions import NO_PARTITIONS, PartitionSet

RANGE: Final = "range"
UNIFORM: Final = "uniform"


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
Assignor = Callable[[Iterable[Subscriber], Mapping[str, int]], Assignment]


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


def assign_uniform(subscribers: Iterable[Subscriber], topics: Mapping[str, int]) -> Assignment:
    """Equal numbers of partitions, as far as subscriptions allow; whoever has a partition keeps it where that is fair.

    Start from what is owned, give what is left to the least loaded, then move single partitions from more to less
    loaded members while that lessens the difference. Every such move lowers the sum of squared loads, so it ends;
    when it does, nobody could take a partition from a member that has two more than he has.
    """
    ordered = sorted(subscribers, key=lambda one: one.rank)
    eligible = _eligible(ordered, topics)
    owned = {subscriber.member_id: set[PartitionKey]() for subscriber in ordered}
    owner = _kept(ordered, topics)
    for key, member_id in owner.items():
        owned[member_id].add(key)
    unowned = [key for key in _partitions(eligible, topics) if key not in owner]
    for key in unowned:
        owned[_least_loaded(eligible[key[0]], owned)].add(key)
    while _move_one(eligible, owned):
        pass
    return {member_id: frozenset(keys) for member_id, keys in owned.items()}


ASSIGNORS: dict[str, Assignor] = {RANGE: assign_range, UNIFORM: assign_uniform}


def _eligible(ordered: list[Subscriber], topics: Mapping[str, int]) -> dict[str, list[str]]:
    by_topic: dict[str, list[str]] = {}
    for subscriber in ordered:
        for topic in sorted(subscriber.topics):
            if topic in topics:
                by_topic.setdefault(topic, []).append(subscriber.member_id)
    return by_topic


def _partitions(eligible: Mapping[str, list[str]], topics: Mapping[str, int]) -> list[PartitionKey]:
    return [(topic, partition) for topic in sorted(eligible) for partition in range(topics[topic])]


def _kept(ordered: list[Subscriber], topics: Mapping[str, int]) -> dict[PartitionKey, str]:
    """What may stay where it is; the first in order wins where two claim the same."""
    owner: dict[PartitionKey, str] = {}
    for subscriber in ordered:
        for key in sorted(subscriber.owned):
            if key[0] in subscriber.topics and key[1] < topics.get(key[0], 0):
                owner.setdefault(key, subscriber.member_id)
    return owner


def _least_loaded(members: list[str], owned: Mapping[str, set[PartitionKey]]) -> str:
    return min(members, key=lambda member_id: len(owned[member_id]))  # the first in order among equals


def _move_one(eligible: Mapping[str, list[str]], owned: dict[str, set[PartitionKey]]) -> bool:
    """Move one partition from the most loaded member that can give to the least loaded one that can take.

    One at a time and always from the top, or else partitions would also move between members that need no change.
    """
    for giver in sorted(owned, key=lambda member_id: -len(owned[member_id])):
        for topic in sorted({name for name, _ in owned[giver]}):
            taker = _least_loaded(eligible[topic], owned)
            if len(owned[taker]) + 1 < len(owned[giver]):
                key = max(key for key in owned[giver] if key[0] == topic)
                owned[giver].discard(key)
                owned[taker].add(key)
                return True
    return False
