"""Why groups rebalance: stable codes, what each means, and what to do about it. Shown by `barnabas group explain --causes`."""

from dataclasses import dataclass
from enum import StrEnum


class RebalanceCause(StrEnum):
    """Stable codes: scripts match on them. One may be added; none changes its meaning."""

    MEMBER_JOINED = "member_joined"
    MEMBER_LEFT = "member_left"
    MEMBER_EXPIRED = "member_expired"
    POLL_INTERVAL_EXCEEDED = "poll_interval_exceeded"
    REBALANCE_TIMEOUT = "rebalance_timeout"
    STATIC_MEMBER_AWAY = "static_member_away"
    STATIC_MEMBER_RETURNED = "static_member_returned"
    STATIC_MEMBER_FENCED = "static_member_fenced"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    ASSIGNOR_CHANGED = "assignor_changed"
    PARTITIONS_ADDED = "partitions_added"
    TOPIC_CREATED = "topic_created"
    PATTERN_MATCHED = "pattern_matched"
    PATTERN_REFUSED = "pattern_refused"
    TOPIC_DELETED = "topic_deleted"
    LEADER_REJOINED = "leader_rejoined"
    PARTITIONS_RELEASED = "partitions_released"
    OFFSETS_RESET = "offsets_reset"
    COORDINATOR_MOVED = "coordinator_moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseText:
    meaning: str
    advice: str


CAUSES: dict[RebalanceCause, CauseText] = {
    RebalanceCause.MEMBER_JOINED: CauseText(
        meaning="A member has joined and gets its share.",
        advice="Nothing; if it joins again and again, see why it leaves.",
    ),
    RebalanceCause.MEMBER_LEFT: CauseText(
        meaning="A member has closed and said so; its partitions go to others.",
        advice="Nothing; give members a group.instance.id where restarts shall move nothing.",
    ),
    RebalanceCause.MEMBER_EXPIRED: CauseText(
        meaning="No heartbeat came for a whole session: the member died, hangs or is cut off.",
        advice="Look at that host; a shorter session.timeout.ms finds it sooner, a longer one forgives pauses.",
    ),
    RebalanceCause.POLL_INTERVAL_EXCEEDED: CauseText(
        meaning="The application did not ask for records within max.poll.interval.ms, so its member gave way.",
        advice="Take fewer records per poll, speed the handler up, or raise max.poll.interval.ms.",
    ),
    RebalanceCause.REBALANCE_TIMEOUT: CauseText(
        meaning="A member was told to let go of partitions, or to join again, and did not in time: it is out.",
        advice="It is busy between two polls or its revocation listener hangs; see max.poll.interval.ms.",
    ),
    RebalanceCause.STATIC_MEMBER_AWAY: CauseText(
        meaning="A static member has left for a while; its partitions wait for it until its session ends.",
        advice="Bring it back within session.timeout.ms; nobody reads its partitions until then.",
    ),
    RebalanceCause.STATIC_MEMBER_RETURNED: CauseText(
        meaning="A static member is back and has what it had.",
        advice="Nothing.",
    ),
    RebalanceCause.STATIC_MEMBER_FENCED: CauseText(
        meaning="Two processes use one group.instance.id; the older one was shut out.",
        advice="Give every process an instance id of its own, and stop the old one.",
    ),
    RebalanceCause.SUBSCRIPTION_CHANGED: CauseText(
        meaning="A member subscribes to other topics than before.",
        advice="Nothing, when it was meant; in a rolling upgrade all members shall end up the same.",
    ),
    RebalanceCause.ASSIGNOR_CHANGED: CauseText(
        meaning="The group shares its partitions out by another assignor.",
        advice="Nothing, when it was meant; give all members the same one.",
    ),
    RebalanceCause.PARTITIONS_ADDED: CauseText(
        meaning="A subscribed topic has more partitions.",
        advice="Nothing.",
    ),
    RebalanceCause.TOPIC_CREATED: CauseText(
        meaning="A topic that members subscribe to by name exists now.",
        advice="Nothing.",
    ),
    RebalanceCause.PATTERN_MATCHED: CauseText(
        meaning="A new topic matches a subscribed pattern.",
        advice="Nothing, when it was meant; otherwise narrow the pattern.",
    ),
    RebalanceCause.PATTERN_REFUSED: CauseText(
        meaning="A member's stored pattern is not valid in RE2, which older versions did not ask for: it matches nothing.",
        advice="Change the pattern; RE2 has no back-references and no look-around.",
    ),
    RebalanceCause.TOPIC_DELETED: CauseText(
        meaning="A subscribed topic was deleted, or deleted and created again.",
        advice="Take it out of the subscription, if it is gone for good.",
    ),
    RebalanceCause.LEADER_REJOINED: CauseText(
        meaning="The leader of a classic group joins again to assign anew, mostly because a topic has changed.",
        advice="Nothing.",
    ),
    RebalanceCause.PARTITIONS_RELEASED: CauseText(
        meaning="A cooperative classic member has let go of partitions and joins again, so that others get them.",
        advice="Nothing: it is the second half of the rebalance before.",
    ),
    RebalanceCause.OFFSETS_RESET: CauseText(
        meaning="Somebody has set the group's offsets; members start again from there, where they are.",
        advice="Nothing, when it was meant.",
    ),
    RebalanceCause.COORDINATOR_MOVED: CauseText(
        meaning="Another broker coordinates the group, or its coordinator has reloaded; nothing moves, this record starts anew.",
        advice="Nothing; see `barnabas cluster health` for why the broker went.",
    ),
}

# How members say why they leave. Ours send the code; Kafka's Java client sends a sentence (KIP-800).
_POLL_TIMEOUT_TEXT = "consumer poll timeout has expired"


def cause_of_leaving(reason: str) -> RebalanceCause:
    """A reason in nobody's list is no cause of its own: it is shown as the detail."""
    if reason == RebalanceCause.POLL_INTERVAL_EXCEEDED or reason.startswith(_POLL_TIMEOUT_TEXT):
        return RebalanceCause.POLL_INTERVAL_EXCEEDED
    return RebalanceCause.MEMBER_LEFT
