"""InitProducerId, between Kafka's messages and the values that our handlers know. Pure.

What a producer says of the id and epoch that it had (version 3 on, KIP-360) matters to transactional ones only: any other
gets a new id, as Kafka's brokers do it.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.transaction_messages import InitTransactionsRequest, ProducerIdentity

from ..requests import InitProducerIdRequest
from ..responses import InitProducerIdResponse
from . import bodies

_FENCED_SINCE = 4  # PRODUCER_FENCED (KIP-588)


def init_producer_id_request(
    body: bodies.InitProducerIdRequest, version: int
) -> InitProducerIdRequest | InitTransactionsRequest:
    if body.transactional_id is None:
        return InitProducerIdRequest()
    return InitTransactionsRequest(
        transactional_id=body.transactional_id,
        timeout_ms=body.transaction_timeout_ms,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
    )


def init_producer_id_response(
    response: InitProducerIdResponse | ProducerIdentity, version: int
) -> bodies.InitProducerIdResponse:
    error = response.error if isinstance(response, InitProducerIdResponse) else 0
    if error == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return bodies.InitProducerIdResponse(
        error_code=error, producer_id=response.producer_id, producer_epoch=response.producer_epoch
    )


def init_producer_id_failed(
    request: InitProducerIdRequest | InitTransactionsRequest, error: int, message: str
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error=error)
