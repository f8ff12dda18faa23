"""For which broker a request between brokers speaks: its certificate must name the same one.

Without this, the certificate of one broker would be as good as those of all: it could shrink the ISR of partitions that others
lead, or end their registrations.
"""

from typing import Any, Final

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.requests import (
    AllocateProducerIds,
    AlterPartition,
    AlterVoters,
    AppendGroupRecords,
    BrokerHeartbeat,
    ControllerRequest,
    DescribeVoters,
    FenceBroker,
    RegisterBroker,
    RenewSlot,
    ReportLogEnds,
    ReportOfflineReplicas,
    ResignReplica,
    decode_request,
)
from barnabas.log.vocabulary.transaction_messages import TransactionMarker
from barnabas.net.wire.protocol.requests import ControllerCallRequest, WriteMarkersRequest

from .access import Access

# Requests to the controller in which a broker speaks of itself: `node_id` is the sender.
OF_THE_SENDER: Final[frozenset[type]] = frozenset(
    {
        RegisterBroker,
        BrokerHeartbeat,
        AlterPartition,
        AllocateProducerIds,
        AppendGroupRecords,
        RenewSlot,
        ReportLogEnds,
        ReportOfflineReplicas,
        ResignReplica,
    }
)
# Those that any broker may send; all others are changes that a client has asked for.
OF_ANY_BROKER: Final[frozenset[type]] = frozenset({FenceBroker, AlterVoters, DescribeVoters})


def controller_call(request: ControllerCallRequest, access: Access) -> None:
    """Raises ClusterAuthorizationError, InvalidRequestError."""
    access.require_broker()
    asked: ControllerRequest = decode_request(request.body)
    if type(asked) in OF_THE_SENDER:
        access.require_broker(_node_of(asked))


def write_markers(request: WriteMarkersRequest, access: Access) -> None:
    """Markers come from the coordinator of their transaction. Raises ClusterAuthorizationError."""
    access.require_broker()
    for marker in request.markers:
        coordinator = _coordinator_of(marker, access)
        if coordinator is not None:
            access.require_broker(coordinator)


def _coordinator_of(marker: TransactionMarker, access: Access) -> int | None:
    """None: this broker does not know it yet, or the marker is of an older one. Its handler checks the epochs."""
    slot = access.image.slots[slot_of(marker.transactional_id)]
    return slot.coordinator if slot.coordinator_epoch == marker.coordinator_epoch else None


def _node_of(request: Any) -> int:
    node_id: int = request.node_id
    return node_id
