"""Metadata records: the only thing that changes what the cluster agrees on. One quorum command holds one atomic batch.

Opcodes live in one versioned space and are never reused; a record may only gain trailing fields with defaults
(`value_codec`). A broker that meets an opcode it does not know stops, because skipping it would make its image differ from
everybody else's. Wire form of a command: msgpack [format version, controller epoch, [[opcode, fields...], ...]].
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import msgpack

from barnabas.log.vocabulary.value_codec import from_plain, to_plain

from .image import NO_LEADER, Endpoint, FolderTrouble, QuorumVoter

FORMAT_VERSION = 1


class Record:
    """Base of the frozen dataclasses below."""

    __slots__ = ()
    opcode: ClassVar[int]


class UnknownRecordError(Exception):
    """A command that this version of Barnabas cannot apply. The process must stop: upgrade it, then start it again."""


R = TypeVar("R", bound=type)
_by_opcode: dict[int, type] = {}


def record(opcode: int) -> Callable[[R], R]:
    """Give a record class its opcode (class decorator, outside of `dataclass`)."""

    def register(cls: R) -> R:
        assert opcode not in _by_opcode, f"opcode {opcode} is taken by {_by_opcode[opcode].__name__}"
        cls.opcode = opcode  # type: ignore[attr-defined]
        _by_opcode[opcode] = cls
        return cls

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """The records of one command: applied together or not at all."""

    controller_epoch: int
    records: tuple[Record, ...]


def encode_batch(batch: RecordBatch) -> bytes:
    packed: bytes = msgpack.packb(
        [FORMAT_VERSION, batch.controller_epoch, [[item.opcode, *to_plain(item)] for item in batch.records]]
    )
    return packed


def encode_plain(plain: list[list[object]]) -> bytes:
    """As `encode_batch`, of records that are lists already: opcode, then the fields in order. For a million of them."""
    packed: bytes = msgpack.packb([FORMAT_VERSION, 0, plain])
    return packed


def decode_batch(command: bytes) -> RecordBatch:
    """Raises UnknownRecordError for a format, an opcode or a shape that this version does not know."""
    try:
        version, controller_epoch, plain = msgpack.unpackb(command)
        if version != FORMAT_VERSION:
            raise UnknownRecordError(
                f"metadata format {version}; this version reads {FORMAT_VERSION}: upgrade this broker"
            )
        records: tuple[Record, ...] = tuple(from_plain(_class_of(item[0]), item[1:]) for item in plain)
    except UnknownRecordError:
        raise
    except Exception as error:  # whatever is wrong with it: it cannot be applied, and that must stop us
        raise UnknownRecordError(f"a metadata command cannot be read: {error!r}") from error
    return RecordBatch(controller_epoch=controller_epoch, records=records)


def _class_of(opcode: int) -> type:
    try:
        return _by_opcode[opcode]
    except KeyError:
        raise UnknownRecordError(
            f"metadata opcode {opcode} is not known to this version: upgrade this broker"
        ) from None


# --- the cluster -----------------------------------------------------------------------------------------------------


@record(1)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord(Record):
    """The first record ever: it names the cluster."""

    cluster_id: str


@record(2)
@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRecord(Record):
    """The first record of a controller's term: from here on it decides."""

    controller_id: int
    controller_epoch: int = 0  # the raft term
    claim: int = 0  # random: two histories may give the same term to the same node; 0: an older version's


@record(3)
@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(Record):
    feature_level: int


@record(4)
@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(Record):
    """The broker epoch is the quorum index of this record. A broker is registered fenced."""

    node_id: int
    incarnation: str
    endpoints: tuple[Endpoint, ...]
    admin_endpoint: Endpoint | None
    rack: str | None
    directories: tuple[str, ...]
    min_feature_level: int
    max_feature_level: int
    file_settings: dict[str, str] = field(default_factory=dict)  # what the broker's file has of cluster_settings


@record(5)
@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(Record):
    node_id: int


@record(6)
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerChangeRecord(Record):
    """Fences, unfences, or begins a controlled shutdown. Void unless the broker epoch is the current one."""

    node_id: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool


@record(7)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(Record):
    """All producer ids below `next_producer_id` have been given out in blocks."""

    next_producer_id: int


@record(8)
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStorageRecord(Record):
    """Which data folders of a broker are not well. Void unless the broker epoch is the current one and the report a newer
    one."""

    node_id: int
    broker_epoch: int
    report: int
    troubled_folders: tuple[FolderTrouble, ...]


@record(13)
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord(Record):
    """An operator has accepted a loss (`cluster recover`): what was committed behind this record's predecessor is gone.

    Replay raises everything that brokers may have seen a higher value of in the lost part: leader epochs, partition
    epochs, coordinator epochs, producer ids. Replicas compare their logs by leader epochs, so no epoch may be used twice.
    """

    recovery_epoch: int  # the wall clock of the recovery in ms: it rises even if an older copy is recovered later


@record(12)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecommissionRecord(Record):
    """A broker begins to be emptied for good, or is taken back. It holds for the node id, whatever process has it."""

    node_id: int
    decommissioning: bool


@record(10)
@dataclass(frozen=True, slots=True, kw_only=True)
class VotersRecord(Record):
    """Tells everybody who votes since the quorum's entry `index`, after that was committed. It changes nothing by itself: the
    quorum's own configuration is an entry of its own, which brokers beyond the voters do not see."""

    index: int
    voters: tuple[QuorumVoter, ...]


# --- topics ----------------------------------------------------------------------------------------------------------


@record(20)
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(Record):
    name: str
    topic_id: str


@record(21)
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(Record):
    topic_id: str


@record(22)
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord(Record):
    """A new partition, or the whole new state of one (what it says of the epochs is final)."""

    topic_id: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    eligible_leader_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    offline_replicas: tuple[int, ...] = ()


@record(23)
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord(Record):
    """Changes of one partition; None leaves a field as it is.

    Replay adds 1 to the partition epoch, and 1 to the leader epoch when `leader` is given (even the same leader again).
    """

    topic_id: str
    partition: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    eligible_leader_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    last_known_leader: int | None = None
    offline_replicas: tuple[int, ...] | None = None
    unclean: bool = False  # the new leader was neither in sync nor eligible: records may be lost


TOPIC_RESOURCE = 2  # Kafka's ConfigResource types
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32


@record(24)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(Record):
    """One configuration value; None removes it. `resource` is a topic's name, a node id ("" for all brokers), or a group id."""

    resource_type: int
    resource: str
    key: str
    value: str | None


# --- consumer groups: every record carries its slot and the coordinator epoch; replay discards what is stale ----------


@record(40)
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRecord(Record):
    """A slot moves to another coordinator."""

    slot: int
    coordinator: int
    coordinator_epoch: int


@record(41)
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord(Record):
    """A group, created or changed. `group_epoch` grows when the wanted assignment may change (members, topics)."""

    slot: int
    coordinator_epoch: int
    group_id: str
    group_epoch: int
    assignment_epoch: int  # the group epoch that the target assignment was computed for
    protocol: str = "consumer"  # "consumer": the coordinator assigns (KIP-848); "classic": the members' leader does
    protocol_type: str = "consumer"
    protocol_name: str = ""  # the assignor
    leader_id: str = ""  # classic groups only
    empty_since_ms: int = -1  # when the last member left; -1: it has members, or never had any
    log_offset: int = -1  # in snapshots only: where it stands in the slot's partition of __consumer_offsets


@record(42)
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGroupRecord(Record):
    """A group and all its members are gone; its offsets go with `RemoveOffsetRecord`."""

    slot: int
    coordinator_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Some partitions of one topic, sorted."""

    topic: str
    partitions: tuple[int, ...]


@record(43)
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord(Record):
    """A member joined, or changed what it wants."""

    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack: str | None
    subscribed_topics: tuple[str, ...]
    subscribed_pattern: str | None
    rebalance_timeout_ms: int
    session_timeout_ms: int
    assignor: str = ""
    classic_metadata: dict[str, bytes] | None = None  # protocol name -> subscription, opaque


@record(44)
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMemberRecord(Record):
    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str


@record(45)
@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignmentRecord(Record):
    """What a member shall own once everybody else has let go."""

    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str
    partitions: tuple[TopicPartitions, ...]


@record(46)
@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignmentRecord(Record):
    """What a member owns now, and what it has been told to let go."""

    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str
    member_epoch: int
    previous_member_epoch: int
    state: str  # "stable" | "unrevoked_partitions" | "unreleased_partitions"
    assigned: tuple[TopicPartitions, ...]
    pending_revocation: tuple[TopicPartitions, ...]
    classic_assignment: bytes | None = None


@record(47)
@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRecord(Record):
    slot: int
    coordinator_epoch: int
    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int  # -1: not known
    metadata: str
    commit_timestamp_ms: int
    log_offset: int = -1  # in snapshots only: where it stands in the slot's partition of __consumer_offsets


ALL_PARTITIONS = -1


@record(48)
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOffsetRecord(Record):
    """One offset is forgotten. ALL_PARTITIONS: whatever the group remembers of the topic, its past resets too."""

    slot: int
    coordinator_epoch: int
    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBefore:
    """What a reset has replaced. `offset` -1: nothing was committed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@record(49)
@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResetRecord(Record):
    """Somebody has reset offsets of a group: what they were before, so that it can be undone. The newest ones are kept."""

    slot: int
    coordinator_epoch: int
    group_id: str
    reset_id: int  # grows by 1 within a group
    at_ms: int
    by: str  # client id @ host
    before: tuple[OffsetBefore, ...]
    undoes: int = -1  # the reset that this one took back


@record(50)
@dataclass(frozen=True, slots=True, kw_only=True)
class StagedDecisionRecord(Record):
    """One part of a decision that is too long for one quorum command: some bytes of its encoded batch.

    Parts follow each other in the slot's log; all are applied together with the last one, and none if that never comes
    in their coordinator epoch.
    """

    slot: int
    coordinator_epoch: int
    part: int  # from 0
    part_count: int
    batch: bytes
