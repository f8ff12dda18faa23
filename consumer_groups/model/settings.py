"""Settings of groups, and limits, with their reasons. Defaults of configuration keys come from the table of keys."""

from dataclasses import dataclass
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys

_KEYS: Final = BrokerKeys()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    session_timeout_ms: int = _KEYS.group_consumer_session_timeout_ms
    # With a shorter session, a garbage collection pause of the client looks like a failure.
    min_session_timeout_ms: int = _KEYS.group_min_session_timeout_ms
    max_session_timeout_ms: int = _KEYS.group_max_session_timeout_ms
    heartbeat_interval_ms: int = _KEYS.group_consumer_heartbeat_interval_ms
    # A member that waits for partitions of others sends heartbeats more often: this determines the duration of a rebalance.
    waiting_heartbeat_interval_ms: int = 500
    rebalance_timeout_ms: int = 300_000  # the client's max.poll.interval.ms: it revokes between two polls
    # Classic groups: the first members of an empty group wait for others during this time, so that a group whose members start
    # together rebalances once (Kafka's 3 s would delay every test and every script).
    initial_rebalance_delay_ms: int = _KEYS.group_initial_rebalance_delay_ms
    # A new member whose first join is parked is removed after this time: its client may be gone (Kafka's constant).
    new_member_join_timeout_ms: int = 300_000
    max_protocols: int = 32  # of one classic member: assignors that it knows
    max_subscription_bytes: int = 64 * 1024  # of one classic member, all protocols together: kept on every voter
    max_group_size: int = _KEYS.group_consumer_max_size
    max_classic_group_size: int = _KEYS.group_max_size
    offset_metadata_max_bytes: int = _KEYS.offset_metadata_max_bytes  # every voter keeps it in memory
    offsets_retention_ms: int = _KEYS.offsets_retention_minutes * 60_000  # a week, over which a consumer may be down
    offsets_retention_check_interval_ms: int = _KEYS.offsets_retention_check_interval_ms
    max_subscribed_topics: int = 10_000  # of one member; the same reason
    max_id_length: int = 1_000  # of member, instance and client ids: every voter keeps them
    max_group_id_length: int = 255  # in every record of a group, each committed offset included
    # A group takes about 3 kB on every voter, so 50 full slots take 150 MB.
    max_groups_per_slot: int = _KEYS.group_max_per_slot
    share_session_timeout_ms: int = _KEYS.group_share_session_timeout_ms
    share_heartbeat_interval_ms: int = _KEYS.group_share_heartbeat_interval_ms
    max_share_group_size: int = _KEYS.group_share_max_size
    # Assignors that members may request; the first is the default. Kafka's default list begins with uniform, too.
    assignors: tuple[str, ...] = _KEYS.group_consumer_assignors
    # group.consumer.assignment.interval.ms (KIP-1263): the longest time between two assignments of a group. When many members
    # join, each assignment rewrites the targets of all members. A group waits `assignment_ms_per_member` per member, so that a
    # group of any size writes at most 500 targets per second. Small groups are assigned with each change.
    assignment_interval_ms: int = _KEYS.group_consumer_assignment_interval_ms
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
