"""InitProducerId (key 22): an id for an idempotent producer, for both protocols.

Versions: 0 of our protocol, 0 to 4 of Kafka's. Behaviour: any broker answers, from its own block of ids; the epoch is 0, and the
producer bumps it by itself. `own.transactions` initializes producers with a transactional id.
"""

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.metadata.producer_ids import ProducerIds
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import InitProducerIdRequest
from barnabas.net.wire.protocol.responses import InitProducerIdResponse

FIRST_EPOCH = 0


class ProducerIdHandler:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    async def init(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            raise InvalidRequestError("a producer with a transactional id is initialized by InitTransactions")
        return InitProducerIdResponse(producer_id=await self._producer_ids.next_id(), producer_epoch=FIRST_EPOCH)
