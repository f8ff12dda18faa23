"""What each record of the metadata does to a delta: one function for each kind of record.

Replay is a pure function of (image, record, index): replaying the same log always gives the same image. It never raises for a
record of a valid log. A record that came too late (an old broker epoch, an old coordinator epoch, a deleted topic) is void: it
changes nothing, on every node alike.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from msgspec.structs import replace

from .delta import ChangedTopic, MetadataDelta
from .image import BrokerImage, ControllerTerm, PartitionImage, SlotImage
from .records import (
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    AclRecord,
    BrokerChangeRecord,
    BrokerStorageRecord,
    ClusterRecord,
    ConfigRecord,
    ControllerRecord,
    DecommissionRecord,
    FeatureLevelRecord,
    LoginSecretRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaRecord,
    Record,
    RecoveryRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveScramCredentialRecord,
    RemoveTopicRecord,
    ScramCredentialRecord,
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

T = TypeVar("T")


def replay(delta: MetadataDelta, record: Record, index: int) -> bool:
    """Apply one record of the log. False: it is void, or does not belong to the image (group records)."""
    apply = _REPLAY.get(type(record))
    return apply is not None and apply(delta, record, index)


def _cluster(delta: MetadataDelta, record: ClusterRecord, index: int) -> bool:
    if delta.cluster_id:
        return False  # the name of a cluster never changes
    delta.cluster_id = record.cluster_id
    return True


def _controller(delta: MetadataDelta, record: ControllerRecord, index: int) -> bool:
    if record.controller_epoch < delta.controller_epoch:
        return False
    # The first record of a term tells its start and claim; a snapshot of an older version may have come behind it.
    if record.controller_epoch > delta.controller_epoch:
        term = ControllerTerm(epoch=record.controller_epoch, start=index, claim=record.claim)
        delta.terms = (*delta.terms, term)[-MAX_TERMS:]
    delta.controller_id = record.controller_id
    delta.controller_epoch = record.controller_epoch
    return True


def _recovery(delta: MetadataDelta, record: RecoveryRecord, index: int) -> bool:
    delta.recovery_epoch = max(record.recovery_epoch, delta.recovery_epoch + 1)
    delta.recovery_offset = index
    delta.next_producer_id += LOST_PRODUCER_IDS
    for topic in list(delta.topics()):
        changed = delta.topic_to_change(topic.topic_id)
        assert changed is not None
        for number, partition in enumerate(topic.partitions):
            changed.put(number, _behind_lost_epochs(partition))
    for number in range(len(delta.base.slots)):
        slot = delta.slot(number)
        delta.changed_slots[number] = replace(slot, coordinator_epoch=slot.coordinator_epoch + LOST_EPOCHS)
    return True


def _feature_level(delta: MetadataDelta, record: FeatureLevelRecord, index: int) -> bool:
    delta.feature_level = record.feature_level
    return True


def _register(delta: MetadataDelta, record: RegisterBrokerRecord, index: int) -> bool:
    before = delta.broker(record.node_id)
    delta.changed_brokers[record.node_id] = BrokerImage(
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
        machine=record.machine,
    )
    return True


def _decommission(delta: MetadataDelta, record: DecommissionRecord, index: int) -> bool:
    broker = delta.broker(record.node_id)
    if broker is None:
        return False
    delta.changed_brokers[record.node_id] = replace(broker, decommissioning=record.decommissioning)
    return True


def _unregister(delta: MetadataDelta, record: UnregisterBrokerRecord, index: int) -> bool:
    if delta.broker(record.node_id) is None:
        return False
    delta.changed_brokers[record.node_id] = None
    return True


def _broker_change(delta: MetadataDelta, record: BrokerChangeRecord, index: int) -> bool:
    broker = delta.broker(record.node_id)
    if broker is None or broker.broker_epoch != record.broker_epoch:
        return False
    delta.changed_brokers[record.node_id] = replace(
        broker, fenced=record.fenced, in_controlled_shutdown=record.in_controlled_shutdown
    )
    return True


def _broker_storage(delta: MetadataDelta, record: BrokerStorageRecord, index: int) -> bool:
    broker = delta.broker(record.node_id)
    if broker is None or broker.broker_epoch != record.broker_epoch or record.report <= broker.storage_report:
        return False
    delta.changed_brokers[record.node_id] = replace(
        broker, troubled_folders=record.troubled_folders, storage_report=record.report
    )
    return True


def _producer_ids(delta: MetadataDelta, record: ProducerIdsRecord, index: int) -> bool:
    if record.next_producer_id <= delta.next_producer_id:
        return False
    delta.next_producer_id = record.next_producer_id
    return True


def _voters(delta: MetadataDelta, record: VotersRecord, index: int) -> bool:
    if record.index <= delta.voters_index:
        return False
    delta.voters, delta.voters_index = record.voters, record.index
    return True


def _topic(delta: MetadataDelta, record: TopicRecord, index: int) -> bool:
    if delta.topic(record.name) is not None or delta.topic_name(record.topic_id) is not None:
        return False
    delta.changed_topics[record.name] = ChangedTopic(record.name, record.topic_id, [])
    delta.changed_topic_names[record.topic_id] = record.name
    return True


def _remove_topic(delta: MetadataDelta, record: RemoveTopicRecord, index: int) -> bool:
    name = delta.topic_name(record.topic_id)
    if name is None:
        return False
    delta.changed_topics[name] = None
    delta.changed_topic_names[record.topic_id] = None
    if delta.topic_config(name):
        delta.changed_topic_configs[name] = {}
    return True


def _partition(delta: MetadataDelta, record: PartitionRecord, index: int) -> bool:
    topic = delta.topic_to_change(record.topic_id)
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


def _partition_change(delta: MetadataDelta, record: PartitionChangeRecord, index: int) -> bool:
    topic = delta.topic_to_change(record.topic_id)
    if topic is None or not 0 <= record.partition < len(topic.partitions):
        return False
    return topic.put(record.partition, changed_partition(topic.partitions[record.partition], record))


def _config(delta: MetadataDelta, record: ConfigRecord, index: int) -> bool:
    if record.resource_type == TOPIC_RESOURCE:
        if delta.topic(record.resource) is None:
            return False
        delta.changed_topic_configs[record.resource] = _with_config(delta.topic_config(record.resource), record)
    elif record.resource_type == GROUP_RESOURCE:
        delta.changed_group_configs[record.resource] = _with_config(delta.group_config(record.resource), record)
    else:
        delta.changed_broker_configs[record.resource] = _with_config(delta.broker_config(record.resource), record)
    return True


def _scram_credential(delta: MetadataDelta, record: ScramCredentialRecord, index: int) -> bool:
    item = record.of
    delta.changed_users[item.user] = {**delta.user(item.user), item.mechanism: item.credential}
    return True


def _remove_scram_credential(delta: MetadataDelta, record: RemoveScramCredentialRecord, index: int) -> bool:
    found = delta.user(record.user)
    if record.mechanism not in found:
        return False
    delta.changed_users[record.user] = {key: value for key, value in found.items() if key != record.mechanism}
    return True


def _login_secret(delta: MetadataDelta, record: LoginSecretRecord, index: int) -> bool:
    if delta.login_secret is not None:
        return False
    delta.login_secret = record.secret
    return True


def _slot(delta: MetadataDelta, record: SlotRecord, index: int) -> bool:
    if not 0 <= record.slot < len(delta.base.slots):
        return False
    if record.coordinator_epoch <= delta.slot(record.slot).coordinator_epoch:
        return False
    delta.changed_slots[record.slot] = SlotImage(
        coordinator=record.coordinator, coordinator_epoch=record.coordinator_epoch
    )
    return True


def _acl(delta: MetadataDelta, record: AclRecord, index: int) -> bool:
    if record.acl in delta.acls_of(record.acl.resource):
        return False
    delta.acls_to_change(record.acl.resource)[record.acl] = None
    return True


def _remove_acl(delta: MetadataDelta, record: RemoveAclRecord, index: int) -> bool:
    if record.acl not in delta.acls_of(record.acl.resource):
        return False
    del delta.acls_to_change(record.acl.resource)[record.acl]
    return True


def _quota(delta: MetadataDelta, record: QuotaRecord, index: int) -> bool:
    change = record.of
    values = delta.quotas_of(change.entity)
    if values.get(change.kind) == change.value:
        return False
    left = {kind: value for kind, value in values.items() if kind != change.kind}
    delta.changed_quotas[change.entity] = left if change.value is None else left | {change.kind: change.value}
    return True


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
        ClusterRecord: _cluster,
        ControllerRecord: _controller,
        RecoveryRecord: _recovery,
        FeatureLevelRecord: _feature_level,
        RegisterBrokerRecord: _register,
        UnregisterBrokerRecord: _unregister,
        BrokerChangeRecord: _broker_change,
        BrokerStorageRecord: _broker_storage,
        DecommissionRecord: _decommission,
        ProducerIdsRecord: _producer_ids,
        VotersRecord: _voters,
        TopicRecord: _topic,
        RemoveTopicRecord: _remove_topic,
        PartitionRecord: _partition,
        PartitionChangeRecord: _partition_change,
        ConfigRecord: _config,
        ScramCredentialRecord: _scram_credential,
        RemoveScramCredentialRecord: _remove_scram_credential,
        LoginSecretRecord: _login_secret,
        SlotRecord: _slot,
        AclRecord: _acl,
        RemoveAclRecord: _remove_acl,
        QuotaRecord: _quota,
    },
)
