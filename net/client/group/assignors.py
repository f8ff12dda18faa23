"""Assignors of classic groups: the leader among the members decides who reads what. Pure.

An application may bring its own: any object with a `name` and an `assign` (see `Assignor`). All members of a group need one
assignor in common; they vote for the one that most like best.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from barnabas.log.vocabulary.group_assignors import (
    GroupAssignor,
    PartitionSet,
    Subscriber,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from barnabas.log.vocabulary.group_protocol import ClientSubscription
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import InvalidAssignmentError, InvalidConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription(ClientSubscription):
    """What a member wants, and what it still owns: empty unless the assignor is cooperative (KIP-429)."""

    instance_id: str | None = None


Assigned = Mapping[str, Iterable[TopicPartition]]  # By member id; a member without an entry gets nothing.


class Assignor(Protocol):
    """Kafka's partition.assignment.strategy.

    Beside these it may have `cooperative` (bool, default False: members give up everything before each rebalance; True: they
    keep what is not taken from them, and what moves from one to another comes in a second rebalance, which we see to), and
    `user_data` (bytes, or a function of the topics that gives bytes: what the leader is to know of this member).
    """

    @property
    def name(self) -> str:
        """By which members agree on it; the names of Kafka's own are taken."""

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> Assigned:
        """Who gets what: {member id: partitions}. `members`: by member id; `partitions`: how many each subscribed topic has;
        topics that do not exist are left out."""


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    name: str
    function: GroupAssignor
    cooperative: bool = False

    def assign(self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> Assigned:
        subscribers = [
            Subscriber(
                member_id=member_id, topics=frozenset(member.topics), instance_id=member.instance_id, owned=member.owned
            )
            for member_id, member in members.items()
        ]
        assigned = self.function(subscribers, partitions)
        return {member_id: [TopicPartition(*key) for key in keys] for member_id, keys in assigned.items()}


RANGE = _BuiltIn("range", assign_range)
ROUND_ROBIN = _BuiltIn("roundrobin", assign_round_robin)
COOPERATIVE_STICKY = _BuiltIn("cooperative-sticky", assign_sticky, cooperative=True)
BUILT_IN: Mapping[str, Assignor] = {one.name: one for one in (RANGE, ROUND_ROBIN, COOPERATIVE_STICKY)}


def chosen(assignors: str | Assignor | Sequence[str | Assignor] | None) -> tuple[Assignor, ...]:
    """The assignors that a member offers, its favourite first. Raises InvalidConfigError."""
    if assignors is None:
        return (COOPERATIVE_STICKY,)
    listed = [assignors] if isinstance(assignors, str) or not isinstance(assignors, Sequence) else list(assignors)
    found = tuple(_named(item) if isinstance(item, str) else item for item in listed)
    names = [item.name for item in found]
    if not found or len(set(names)) < len(names) or not all(names):
        raise InvalidConfigError(f"assignors {names}: give at least one, each with a name of its own")
    if len({is_cooperative(item) for item in found}) > 1:
        raise InvalidConfigError(
            f"assignors {names}: some are cooperative and some are not; a member must follow one protocol (KIP-429)"
        )
    return found


def _named(name: str) -> Assignor:
    if name not in BUILT_IN:
        raise InvalidConfigError(
            f"no assignor {name!r} in the client; there are: {', '.join(BUILT_IN)}, or your own object"
        )
    return BUILT_IN[name]


def is_cooperative(assignor: Assignor) -> bool:
    return bool(getattr(assignor, "cooperative", False))


def user_data(assignor: Assignor, topics: tuple[str, ...]) -> bytes:
    found = getattr(assignor, "user_data", b"")
    return bytes(found(topics) if callable(found) else found)


def checked(
    name: str, assigned: Assigned, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, PartitionSet]:
    """What an assignor gave, for every member. Raises InvalidAssignmentError: members would read records twice or not at all."""
    owner: dict[TopicPartition, str] = {}
    for member_id, given in assigned.items():
        if member_id not in members:
            raise InvalidAssignmentError(f"assignor {name!r} gives partitions to {member_id!r}, which is no member")
        for partition in (TopicPartition(*item) for item in given):
            if not 0 <= partition.partition < partitions.get(partition.topic, 0):
                raise InvalidAssignmentError(f"assignor {name!r} gives away {partition}, which does not exist")
            if partition.topic not in members[member_id].topics:
                raise InvalidAssignmentError(
                    f"assignor {name!r} gives {partition} to {member_id!r}, which did not ask for it"
                )
            if owner.setdefault(partition, member_id) != member_id:
                raise InvalidAssignmentError(
                    f"assignor {name!r} gives {partition} to both {owner[partition]!r} and {member_id!r}"
                )
    keys: dict[str, set[tuple[str, int]]] = {member_id: set() for member_id in members}
    for (topic, number), member_id in owner.items():
        keys[member_id].add((topic, number))
    return {member_id: frozenset(found) for member_id, found in keys.items()}


def withhold_moving(
    assigned: Mapping[str, PartitionSet], claims: Mapping[str, tuple[PartitionSet, int]]
) -> dict[str, PartitionSet]:
    """Take from a cooperative assignment what another member still owns: it comes with the rebalance that follows when that
    member has given it up. `claims`: what each member says it owns, and in which generation it got it; of two who claim
    the same, only one with an older generation is known to be wrong.
    """
    owners: dict[tuple[str, int], tuple[int, set[str]]] = {}
    for member_id, (owned, generation) in claims.items():
        for key in owned:
            newest, names = owners.get(key, (generation, set()))
            if generation > newest:
                newest, names = generation, set()
            if generation == newest:
                names.add(member_id)
            owners[key] = newest, names
    return {
        member_id: frozenset(key for key in keys if key not in owners or owners[key][1] == {member_id})
        for member_id, keys in assigned.items()
    }
