"""What a member of a group owns, what it should own, and what it must tell the application. Pure.

Both kinds of membership stand on it: `group_membership` (the coordinator assigns) and `classic_membership` (the members do). A
coordinator or a leader only says what should be; what is owned changes by `revoked`, `adopted` and by being out, no other way.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from barnabas.log.vocabulary.group_messages import CommittedOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import Request

from ..connection.errors import NotAssignedError

Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Partitions = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topics: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """First give up, then take."""

    revoke: Partitions
    adopt: Partitions


class Ownership(ABC):
    group_id: str
    member_id: str
    epoch: int  # What commits carry: the member epoch, or the generation.
    instance_id: str | None

    def __init__(self) -> None:
        self.owned: Partitions = NO_PARTITIONS
        self._target: Partitions | None = None  # The target assignment; None: not received yet, so nothing changes.
        # Committed offsets that came with the newest target; a new target makes them void.
        self._told: dict[TopicPartition, CommittedOffset] = {}
        self._lost: Partitions = NO_PARTITIONS  # Lost partitions that were not reported to the application yet.
        self._tenures: dict[TopicPartition, int] = {}  # Of what we own: the how many-th adoption it came with.
        self._adoptions = 0

    @property
    def has_change(self) -> bool:
        return bool(self._lost) or (self._target is not None and self._target != self.owned)

    @property
    def is_rebalancing(self) -> bool:
        """A commit that is refused now may be taken a moment later, when the rebalance is through."""
        return False

    def take_lost(self) -> Partitions:
        lost, self._lost = self._lost, NO_PARTITIONS
        return lost

    def change(self) -> Change:
        """What to do next to own what we should."""
        target = self.owned if self._target is None else self._target
        return Change(revoke=self.owned - target, adopt=target - self.owned)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are revoked: other members may get them."""
        gone = frozenset(partitions)
        self.owned -= gone
        for partition in gone:
            self._tenures.pop(partition, None)

    def adopted(self, partitions: Iterable[TopicPartition]) -> None:
        come = frozenset(partitions)
        self._adoptions += 1
        self._tenures.update(dict.fromkeys(come, self._adoptions))
        self.owned |= come

    def take_told(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of these partitions, as far as they came with the assignment. Each is handed out once."""
        return {partition: self._told.pop(partition) for partition in partitions if partition in self._told}

    def tenures(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each of these owned partitions a number that changes when the partition is lost and assigned again: between two
        equal numbers no other member had it, and no reset has moved it. Raises NotAssignedError if the application holds a
        lost one."""
        wanted = list(partitions)
        gone = sorted(partition for partition in wanted if partition in self._lost)
        if gone:
            raise NotAssignedError(f"{', '.join(map(str, gone))} was revoked: the group has removed this member")
        return {partition: self._tenures[partition] for partition in wanted if partition in self._tenures}

    @property
    @abstractmethod
    def has_left(self) -> bool: ...

    @abstractmethod
    def leave(self, reason: str = "") -> Request | None:
        """All partitions are lost. Returns the request for the coordinator, None if it knows no such member."""

    @abstractmethod
    def rejoin(self) -> None:
        """Become a member again after having left."""

    @abstractmethod
    def subscribe(self, subscription: Subscription) -> None: ...

    def _lose_all(self) -> None:
        self._lost |= self.owned
        self.owned = NO_PARTITIONS
        self._tenures.clear()
        self._target = None
        self._told = {}
