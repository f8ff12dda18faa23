"""Metadata records: the only thing that changes what the cluster agrees on. One quorum command holds one atomic batch.

Opcodes are in one versioned space and are never reused; a record may only gain trailing fields with defaults (`Message`). A
broker that reads an unknown opcode stops, because skipping it would make its image differ from the other brokers. Wire form of a
command: msgpack [format version, controller epoch, [[opcode, fields...], ...]].
"""

from functools import reduce
from operator import or_
from typing import Any

import msgspec
from msgspec.msgpack import Decoder

from barnabas.log.vocabulary.access.acls import Acl
from barnabas.log.vocabulary.access.quotas import QuotaChange
from barnabas.log.vocabulary.access.scram import LoginSecret, UserCredential
from barnabas.log.vocabulary.group_messages import PartitionOffset, TopicPartitions
from barnabas.log.vocabulary.message import Message, encode
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.log.vocabulary.share.messages import ShareRange
from barnabas.log.vocabulary.transaction_messages import TransactionTopic

from .image import NO_LEADER, Endpoint, FolderTrouble

FORMAT_VERSION = 1
_BATCH_OF_A_BROKER = bytes((0x93, FORMAT_VERSION, 0))  # msgpack: an array of three, the version, controller epoch 0
_LONGEST_ARRAY_HEAD = 5


class Record(Message, frozen=True, kw_only=True):
    """Base of the records below. The tag of each is its opcode."""


class UnknownRecordError(Exception):
    """This version of Barnabas cannot apply the command. The process must stop: upgrade it, then start it again."""


class RecordBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one command: applied together or not at all."""

    controller_epoch: int
    records: tuple[Record, ...]


def encode_batch(batch: RecordBatch) -> bytes:
    return encode((FORMAT_VERSION, batch.controller_epoch, batch.records))


# --- the cluster -----------------------------------------------------------------------------------------------------


class ClusterRecord(Record, frozen=True, kw_only=True, tag=1):
    """The first record ever: it names the cluster."""

    cluster_id: str


class ControllerRecord(Record, frozen=True, kw_only=True, tag=2):
    """The first record of a controller's term: from here on it decides."""

    controller_id: int
    controller_epoch: int = 0  # the raft term
    claim: int = 0  # random: two histories may give the same term to the same node; 0: an older version's


class FeatureLevelRecord(Record, frozen=True, kw_only=True, tag=3):
    feature_level: int


class RegisterBrokerRecord(Record, frozen=True, kw_only=True, tag=4):
    """The broker epoch is the quorum index of this record. A broker is registered fenced.

    The permanently stored form: the request also has fields for the controller's checks only, and the image also has values of
    later records. Each gets new fields separately.
    """

    node_id: int
    incarnation: str
    endpoints: tuple[Endpoint, ...]
    admin_endpoint: Endpoint | None
    rack: str | None
    directories: tuple[str, ...]
    min_feature_level: int
    max_feature_level: int
    file_settings: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # what the broker's file has of cluster_settings
    machine: str | None = None


class UnregisterBrokerRecord(Record, frozen=True, kw_only=True, tag=5):
    node_id: int


class BrokerChangeRecord(Record, frozen=True, kw_only=True, tag=6):
    """Fences, unfences, or begins a controlled shutdown. Void unless the broker epoch is the current one."""

    node_id: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool


class ProducerIdsRecord(Record, frozen=True, kw_only=True, tag=7):
    """All producer ids below `next_producer_id` have been assigned in blocks."""

    next_producer_id: int


class BrokerStorageRecord(Record, frozen=True, kw_only=True, tag=8):
    """The data folders of a broker that have a problem. Void unless the broker epoch is the current one and the report is newer
    than the last."""

    node_id: int
    broker_epoch: int
    report: int
    troubled_folders: tuple[FolderTrouble, ...]


class RecoveryRecord(Record, frozen=True, kw_only=True, tag=13):
    """An operator has accepted a loss (`cluster recover`): everything that was committed after this record's predecessor is lost.

    Replay raises everything that brokers may have seen a higher value of in the lost part: leader epochs, partition
    epochs, coordinator epochs, producer ids. Replicas compare their logs by leader epochs, so no epoch may be used twice.
    """

    recovery_epoch: int  # the wall clock of the recovery in ms: it rises even if an older copy is recovered later


class DecommissionRecord(Record, frozen=True, kw_only=True, tag=12):
    """A broker begins to be emptied permanently, or is returned to service. It applies to the node id, for all its processes."""

    node_id: int
    decommissioning: bool


class VotersRecord(Record, frozen=True, kw_only=True, tag=10):
    """Publishes the voters since the quorum's entry `index`, after it was committed. It changes nothing by itself: the quorum's
    own configuration is a separate entry, which only voters see."""

    index: int
    voters: tuple[NodeAddress, ...]


# --- topics ----------------------------------------------------------------------------------------------------------


class TopicRecord(Record, frozen=True, kw_only=True, tag=20):
    name: str
    topic_id: str


class RemoveTopicRecord(Record, frozen=True, kw_only=True, tag=21):
    topic_id: str


class PartitionRecord(Record, frozen=True, kw_only=True, tag=22):
    """A new partition, or the complete new state of one; its epochs replace the current ones.

    Journals keep it forever, so it is not the image's type: that has more fields, which replay counts, and other defaults."""

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


class PartitionChangeRecord(Record, frozen=True, kw_only=True, tag=23):
    """Changes of one partition; None leaves a field unchanged.

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


class ConfigRecord(Record, frozen=True, kw_only=True, tag=24):
    """One configuration value; None removes it. `resource` is a topic's name, a node id ("" for all brokers), or a group id."""

    resource_type: int
    resource: str
    key: str
    value: str | None


# --- users and permissions; feature level 3 ----------------------------------------------------------------------------


class ScramCredentialRecord(Record, frozen=True, kw_only=True, tag=60):
    """A user has this credential from now on; it replaces that of the same mechanism."""

    of: UserCredential


class RemoveScramCredentialRecord(Record, frozen=True, kw_only=True, tag=61):
    """A user without credentials does not exist any more."""

    user: str
    mechanism: int


class LoginSecretRecord(Record, frozen=True, kw_only=True, tag=62):
    """Written once, with the first user. Void if there is a secret."""

    secret: LoginSecret


class AclRecord(Record, frozen=True, kw_only=True, tag=70):
    """A permission is added."""

    acl: Acl


class RemoveAclRecord(Record, frozen=True, kw_only=True, tag=71):
    acl: Acl


# --- quotas; feature level 4 -------------------------------------------------------------------------------------------


class QuotaRecord(Record, frozen=True, kw_only=True, tag=80):
    """An entity has this value from now on, or has it no more."""

    of: QuotaChange


# --- consumer groups: every record carries its slot and the coordinator epoch; replay discards what is stale ----------


class SlotRecord(Record, frozen=True, kw_only=True, tag=40):
    """A slot moves to another coordinator."""

    slot: int
    coordinator: int
    coordinator_epoch: int


class GroupRecord(Record, frozen=True, kw_only=True, tag=41):
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


class RemoveGroupRecord(Record, frozen=True, kw_only=True, tag=42):
    """A group and all its members are gone; its offsets are removed by `RemoveOffsetRecord`."""

    slot: int
    coordinator_epoch: int
    group_id: str


class MemberRecord(Record, frozen=True, kw_only=True, tag=43):
    """A member joined, or changed its subscription."""

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


class RemoveMemberRecord(Record, frozen=True, kw_only=True, tag=44):
    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str


class TargetAssignmentRecord(Record, frozen=True, kw_only=True, tag=45):
    """The partitions that a member is to own when the others have released them."""

    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str
    partitions: tuple[TopicPartitions, ...]


class CurrentAssignmentRecord(Record, frozen=True, kw_only=True, tag=46):
    """The partitions that a member owns now, and those that it must release."""

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


class OffsetCommitRecord(Record, frozen=True, kw_only=True, tag=47):
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


class RemoveOffsetRecord(Record, frozen=True, kw_only=True, tag=48):
    """Removes one offset. ALL_PARTITIONS: removes all offsets and stored resets of the group for the topic."""

    slot: int
    coordinator_epoch: int
    group_id: str
    topic: str
    partition: int


class OffsetResetRecord(Record, frozen=True, kw_only=True, tag=49):
    """A reset of offsets of a group, with the previous offsets, so that it can be undone. The newest resets are kept."""

    slot: int
    coordinator_epoch: int
    group_id: str
    reset_id: int  # grows by 1 within a group
    at_ms: int
    by: str  # client id @ host
    before: tuple[PartitionOffset, ...]  # the previous offsets
    undoes: int = -1  # the reset that this one undid


class StagedDecisionRecord(Record, frozen=True, kw_only=True, tag=50):
    """One part of a decision that is too long for one quorum command: some bytes of its encoded batch.

    Parts follow each other in the slot's log; all are applied together with the last one, and none if that never comes
    in their coordinator epoch.
    """

    slot: int
    coordinator_epoch: int
    part: int  # from 0
    part_count: int
    batch: bytes


# --- transactions: in the same slots as groups, by transactional id; feature level 2 -----------------------------------


class TransactionRecord(Record, frozen=True, kw_only=True, tag=51):
    """The transaction of a transactional id, whole: created or changed.

    A committed record with the state PrepareCommit is the commit point: from there on, only the same outcome can follow.
    """

    slot: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int  # of the markers while the state is a Prepare state
    last_producer_epoch: (
        int  # of the same producer, which may repeat its last request; -1: there is none, or it is fenced
    )
    previous_producer_id: int  # before the epochs of that id were used up; -1: there is none
    next_producer_id: int  # decided with a Prepare state when the epochs are used up; -1: the producer id stays
    timeout_ms: int
    state: str  # a TransactionState
    partitions: tuple[TransactionTopic, ...]  # with records of the transaction, sorted; () once it is complete
    offset_groups: tuple[str, ...]  # with offsets of the transaction, sorted; () once it is complete
    started_ms: int  # -1: no transaction is open
    updated_ms: int
    uses_v2: bool = False  # the producer's epoch grows with every end (KIP-890)
    prepared_for: str = ""  # what the decision of a Prepared transaction is about; feature level 6
    is_last: bool = False  # the transactional id is forgotten when the transaction is complete
    # (producer id, epoch) of the last Prepared transactions that an operator aborted: their commit is an error, also when the id
    # has gone on.
    given_up: tuple[tuple[int, int], ...] = ()


class RemoveTransactionRecord(Record, frozen=True, kw_only=True, tag=52):
    """Forget a transactional id that was not used for a long time."""

    slot: int
    coordinator_epoch: int
    transactional_id: str


class PendingOffsetsRecord(Record, frozen=True, kw_only=True, tag=53):
    """Offsets that a transaction commits for a group: in the group's slot, and without effect until the transaction ends."""

    slot: int
    coordinator_epoch: int
    group_id: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit_timestamp_ms: int
    offsets: tuple[PartitionOffset, ...]


class PendingOffsetsEndedRecord(Record, frozen=True, kw_only=True, tag=54):
    """The transaction of this producer has ended: its pending offsets of the group are committed or dropped."""

    slot: int
    coordinator_epoch: int
    group_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool


# --- share groups (KIP-932): in the slots of groups, beside them; feature level 5 ---------------------------------------


class ShareGroupRecord(Record, frozen=True, kw_only=True, tag=90):
    """A share group, created or changed. `group_epoch` grows when the assignment changes (members, topics)."""

    slot: int
    coordinator_epoch: int
    group_id: str
    group_epoch: int


class RemoveShareGroupRecord(Record, frozen=True, kw_only=True, tag=91):
    """A share group is gone, with its members and all of its states."""

    slot: int
    coordinator_epoch: int
    group_id: str


class ShareMemberRecord(Record, frozen=True, kw_only=True, tag=92):
    """A member of a share group joined, or changed its subscription. Its assignment follows from all members and the topics."""

    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str
    client_id: str
    client_host: str
    rack: str | None
    subscribed_topics: tuple[str, ...]
    principal: str = ""  # who may beat for it and end it; "": not known, joined before this field existed


class RemoveShareMemberRecord(Record, frozen=True, kw_only=True, tag=93):
    slot: int
    coordinator_epoch: int
    group_id: str
    member_id: str


class ShareStateRecord(Record, frozen=True, kw_only=True, tag=94):
    """What a share group has done with the records of one partition, whole."""

    slot: int
    coordinator_epoch: int
    group_id: str
    topic: str
    partition: int
    topic_id: str
    leader_epoch: int  # of the partition's leader that loaded it last; -1: none has
    load_id: int  # drawn at random for each load or change by an admin: writes of an earlier one are refused
    sequence: int  # of the leader's last write since it was loaded
    start_offset: int  # every record before it is acknowledged, archived or deleted
    ranges: tuple[ShareRange, ...] = ()  # from the start offset on, without gaps
    # Whose log the offsets are of: the epoch of the leader that wrote them. -1: not known, or an admin's.
    written_epoch: int = -1


class RemoveShareStatesRecord(Record, frozen=True, kw_only=True, tag=95):
    """The states of all partitions of a topic are gone from a share group."""

    slot: int
    coordinator_epoch: int
    group_id: str
    topic: str


# --- reading ---------------------------------------------------------------------------------------------------------

RECORD_TYPES: tuple[Any, ...] = tuple(Record.__subclasses__())
_OPCODES = frozenset(cls.__struct_config__.tag for cls in RECORD_TYPES)
_command = Decoder(tuple[int, int, msgspec.Raw])
_records: Decoder[Any] = Decoder(tuple[reduce(or_, RECORD_TYPES), ...])  # type: ignore[misc]


def announced_records(start: bytes) -> int:
    """How many records a batch of controller epoch 0 has, from its first bytes; -1: this is not the start of one."""
    if not start.startswith(_BATCH_OF_A_BROKER) or len(start) < len(_BATCH_OF_A_BROKER) + _LONGEST_ARRAY_HEAD:
        return -1
    kind = start[len(_BATCH_OF_A_BROKER)]
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(kind)
    first = len(_BATCH_OF_A_BROKER) + 1
    return -1 if width is None else int.from_bytes(start[first : first + width], "big")


def decode_batch(command: bytes) -> RecordBatch:
    """Raises UnknownRecordError for a format, an opcode or a shape that this version does not know."""
    try:
        version, controller_epoch, encoded = _command.decode(command)
        if version != FORMAT_VERSION:
            raise UnknownRecordError(
                f"metadata format {version}; this version reads {FORMAT_VERSION}: upgrade this broker"
            )
        records: tuple[Record, ...] = _records.decode(encoded)
    except (
        ValueError,
        RecursionError,
    ) as error:  # in any case the command cannot be applied, so this process must stop
        unknown = _unknown_opcodes(command)
        if unknown:
            raise UnknownRecordError(
                f"metadata opcode {unknown[0]} is not known to this version: upgrade this broker"
            ) from error
        raise UnknownRecordError(f"a metadata command cannot be read: {error}") from error
    return RecordBatch(controller_epoch=controller_epoch, records=records)


def _unknown_opcodes(command: bytes) -> list[object]:
    try:
        _, _, plain = msgspec.msgpack.decode(command)
        return [item[0] for item in plain if item[0] not in _OPCODES]
    except (ValueError, TypeError, LookupError, RecursionError):
        return []
