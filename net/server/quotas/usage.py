"""What one request uses of its client's quotas: charged when it arrives, when its handler returns, and when it is answered.

The answer leaves at once and says how long the client must wait; meanwhile, the server does not read the connection (KIP-219).
So waiting costs no memory, and a client that ignores what it is told waits all the same. Brokers have no quotas.
"""

from typing import Any, Final, Protocol

from msgspec.structs import replace

from barnabas.log.vocabulary.access.quotas import QuotaKind
from barnabas.log.vocabulary.principal import ANONYMOUS, Principal
from barnabas.net.base.figures.broker_clients import BROKER_PREFIXES
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.codec import DecodedRequest
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest

from .client_quotas import ClientQuotas

# Of brokers only; what else they send has a kind that names them, or comes from a certificate.
_BROKER_APIS: Final = frozenset(
    {
        ApiKey.CONTROLLER_CALL,
        ApiKey.METADATA_FEED,
        ApiKey.WRITE_MARKERS,
        ApiKey.QUORUM_ROLE,
        ApiKey.LOAD_SHARE_STATES,
        ApiKey.WRITE_SHARE_STATES,
    }
)
_KINDS: Final[dict[int, QuotaKind]] = {
    int(ApiKey.PRODUCE): QuotaKind.PRODUCE,
    int(ApiKey.FETCH): QuotaKind.FETCH,
    int(ApiKey.SHARE_FETCH): QuotaKind.FETCH,
}  # of bytes


class Usage:
    __slots__ = ("_began_ms", "_client_id", "_is_timed", "_kind", "_quotas", "_until_ms", "_user", "throttle_ms")

    def __init__(self, quotas: ClientQuotas, user: str, client_id: str, kind: QuotaKind | None, now_ms: float) -> None:
        self.throttle_ms = 0.0  # for which the client must wait from the last call on, by what has been charged
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self._kind = kind  # of its bytes; None: they do not count
        self._began_ms = self._until_ms = now_ms
        self._is_timed = False  # its work on the loop has been charged

    def arrived(self, size_bytes: int) -> bool:
        """False: the request is refused, because the client owes too much."""
        kind = self._kind
        if kind is None:
            return True
        if self._quotas.is_refused(kind, self._user, self._client_id, self._began_ms):
            return False
        if kind is QuotaKind.PRODUCE:
            self._charge(kind, size_bytes, self._began_ms)
        return True

    def handed_over(self, now_ms: float) -> None:
        """The handler has returned. What tasks do for the request later is not measured."""
        if not self._is_timed:
            self._is_timed = True
            self._charge(QuotaKind.REQUEST, now_ms - self._began_ms, now_ms)

    def answered(self, size_bytes: int, now_ms: float) -> None:
        """Possibly long after the request: the client has waited for the answer, and does not wait again for that time."""
        if self._kind is QuotaKind.FETCH:
            self._charge(QuotaKind.FETCH, size_bytes, now_ms)
        self.handed_over(now_ms)
        self.throttle_ms = max(0.0, self._until_ms - now_ms)

    def limited(self, payload: Any) -> Any:
        """A fetch of not more than the client can have at once: it would wait for long behind it (as in Kafka)."""
        if self._kind is not QuotaKind.FETCH:
            return payload
        burst = self._quotas.burst(QuotaKind.FETCH, self._user, self._client_id)
        if burst is None:
            return payload
        most_bytes = max(1, int(burst))  # a fetch returns its first batch whole, whatever the limit
        if isinstance(payload, KafkaRequest):
            body: Any = payload.body
            body.max_bytes = min(body.max_bytes, most_bytes)
            return payload
        return replace(payload, max_bytes=min(payload.max_bytes, most_bytes))

    def _charge(self, kind: QuotaKind, amount: float, now_ms: float) -> None:
        throttle_ms = self._quotas.charge(kind, self._user, self._client_id, amount, now_ms)
        self._until_ms = max(self._until_ms, now_ms + throttle_ms)
        self.throttle_ms = self._until_ms - now_ms


class Client(Protocol):
    """Whose request it is."""

    @property
    def client_id(self) -> str: ...
    @property
    def principal(self) -> Principal: ...
    @property
    def certified_node(self) -> int | None: ...


def usage_of(
    client: Client, request: DecodedRequest, quotas: ClientQuotas, now_ms: float, *, serves_brokers: bool
) -> Usage | None:
    """None: it is a broker's. `serves_brokers`: they connect to each other at the listener of this client."""
    if client.certified_node is not None or request.api in _BROKER_APIS:
        return None
    # Client ids of brokers count only where brokers connect to each other, and no client proves who it is.
    if serves_brokers and client.principal == ANONYMOUS and client.client_id.startswith(BROKER_PREFIXES):
        return None
    return Usage(quotas, client.principal.name, client.client_id, _KINDS.get(request.api), now_ms)
