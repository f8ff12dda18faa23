"""The metadata image: an immutable view of everything that the cluster agrees on, except groups and offsets.

A new image shares everything unchanged with the one before it. Every broker at the same `offset` has an equal image. Only
`delta.MetadataDelta` makes images, from records. Groups and their offsets are separate from the image, per slot (`group_slots`),
because they change with every commit.
"""

from msgspec import Struct, field

from barnabas.log.vocabulary.access.acls import Acl, AclResource
from barnabas.log.vocabulary.access.quotas import QuotaEntity
from barnabas.log.vocabulary.access.scram import LoginSecret, ScramCredential
from barnabas.log.vocabulary.message import Message
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_PARTITIONS, TopicPartition

NO_LEADER = -1
NO_COORDINATOR = -1
SLOT_COUNT = CONSUMER_OFFSETS_PARTITIONS  # coordinator slots; slot N is partition N of __consumer_offsets


class Endpoint(Message, frozen=True, kw_only=True):
    """Where one listener of a broker is reached: its name as in Kafka (`PLAINTEXT`, or one that the user gave)."""

    listener: str
    host: str
    port: int


FOLDER_OFFLINE = "offline"  # its replicas are lost to the cluster until it is brought back
FOLDER_FULL = "full"  # it refuses appends and serves reads; in-sync replicas on other brokers lead instead
FOLDER_HANGING = "hanging"  # its disk does not complete a flush; handled like a full folder
IMPAIRED = (FOLDER_FULL, FOLDER_HANGING)


class FolderTrouble(Message, frozen=True, kw_only=True):
    """A data folder (an entry of `log.dirs`) with a problem, as reported by its broker."""

    path: str
    directory_id: str  # "" when the folder could not be read
    state: str  # FOLDER_OFFLINE, FOLDER_FULL or FOLDER_HANGING
    cause: str  # with the remedy, for operators
    since_ms: int  # wall clock of the broker


class BrokerImage(Message, frozen=True, kw_only=True):
    """A registered broker. `broker_epoch` is the index of the registration: a restart gives a larger one."""

    node_id: int
    broker_epoch: int
    incarnation: str
    endpoints: tuple[Endpoint, ...]
    admin_endpoint: Endpoint | None = None
    rack: str | None = None
    directories: tuple[str, ...] = ()
    fenced: bool = True
    in_controlled_shutdown: bool = False
    min_feature_level: int = 1
    max_feature_level: int = 1
    troubled_folders: tuple[FolderTrouble, ...] = ()
    storage_report: int = 0  # the number of the newest report on its storage; older ones are void
    decommissioning: bool = False  # it is being emptied permanently: no new replicas, no slots; survives its restarts
    file_settings: dict[str, str] = field(default_factory=dict)  # what its file has of cluster_settings, without effect
    machine: str | None = None  # its name; brokers of one machine fail together

    def endpoint(self, listener: str) -> Endpoint:
        """The endpoint with that name; the first one where the broker has no listener of that name."""
        for candidate in self.endpoints:
            if candidate.listener == listener:
                return candidate
        return self.endpoints[0]

    @property
    def is_active(self) -> bool:
        """May it lead partitions and be in an ISR?"""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_full_folder(self) -> bool:
        """Full or hanging: it leads only if no other in-sync replica can."""
        return any(folder.state in IMPAIRED for folder in self.troubled_folders)


class PartitionImage(Message, frozen=True, kw_only=True):
    """The state of one partition. `isr` is the *committed* in-sync replica set; the leader may know a larger maximal one."""

    replicas: tuple[int, ...]  # the first one is the preferred leader
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0  # grows with every change of leader
    partition_epoch: int = 0  # grows with every change at all
    eligible_leader_replicas: tuple[int, ...] = ()  # KIP-966
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER  # while there is no leader: the last leader (KIP-966, "last known leader")
    offline_replicas: tuple[int, ...] = ()  # whose data folder or log has failed: never in the ISR, never elected
    unclean_elections: int = 0  # elections of a replica that may have lacked acknowledged records

    @property
    def is_moving(self) -> bool:
        """Is a reassignment in progress?"""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the current reassignment, if there is one."""
        if not self.removing_replicas:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)


class TopicImage(Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str  # 32 hexadecimal digits
    partitions: tuple[PartitionImage, ...]  # indexed by partition


class SlotImage(Message, frozen=True, kw_only=True):
    """Who coordinates the groups of a slot. `coordinator_epoch` grows with every move; older group records are void."""

    coordinator: int = NO_COORDINATOR
    coordinator_epoch: int = 0


class ControllerTerm(Message, frozen=True, kw_only=True):
    """The first record of a controller's term: its index, and the number that the controller drew for it."""

    epoch: int
    start: int
    claim: int


class MetadataHeader(Message, frozen=True, kw_only=True):
    """The part of an image that exists once for the whole cluster: also the first part of a snapshot, so fields are only ever
    appended."""

    cluster_id: str = ""
    offset: int = 0
    controller_epoch: int = 0  # the raft term of the newest leader that has committed a record
    controller_id: int = -1
    feature_level: int = 1  # `metadata.version`
    next_producer_id: int = 0
    voters: tuple[NodeAddress, ...] = ()  # a copy of the quorum's own configuration; (): not known yet
    voters_index: int = 0  # the entry that holds it
    terms: tuple[ControllerTerm, ...] = ()  # the newest ones, without gaps; epoch and start rise
    recovery_epoch: int = 0  # of the last `cluster recover`: what was committed after its folder's end is lost; 0: none
    recovery_offset: int = 0  # the index of its record


class MetadataImage(MetadataHeader, frozen=True, kw_only=True):
    """Everything that the cluster agreed on up to the quorum index `offset`."""

    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    topic_names: dict[str, str] = field(default_factory=dict)  # topic id -> name
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)  # by group id
    broker_configs: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # by node id, "" is the cluster-wide default
    slots: tuple[SlotImage, ...] = (SlotImage(),) * SLOT_COUNT
    users: dict[str, dict[int, ScramCredential]] = field(default_factory=dict)  # by name, then by ScramMechanism
    login_secret: LoginSecret | None = None  # None: there was never a user
    acls: dict[AclResource, tuple[Acl, ...]] = field(default_factory=dict)  # the same object until a permission changes
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)  # likewise; by QuotaKind, never empty

    @property
    def position(self) -> MetadataPosition:
        is_known = bool(self.terms) and self.terms[-1].epoch == self.controller_epoch
        return MetadataPosition(
            recovery_epoch=self.recovery_epoch,
            controller_epoch=self.controller_epoch,
            claim=self.terms[-1].claim if is_known else 0,
            offset=self.offset,
        )

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    @property
    def has_active_brokers(self) -> bool:
        """Is there a broker to which clients can be directed?"""
        return any(not broker.fenced for broker in self.brokers.values())

    def is_emptied(self, node_id: int) -> bool:
        """Is the broker leaving permanently, and does it have no replicas or slots any more?"""
        broker = self.brokers.get(node_id)
        return (
            broker is not None
            and broker.decommissioning
            and all(slot.coordinator != node_id for slot in self.slots)
            and all(node_id not in part.replicas for topic in self.topics.values() for part in topic.partitions)
        )


class MetadataChanges(Struct, frozen=True, kw_only=True):
    """The differences between two images: observers of the metadata only check these."""

    brokers: frozenset[int] = frozenset()
    topics: frozenset[str] = frozenset()  # created, changed (partitions or leaders) or deleted
    topic_configs: frozenset[str] = frozenset()
    broker_configs: frozenset[str] = frozenset()
    slots: frozenset[int] = frozenset()


def differences(old: MetadataImage, new: MetadataImage) -> MetadataChanges:
    """The changes by a snapshot, compared item by item, which is rare enough."""
    return MetadataChanges(
        brokers=frozenset(key for key in {*old.brokers, *new.brokers} if old.brokers.get(key) != new.brokers.get(key)),
        topics=frozenset(key for key in {*old.topics, *new.topics} if old.topics.get(key) != new.topics.get(key)),
        topic_configs=_changed_configs(old.topic_configs, new.topic_configs),
        broker_configs=_changed_configs(old.broker_configs, new.broker_configs),
        slots=frozenset(number for number, slot in enumerate(new.slots) if slot != old.slots[number]),
    )


def _changed_configs(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> frozenset[str]:
    return frozenset(key for key in {*old, *new} if old.get(key) != new.get(key))
