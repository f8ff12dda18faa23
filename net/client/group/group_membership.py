"""The member's side of a consumer group (KIP-848): which heartbeat comes next, what to give up, what to take. Pure.

    JOINING --answered--> MEMBER --fenced--> JOINING (all partitions lost)
                            |--leave--> LEFT --rejoin--> JOINING

The coordinator names the partitions that we should have; we first give up what is not among them (after a commit),
say so in a heartbeat, and take the rest. What we own changes only by `revoked`, `adopted` and being fenced.
"""

from collections.abc import Iterable
from enum import Enum, auto

from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import BarnabasError, ErrorCode
from .ownership import Ownership, Subscription

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2  # A static member that will be back: its partitions wait for it.
DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000  # Until the coordinator names one.
MAX_WAIT_MS = 10_000  # For news; the coordinator answers after its heartbeat interval, if that is shorter.
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH})
_WAIT = frozenset({ErrorCode.UNRELEASED_INSTANCE_ID})
_NO_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNRELEASED_INSTANCE_ID})


class State(Enum):
    JOINING = auto()
    MEMBER = auto()
    LEFT = auto()


class Verdict(Enum):
    """What a failed heartbeat means."""

    RETRY = auto()
    REJOIN = auto()
    FATAL = auto()


class GroupMembership(Ownership):
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
        max_wait_ms: int = MAX_WAIT_MS,
    ) -> None:
        super().__init__()
        self.group_id = group_id
        self.member_id = member_id
        self.state = State.JOINING
        self.epoch = JOIN_EPOCH  # 0 exactly while joining.
        self.heartbeat_interval_ms = DEFAULT_HEARTBEAT_INTERVAL_MS
        self._subscription = subscription
        self.instance_id = instance_id
        self._rack = rack
        self._client_id = client_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._assignor = assignor
        self.max_wait_ms = max_wait_ms  # 0: heartbeats are answered at once.
        # For all that we know: also by a heartbeat whose answer never came. True of every member.
        self._may_be_member = False
        self._news = 1  # Counts changes of what we own or want; a heartbeat says all of it until one is answered.
        self._news_said = 0
        self._news_known = 0

    @property
    def must_tell(self) -> bool:
        """The coordinator waits for a change of this member: do not wait for the heartbeat interval."""
        return self.state is not State.LEFT and self._news_known < self._news

    @property
    def has_more_to_tell(self) -> bool:
        """There is news that the heartbeat under way does not contain: do not wait for its answer."""
        return self.state is not State.LEFT and self._news_said < self._news

    def heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: complete where we have news, otherwise short. A member waits for its answer."""
        assert self.state is not State.LEFT
        self._news_said = self._news
        if not self.must_tell:
            return ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                client_id=self._client_id,
                max_wait_ms=self.max_wait_ms,
                wants_offsets=True,
            )
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rack=self._rack,
            client_id=self._client_id,
            subscribed_topics=self._subscription.topics if self._subscription.pattern is None else None,
            subscribed_pattern=self._subscription.pattern,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            session_timeout_ms=self._session_timeout_ms,
            assignor=self._assignor,
            owned=owned_partitions(self.owned),
            max_wait_ms=self.max_wait_ms if self.state is State.MEMBER else 0,
            wants_offsets=True,
        )

    def sending(self) -> None:
        """A heartbeat leaves for the coordinator, which may take it whether its answer comes or not."""
        if self.state is not State.LEFT:
            self._may_be_member = True

    def answered(self, response: ConsumerGroupHeartbeatResponse) -> bool:
        """Process a response; return whether it changes anything."""
        if self.state is State.LEFT:
            return False  # The answer to a heartbeat from before the leave.
        known = (self.state, self.member_id, self.epoch, self._target)
        self.state = State.MEMBER
        self.member_id = response.member_id or self.member_id
        self.epoch = response.member_epoch
        self.heartbeat_interval_ms = max(1, response.heartbeat_interval_ms)
        self._news_known = max(self._news_known, self._news_said)
        if response.assignment is not None:
            self._target = frozenset(
                TopicPartition(item.topic, number) for item in response.assignment for number in item.partitions
            )
            self._told = {TopicPartition(item.topic, item.partition): item for item in response.offsets}
            if self._target == self.owned and self._target != known[-1]:
                self._news += (
                    1  # What we are to give up we never took; the coordinator waits for that word all the same.
                )
        return known != (self.state, self.member_id, self.epoch, self._target)

    def gave_up(self) -> None:
        """We do not wait for the answer any more, because we have news ourselves. It may have been on its way."""
        self._news_known = min(self._news_known, self._news_said - 1)

    def failed(self, error: BarnabasError) -> Verdict:
        """A heartbeat was refused or lost. After REJOIN all partitions are lost and the next heartbeat joins again."""
        self.gave_up()
        if error.code in _NO_MEMBER:
            self._may_be_member = False
        if error.code in _FENCED:
            self.fence()
            return Verdict.REJOIN
        if error.retriable or error.code in _WAIT:
            return Verdict.RETRY
        return Verdict.FATAL

    def fence(self) -> None:
        """This member was removed: other members may own its partitions already."""
        self._lose_all()
        self.epoch = JOIN_EPOCH
        self.state = State.JOINING
        self._news += 1

    @property
    def has_left(self) -> bool:
        return self.state is State.LEFT

    def leave(self, reason: str = "") -> ConsumerGroupHeartbeatRequest | None:
        """Leave; returns the last heartbeat, or None if the coordinator cannot know the member. All partitions are lost.

        A join whose answer has not come may have made it a member, which would keep partitions until its session ends. It has
        chosen its id itself, so that it can leave (KIP-1082).

        `reason` is a cause code of `group explain`, or a sentence that it shows."""
        may_be_member, self._may_be_member = self._may_be_member, False
        epoch = LEAVE_EPOCH if self.instance_id is None else LEAVE_FOR_A_WHILE_EPOCH
        self.fence()
        self.state = State.LEFT
        if not may_be_member:
            return None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            reason=reason,
        )

    def rejoin(self) -> None:
        assert self.state is State.LEFT
        self.state = State.JOINING

    def subscribe(self, subscription: Subscription) -> None:
        if subscription != self._subscription:
            self._subscription = subscription
            self._news += 1

    # --- partitions --------------------------------------------------------------------------------------------------

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are revoked; the next heartbeat reports it to the coordinator."""
        super().revoked(partitions)
        self._news += 1

    def adopted(self, partitions: Iterable[TopicPartition]) -> None:
        super().adopted(partitions)
        self._news += 1


def owned_partitions(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return tuple(TopicPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic.items())
