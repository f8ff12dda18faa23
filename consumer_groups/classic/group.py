"""One classic group as its coordinator sees it: members, generation, and the progress of its rebalance.

    EMPTY --join--> PREPARING_REBALANCE --all members joined, or timeout--> COMPLETING_REBALANCE
          <--------- no member joined                             |
    STABLE <------------- the leader has sent the assignment -----+
    STABLE, COMPLETING_REBALANCE --a member joins, leaves or changes--> PREPARING_REBALANCE

The quorum stores the last completed step: the members of a generation when its join phase ended, and their assignments after
the leader has sent them. Members that joined since then, and parked requests, are held only in this object: they are lost with
the coordinator, and their clients rejoin.
"""

from collections import Counter
from dataclasses import dataclass, field

from barnabas.kraft.group_state.group_slots import GroupState
from barnabas.kraft.metadata.records import MemberRecord
from barnabas.log.vocabulary.group_messages import GroupProtocol, JoinedMember, JoinGroupResponse, SyncGroupResponse
from barnabas.log.vocabulary.group_protocol import PROTOCOL_TYPE, decode_assignment

from ..model.classic_messages import Ticket
from ..model.partitions import NO_PARTITIONS, PartitionSet
from ..model.states import GroupPhase

NO_GENERATION = 0


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """`join` and `sync` are its parked requests; `is_new` until its first join has been answered."""

    record: MemberRecord  # identity, timeouts and subscription
    assignment: bytes = b""  # of the current generation
    holds: PartitionSet = (
        NO_PARTITIONS  # the partitions that it may be reading, if it uses Kafka's format; for explanations only
    )
    join: Ticket | None = None
    sync: Ticket | None = None
    is_new: bool = False
    has_synced: bool = False  # in this generation

    @property
    def member_id(self) -> str:
        return self.record.member_id

    @property
    def metadata(self) -> dict[str, bytes]:
        """Protocol name -> subscription, the member's favourite first."""
        return self.record.classic_metadata or {}


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    group_id: str
    phase: GroupPhase = GroupPhase.EMPTY
    generation: int = NO_GENERATION
    assigned_generation: int = NO_GENERATION  # the generation whose assignment was stored last
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: dict[str, ClassicMember] = field(
        default_factory=dict
    )  # changed only by `add`, `change`, `swap` and `remove`
    pending: set[str] = field(default_factory=set)  # ids that were issued and have not joined yet
    # While the first members of an empty group join, the join phase waits a little for more members (KIP-134).
    first_join_ends_ms: int | None = None
    has_newcomers: bool = False
    # Derived from `members`, because scanning all members on every request costs O(n^2) when n members join. Parked joins:
    joins: dict[Ticket, ClassicMember] = field(default_factory=dict)
    _holders: dict[str, ClassicMember] = field(default_factory=dict)  # by instance id
    # Protocol name -> how many members support it; never 0.
    _knowing: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(state: GroupState) -> "ClassicGroup":
        """The group as the quorum stores it."""
        record = state.group
        group = ClassicGroup(
            group_id=record.group_id,
            generation=record.group_epoch,
            assigned_generation=record.assignment_epoch,
            protocol_type=record.protocol_type,
            protocol_name=record.protocol_name,
            leader_id=record.leader_id,
        )
        for member_id, member in state.members.items():
            current = state.currents.get(member_id)
            is_current = current is not None and current.member_epoch == record.group_epoch
            assignment = current.classic_assignment if current is not None and is_current else None
            group.add(ClassicMember(record=member, assignment=assignment or b"", has_synced=is_current))
            group.members[member_id].holds = group.told_by(assignment or b"")
        if group.members:
            is_assigned = group.assigned_generation == group.generation
            group.phase = GroupPhase.STABLE if is_assigned else GroupPhase.COMPLETING_REBALANCE
        return group

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self.members
        self.members[member.member_id] = member
        self._know(member)

    def change(self, member: ClassicMember, record: MemberRecord) -> None:
        """The same member has new metadata."""
        self._unknow(member)
        member.record = record
        self._know(member)

    def swap(self, old: ClassicMember, new: ClassicMember) -> None:
        """Replace a member in its position: members are ordered by their first joins."""
        self._unknow(old)
        self.members = {
            (new.member_id if key == old.member_id else key): (new if key == old.member_id else value)
            for key, value in self.members.items()
        }
        self._know(new)

    def remove(self, member: ClassicMember) -> None:
        assert member.join is None
        del self.members[member.member_id]
        self._unknow(member)

    def park_join(self, member: ClassicMember, ticket: Ticket) -> None:
        assert member.join is None and self.members[member.member_id] is member
        member.join = ticket
        self.joins[ticket] = member

    def take_join(self, member: ClassicMember) -> Ticket | None:
        """Unpark and return its parked join."""
        ticket, member.join = member.join, None
        if ticket is not None:
            del self.joins[ticket]
        return ticket

    def _know(self, member: ClassicMember) -> None:
        self._knowing.update(member.metadata.keys())
        if member.record.instance_id is not None:
            self._holders[member.record.instance_id] = member

    def _unknow(self, member: ClassicMember) -> None:
        if member.record.instance_id is not None and self._holders.get(member.record.instance_id) is member:
            del self._holders[member.record.instance_id]
        for name in member.metadata:
            self._knowing[name] -= 1
            if not self._knowing[name]:
                del self._knowing[name]

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and len(self.joins) == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest timeout of any member: a member may be busy for that time before it can rejoin."""
        return max((member.record.rebalance_timeout_ms for member in self.members.values()), default=0)

    def holder_of(self, instance_id: str | None) -> ClassicMember | None:
        return None if instance_id is None else self._holders.get(instance_id)

    def supports(self, protocol_type: str, protocols: tuple[GroupProtocol, ...], *, but: str = "") -> bool:
        """Return whether this member has a protocol in common with all others. `but`: its id if it is a member already."""
        itself = self.members.get(but)
        others = len(self.members) - (itself is not None)
        if not others:
            return bool(protocol_type and protocols)
        own = () if itself is None else itself.metadata
        return protocol_type == self.protocol_type and any(
            self._knowing[item.name] - (item.name in own) == others for item in protocols
        )

    def vote(self) -> str:
        """The protocol that most members prefer among those that all members support; ties are resolved by name."""
        candidates = {name for name, count in self._knowing.items() if count == len(self.members)}
        votes = Counter(
            next(name for name in member.metadata if name in candidates) for member in self.members.values()
        )
        return min(votes, key=lambda name: (-votes[name], name))

    def told_by(self, assignment: bytes) -> PartitionSet:
        """The partitions in an assignment, if it is in Kafka's consumer format."""
        decoded = decode_assignment(assignment) if self.protocol_type == PROTOCOL_TYPE else None
        return frozenset(decoded or ())

    def join_answer(self, member_id: str, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """The answer to a member of this generation; only the leader's answer lists the other members."""
        members = self.members.values() if member_id == self.leader_id else ()
        return JoinGroupResponse(
            member_id=member_id,
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id,
            members=tuple(
                JoinedMember(
                    member_id=member.member_id,
                    instance_id=member.record.instance_id,
                    metadata=member.metadata.get(self.protocol_name, b""),
                )
                for member in members
            ),
            skip_assignment=skip_assignment,
        )

    def sync_answer(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(protocol_name=self.protocol_name, assignment=member.assignment)
