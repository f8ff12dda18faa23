"""The settings of the controller, and its limits, each with its reason."""

from dataclasses import dataclass
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys
from barnabas.log.settings.config import LogConfig

_KEYS: Final = BrokerKeys()
_TOPICS: Final = LogConfig()
MAX_PARTITIONS_PER_REQUEST = 10_000  # Kafka's limit of one batch of metadata records; it also bounds one decision
MAX_PARTITIONS_PER_CLUSTER = 200_000  # what KRaft clusters are tested with; an image of this size is copied in ms
MAX_REPLICATION_FACTOR = 128  # far above any use; the wire's 32767 would only cost time
MAX_CONFIG_CHANGES_PER_REQUEST = 1_000  # there are not that many configurations
MAX_CONFIG_VALUE_LENGTH = 32_767  # a Kafka string; nothing longer could be described to a client
MAX_CONFIGURED_GROUP_ID_LENGTH = 1_000  # as for coordinators: every voter keeps it in memory
MAX_GROUPS_WITH_CONFIGS = 10_000  # any client may configure a group that does not exist, and it stays in every image
MAX_BROKERS = 1_000  # one controller handles that many heartbeats easily; a client must not fill the image with ids
PRODUCER_ID_BLOCK_SIZE = 1_000  # Kafka's block: one quorum append for that many idempotent producers
MAX_PREFERRED_MOVES_PER_CHECK = 100  # leaders that return at a time: each move costs its clients a refresh
MAX_RETURNED_MOVES_PER_CHECK = 20  # leaders that go home to a broker that has just returned: every half second
MAX_PARTITIONS_PER_STEP = 5_000  # whose leaders and ISRs are decided in one piece; a broker may be in 200,000
MAX_MOVES_PER_REQUEST = 2_500  # to a broker that is filled, so that one decision is short; the client asks again
MAX_SCANNED_PER_STEP = 100_000  # partitions that are looked at in one piece, if few of them change: some 20 ms
MAX_RECORDS_PER_COMMAND = 2_000  # of records that need not be atomic: about 200 KB, so that no command holds up the log


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The defaults are those of the keys. Sessions are shorter than Kafka's 9 s because fail-over is promised in 5 s."""

    session_timeout_ms: int = _KEYS.broker_session_timeout_ms
    heartbeat_interval_ms: int = _KEYS.broker_heartbeat_interval_ms
    # The next six are only initial values of a cluster: see cluster_settings.
    default_partitions: int = _KEYS.num_partitions
    default_replication_factor: int = _KEYS.default_replication_factor  # -1: three, or all active brokers if fewer
    min_insync_replicas: int = _TOPICS.min_insync_replicas
    unclean_leader_election: bool = _TOPICS.unclean_leader_election_enable
    flush_messages: int = _TOPICS.flush_messages
    producer_id_expiration_ms: int = _KEYS.producer_id_expiration_ms
    auto_preferred_leaders: bool = _KEYS.auto_leader_rebalance_enable
    preferred_leader_check_interval_ms: int = (
        30_000  # of simulations; a broker: leader.imbalance.check.interval.seconds
    )
    leader_imbalance_percentage: int = _KEYS.leader_imbalance_per_broker_percentage
    returned_leader_check_interval_ms: int = 500  # leaders of a broker that has returned go home in small batches
    partitions_per_step: int = MAX_PARTITIONS_PER_STEP  # fewer in simulations, whose clusters are small
    move_check_interval_ms: int = 500  # the next replicas of a leaving broker; the end of a throttle
    leaderless_check_interval_ms: int = 5_000  # a safety net: completes what a crash of a controller left half done
    slot_balance_interval_ms: int = 2_000  # coordinator slots without groups move to brokers that have too few

    @property
    def takeover_grace_ms(self) -> int:
        """How long a new controller waits for the first heartbeat of a broker, if most others have sent one.

        A live broker learns of the new controller from the quorum or the feed, and contacts it at once, so three heartbeats are
        sufficient; a broker that was cut off together with the old controller has been silent for much longer.
        """
        return min(self.session_timeout_ms, 3 * self.heartbeat_interval_ms)

    @property
    def duplicate_window_ms(self) -> int:
        """The time after its last heartbeat in which a broker is considered alive: three heartbeats.

        Shorter than the session, so that a broker that was killed and started again does not wait for its old session.
        """
        return min(self.session_timeout_ms, 3 * self.heartbeat_interval_ms)
