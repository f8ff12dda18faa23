"""Errors of the HTTP API: Kafka's error codes as HTTP statuses and Confluent's numbers."""

from http import HTTPStatus
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode

BAD_REQUEST: Final = 400
KAFKA_BAD_REQUEST: Final = 40002
NOT_FOUND: Final = 404
UNKNOWN_TOPIC_OR_PARTITION: Final = 40403
UNAUTHORIZED: Final = 40101
FORBIDDEN: Final = 40301
KAFKA_ERROR: Final = 50002
KAFKA_RETRIABLE_ERROR: Final = 50003
SHOWN_CHARS: Final = 100  # of the caller's text in an error message, which must not repeat 8 KB of it

_BY_CODE: Final[dict[int, tuple[HTTPStatus, int]]] = {
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: (HTTPStatus.UNAUTHORIZED, UNAUTHORIZED),
    ErrorCode.SASL_AUTHENTICATION_FAILED: (HTTPStatus.UNAUTHORIZED, UNAUTHORIZED),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (HTTPStatus.FORBIDDEN, FORBIDDEN),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (HTTPStatus.FORBIDDEN, FORBIDDEN),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (HTTPStatus.FORBIDDEN, FORBIDDEN),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (HTTPStatus.FORBIDDEN, FORBIDDEN),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (HTTPStatus.NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION),
    ErrorCode.UNKNOWN_TOPIC_ID: (HTTPStatus.NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION),
    ErrorCode.GROUP_ID_NOT_FOUND: (HTTPStatus.NOT_FOUND, NOT_FOUND),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: (HTTPStatus.NOT_FOUND, NOT_FOUND),
    ErrorCode.BROKER_ID_NOT_REGISTERED: (HTTPStatus.NOT_FOUND, NOT_FOUND),
    ErrorCode.MESSAGE_TOO_LARGE: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, 413),
    ErrorCode.REQUEST_TIMED_OUT: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.BROKER_NOT_AVAILABLE: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.NOT_COORDINATOR: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.NOT_CONTROLLER: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.NOT_LEADER_OR_FOLLOWER: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.LEADER_NOT_AVAILABLE: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.NETWORK_EXCEPTION: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.NOT_ENOUGH_REPLICAS: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (HTTPStatus.SERVICE_UNAVAILABLE, KAFKA_RETRIABLE_ERROR),
}
# Errors of the server; all other codes mean that the request is wrong.
_OURS: Final = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE})


class ApiError(Exception):
    """Ends a call with this status and `{"error_code", "message"}`."""

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code


def kafka_error(code: int, message: str) -> ApiError:
    """The error of a call for an error code of a response."""
    if code in _OURS:
        status, number = HTTPStatus.INTERNAL_SERVER_ERROR, KAFKA_ERROR
    else:
        status, number = _BY_CODE.get(code, (HTTPStatus.BAD_REQUEST, KAFKA_BAD_REQUEST))
    return ApiError(status, number, message or _name(code))


def refusal(error: BarnabasError) -> ApiError:
    """The error of a call that the cluster refused. The prefix with the code's name is removed from the message."""
    return kafka_error(error.code, error.message.removeprefix(f"{_name(error.code)}: "))


def bad_request(message: str) -> ApiError:
    """The request itself is malformed."""
    return ApiError(HTTPStatus.BAD_REQUEST, BAD_REQUEST, message)


def not_found(message: str) -> ApiError:
    """An object in the path does not exist."""
    return ApiError(HTTPStatus.NOT_FOUND, NOT_FOUND, message)


def unknown_topic_or_partition(message: str) -> ApiError:
    """The topic or partition in the path does not exist."""
    return ApiError(HTTPStatus.NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, message)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
