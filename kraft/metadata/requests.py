"""What brokers ask of the controller, and what it answers: values, and their form on the wire (an opaque body of one RPC).

Every broker may take an admin request from a client; it turns it into one of these and hands it to the active controller,
in its own process or by the broker-to-controller RPC. An error answers instead of the response: code and message.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeVar

import msgpack

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidRequestError, error_for
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.value_codec import from_plain, to_plain

from ..quorum.voters import QuorumPeer
from .image import Endpoint, FolderTrouble
from .records import Record, RecordBatch, decode_batch, encode_batch


class ControllerRequest:
    """Base of the requests below."""

    __slots__ = ()
    kind: ClassVar[int]
    response_type: ClassVar[type]


C = TypeVar("C", bound=type)
_by_kind: dict[int, type] = {}


def _request(kind: int, response_type: type) -> Callable[[C], C]:
    def register(cls: C) -> C:
        assert kind not in _by_kind
        cls.kind = kind  # type: ignore[attr-defined]
        cls.response_type = response_type  # type: ignore[attr-defined]
        _by_kind[kind] = cls
        return cls

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is committed. `offset` is the quorum index: an image of at least this offset shows it."""

    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    broker_epoch: int
    offset: int = 0
    recovery_epoch: int = 0  # of the last accepted loss, and the offset from which the quorum went on
    recovery_offset: int = 0


@_request(1, Registered)
@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(ControllerRequest):
    node_id: int
    incarnation: str  # fresh for every start of a process: a retry of the same one gets the same broker epoch
    cluster_id: str  # "" when the broker's folders are empty
    endpoints: tuple[Endpoint, ...]
    admin_endpoint: Endpoint | None = None
    rack: str | None = None
    directories: tuple[str, ...] = ()
    min_feature_level: int = 1
    max_feature_level: int = 1
    lost_unflushed_data: bool = False  # a lossy restart: KIP-966 takes it out of the eligible replicas
    file_settings: dict[str, str] = field(default_factory=dict)  # of cluster_settings, as its file has them
    known: MetadataPosition | None = None  # that the broker has noted on its disks; None: older versions note nothing
    applied: MetadataPosition | None = None  # of the image that its process holds


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    fenced: bool
    may_shut_down: bool  # a controlled shutdown has moved everything away


@_request(2, HeartbeatAnswer)
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat(ControllerRequest):
    node_id: int
    broker_epoch: int
    metadata_offset: int  # of the image that the broker has applied
    want_fence: bool = False
    want_shut_down: bool = False
    applied: MetadataPosition | None = None  # as in RegisterBroker


@_request(3, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(ControllerRequest):
    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    node_id: int
    broker_epoch: int  # KIP-903: of the incarnation that the leader saw fetching; -1 for the leader itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionIsrProposal:
    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionIsrAnswer:
    topic_id: str
    partition: int
    error: int  # an ErrorCode; 0: the proposal is committed
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionAnswer:
    partitions: tuple[PartitionIsrAnswer, ...]


@_request(4, AlterPartitionAnswer)
@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition(ControllerRequest):
    """A leader proposes new in-sync replica sets. Refused as a whole when the broker epoch of the leader is stale."""

    node_id: int
    broker_epoch: int
    partitions: tuple[PartitionIsrProposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    name: str
    topic_id: str
    partition_count: int
    replication_factor: int
    offset: int = 0


@_request(5, TopicCreated)
@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(ControllerRequest):
    name: str
    partition_count: int = -1  # -1: the cluster's default
    replication_factor: int = -1
    assignment: tuple[tuple[int, ...], ...] = ()  # replicas by partition, instead of the two above
    configs: dict[str, str] | None = None
    validate_only: bool = False
    topic_id: str = ""  # chosen by who asks, so that a repetition finds what its first copy has made; "": none is


@_request(6, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(ControllerRequest):
    name: str
    topic_id: str = ""  # in place of the name: the topic that has this id, and no newer one of its name


@_request(7, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(ControllerRequest):
    name: str
    total_count: int
    assignment: tuple[tuple[int, ...], ...] = ()  # of the new partitions only
    validate_only: bool = False


class ConfigOperation(IntEnum):
    """What becomes of a value; adding and taking away are for lists (KIP-339, whose numbers these are)."""

    SET = 0
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    key: str
    value: str | None  # None: back to the default
    operation: ConfigOperation = ConfigOperation.SET


@_request(8, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfig(ControllerRequest):
    resource_type: int
    resource: str
    changes: tuple[ConfigChange, ...]
    validate_only: bool = False
    replaces_all: bool = False  # what is not named goes back to its default


@_request(9, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeader(ControllerRequest):
    """Preferred: back to the first replica. A target must be in the ISR (`partition transfer-leadership`)."""

    topic: str
    partition: int
    target: int | None = None
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    first: int
    count: int


@_request(10, ProducerIdBlock)
@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(ControllerRequest):
    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAppend:
    """Records of one slot, as an encoded record batch."""

    slot: int
    coordinator_epoch: int
    batch: bytes

    @staticmethod
    def of(slot: int, coordinator_epoch: int, records: tuple[Record, ...]) -> "SlotAppend":
        batch = encode_batch(RecordBatch(controller_epoch=0, records=records))
        return SlotAppend(slot=slot, coordinator_epoch=coordinator_epoch, batch=batch)

    def records(self) -> tuple[Record, ...]:
        return decode_batch(self.batch).records


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRefusal:
    slot: int
    error: int  # an ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecordsAppended:
    """All is committed but what was refused: definitely not appended."""

    refused: tuple[SlotRefusal, ...] = ()
    offset: int = 0


@_request(22, GroupRecordsAppended)
@dataclass(frozen=True, slots=True, kw_only=True)
class AppendGroupRecords(ControllerRequest):
    """What a broker's coordinators have decided, in one quorum command.

    A slot whose coordinator epoch is stale is refused by itself; each slot is named once.
    """

    node_id: int
    slots: tuple[SlotAppend, ...]


@_request(13, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class RenewSlot(ControllerRequest):
    """The coordinator of a slot asks for a newer coordinator epoch, which makes its earlier records void where they have
    not been applied yet: after an append whose outcome it does not know. A repetition does no harm."""

    node_id: int
    slot: int
    coordinator_epoch: int  # the one to be replaced


@_request(14, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker(ControllerRequest):
    """This incarnation of a broker is gone: its process took no connection any more. It need not be waited for until its
    session ends; if it lives after all, its next heartbeat unfences it."""

    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNumbers:
    """Some partitions of one topic."""

    topic_id: str
    partitions: tuple[int, ...]


@_request(15, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOfflineReplicas(ControllerRequest):
    """How a broker's disks are (KIP-112, KIP-858): all of it, so that a repetition does no harm and nothing is forgotten.

    Reports are numbered from 1 within a registration; one that comes late, behind a newer one, is void.
    """

    node_id: int
    broker_epoch: int
    report: int
    troubled_folders: tuple[FolderTrouble, ...]
    offline: tuple[TopicNumbers, ...]  # every replica of this broker that it cannot serve; all others are online
    lost: tuple[TopicNumbers, ...] = ()  # replicas that may lack what they had acknowledged; they are not eligible
    hand_over: tuple[TopicNumbers, ...] = ()  # led by this broker on a full disk: somebody else shall lead


@_request(12, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicas(ControllerRequest):
    """A reassignment: the replicas that a partition shall have in the end; () cancels one under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    throttle_bytes_per_s: int = 0  # for all moves until the last has ended; 0: as it is


@_request(18, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecommissionBroker(ControllerRequest):
    """Empty a broker for good, or (cancel) give it back. The controller does the rest, also after it was replaced."""

    node_id: int
    cancel: bool = False
    throttle_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesBegun:
    count: int
    offset: int = 0


@_request(19, MovesBegun)
@dataclass(frozen=True, slots=True, kw_only=True)
class FillBroker(ControllerRequest):
    """Move a fair share of replicas and leaderships to a broker that has less."""

    node_id: int
    throttle_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersAnswer:
    """How far a change of the voters is, in words; it is asked for again until it is done."""

    done: bool
    state: str
    offset: int = 0


@_request(16, VotersAnswer)
@dataclass(frozen=True, slots=True, kw_only=True)
class AlterVoters(ControllerRequest):
    """Begin to add or to remove a voter of the quorum, or go on with it. `check_only`: would it be refused?"""

    node_id: int
    add: bool
    host: str = ""  # of the quorum port, to be added
    port: int = 0
    check_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumAnswer:
    leader_id: int
    term: int
    committed_index: int
    voters_index: int
    peers: tuple[QuorumPeer, ...]
    change: str = ""
    refused: tuple[str, ...] = ()  # brokers whose metadata contradicts that of the quorum, in words


@_request(17, QuorumAnswer)
@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeVoters(ControllerRequest):
    """What only the quorum's leader knows of its voters."""


@_request(21, Done)
@dataclass(frozen=True, slots=True, kw_only=True)
class ResignReplica(ControllerRequest):
    """This broker's replica has lost what it had acknowledged (bit rot): take it out of the ISR and of the eligible leaders, so
    that it may throw its log away and copy another one. Refused with ELIGIBLE_LEADERS_NOT_AVAILABLE while nobody else is in
    sync. The leader epoch rises: a late fetch of the old log must not bring the replica back. A repetition does no harm.
    """

    node_id: int
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int  # of the replica; afterwards that of the partition is above it


def encode_request(request: ControllerRequest) -> bytes:
    packed: bytes = msgpack.packb([request.kind, to_plain(request)])
    return packed


def decode_request(body: bytes) -> ControllerRequest:
    """Raises InvalidRequestError."""
    try:
        kind, plain = msgpack.unpackb(body)
        cls = _by_kind[kind]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise InvalidRequestError(f"not a request that this controller knows: {error!r}") from error
    request: ControllerRequest = from_plain(cls, plain)
    return request


def encode_answer(answer: object) -> bytes:
    """`answer` is a response value or a BarnabasError."""
    if isinstance(answer, BarnabasError):
        packed: bytes = msgpack.packb([int(answer.code), answer.message])
    else:
        packed = msgpack.packb([0, to_plain(answer)])
    return packed


def decode_answer(request: ControllerRequest, body: bytes) -> object:
    """Return the response; raise the error that was answered."""
    code, plain = msgpack.unpackb(body)
    if code != ErrorCode.NONE:
        raise error_for(code, plain)
    response: object = from_plain(request.response_type, plain)
    return response
