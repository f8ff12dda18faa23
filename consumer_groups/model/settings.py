"""What an operator may set about groups, with Kafka's names in comments and the reason of each default."""

from dataclasses import dataclass
from typing import Final

from .assignors import COOPERATIVE_STICKY, RANGE, ROUND_ROBIN, STICKY, UNIFORM

# Members of one group, of either protocol. What ends a rebalance, an assignment or a session of all is one step of the event loop
# that writes a record for each member: 0.1 s with 2,000 of them, 0.8 s with 10,000.
MAX_GROUP_SIZE: Final = 2_000


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
    max_group_size: int = MAX_GROUP_SIZE  # group.consumer.max.size
    max_classic_group_size: int = MAX_GROUP_SIZE  # group.max.size
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes: it is kept in memory on every voter
    offsets_retention_ms: int = (
        7 * 24 * 3_600_000
    )  # offsets.retention.minutes: a week, over which a consumer may be down
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    max_subscribed_topics: int = 10_000  # of one member; the same reason
    max_id_length: int = 1_000  # of member, instance and client ids: they are kept on every voter
    max_group_id_length: int = 255  # in every record of a group, each committed offset included
    # group.max.per.slot: a group takes some 3 kB on every voter, so that 50 full slots take 150 MB.
    max_groups_per_slot: int = 1_000
    # group.consumer.assignors: what members may ask for; the first is for groups whose members ask for none. Kafka's default list
    # begins with uniform, too.
    assignors: tuple[str, ...] = (UNIFORM, RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)
    # group.consumer.assignment.interval.ms (KIP-1263): the longest time between two assignments of a group. In a storm of joins
    # each assignment rewrites the targets of all members; a group waits `assignment_ms_per_member` for each, so that a group of
    # any size writes 500 targets a second at most. Small groups are assigned with each change.
    assignment_interval_ms: int = 1_000
    assignment_ms_per_member: int = 2
    members_assigned_at_once: int = 10

    @property
    def default_assignor(self) -> str:
        return self.assignors[0]

    def interval_ms(self, member_count: int) -> int:
        """The time between two assignments of a group of this size."""
        if member_count <= self.members_assigned_at_once:
            return 0
        return min(self.assignment_interval_ms, self.assignment_ms_per_member * member_count)
