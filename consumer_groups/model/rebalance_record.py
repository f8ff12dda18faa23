"""Values of the rebalance log: reasons, and partitions without a reader."""

from dataclasses import dataclass

from barnabas.kraft.metadata.records import MemberRecord
from barnabas.log.vocabulary.group_messages import RebalanceReason

from .rebalance_causes import RebalanceCause


def reason_of(
    cause: RebalanceCause, member: MemberRecord | None, detail: str, *, at_ms: int, group_epoch: int
) -> RebalanceReason:
    if member is None:
        return RebalanceReason(at_ms=at_ms, cause=cause, group_epoch=group_epoch, detail=detail)
    return RebalanceReason(
        at_ms=at_ms,
        cause=cause,
        group_epoch=group_epoch,
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        instance_id=member.instance_id,
        detail=detail,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A partition that no member reads: its last owner, and since when."""

    member_id: str
    since_ms: int
