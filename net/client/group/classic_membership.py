"""The member's side of a classic group (KIP-62, KIP-345, KIP-394, KIP-429): join, sync, heartbeat, and who assigns. Pure.

    JOINING --joined--> SYNCING --synced--> MEMBER --a rebalance, or we want something else--> JOINING
       ^                   |--a newer rebalance--> JOINING
       |--out of the group: all partitions are lost-- any of them                      any --leave--> LEFT

*Eager*: all partitions are given up before the join. *Cooperative*: they are kept while the group rebalances; what the new
assignment takes from us is given up, and then we join again so that its next owner can have it. Which of the two is a matter
of the assignors that the members offer.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto

from barnabas.log.vocabulary.group_assignors import NO_PARTITIONS as NO_KEYS
from barnabas.log.vocabulary.group_messages import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from barnabas.log.vocabulary.group_protocol import (
    PROTOCOL_TYPE,
    ClientSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.errors import BarnabasError, ErrorCode, InvalidAssignmentError, error_for
from .assignors import Assignor, MemberSubscription, checked, is_cooperative, user_data, withhold_moving
from .ownership import NO_PARTITIONS, Ownership, Partitions, Subscription

NO_GENERATION = -1
_OUT = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


class ClassicState(Enum):
    JOINING = auto()
    SYNCING = auto()
    MEMBER = auto()
    LEFT = auto()


class ClassicMembership(Ownership):
    def __init__(
        self,
        group_id: str,
        subscription: Subscription,
        assignors: tuple[Assignor, ...],
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        instance_id: str | None = None,
        rack: str | None = None,
        client_id: str = "",
    ) -> None:
        super().__init__()
        self.group_id = group_id
        self.member_id = ""
        self.instance_id = instance_id
        self.epoch = NO_GENERATION
        self.state = ClassicState.JOINING
        self.is_leader = False
        self.topics: tuple[str, ...] = subscription.topics  # Of a pattern: those that match, as far as we know.
        self.subscription = subscription
        self.is_cooperative = is_cooperative(assignors[0])
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._assignor_name = ""
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._rack = rack
        self._client_id = client_id
        self._topics_said: tuple[str, ...] = ()
        self._members: dict[str, ClientSubscription] = {}  # The leader knows them.
        self._instances: dict[str, str | None] = {}
        self._assignments: tuple[MemberAssignment, ...] = ()
        self._counts_used: Mapping[str, int] | None = None  # What the leader has assigned from; None: it has not.
        self._must_assign = False

    # --- what to do next ---------------------------------------------------------------------------------------------

    @property
    def is_rebalancing(self) -> bool:
        return self.state in (ClassicState.JOINING, ClassicState.SYNCING)

    @property
    def must_act(self) -> bool:
        """Do not wait for the next heartbeat."""
        return self.state is ClassicState.SYNCING or self.can_join

    @property
    def can_join(self) -> bool:
        """An eager member has given up everything before; a lost partition need not be given up."""
        return self.state is ClassicState.JOINING and (self.is_cooperative or not self.owned) and bool(self.topics)

    def join(self) -> JoinGroupRequest:
        assert self.can_join
        self._topics_said = self.topics
        # Partitions of the last assignment that are not adopted yet are claimed too: no other member may get them meanwhile.
        claimed = self.owned | (self._target or NO_PARTITIONS) if self.is_cooperative else NO_PARTITIONS
        return JoinGroupRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self._client_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(self._protocol(assignor, claimed) for assignor in self._assignors.values()),
        )

    def _protocol(self, assignor: Assignor, claimed: Partitions) -> GroupProtocol:
        try:
            told = user_data(assignor, self.topics)
        except Exception as error:
            raise InvalidAssignmentError(f"user_data of assignor {assignor.name!r} failed: {error!r}") from error
        subscription = ClientSubscription(
            topics=self.topics,
            owned=frozenset(claimed),
            generation=self.epoch,
            rack=self._rack,
            user_data=told,
        )
        return GroupProtocol(name=assignor.name, metadata=encode_subscription(subscription))

    def sync(self) -> SyncGroupRequest:
        assert self.state is ClassicState.SYNCING
        return SyncGroupRequest(
            group_id=self.group_id,
            generation=self.epoch,
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._assignor_name,
            assignments=self._assignments,
        )

    def heartbeat(self) -> HeartbeatRequest | None:
        """None: not a member yet. A member that has yet to revoke its partitions continues its heartbeats."""
        if self.epoch == NO_GENERATION or self.state is ClassicState.LEFT:
            return None
        return HeartbeatRequest(
            group_id=self.group_id, generation=self.epoch, member_id=self.member_id, instance_id=self.instance_id
        )

    @property
    def has_left(self) -> bool:
        return self.state is ClassicState.LEFT

    def leave(self, reason: str = "") -> LeaveGroupRequest | None:
        """Leave; all partitions are lost. None: the coordinator knows no such member, or a static member keeps its partitions."""
        member_id, self.member_id = self.member_id, ""
        self._out()
        self.state = ClassicState.LEFT
        if not member_id or self.instance_id is not None:
            return None
        return LeaveGroupRequest(group_id=self.group_id, member_id=member_id, reason=reason)

    def rejoin(self) -> None:
        assert self.state is ClassicState.LEFT
        self.state = ClassicState.JOINING

    # --- answers -----------------------------------------------------------------------------------------------------

    def joined(self, response: JoinGroupResponse) -> None:
        if self.state is not ClassicState.JOINING:
            return  # The answer to a join from before the leave.
        self.member_id = response.member_id
        if response.error == ErrorCode.MEMBER_ID_REQUIRED:
            return
        if response.error:
            raise error_for(response.error, f"join of group {self.group_id}")
        self.state = ClassicState.SYNCING
        self.epoch = response.generation
        self.is_leader = response.leader_id == response.member_id
        self._assignor_name = response.protocol_name
        self._assignments = ()
        self._must_assign = self.is_leader and not response.skip_assignment
        self._counts_used = None
        self._members, self._instances = {}, {}
        for member in response.members if self.is_leader else ():
            self._members[member.member_id] = decode_subscription(member.metadata) or ClientSubscription(topics=())
            self._instances[member.member_id] = member.instance_id

    @property
    def must_assign(self) -> bool:
        """Whether the other members wait for this leader's assignment. A static leader that has returned keeps its former one."""
        return self._must_assign

    @property
    def topics_of_group(self) -> frozenset[str]:
        """For the leader: of these it must know the partitions. Empty for the others."""
        return frozenset[str]().union(*(member.topics for member in self._members.values()))

    def assign(self, partitions: Mapping[str, int]) -> None:
        """The leader decides. Raises InvalidAssignmentError."""
        assert self._must_assign and self.state is ClassicState.SYNCING
        assignor = self._assignors[self._assignor_name]
        members = {
            member_id: MemberSubscription(
                topics=member.topics,
                owned=member.owned,
                generation=member.generation,
                rack=member.rack,
                user_data=member.user_data,
                instance_id=self._instances[member_id],
            )
            for member_id, member in self._members.items()
        }
        existing = {topic: partitions[topic] for topic in self.topics_of_group if partitions.get(topic)}
        self._counts_used = existing
        try:
            assigned = checked(assignor.name, assignor.assign(members, existing), members, existing)
        except InvalidAssignmentError:
            raise
        except Exception as error:  # code of the application: report whatever it raises or returns to the application
            raise InvalidAssignmentError(f"assignor {assignor.name!r} failed: {error!r}") from error
        if is_cooperative(assignor):
            claims = {name: (member.owned, member.generation) for name, member in self._members.items()}
            assigned = withhold_moving(assigned, claims)
        self._assignments = tuple(
            MemberAssignment(member_id=member_id, assignment=encode_assignment(keys))
            for member_id, keys in assigned.items()
        )

    def synced(self, response: SyncGroupResponse) -> None:
        if self.state is not ClassicState.SYNCING:
            return
        keys = decode_assignment(response.assignment) if response.assignment else NO_KEYS
        if keys is None:
            raise InvalidAssignmentError(f"the leader of group {self.group_id} sent an assignment that cannot be read")
        self._target = frozenset(TopicPartition(*key) for key in keys)
        self.state = ClassicState.MEMBER
        if self.topics != self._topics_said:
            self._rebalance()

    def failed(self, error: BarnabasError) -> bool:
        """Return whether the session can continue: the application must get any other error."""
        if error.code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._rebalance()
        elif error.code in _OUT:
            if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._out()
        else:
            return error.retriable
        return True

    def _rebalance(self) -> None:
        if self.state is ClassicState.LEFT:
            return
        self.state = ClassicState.JOINING
        if not self.is_cooperative:
            self._target = NO_PARTITIONS  # Everything is given up, when the application lets us.

    def _out(self) -> None:
        """This member was removed: other members may own its partitions already."""
        self._lose_all()
        self.epoch = NO_GENERATION
        self.is_leader = False
        self._members = {}
        if self.state is not ClassicState.LEFT:
            self.state = ClassicState.JOINING

    # --- changes -----------------------------------------------------------------------------------------------------

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        given_up = frozenset(partitions) & self.owned
        super().revoked(given_up)
        if self.is_cooperative and given_up and self.state is ClassicState.MEMBER:
            self._rebalance()  # Their next owners get them with the next generation.

    def subscribe(self, subscription: Subscription) -> None:
        self.subscription = subscription
        if subscription.pattern is None:
            self.topics_are(subscription.topics)

    def topics_are(self, topics: tuple[str, ...]) -> None:
        """Change the subscription."""
        self.topics = topics
        if self.state is ClassicState.MEMBER and topics != self._topics_said:
            self._rebalance()

    def partitions_are(self, partitions: Mapping[str, int]) -> None:
        """The leader assigns again when topics were added, grown or deleted."""
        if self.state is not ClassicState.MEMBER or not self.is_leader:
            return
        existing = {topic: partitions[topic] for topic in self.topics_of_group if partitions.get(topic)}
        if self._counts_used is None:
            self._counts_used = existing
        elif existing != self._counts_used:
            self._rebalance()
