"""A client's connections within the broker's own process: requests to this broker go to its dispatcher as values, all others
over the broker's own connections. Nothing is encoded, and no port is needed."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError, error_for

from ..client.connection.addresses import Address
from ..client.connection.ports import Connection
from ..metadata.broker_to_controller import ControllerChannel
from ..protocol.kafka.apis import KafkaResponse
from ..protocol.requests import Request
from ..protocol.responses import ErrorResponse, Response
from ..server.dispatcher import Dispatcher
from ..wire.rpc import RpcPool

HERE: Final[Address] = ("in-process", 0)  # no host of a listener: listeners have ports above 0


class _LocalContext:
    """A request of this process itself: it cannot disconnect."""

    client_host = "127.0.0.1"
    is_connected = True

    def __init__(self, listener_name: str, client_id: str) -> None:
        self.listener_name = listener_name
        self.client_id = client_id

    @property
    def connection(self) -> object:
        return self

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Never."""

    def no_reply(self) -> None:
        raise AssertionError("a request within the process asks for an answer")

    def hang_up(self) -> None:
        raise AssertionError("a request within the process asks for an answer")


class InProcessConnection:
    """To the dispatcher of this process, as a client's connection."""

    def __init__(self, dispatcher: Dispatcher, listener_name: str, client_id: str) -> None:
        self._dispatcher = dispatcher
        self._context = _LocalContext(listener_name, client_id)
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def send(self, request: Request, *, timeout_ms: int) -> asyncio.Future[Response]:
        """Hand it to its handler now. The answer may be an ErrorResponse; the time is the caller's to watch."""
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def reply(response: Response | KafkaResponse[object]) -> None:
            assert not isinstance(response, KafkaResponse), "the request is none of Kafka's"
            if not answer.done():
                answer.set_result(response)

        self._dispatcher.dispatch(request, self._context, reply)
        return answer

    def send_oneway(self, request: Request) -> None:
        """Requests without an answer (acks=0) are for producers, and those have connections of their own."""
        raise AssertionError("a request within the process asks for an answer")

    async def call(self, request: Request, *, timeout_ms: int) -> Any:
        """Hand it to its handler and return the answer. Raises the error that it names, or RequestTimedOutError."""
        self._in_flight += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await self.send(request, timeout_ms=timeout_ms)
        except TimeoutError:
            raise RequestTimedOutError(f"this broker did not answer within {timeout_ms} ms; try again") from None
        finally:
            self._in_flight -= 1
        if isinstance(response, ErrorResponse):
            raise error_for(response.error, response.message)
        return response


class InProcessPool:
    """The connections of a client in this process. The broker's own outlive it."""

    def __init__(self, here: InProcessConnection, node_id: int, controller: ControllerChannel, others: RpcPool) -> None:
        self._here = here
        self._node_id = node_id
        self._controller = controller
        self._others = others

    def peek(self, host: str, port: int) -> Connection | None:
        return self._here if self._is_here(host, port) else self._others.peek(host, port)

    async def get(self, host: str, port: int) -> Connection:
        return self._here if self._is_here(host, port) else await self._others.get(host, port)

    def _is_here(self, host: str, port: int) -> bool:
        """Also under the address that the cluster knows, by which coordinators are found."""
        if (host, port) == HERE:
            return True
        try:
            return (host, port) == self._controller.address_of(self._node_id)
        except BarnabasError:
            return False  # not registered yet, so that no answer can name it

    async def close(self) -> None:
        """Nothing: all connections are the broker's."""
