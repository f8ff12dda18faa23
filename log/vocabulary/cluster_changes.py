"""Changes of the cluster that clients request from any broker. The controller decides about them.

One class serves the client's request and the broker's request to the controller, because both have the same bytes. Where the two
differ by a field, kraft and net/wire/protocol extend the class. A new operation consists of a class, a row of `FORWARDED`, a
decision in `kraft/controller`, and a method of `Admin` that a verb or a route calls.
"""

from typing import Final, NamedTuple

from .access.acls import Acl, AclFilter, AclsOfFilter
from .access.quotas import QuotaChange
from .access.scram import LoginSecret, UserCredential
from .errors import BarnabasError, ErrorCode, RetriableError
from .message import Items, Message, Texts


class BrokerIdNotRegisteredError(BarnabasError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class PreferredLeaderNotAvailableError(RetriableError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class ElectionNotNeededError(BarnabasError):
    """The partition has the leader that was asked for."""

    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(BarnabasError):
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class NewTopic(Message, frozen=True, kw_only=True):
    """The properties of a new topic. The requests that extend this class add the topic id or the timeout."""

    name: str
    partition_count: int = -1  # -1: the cluster's default
    replication_factor: int = -1
    assignment: Items[Items[int]] = ()  # replicas by partition, instead of the two above
    configs: Texts | None = None
    validate_only: bool = False


class CreateTopicResponse(Message, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partition_count: int
    replication_factor: int


class AddPartitionsRequest(Message, frozen=True, kw_only=True):
    name: str
    total_count: int
    assignment: Items[Items[int]] = ()  # of the new partitions only
    validate_only: bool = False


class ConfigEntryChange(Message, frozen=True, kw_only=True):
    key: str
    value: str | None  # None: back to the default


class AlterConfigRequest(Message, frozen=True, kw_only=True):
    resource_type: int  # 2 topic, 4 broker, as in Kafka
    resource: str
    changes: Items[ConfigEntryChange]
    validate_only: bool = False


class ElectLeaderRequest(Message, frozen=True, kw_only=True):
    """Preferred: elect the first replica. A target must be in the ISR (`partition transfer-leadership`)."""

    topic: str
    partition: int
    target: int | None = None
    unclean: bool = False


class AssignReplicasRequest(Message, frozen=True, kw_only=True):
    """A reassignment: the final replicas of a partition; () cancels a reassignment in progress."""

    topic: str
    partition: int
    replicas: Items[int]
    throttle_bytes_per_s: int = 0  # for all moves until the last has ended; 0: unchanged


class UnregisterBrokerRequest(Message, frozen=True, kw_only=True):
    node_id: int


# --- requests that are only forwarded ----------------------------------------------------------------------------------------


class ForwardedRequest(Message, frozen=True, kw_only=True):
    """Base of the requests of `FORWARDED`: any broker forwards them to the controller and does nothing else."""


class ForwardedResponse(Message, frozen=True, kw_only=True):
    """Base of the responses to them."""


class DecommissionBrokerRequest(ForwardedRequest, frozen=True, kw_only=True):
    """Empty a broker permanently, or (cancel) return it to service. The controller does the rest, also after a failover. A broker
    that is a voter of the quorum first loses its vote."""

    node_id: int
    cancel: bool = False
    throttle_bytes_per_s: int = 0


class FillBrokerResponse(ForwardedResponse, frozen=True, kw_only=True):
    move_count: int


class MovesBegun(FillBrokerResponse, frozen=True, kw_only=True):
    """The client's response has no offset: the broker waits until it has applied that offset."""

    offset: int = 0


class FillBrokerRequest(ForwardedRequest, frozen=True, kw_only=True):
    """Move a fair share of replicas and leaderships to a broker that has less."""

    node_id: int
    throttle_bytes_per_s: int = 0


class UserMechanism(Message, frozen=True, kw_only=True):
    user: str
    mechanism: int


class AlterUsersRequest(ForwardedRequest, frozen=True, kw_only=True):
    """Give users credentials, or remove credentials: all of it or nothing."""

    credentials: Items[UserCredential] = ()
    removals: Items[UserMechanism] = ()
    login_secret: LoginSecret | None = None  # of the broker that forwards the request, if the cluster has none yet


class CreateAclsRequest(ForwardedRequest, frozen=True, kw_only=True):
    """Add permissions; those that exist already stay. All are added, or none."""

    acls: Items[Acl]


class DeleteAclsRequest(ForwardedRequest, frozen=True, kw_only=True):
    """Remove the permissions that the filters find."""

    filters: Items[AclFilter]


class DeleteAclsResponse(ForwardedResponse, frozen=True, kw_only=True):
    removed: Items[AclsOfFilter]  # in the order of the filters


class AclsRemoved(DeleteAclsResponse, frozen=True, kw_only=True):
    """The client's response has no offset: the broker waits until it has applied that offset."""

    offset: int = 0


class AlterQuotasRequest(ForwardedRequest, frozen=True, kw_only=True):
    """Set and remove quotas: all of it or nothing."""

    changes: Items[QuotaChange]
    validate_only: bool = False


class Forwarding(NamedTuple):
    """What codecs, handlers and metrics need to know about a forwarded request. Numbers are never reused."""

    api_key: int  # on the wire from clients; shares its number range with ApiKey of net/wire/protocol
    kind: int  # on the wire from brokers; shares its number range with REQUESTS of kraft/metadata/requests
    request: type[ForwardedRequest]
    # The controller's response: the fields of the client's response, followed by `offset`. None for both: the response is empty.
    answer: type[Message] | None = None
    response: type[ForwardedResponse] | None = None


FORWARDED: Final = (
    Forwarding(1009, 18, DecommissionBrokerRequest),
    Forwarding(1010, 19, FillBrokerRequest, MovesBegun, FillBrokerResponse),
    Forwarding(1017, 23, AlterUsersRequest),
    Forwarding(1020, 30, CreateAclsRequest),
    Forwarding(1021, 31, DeleteAclsRequest, AclsRemoved, DeleteAclsResponse),
    Forwarding(1022, 32, AlterQuotasRequest),
)
