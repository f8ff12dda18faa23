"""Why groups rebalance: stable codes, what each means, and what to do about it. Shown by `barnabas group explain --causes`."""

from dataclasses import dataclass
from enum import StrEnum


class RebalanceCause(StrEnum):
    """Stable codes: scripts match on them. Codes may be added; the meaning of a code never changes."""

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
        meaning="A member joined and gets a share of the partitions.",
        advice="Nothing. If it joins repeatedly, find out why it leaves.",
    ),
    RebalanceCause.MEMBER_LEFT: CauseText(
        meaning="A member closed and left the group; its partitions go to others.",
        advice="Nothing. To keep partitions in place during restarts, give members a group.instance.id.",
    ),
    RebalanceCause.MEMBER_EXPIRED: CauseText(
        meaning="No heartbeat arrived for a whole session: the member died, hangs or is cut off.",
        advice="Check that host. A shorter session.timeout.ms detects failures sooner, a longer one tolerates pauses.",
    ),
    RebalanceCause.POLL_INTERVAL_EXCEEDED: CauseText(
        meaning="The application did not poll within max.poll.interval.ms, so its member left.",
        advice="Poll fewer records at a time, make the handler faster, or raise max.poll.interval.ms.",
    ),
    RebalanceCause.REBALANCE_TIMEOUT: CauseText(
        meaning="A member had to release partitions, or to rejoin, and did not do so in time; it was removed.",
        advice="It is busy between two polls or its revocation listener hangs; see max.poll.interval.ms.",
    ),
    RebalanceCause.STATIC_MEMBER_AWAY: CauseText(
        meaning="A static member left temporarily; its partitions wait for it until its session ends.",
        advice="Restart it within session.timeout.ms; its partitions have no reader until then.",
    ),
    RebalanceCause.STATIC_MEMBER_RETURNED: CauseText(
        meaning="A static member is back and has its previous partitions.",
        advice="Nothing.",
    ),
    RebalanceCause.STATIC_MEMBER_FENCED: CauseText(
        meaning="Two processes use one group.instance.id; the older one was fenced.",
        advice="Give every process its own instance id, and stop the old process.",
    ),
    RebalanceCause.SUBSCRIPTION_CHANGED: CauseText(
        meaning="A member changed its subscription.",
        advice="Nothing, if it was intended. After a rolling upgrade, all members should have the same subscription.",
    ),
    RebalanceCause.ASSIGNOR_CHANGED: CauseText(
        meaning="The group uses another assignor.",
        advice="Nothing, if it was intended. Give all members the same assignor.",
    ),
    RebalanceCause.PARTITIONS_ADDED: CauseText(
        meaning="A subscribed topic has more partitions.",
        advice="Nothing.",
    ),
    RebalanceCause.TOPIC_CREATED: CauseText(
        meaning="A topic that members subscribe to by name was created.",
        advice="Nothing.",
    ),
    RebalanceCause.PATTERN_MATCHED: CauseText(
        meaning="A new topic matches a subscribed pattern.",
        advice="Nothing, if it was intended. Otherwise make the pattern narrower.",
    ),
    RebalanceCause.PATTERN_REFUSED: CauseText(
        meaning="A member's pattern was stored by an older version and is not valid in RE2: it matches nothing.",
        advice="Change the pattern; RE2 has no back-references and no look-around.",
    ),
    RebalanceCause.TOPIC_DELETED: CauseText(
        meaning="A subscribed topic was deleted, or deleted and created again.",
        advice="If it was deleted permanently, remove it from the subscription.",
    ),
    RebalanceCause.LEADER_REJOINED: CauseText(
        meaning="The leader of a classic group rejoined to compute a new assignment, usually because a topic changed.",
        advice="Nothing.",
    ),
    RebalanceCause.PARTITIONS_RELEASED: CauseText(
        meaning="A cooperative classic member released partitions and rejoined, so that others get them.",
        advice="Nothing: it is the second half of the previous rebalance.",
    ),
    RebalanceCause.OFFSETS_RESET: CauseText(
        meaning="An operator or client set the group's offsets; members continue from there.",
        advice="Nothing, if it was intended.",
    ),
    RebalanceCause.COORDINATOR_MOVED: CauseText(
        meaning="Another broker became coordinator, or the coordinator reloaded. No partition moved; the record starts again.",
        advice="Nothing; `barnabas cluster health` shows whether a broker failed.",
    ),
}

# The reason that a member sends when it leaves. Barnabas clients send the code; Kafka's Java client sends a sentence (KIP-800).
_POLL_TIMEOUT_TEXT = "consumer poll timeout has expired"


def cause_of_leaving(reason: str) -> RebalanceCause:
    """An unknown reason is reported as `member_left`, with the reason as its detail."""
    if reason == RebalanceCause.POLL_INTERVAL_EXCEEDED or reason.startswith(_POLL_TIMEOUT_TEXT):
        return RebalanceCause.POLL_INTERVAL_EXCEEDED
    return RebalanceCause.MEMBER_LEFT
