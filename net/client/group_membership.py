"""The member's side of a consumer group (KIP-848): which heartbeat comes next, what to give up, what to take. Pure.

    JOINING --answered--> MEMBER --fenced--> JOINING (all partitions lost)
                            |--leave--> LEFT --rejoin--> JOINING

The coordinator names the partitions that we should have; we first give up what is not among them (after a commit),
say so in a heartbeat, and take the rest. What we own changes only by `revoked`, `adopted` and being fenced.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from barnabas.log.topic_partition import TopicPartition

from ..protocol.requests import ConsumerGroupHeartbeatRequest, OwnedPartitions
from ..protocol.responses import ConsumerGroupHeartbeatResponse
from .errors import BarnabasError, ErrorCode, FencedMemberEpochError

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2  # A static member that will be back: its partitions wait for it.
DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000  # Until the coordinator names one.
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH})
_WAIT = frozenset({ErrorCode.UNRELEASED_INSTANCE_ID})


class State(Enum):
    JOINING = auto()
    MEMBER = auto()
    LEFT = auto()


class Verdict(Enum):
    """What a failed heartbeat means."""

    RETRY = auto()
    REJOIN = auto()
    FATAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topics: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """First give up, then take."""

    revoke: frozenset[TopicPartition]
    adopt: frozenset[TopicPartition]


class GroupMembership:
    def __init__(
        self,
        group_id: str,
        member_id: str,
        subscription: Subscription,
        *,
        instance_id: str | None = None,
        rack: str | None = None,
        client_id: str = "",
        session_timeout_ms: int = -1,
        rebalance_timeout_ms: int = -1,
        assignor: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.state = State.JOINING
        self.epoch = JOIN_EPOCH  # 0 exactly while joining.
        self.heartbeat_interval_ms = DEFAULT_HEARTBEAT_INTERVAL_MS
        self.owned: frozenset[TopicPartition] = frozenset()
        self._target: frozenset[TopicPartition] | None = None  # What the coordinator wants us to own.
        self._lost: frozenset[TopicPartition] = frozenset()  # Taken from us; the application has not been told yet.
        self._tenures: dict[TopicPartition, int] = {}  # Of what we own: the how many-th adoption it came with.
        self._adoptions = 0
        self._subscription = subscription
        self._instance_id = instance_id
        self._rack = rack
        self._client_id = client_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._assignor = assignor
        self._news = 1  # Counts changes of what we own or want; a heartbeat says all of it until one is answered.
        self._news_said = 0
        self._news_known = 0

    @property
    def must_tell(self) -> bool:
        """There is something that the coordinator waits for: do not sleep out the interval."""
        return self.state is not State.LEFT and self._news_known < self._news

    def heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: short while nothing is new, complete otherwise."""
        assert self.state is not State.LEFT
        self._news_said = self._news
        if not self.must_tell:
            return ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self._instance_id,
                client_id=self._client_id,
            )
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._instance_id,
            rack=self._rack,
            client_id=self._client_id,
            subscribed_topics=self._subscription.topics if self._subscription.pattern is None else None,
            subscribed_pattern=self._subscription.pattern,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            session_timeout_ms=self._session_timeout_ms,
            assignor=self._assignor,
            owned=owned_partitions(self.owned),
        )

    def answered(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if self.state is State.LEFT:
            return  # The answer to a heartbeat from before we left.
        self.state = State.MEMBER
        self.member_id = response.member_id or self.member_id
        self.epoch = response.member_epoch
        self.heartbeat_interval_ms = max(1, response.heartbeat_interval_ms)
        self._news_known = max(self._news_known, self._news_said)
        if response.assignment is not None:
            self._target = frozenset(
                TopicPartition(item.topic, number) for item in response.assignment for number in item.partitions
            )

    def failed(self, error: BarnabasError) -> Verdict:
        """A heartbeat was refused or lost. After REJOIN all partitions are lost and the next heartbeat joins anew."""
        self._news_known = min(self._news_known, self._news_said - 1)  # It may not have been heard.
        if error.code in _FENCED:
            self.fence()
            return Verdict.REJOIN
        if error.retriable or error.code in _WAIT:
            return Verdict.RETRY
        return Verdict.FATAL

    def fence(self) -> None:
        """We are out: others may own our partitions already."""
        self._lost |= self.owned
        self.owned = frozenset()
        self._tenures.clear()
        self._target = None
        self.epoch = JOIN_EPOCH
        self.state = State.JOINING
        self._news += 1

    def leave(self) -> ConsumerGroupHeartbeatRequest | None:
        """Leave; returns the last heartbeat, or None if we are no member. All partitions are lost."""
        was_member = self.state is State.MEMBER
        epoch = LEAVE_EPOCH if self._instance_id is None else LEAVE_FOR_A_WHILE_EPOCH
        self.fence()
        self.state = State.LEFT
        if not was_member:
            return None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self._instance_id
        )

    def rejoin(self) -> None:
        assert self.state is State.LEFT
        self.state = State.JOINING

    def subscribe(self, subscription: Subscription) -> None:
        if subscription != self._subscription:
            self._subscription = subscription
            self._news += 1

    # --- partitions --------------------------------------------------------------------------------------------------

    def tenures(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For each of these that we own a number that changes when it goes and comes back: between two equal ones nobody
        else had it, and no reset has moved it. Raises FencedMemberEpochError where the application holds one that is lost."""
        wanted = list(partitions)
        gone = [partition for partition in wanted if partition in self._lost]
        if gone:
            raise FencedMemberEpochError(f"{', '.join(map(str, gone))} was taken away: the group went on without us")
        return {partition: self._tenures[partition] for partition in wanted if partition in self._tenures}

    @property
    def has_change(self) -> bool:
        return bool(self._lost) or (self._target is not None and self._target != self.owned)

    def take_lost(self) -> frozenset[TopicPartition]:
        lost, self._lost = self._lost, frozenset()
        return lost

    def change(self) -> Change:
        """What to do next to own what we should."""
        target = self.owned if self._target is None else self._target
        return Change(revoke=self.owned - target, adopt=target - self.owned)

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """They are given up; the coordinator hears of it with the next heartbeat."""
        gone = frozenset(partitions)
        self.owned -= gone
        for partition in gone:
            self._tenures.pop(partition, None)
        self._news += 1

    def adopted(self, partitions: Iterable[TopicPartition]) -> None:
        come = frozenset(partitions)
        self._adoptions += 1
        self._tenures.update(dict.fromkeys(come, self._adoptions))
        self.owned |= come
        self._news += 1


def owned_partitions(partitions: Iterable[TopicPartition]) -> tuple[OwnedPartitions, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return tuple(OwnedPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic.items())
