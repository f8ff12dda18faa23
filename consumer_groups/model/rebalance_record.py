"""What is told of one rebalance, as values: causes, moves, pauses, how long it took."""

from dataclasses import dataclass

from barnabas.kraft.metadata.records import MemberRecord

from .rebalance_causes import RebalanceCause

NOBODY = ""  # in place of a member id


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`member_id` NOBODY: no single member is the cause. `group_epoch` (a classic group's generation): where it led to."""

    at_ms: int
    code: RebalanceCause
    group_epoch: int = 0
    member_id: str = NOBODY
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    detail: str = ""

    @staticmethod
    def of(code: RebalanceCause, member: MemberRecord | None, detail: str, *, at_ms: int, group_epoch: int) -> "Cause":
        if member is None:
            return Cause(at_ms=at_ms, code=code, group_epoch=group_epoch, detail=detail)
        return Cause(
            at_ms=at_ms,
            code=code,
            group_epoch=group_epoch,
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            instance_id=member.instance_id,
            detail=detail,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition has another reader. Replaying all moves over the readers of before gives those of after.

    `pause_ms`: from when the old reader let it go (or was last heard of, where it was lost) until the new one was given it;
    where nobody read it before, since it was to be read. None where nobody took it: its topic went, or all members.
    """

    topic: str
    partition: int
    from_member: str
    to_member: str
    at_ms: int
    pause_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """From the first cause until the group was stable again; causes that come meanwhile belong to it.

    `stable_after_ms` None: it is under way, or (`is_superseded`) was cut because it had as many causes as one may have.
    """

    rebalance_id: int  # counts from 1 in the life of a coordinator
    began_ms: int
    causes: tuple[Cause, ...]  # never empty
    group_epoch: int
    moves: tuple[Move, ...] = ()
    moved_count: int = 0  # all of them, of which `moves` are the first
    longest_pause_ms: int = 0
    stable_after_ms: int | None = None
    is_superseded: bool = False

    @property
    def cause(self) -> RebalanceCause:
        """The first one."""
        return self.causes[0].code

    @property
    def member_id(self) -> str:
        """Of the first cause."""
        return self.causes[0].member_id

    @property
    def is_under_way(self) -> bool:
        return self.stable_after_ms is None and not self.is_superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A partition that nobody reads, whose it was last, and since when."""

    member_id: str
    since_ms: int
