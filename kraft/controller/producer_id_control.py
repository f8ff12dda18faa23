"""Producer ids: each broker gets its own blocks, so that no id is assigned twice in the lifetime of a cluster."""

from barnabas.log.vocabulary.errors import InvalidRequestError

from ..metadata.broker_epochs import check_broker_epoch
from ..metadata.controller_result import ControllerResult, answer
from ..metadata.controller_settings import PRODUCER_ID_BLOCK_SIZE
from ..metadata.delta import MetadataDelta
from ..metadata.records import ProducerIdsRecord
from ..metadata.requests import AllocateProducerIds, ProducerIdBlock

_MAX_PRODUCER_ID = 2**63 - 1  # a signed 64-bit field of the record batch


def allocate(view: MetadataDelta, request: AllocateProducerIds) -> ControllerResult:
    check_broker_epoch(view, request.node_id, request.broker_epoch)
    first = view.next_producer_id
    if first > _MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise InvalidRequestError("all producer ids of this cluster have been assigned")
    return ControllerResult(
        records=(ProducerIdsRecord(next_producer_id=first + PRODUCER_ID_BLOCK_SIZE),),
        respond=answer(ProducerIdBlock(first=first, count=PRODUCER_ID_BLOCK_SIZE)),
    )
