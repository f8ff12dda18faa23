"""Leaderships return to preferred replicas: soon after a broker has returned, and periodically if the imbalance is large.

A failure moves the leaderships of a broker to the others. When it is back and in sync, they return in small batches, half a
second apart, because each move interrupts clients for a moment. A leadership that an operator has moved on purpose stays until
Kafka's rule applies: at every `leader.imbalance.check.interval.seconds`, brokers that lack more than
`leader.imbalance.per.broker.percentage` of their preferred leaderships get them back.
"""

from collections import Counter
from collections.abc import Iterator

from ..metadata.controller_settings import (
    MAX_PREFERRED_MOVES_PER_CHECK,
    MAX_RETURNED_MOVES_PER_CHECK,
    ControllerSettings,
)
from ..metadata.delta import MetadataDelta
from ..metadata.image import PartitionImage, TopicImage
from ..metadata.records import BrokerChangeRecord, PartitionChangeRecord, Record
from .replication_control import full_brokers, led_by_record

# A broker that needs more time than this to catch up gets its leaderships by the ordinary rule.
MAX_RETURN_MS = 10 * 60_000


class LeaderBalance:
    """Decides on leaderships that return. Its own state is soft: the brokers that have returned since this controller took
    over."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._returned: dict[int, int | None] = {}  # broker -> the time of its first check

    def restart(self) -> None:
        self._returned = {}

    def committed(self, record: Record) -> None:
        if isinstance(record, BrokerChangeRecord):
            if record.fenced or record.in_controlled_shutdown:
                self._returned.pop(record.node_id, None)
            else:
                self._returned[record.node_id] = None

    def returned_leaders(self, view: MetadataDelta, now_ms: int) -> tuple[PartitionChangeRecord, ...]:
        """A batch of leaderships of brokers that have returned; a broker is finished when no other broker has one."""
        if not self._returned:
            return ()
        for node_id, since_ms in list(self._returned.items()):
            self._returned[node_id] = now_ms if since_ms is None else since_ms
        records: list[PartitionChangeRecord] = []
        unfinished: set[int] = set()
        active = view.active_brokers() - full_brokers(view)
        for topic, number, partition in _led_elsewhere(view):
            preferred = partition.replicas[0]
            if preferred not in self._returned:
                continue
            unfinished.add(preferred)
            if len(records) < MAX_RETURNED_MOVES_PER_CHECK and _may_lead(partition, preferred, active):
                records.append(led_by_record(topic, number, partition, preferred))
        self._returned = {
            node_id: since_ms
            for node_id, since_ms in self._returned.items()
            if node_id in unfinished and since_ms is not None and now_ms - since_ms < MAX_RETURN_MS
        }
        return tuple(records)

    def preferred_leaders(self, view: MetadataDelta) -> tuple[PartitionChangeRecord, ...]:
        """Lead partitions back to their first replica if it is in sync; a limited number at a time."""
        active = view.active_brokers() - full_brokers(view)
        preferring: Counter[int] = Counter()
        for topic in view.topics():
            preferring.update(partition.replicas[0] for partition in topic.partitions)
        elsewhere = list(_led_elsewhere(view))
        lacking = Counter(partition.replicas[0] for _, _, partition in elsewhere)
        allowed = self._settings.leader_imbalance_percentage
        records: list[PartitionChangeRecord] = []
        for topic, number, partition in elsewhere:
            preferred = partition.replicas[0]
            is_too_much = 100 * lacking[preferred] > allowed * preferring[preferred]
            if is_too_much and _may_lead(partition, preferred, active):
                records.append(led_by_record(topic, number, partition, preferred))
                if len(records) == MAX_PREFERRED_MOVES_PER_CHECK:
                    break
        return tuple(records)


def _led_elsewhere(view: MetadataDelta) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in view.topics():
        for number, partition in enumerate(topic.partitions):
            if partition.leader != partition.replicas[0]:
                yield topic, number, partition


def _may_lead(partition: PartitionImage, node_id: int, active: frozenset[int]) -> bool:
    return node_id in partition.isr and node_id in active
