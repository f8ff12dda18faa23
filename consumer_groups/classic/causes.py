"""Why a member of a classic group rejoins, and which partitions it has released. Both are derived from the member's metadata,
if that is in Kafka's own format. The results are used for explanations only, never for decisions.
"""

from barnabas.kraft.metadata.records import MemberRecord
from barnabas.log.vocabulary.group_protocol import ClientSubscription, decode_subscription

from ..model.partitions import PartitionSet
from ..model.rebalance_causes import RebalanceCause
from .group import ClassicMember


def cause_of_joining_again(before: MemberRecord, after: MemberRecord, *, is_leader: bool) -> RebalanceCause:
    """Unchanged metadata means that the leader wants to assign again. A cooperative member's metadata names what it owns."""
    old, new = before.classic_metadata or {}, after.classic_metadata or {}
    if old == new:
        return RebalanceCause.LEADER_REJOINED
    if list(old) != list(new):
        is_same_wish = before.subscribed_topics == after.subscribed_topics
        return RebalanceCause.ASSIGNOR_CHANGED if is_same_wish else RebalanceCause.SUBSCRIPTION_CHANGED
    told = [(_told(old[name]), _told(new[name])) for name in new]
    if any(one is None or two is None or sorted(one.topics) != sorted(two.topics) for one, two in told):
        return RebalanceCause.SUBSCRIPTION_CHANGED
    if any(one and two and one.owned - two.owned for one, two in told):
        return RebalanceCause.PARTITIONS_RELEASED
    if is_leader:
        return RebalanceCause.LEADER_REJOINED
    return RebalanceCause.SUBSCRIPTION_CHANGED


def let_go_by_joining(member: ClassicMember, protocol_name: str) -> PartitionSet:
    """The partitions that the member no longer reads when it joins: all that it does not report as still owned (KIP-429)."""
    subscription = _told(member.metadata.get(protocol_name, next(iter(member.metadata.values()), b"")))
    return member.holds if subscription is None else member.holds - subscription.owned


def _told(metadata: bytes) -> ClientSubscription | None:
    return decode_subscription(metadata)
