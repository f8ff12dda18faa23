"""InitProducerId, between Kafka's messages and the values that our handler knows. Pure.

What a producer says of the id and epoch that it had (version 3 on, KIP-360) matters to transactional ones only: any other
gets a new id, as Kafka's brokers do it.
"""

from __future__ import annotations

from ..requests import InitProducerIdRequest
from ..responses import InitProducerIdResponse
from . import bodies


def init_producer_id_request(body: bodies.InitProducerIdRequest, version: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=body.transactional_id)


def init_producer_id_response(response: InitProducerIdResponse, version: int) -> bodies.InitProducerIdResponse:
    return bodies.InitProducerIdResponse(
        error_code=response.error, producer_id=response.producer_id, producer_epoch=response.producer_epoch
    )


def init_producer_id_failed(request: InitProducerIdRequest, error: int, message: str) -> InitProducerIdResponse:
    return InitProducerIdResponse(error=error)
