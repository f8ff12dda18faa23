"""`MetadataDelta`: the changes of a metadata image by a series of records, readable before they are applied.

Replay is a pure function of (image, record, index): replaying the same log always gives the same image. It never raises for a
record of a valid log. A record that came too late (an old broker epoch, an old coordinator epoch, a deleted topic) is void: it
changes nothing, on every node alike. The controller reads its overlay through the same class, so that its decisions are based on
exactly the state that will be replayed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from msgspec.structs import replace

from barnabas.log.vocabulary.topic_partition import TopicPartition

from .image import BrokerImage, ControllerTerm, MetadataChanges, MetadataImage, PartitionImage, SlotImage, TopicImage
from .records import (
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerChangeRecord,
    BrokerStorageRecord,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    DecommissionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RecoveryRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    SlotRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    VotersRecord,
)

# The increase of epochs by a recovery: more than the possible elections of any partition or slot in the lost part (one per second
# for eleven days), and small enough for two thousand recoveries within Kafka's 32 bits.
LOST_EPOCHS = 1_000_000
LOST_PRODUCER_IDS = 1_000_000_000  # likewise: a million blocks
MAX_TERMS = 64  # stored elections; with older positions, a restored quorum is recognized by its newest terms

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class _ChangedTopic:
    """A topic that was created or changed since the base; its partitions are a list until they are read."""

    __slots__ = ("_image", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: str, partitions: list[PartitionImage]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self._image: TopicImage | None = None

    def put(self, number: int, partition: PartitionImage) -> bool:
        if not 0 <= number <= len(self.partitions):
            return False  # a gap, which no controller writes
        self.partitions[number : number + 1] = [partition]
        self._image = None
        return True

    def image(self) -> TopicImage:
        if self._image is None:
            self._image = TopicImage(name=self.name, topic_id=self.topic_id, partitions=tuple(self.partitions))
        return self._image


class MetadataDelta:
    """The changes on top of `base`. Readers see what has changed first, then the base."""

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.cluster_id = base.cluster_id
        self.controller_id = base.controller_id
        self.controller_epoch = base.controller_epoch
        self.feature_level = base.feature_level
        self.next_producer_id = base.next_producer_id
        self.voters = base.voters
        self.voters_index = base.voters_index
        self.terms = base.terms
        self.recovery_epoch = base.recovery_epoch
        self.recovery_offset = base.recovery_offset
        self._brokers: dict[int, BrokerImage | None] = {}
        self._topics: dict[str, _ChangedTopic | None] = {}
        self._topic_names: dict[str, str | None] = {}
        self._topic_configs: dict[str, dict[str, str]] = {}
        self._broker_configs: dict[str, dict[str, str]] = {}
        self._group_configs: dict[str, dict[str, str]] = {}
        self._slots: dict[int, SlotImage] = {}

    # --- reading -----------------------------------------------------------------------------------------------------

    def broker(self, node_id: int) -> BrokerImage | None:
        if node_id in self._brokers:
            return self._brokers[node_id]
        return self.base.brokers.get(node_id)

    def brokers(self) -> dict[int, BrokerImage]:
        """A copy: registered brokers by node id, in order of the ids."""
        return dict(sorted(_merged(self.base.brokers, self._brokers).items()))

    def active_brokers(self) -> frozenset[int]:
        """The brokers that may lead and be in an ISR."""
        return frozenset(broker.node_id for broker in self.brokers().values() if broker.is_active)

    def is_decommissioning(self, node_id: int) -> bool:
        broker = self.broker(node_id)
        return broker is not None and broker.decommissioning

    def topic(self, name: str) -> TopicImage | None:
        if name in self._topics:
            changed = self._topics[name]
            return None if changed is None else changed.image()
        return self.base.topics.get(name)

    def topic_name(self, topic_id: str) -> str | None:
        if topic_id in self._topic_names:
            return self._topic_names[topic_id]
        return self.base.topic_names.get(topic_id)

    def topics(self) -> Iterator[TopicImage]:
        """All topics; the delta must not change while this runs."""
        for name, image in self.base.topics.items():
            if name not in self._topics:
                yield image
        for changed in self._topics.values():
            if changed is not None:
                yield changed.image()

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        topic = self.topic(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def topic_config(self, name: str) -> dict[str, str]:
        return self._topic_configs.get(name, self.base.topic_configs.get(name, {}))

    def broker_config(self, resource: str) -> dict[str, str]:
        return self._broker_configs.get(resource, self.base.broker_configs.get(resource, {}))

    def group_config(self, group_id: str) -> dict[str, str]:
        return self._group_configs.get(group_id, self.base.group_configs.get(group_id, {}))

    def count_group_configs(self) -> int:
        """Groups with a configuration; the changed ones may be counted twice."""
        return len(self.base.group_configs) + len(self._group_configs)

    def slot(self, number: int) -> SlotImage:
        return self._slots.get(number, self.base.slots[number])

    # --- replay ------------------------------------------------------------------------------------------------------

    def replay(self, record: Record, index: int) -> bool:
        """Apply one record of the log. False: it is void, or does not belong to the image (group records)."""
        apply = _REPLAY.get(type(record))
        return apply is not None and apply(self, record, index)

    def _replay_cluster(self, record: ClusterRecord, index: int) -> bool:
        if self.cluster_id:
            return False  # the name of a cluster never changes
        self.cluster_id = record.cluster_id
        return True

    def _replay_controller(self, record: ControllerRecord, index: int) -> bool:
        if record.controller_epoch < self.controller_epoch:
            return False
        # The first record of a term tells its start and claim; a snapshot of an older version may have come behind it.
        if record.controller_epoch > self.controller_epoch:
            term = ControllerTerm(epoch=record.controller_epoch, start=index, claim=record.claim)
            self.terms = (*self.terms, term)[-MAX_TERMS:]
        self.controller_id = record.controller_id
        self.controller_epoch = record.controller_epoch
        return True

    def _replay_recovery(self, record: RecoveryRecord, index: int) -> bool:
        self.recovery_epoch = max(record.recovery_epoch, self.recovery_epoch + 1)
        self.recovery_offset = index
        self.next_producer_id += LOST_PRODUCER_IDS
        for topic in list(self.topics()):
            changed = self._changed_topic(topic.topic_id)
            assert changed is not None
            for number, partition in enumerate(topic.partitions):
                changed.put(number, _behind_lost_epochs(partition))
        for number in range(len(self.base.slots)):
            slot = self.slot(number)
            self._slots[number] = replace(slot, coordinator_epoch=slot.coordinator_epoch + LOST_EPOCHS)
        return True

    def _replay_feature_level(self, record: FeatureLevelRecord, index: int) -> bool:
        self.feature_level = record.feature_level
        return True

    def _replay_register(self, record: RegisterBrokerRecord, index: int) -> bool:
        before = self.broker(record.node_id)
        self._brokers[record.node_id] = BrokerImage(
            node_id=record.node_id,
            broker_epoch=index,
            incarnation=record.incarnation,
            endpoints=record.endpoints,
            admin_endpoint=record.admin_endpoint,
            rack=record.rack,
            directories=record.directories,
            min_feature_level=record.min_feature_level,
            max_feature_level=record.max_feature_level,
            decommissioning=before is not None and before.decommissioning,
            file_settings=record.file_settings,
        )
        return True

    def _replay_decommission(self, record: DecommissionRecord, index: int) -> bool:
        broker = self.broker(record.node_id)
        if broker is None:
            return False
        self._brokers[record.node_id] = replace(broker, decommissioning=record.decommissioning)
        return True

    def _replay_unregister(self, record: UnregisterBrokerRecord, index: int) -> bool:
        if self.broker(record.node_id) is None:
            return False
        self._brokers[record.node_id] = None
        return True

    def _replay_broker_change(self, record: BrokerChangeRecord, index: int) -> bool:
        broker = self.broker(record.node_id)
        if broker is None or broker.broker_epoch != record.broker_epoch:
            return False
        self._brokers[record.node_id] = replace(
            broker, fenced=record.fenced, in_controlled_shutdown=record.in_controlled_shutdown
        )
        return True

    def _replay_broker_storage(self, record: BrokerStorageRecord, index: int) -> bool:
        broker = self.broker(record.node_id)
        if broker is None or broker.broker_epoch != record.broker_epoch or record.report <= broker.storage_report:
            return False
        self._brokers[record.node_id] = replace(
            broker, troubled_folders=record.troubled_folders, storage_report=record.report
        )
        return True

    def _replay_producer_ids(self, record: ProducerIdsRecord, index: int) -> bool:
        if record.next_producer_id <= self.next_producer_id:
            return False
        self.next_producer_id = record.next_producer_id
        return True

    def _replay_voters(self, record: VotersRecord, index: int) -> bool:
        if record.index <= self.voters_index:
            return False
        self.voters, self.voters_index = record.voters, record.index
        return True

    def _replay_topic(self, record: TopicRecord, index: int) -> bool:
        if self.topic(record.name) is not None or self.topic_name(record.topic_id) is not None:
            return False
        self._topics[record.name] = _ChangedTopic(record.name, record.topic_id, [])
        self._topic_names[record.topic_id] = record.name
        return True

    def _replay_remove_topic(self, record: RemoveTopicRecord, index: int) -> bool:
        name = self.topic_name(record.topic_id)
        if name is None:
            return False
        self._topics[name] = None
        self._topic_names[record.topic_id] = None
        if self.topic_config(name):
            self._topic_configs[name] = {}
        return True

    def _replay_partition(self, record: PartitionRecord, index: int) -> bool:
        topic = self._changed_topic(record.topic_id)
        if topic is None:
            return False
        return topic.put(
            record.partition,
            PartitionImage(
                replicas=record.replicas,
                isr=record.isr,
                leader=record.leader,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
                eligible_leader_replicas=record.eligible_leader_replicas,
                adding_replicas=record.adding_replicas,
                removing_replicas=record.removing_replicas,
                last_known_leader=record.last_known_leader,
                offline_replicas=record.offline_replicas,
            ),
        )

    def _replay_partition_change(self, record: PartitionChangeRecord, index: int) -> bool:
        topic = self._changed_topic(record.topic_id)
        if topic is None or not 0 <= record.partition < len(topic.partitions):
            return False
        return topic.put(record.partition, changed_partition(topic.partitions[record.partition], record))

    def _replay_config(self, record: ConfigRecord, index: int) -> bool:
        if record.resource_type == TOPIC_RESOURCE:
            if self.topic(record.resource) is None:
                return False
            self._topic_configs[record.resource] = _with_config(self.topic_config(record.resource), record)
        elif record.resource_type == GROUP_RESOURCE:
            self._group_configs[record.resource] = _with_config(self.group_config(record.resource), record)
        else:
            self._broker_configs[record.resource] = _with_config(self.broker_config(record.resource), record)
        return True

    def _replay_slot(self, record: SlotRecord, index: int) -> bool:
        if not 0 <= record.slot < len(self.base.slots):
            return False
        if record.coordinator_epoch <= self.slot(record.slot).coordinator_epoch:
            return False
        self._slots[record.slot] = SlotImage(coordinator=record.coordinator, coordinator_epoch=record.coordinator_epoch)
        return True

    def _changed_topic(self, topic_id: str) -> _ChangedTopic | None:
        name = self.topic_name(topic_id)
        if name is None:
            return None
        changed = self._topics.get(name)
        if changed is None:
            image = self.base.topics[name]
            changed = self._topics[name] = _ChangedTopic(name, image.topic_id, list(image.partitions))
        return changed

    # --- results -----------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> MetadataChanges:
        return MetadataChanges(
            brokers=frozenset(self._brokers),
            topics=frozenset(self._topics),
            topic_configs=frozenset(self._topic_configs),
            broker_configs=frozenset(self._broker_configs),
            slots=frozenset(self._slots),
        )

    def apply(self, offset: int) -> MetadataImage:
        """The image after all that was replayed; it shares everything unchanged with the base."""
        topics = {name: None if topic is None else topic.image() for name, topic in self._topics.items()}
        return replace(
            self.base,
            cluster_id=self.cluster_id,
            offset=offset,
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            feature_level=self.feature_level,
            next_producer_id=self.next_producer_id,
            voters=self.voters,
            voters_index=self.voters_index,
            terms=self.terms,
            recovery_epoch=self.recovery_epoch,
            recovery_offset=self.recovery_offset,
            brokers=_merged(self.base.brokers, self._brokers),
            topics=_merged(self.base.topics, topics),
            topic_names=_merged(self.base.topic_names, self._topic_names),
            topic_configs=_merged_configs(self.base.topic_configs, self._topic_configs),
            broker_configs=_merged_configs(self.base.broker_configs, self._broker_configs),
            group_configs=_merged_configs(self.base.group_configs, self._group_configs),
            slots=tuple(self._slots.get(number, slot) for number, slot in enumerate(self.base.slots))
            if self._slots
            else self.base.slots,
        )


def _behind_lost_epochs(partition: PartitionImage) -> PartitionImage:
    return replace(
        partition,
        leader_epoch=partition.leader_epoch + LOST_EPOCHS,
        partition_epoch=partition.partition_epoch + LOST_EPOCHS,
    )


def changed_partition(old: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """The partition after the record: one more partition epoch, and one more leader epoch where a leader is given."""
    replicas = _given(record.replicas, old.replicas)
    offline = _given(record.offline_replicas, old.offline_replicas)
    return PartitionImage(
        replicas=replicas,
        isr=_given(record.isr, old.isr),
        leader=_given(record.leader, old.leader),
        leader_epoch=old.leader_epoch + (record.leader is not None),
        partition_epoch=old.partition_epoch + 1,
        eligible_leader_replicas=_given(record.eligible_leader_replicas, old.eligible_leader_replicas),
        adding_replicas=_given(record.adding_replicas, old.adding_replicas),
        removing_replicas=_given(record.removing_replicas, old.removing_replicas),
        last_known_leader=_given(record.last_known_leader, old.last_known_leader),
        offline_replicas=tuple(node for node in offline if node in replicas),  # removed replicas lose their mark
        unclean_elections=old.unclean_elections + record.unclean,
    )


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def _merged(base: dict[K, V], changed: Mapping[K, V | None]) -> dict[K, V]:
    """`base` itself where nothing changed; a value of None removes."""
    if not changed:
        return base
    merged = dict(base)
    for key, value in changed.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def _merged_configs(base: dict[str, dict[str, str]], changed: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return _merged(base, {resource: configs or None for resource, configs in changed.items()})


def _with_config(configs: dict[str, str], record: ConfigRecord) -> dict[str, str]:
    """A resource without values has an empty dict here, and no entry in the image."""
    changed = dict(configs)
    if record.value is None:
        changed.pop(record.key, None)
    else:
        changed[record.key] = record.value
    return changed


_Replay = Callable[[MetadataDelta, Record, int], bool]
_REPLAY = cast(
    dict[type, _Replay],
    {
        ClusterRecord: MetadataDelta._replay_cluster,
        ControllerRecord: MetadataDelta._replay_controller,
        RecoveryRecord: MetadataDelta._replay_recovery,
        FeatureLevelRecord: MetadataDelta._replay_feature_level,
        RegisterBrokerRecord: MetadataDelta._replay_register,
        UnregisterBrokerRecord: MetadataDelta._replay_unregister,
        BrokerChangeRecord: MetadataDelta._replay_broker_change,
        BrokerStorageRecord: MetadataDelta._replay_broker_storage,
        DecommissionRecord: MetadataDelta._replay_decommission,
        ProducerIdsRecord: MetadataDelta._replay_producer_ids,
        VotersRecord: MetadataDelta._replay_voters,
        TopicRecord: MetadataDelta._replay_topic,
        RemoveTopicRecord: MetadataDelta._replay_remove_topic,
        PartitionRecord: MetadataDelta._replay_partition,
        PartitionChangeRecord: MetadataDelta._replay_partition_change,
        ConfigRecord: MetadataDelta._replay_config,
        SlotRecord: MetadataDelta._replay_slot,
    },
)
