"""Which replica serves a consumer that names its rack (KIP-392).

A consumer in another data centre than the leader reads from an in-sync replica in its own: the leader names that replica in its
answer, and the consumer fetches there. The answer has no records. Without such a replica the leader serves the consumer itself.
"""

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.replication.partition import Partition
from barnabas.log.settings.broker_keys import RACK_AWARE_SELECTOR
from barnabas.net.base.settings.config import BrokerConfig
from barnabas.net.metadata.metadata_service import MetadataService

NO_REPLICA = -1


class ReplicaSelection:
    def __init__(self, config: BrokerConfig, metadata: MetadataService) -> None:
        self._is_rack_aware = config.replica_selector_class == RACK_AWARE_SELECTOR
        self._metadata = metadata
        self._image: MetadataImage | None = None  # of `_racks`
        self._racks: dict[str, set[int]] = {}  # the active brokers of each rack

    def choose(self, partition: Partition, rack: str, fetch_offset: int, now_ms: int) -> int:
        """The follower that should serve the consumer instead of this leader, or NO_REPLICA."""
        if not self._is_rack_aware or not partition.role.is_leader:
            return NO_REPLICA
        there = self._brokers_in(rack)
        if not there or partition.node_id in there:
            return NO_REPLICA
        found = partition.leading.follower_for(fetch_offset, there, now_ms)
        return NO_REPLICA if found is None else found

    def _brokers_in(self, rack: str) -> set[int]:
        image = self._metadata.image
        if image is not self._image:
            self._image, self._racks = image, {}
            for broker in image.brokers.values():
                if broker.rack and broker.is_active:
                    self._racks.setdefault(broker.rack, set()).add(broker.node_id)
        return self._racks.get(rack, set())
