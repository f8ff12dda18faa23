"""InitProducerId, between Kafka's messages and the values that our handler knows. Pure.

What a producer says of the id and epoch that it had (version 3 on, KIP-360) matters to transactional ones only: any other
gets a new id, as Kafka's brokers do it.
"""

from typing import Any

from ..requests import InitProducerIdRequest
from ..responses import InitProducerIdResponse
from .compiler import types_of


def init_producer_id_request(body: Any, version: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=body.transactional_id)


def init_producer_id_response(response: InitProducerIdResponse, version: int) -> Any:
    return types_of("InitProducerIdResponse")["InitProducerIdResponse"](
        error_code=response.error, producer_id=response.producer_id, producer_epoch=response.producer_epoch
    )


def init_producer_id_failed(request: InitProducerIdRequest, error: int, message: str) -> InitProducerIdResponse:
    return InitProducerIdResponse(error=error)
