"""The requests of brokers to the controller, and its responses: values, and their form on the wire (an opaque body of one RPC).

Every broker accepts admin requests of clients; it translates a request into one of these and passes it to the active controller,
in its own process or by the broker-to-controller RPC. An error replaces the response: code and message.
"""

from enum import IntEnum

from msgspec import Raw, field

from barnabas.log.vocabulary.cluster_changes import (
    FORWARDED,
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    ConfigEntryChange,
    CreateTopicResponse,
    ElectLeaderRequest,
    ForwardedRequest,
    NewTopic,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidRequestError, error_for
from barnabas.log.vocabulary.message import MAX_ARRAY_LENGTH, Items, Message, check_items, decode, encode
from barnabas.log.vocabulary.metadata_position import MetadataPosition

from ..quorum.voters import QuorumStatus
from .image import Endpoint, FolderTrouble
from .records import Record, RecordBatch, decode_batch, encode_batch


class Done(Message, frozen=True, kw_only=True):
    """It is committed. `offset` is the quorum index: an image of at least this offset shows it."""

    offset: int = 0


class Registered(Message, frozen=True, kw_only=True):
    broker_epoch: int
    offset: int = 0
    recovery_epoch: int = 0  # of the last accepted loss, and the offset from which the quorum went on
    recovery_offset: int = 0


class RegisterBroker(Message, frozen=True, kw_only=True):
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
    machine: str | None = None


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    fenced: bool
    may_shut_down: bool  # a controlled shutdown has moved all leaderships


class BrokerHeartbeat(Message, frozen=True, kw_only=True):
    node_id: int
    broker_epoch: int
    metadata_offset: int  # of the image that the broker has applied
    want_fence: bool = False
    want_shut_down: bool = False
    applied: MetadataPosition | None = None  # as in RegisterBroker


class IsrMember(Message, frozen=True, kw_only=True):
    node_id: int
    broker_epoch: int  # KIP-903: of the incarnation that the leader saw fetching; -1 for the leader itself


class PartitionIsrProposal(Message, frozen=True, kw_only=True):
    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]


class PartitionIsrAnswer(Message, frozen=True, kw_only=True):
    topic_id: str
    partition: int
    error: int  # an ErrorCode; 0: the proposal is committed
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()


class AlterPartitionAnswer(Message, frozen=True, kw_only=True):
    partitions: tuple[PartitionIsrAnswer, ...]


class AlterPartition(Message, frozen=True, kw_only=True):
    """A leader proposes new in-sync replica sets. Refused as a whole when the broker epoch of the leader is stale."""

    node_id: int
    broker_epoch: int
    partitions: tuple[PartitionIsrProposal, ...]


class TopicCreated(CreateTopicResponse, frozen=True, kw_only=True):
    """The client's response has no offset: the broker waits until it has applied that offset."""

    offset: int = 0


class CreateTopic(NewTopic, frozen=True, kw_only=True):
    """Without the timeout of the client's request, which the broker applies itself."""

    # Chosen by the requester, so that a repetition finds the topic of its first copy; the topic's id gets its first half. "":
    # none
    topic_id: str = ""


class DeleteTopic(Message, frozen=True, kw_only=True):
    name: str
    topic_id: str = ""  # in place of the name: the topic that has this id, and no newer one of its name


class ConfigOperation(IntEnum):
    """The operation on a value; append and subtract are for lists (KIP-339, whose numbers these are)."""

    SET = 0
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(ConfigEntryChange, frozen=True, kw_only=True):
    operation: ConfigOperation = ConfigOperation.SET


class AlterConfig(AlterConfigRequest, frozen=True, kw_only=True):
    """AlterConfigRequest with two options for Kafka's clients: changes of lists, and the replacement of all keys."""

    changes: Items[ConfigChange]
    replaces_all: bool = False  # keys that are not given are reset to their defaults


class ProducerIdBlock(Message, frozen=True, kw_only=True):
    first: int
    count: int


class AllocateProducerIds(Message, frozen=True, kw_only=True):
    node_id: int
    broker_epoch: int


class SlotAppend(Message, frozen=True, kw_only=True):
    """Records of one slot, as an encoded record batch: a whole one, where StagedDecisionRecord stores a part of the bytes."""

    slot: int
    coordinator_epoch: int
    batch: bytes

    @staticmethod
    def of(slot: int, coordinator_epoch: int, records: tuple[Record, ...]) -> "SlotAppend":
        batch = encode_batch(RecordBatch(controller_epoch=0, records=records))
        return SlotAppend(slot=slot, coordinator_epoch=coordinator_epoch, batch=batch)

    def records(self) -> tuple[Record, ...]:
        return decode_batch(self.batch).records


class SlotRefusal(Message, frozen=True, kw_only=True):
    slot: int
    error: int  # an ErrorCode
    message: str


class GroupRecordsAppended(Message, frozen=True, kw_only=True):
    """Everything is committed except the refused slots, which were definitely not appended."""

    refused: tuple[SlotRefusal, ...] = ()
    offset: int = 0


class AppendGroupRecords(Message, frozen=True, kw_only=True):
    """The decisions of a broker's coordinators, in one quorum command.

    A slot whose coordinator epoch is stale is refused by itself; each slot is named once.
    """

    node_id: int
    slots: tuple[SlotAppend, ...]


class RenewSlot(Message, frozen=True, kw_only=True):
    """The coordinator of a slot asks for a newer coordinator epoch, which makes its earlier records void where they have
    not been applied yet: after an append whose outcome it does not know. A repetition does no harm."""

    node_id: int
    slot: int
    coordinator_epoch: int  # the one to be replaced


class FenceBroker(Message, frozen=True, kw_only=True):
    """This incarnation of a broker is gone: its process no longer accepted connections. The cluster need not wait until its
    session ends; if it is still alive, its next heartbeat unfences it."""

    node_id: int
    broker_epoch: int


class TopicNumbers(Message, frozen=True, kw_only=True):
    """Some partitions of one topic."""

    topic_id: str
    partitions: tuple[int, ...]


class ReportOfflineReplicas(Message, frozen=True, kw_only=True):
    """The complete state of a broker's disks (KIP-112, KIP-858), so that a repetition does no harm and nothing is missing.

    Reports are numbered from 1 within a registration; a report that arrives after a newer one is void.
    """

    node_id: int
    broker_epoch: int
    report: int
    troubled_folders: tuple[FolderTrouble, ...]
    offline: tuple[TopicNumbers, ...]  # every replica of this broker that it cannot serve; all others are online
    lost: tuple[TopicNumbers, ...] = ()  # replicas that may lack acknowledged records; they are not eligible
    hand_over: tuple[TopicNumbers, ...] = ()  # led by this broker on a full disk: another replica should lead


class LogEnd(Message, frozen=True, kw_only=True):
    """The end of a replica's log, of a partition without a leader."""

    topic_id: str
    partition: int
    leader_epoch: int  # of the partition in the broker's image: a report of an earlier one is void
    last_epoch: int  # of the last record; -1: there is none
    end_offset: int


class ReportLogEnds(Message, frozen=True, kw_only=True):
    """Repeated while there are such partitions: a controller keeps the reports in memory only."""

    node_id: int
    broker_epoch: int
    ends: tuple[LogEnd, ...]


class VotersAnswer(Message, frozen=True, kw_only=True):
    """The progress of a change of the voters, as text; the request is repeated until it is done."""

    done: bool
    state: str
    offset: int = 0


class AlterVoters(Message, frozen=True, kw_only=True):
    """Begin to add or to remove a voter of the quorum, or continue it. `check_only`: would it be refused?

    The address is no NodeAddress: on the wire `add` stands between its fields, and a removal has none.
    """

    node_id: int
    add: bool
    host: str = ""  # of the quorum port, to be added
    port: int = 0
    check_only: bool = False


class DescribeVoters(Message, frozen=True, kw_only=True):
    """The information about voters that only the quorum's leader has."""


class ResignReplica(Message, frozen=True, kw_only=True):
    """This broker's replica has lost acknowledged records (bit rot): remove it from the ISR and the eligible leaders, so that it
    may discard its log and copy another one. Refused with ELIGIBLE_LEADERS_NOT_AVAILABLE while no other replica is in sync. The
    leader epoch increases: a late fetch of the old log must not bring the replica back. A repetition does no harm.
    """

    node_id: int
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int  # of the replica; afterwards that of the partition is above it


ControllerRequest = (
    RegisterBroker
    | BrokerHeartbeat
    | UnregisterBrokerRequest
    | AlterPartition
    | CreateTopic
    | DeleteTopic
    | AddPartitionsRequest
    | AlterConfig
    | ElectLeaderRequest
    | AllocateProducerIds
    | AppendGroupRecords
    | RenewSlot
    | FenceBroker
    | ReportOfflineReplicas
    | AssignReplicasRequest
    | ForwardedRequest
    | AlterVoters
    | DescribeVoters
    | ResignReplica
    | ReportLogEnds
)

# The number of each kind of request on the wire, and the response to it.
REQUESTS: dict[int, tuple[type[ControllerRequest], type]] = {
    1: (RegisterBroker, Registered),
    2: (BrokerHeartbeat, HeartbeatAnswer),
    3: (UnregisterBrokerRequest, Done),
    4: (AlterPartition, AlterPartitionAnswer),
    5: (CreateTopic, TopicCreated),
    6: (DeleteTopic, Done),
    7: (AddPartitionsRequest, Done),
    8: (AlterConfig, Done),
    9: (ElectLeaderRequest, Done),
    10: (AllocateProducerIds, ProducerIdBlock),
    22: (AppendGroupRecords, GroupRecordsAppended),
    13: (RenewSlot, Done),
    14: (FenceBroker, Done),
    15: (ReportOfflineReplicas, Done),
    12: (AssignReplicasRequest, Done),
    **{row.kind: (row.request, row.answer or Done) for row in FORWARDED},
    16: (AlterVoters, VotersAnswer),
    17: (DescribeVoters, QuorumStatus),
    21: (ResignReplica, Done),
    33: (ReportLogEnds, Done),
}
_KIND_OF = {request: kind for kind, (request, _) in REQUESTS.items()}


def encode_request(request: ControllerRequest) -> bytes:
    return encode((_KIND_OF[type(request)], request))


def decode_request(body: bytes) -> ControllerRequest:
    """Raises InvalidRequestError."""
    kind, encoded = decode(tuple[int, Raw], body)
    if kind not in REQUESTS:
        raise InvalidRequestError(f"request kind {kind} is not known to this controller: upgrade its broker")
    cls = REQUESTS[kind][0]
    if len(body) > MAX_ARRAY_LENGTH:  # each item has a byte at least
        check_items(cls, encoded, MAX_ARRAY_LENGTH)
    request: ControllerRequest = decode(cls, encoded)
    return request


def encode_answer(answer: object) -> bytes:
    """`answer` is a response value or a BarnabasError."""
    if isinstance(answer, BarnabasError):
        return encode((int(answer.code), answer.message))
    return encode((0, answer))


def decode_answer(request: ControllerRequest, body: bytes) -> object:
    """Return the response; raise the error in the response."""
    code, encoded = decode(tuple[int, Raw], body)
    if code != ErrorCode.NONE:
        raise error_for(code, decode(str, encoded))
    response: object = decode(REQUESTS[_KIND_OF[type(request)]][1], encoded)
    return response
