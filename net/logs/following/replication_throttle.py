"""Throttles the copying of replicas that a reassignment adds (KIP-73), as long as they are not in sync.

Both sides throttle: while the bytes of the last second have used up the rate, the leader answers such a replica without records,
and the follower does not fetch. In-sync replicas are never throttled, because that would delay the acks of producers.
Rates are dynamic configurations of brokers. Pure: `now_ms` comes from the injected clock.
"""

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.topic_settings import CLUSTER_DEFAULT, REASSIGNMENT_THROTTLE
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.settings.config import BrokerConfig
from barnabas.net.base.settings.dynamic_config import FOLLOWER_RATE, LEADER_RATE

from ...base.clock import Clock

UNLIMITED = 2**63 - 1
MAX_WAIT_MS = 1_000  # until the next check: the rate may have been raised meanwhile


class TokenBucket:
    """A token bucket of bytes: `rate` per second, with a capacity of one second.

    The number of bytes is only known afterwards (at least a whole batch), so the balance may be negative: then no bytes may pass
    until it is positive again.
    """

    def __init__(self, rate_bytes_per_s: int, now_ms: int) -> None:
        assert rate_bytes_per_s > 0
        self.rate_bytes_per_s = rate_bytes_per_s
        self._milli_bytes = rate_bytes_per_s * 1000  # bytes x 1000, so that no fraction is lost; at most this value
        self._as_of_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """The time until bytes may pass; 0: now."""
        self._fill(now_ms)
        return 0 if self._milli_bytes > 0 else -self._milli_bytes // self.rate_bytes_per_s + 1

    def passed(self, size_bytes: int, now_ms: int) -> None:
        self._fill(now_ms)
        self._milli_bytes -= size_bytes * 1000

    def change_rate(self, rate_bytes_per_s: int, now_ms: int) -> None:
        """A negative balance is kept, and is refilled at the new rate."""
        assert rate_bytes_per_s > 0
        self._fill(now_ms)
        self.rate_bytes_per_s = rate_bytes_per_s
        self._milli_bytes = min(self._milli_bytes, rate_bytes_per_s * 1000)

    def _fill(self, now_ms: int) -> None:
        elapsed_ms = max(0, now_ms - self._as_of_ms)
        self._as_of_ms += elapsed_ms
        self._milli_bytes = min(self.rate_bytes_per_s * 1000, self._milli_bytes + elapsed_ms * self.rate_bytes_per_s)


class ReplicationThrottle:
    """The two buckets of a broker, and the replicas to which they apply. Without a rate, no bytes are counted."""

    def __init__(self, *, node_id: int, config: BrokerConfig, clock: Clock) -> None:
        self._node_id = node_id
        self._clock = clock
        self._defaults = {
            LEADER_RATE: config.leader_replication_throttled_rate,
            FOLLOWER_RATE: config.follower_replication_throttled_rate,
            REASSIGNMENT_THROTTLE: config.reassignment_throttled_rate,
        }
        self._image = MetadataImage()
        self._sending: TokenBucket | None = None
        self._fetching: TokenBucket | None = None
        self._read_rates()

    def published(self, publication: MetadataPublication) -> None:
        self._image = publication.image
        if publication.changes.broker_configs or publication.restored:
            self._read_rates()

    def _read_rates(self) -> None:
        of_moves = self._rate(REASSIGNMENT_THROTTLE)
        now_ms = self._clock.now_ms()
        self._sending = _bucket(self._sending, min(self._rate(LEADER_RATE), of_moves), now_ms)
        self._fetching = _bucket(self._fetching, min(self._rate(FOLLOWER_RATE), of_moves), now_ms)

    def _rate(self, key: str) -> int:
        configs = self._image.broker_configs
        text = configs.get(str(self._node_id), {}).get(key, configs.get(CLUSTER_DEFAULT, {}).get(key))
        return int(text) if text is not None and text.isdecimal() and int(text) > 0 else self._defaults[key]

    def _is_added(self, topic_partition: TopicPartition, replica_id: int) -> bool:
        partition = self._image.partition(topic_partition)
        return partition is not None and replica_id in partition.adding_replicas and replica_id not in partition.isr

    # --- the leader's side --------------------------------------------------------------------------------------------

    def send_delay_ms(self, topic_partition: TopicPartition, replica_id: int) -> int:
        """The time for which to send no records of this partition to this follower; 0: no delay."""
        if self._sending is None or not self._is_added(topic_partition, replica_id):
            return 0
        return min(self._sending.wait_ms(self._clock.now_ms()), MAX_WAIT_MS)

    def sent(self, topic_partition: TopicPartition, replica_id: int, size_bytes: int) -> None:
        if self._sending is not None and self._is_added(topic_partition, replica_id):
            self._sending.passed(size_bytes, self._clock.now_ms())

    # --- the follower's side (replica_fetcher.FetchThrottle) ----------------------------------------------------------

    def fetch_delay_ms(self, topic_partition: TopicPartition) -> int:
        if self._fetching is None or not self._is_added(topic_partition, self._node_id):
            return 0
        return min(self._fetching.wait_ms(self._clock.now_ms()), MAX_WAIT_MS)

    def fetched(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        if self._fetching is not None and self._is_added(topic_partition, self._node_id):
            self._fetching.passed(size_bytes, self._clock.now_ms())


def _bucket(known: TokenBucket | None, rate_bytes_per_s: int, now_ms: int) -> TokenBucket | None:
    if rate_bytes_per_s >= UNLIMITED:
        return None
    if known is None:
        return TokenBucket(rate_bytes_per_s, now_ms)
    known.change_rate(rate_bytes_per_s, now_ms)
    return known
