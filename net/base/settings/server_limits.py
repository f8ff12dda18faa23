"""What a server allows its clients. The defaults are those of the broker's keys, see `log.settings.broker_keys`."""

from dataclasses import dataclass
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys

UNLIMITED_DESCRIPTORS: Final = (
    2**31
)  # No descriptor has such a number: for networks without descriptors, and for tests.
_DEFAULTS: Final = BrokerKeys()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """At the limits of a connection, the server stops reading it; it does not close it."""

    max_connections: int = _DEFAULTS.max_connections
    max_descriptor: int = UNLIMITED_DESCRIPTORS  # Clients get lower descriptors; the others are for files and brokers.
    max_frame_bytes: int = _DEFAULTS.socket_request_max_bytes
    max_requests_in_flight: int = _DEFAULTS.queued_max_requests  # Of one connection, unanswered or unsent.
    max_buffered_bytes: int = _DEFAULTS.queued_max_request_bytes  # Of one connection, unsent responses.
    handshake_timeout_ms: int = 10_000  # Until the first request is complete.
    idle_timeout_ms: int = _DEFAULTS.connections_max_idle_ms
