"""Changes requested by clients: the controller decides, and the broker answers when its own image shows the decision."""

from typing import Final, Protocol, cast

from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.log.vocabulary.cluster_changes import ForwardedRequest
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.apis import RESPONSE_OF
from barnabas.net.wire.protocol.responses import Response

from .services import Services

CHANGE_TIMEOUT_MS: Final = 30_000


class Committed(Protocol):
    """An answer of the controller to a change."""

    @property
    def offset(self) -> int:
        """An image with at least this offset shows the change."""


async def decided(
    services: Services,
    request: ControllerRequest,
    *,
    done_already: tuple[type[BarnabasError], ...] = (),
    timeout_ms: int = CHANGE_TIMEOUT_MS,
) -> object:
    """Return the controller's answer when this broker's own image shows the change, so that later requests here see it."""
    timeout_ms = min(timeout_ms, CHANGE_TIMEOUT_MS)
    answer = await services.controller.call(request, timeout_ms=timeout_ms, done_already=done_already)
    await services.metadata.wait_for_offset(cast(Committed, answer).offset, timeout_ms=CHANGE_TIMEOUT_MS)
    return answer


class ForwardingHandler:
    """Handles the requests of `FORWARDED` that have no handler of their own."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, request: ForwardedRequest, context: RequestContext) -> Response:
        answer = await decided(self._services, request)
        response = RESPONSE_OF[type(request)]
        return response(**{name: getattr(answer, name) for name in response.__struct_fields__})
