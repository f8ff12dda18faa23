"""What an operator may set about groups, with Kafka's names in comments and the reason of each default."""

from dataclasses import dataclass

from .assignors import RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    min_session_timeout_ms: int = (
        1_000  # group.min.session.timeout.ms: below it a pause of the client's garbage collector looks like a death
    )
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    # A member that waits for partitions of others asks more often: it is what a rebalance lasts.
    waiting_heartbeat_interval_ms: int = 500
    rebalance_timeout_ms: int = 300_000  # the client's max.poll.interval.ms: it revokes between two polls
    # Classic groups: the first members of an empty group wait so long for others, so that a group that starts together
    # rebalances once (group.initial.rebalance.delay.ms; Kafka's 3 s make every test and every script wait).
    initial_rebalance_delay_ms: int = 200
    # A newcomer whose first join is parked is given up after it: it may be a client that is gone (Kafka's constant).
    new_member_join_timeout_ms: int = 300_000
    max_protocols: int = 32  # of one classic member: assignors that it knows
    max_subscription_bytes: int = 64 * 1024  # of one classic member, all protocols together: kept on every voter
    max_group_size: int = 2_000  # group.consumer.max.size: a reset writes two records per member in one quorum append
    max_classic_group_size: int = 2_000  # group.max.size
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes: it is kept in memory on every voter
    offsets_retention_ms: int = (
        7 * 24 * 3_600_000
    )  # offsets.retention.minutes: a week, over which a consumer may be down
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    max_subscribed_topics: int = 10_000  # of one member; the same reason
    max_id_length: int = 1_000  # of group, member and instance ids: they are keys of the quorum's state
    default_assignor: str = RANGE
    # Assign at most so often per group (KIP-1263): in a storm of joins each decision would rewrite all targets.
    assignment_interval_ms: int = 0
