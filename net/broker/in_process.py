"""Connections of a client within the broker's process: requests to this broker go to its dispatcher as values, without encoding
and without a port. All other requests use the broker's own connections."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError, StorageError, error_for
from barnabas.log.vocabulary.principal import ANONYMOUS

from ..client.connection.addresses import Address
from ..client.connection.ports import Connection
from ..metadata.broker_to_controller import ControllerChannel
from ..server.dispatcher import Dispatcher
from ..wire.protocol.kafka.apis import KafkaResponse
from ..wire.protocol.requests import Request
from ..wire.protocol.responses import ErrorResponse, FetchPartitionResponse, FetchResponse, Response
from ..wire.rpc import RpcPool

HERE: Final[Address] = ("in-process", 0)  # never the address of a listener: listeners have ports above 0


class _LocalContext:
    """The context of a request from this process: it cannot disconnect."""

    client_host = "127.0.0.1"
    is_connected = True
    principal = ANONYMOUS

    def __init__(self, listener_name: str, client_id: str, node_id: int) -> None:
        self.listener_name = listener_name
        self.certified_node: int | None = node_id  # it is this broker that asks
        self.client_id = client_id

    @property
    def connection(self) -> object:
        return self

    login = None  # there is no listener

    def logged_in(self, principal: object) -> None:
        raise AssertionError("there is no login within the process")

    def drain(self) -> None:
        """There is no connection."""

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Never."""

    def no_reply(self) -> None:
        raise AssertionError("a request within the process needs a response")

    def hang_up(self) -> None:
        raise AssertionError("a request within the process needs a response")


def _is_in_file(item: FetchPartitionResponse) -> bool:
    return not isinstance(item.records, bytes | bytearray | memoryview)


def _with_records_read(response: FetchResponse) -> FetchResponse:
    """For a thread: no socket sends the files' regions here, so their bytes are read. Raises OSError or BarnabasError."""
    return msgspec.structs.replace(response, partitions=[_with_bytes(item) for item in response.partitions])


def _with_bytes(item: FetchPartitionResponse) -> FetchPartitionResponse:
    records = item.records
    if isinstance(records, bytes | bytearray | memoryview):
        return item
    found = records.read()
    if len(found) != records.size_bytes:
        raise StorageError(f"the log of {item.topic}-{item.partition} was cut while it was read; try again")
    return msgspec.structs.replace(item, records=found)


def _pass_on(source: asyncio.Future[FetchResponse], answer: asyncio.Future[Response]) -> None:
    def done(source: asyncio.Future[FetchResponse]) -> None:
        error = source.exception()  # nobody cancels it
        if answer.done():
            return
        if error is None:
            answer.set_result(source.result())
        else:
            known = error if isinstance(error, BarnabasError) else StorageError(f"records cannot be read: {error}")
            answer.set_result(ErrorResponse(error=known.code, message=str(known)))

    source.add_done_callback(done)


class InProcessConnection:
    """A client's connection to the dispatcher of this process."""

    def __init__(self, dispatcher: Dispatcher, listener_name: str, client_id: str, node_id: int) -> None:
        self._dispatcher = dispatcher
        self._context = _LocalContext(listener_name, client_id, node_id)
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def send(self, request: Request, *, timeout_ms: int) -> asyncio.Future[Response]:
        """Pass the request to its handler now. The response may be an ErrorResponse; the caller must watch the timeout."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()

        def reply(response: Response | KafkaResponse[object]) -> None:
            assert not isinstance(response, KafkaResponse), "a Kafka response to a request of Barnabas's protocol"
            if answer.done():
                return
            if isinstance(response, FetchResponse) and any(_is_in_file(item) for item in response.partitions):
                _pass_on(loop.run_in_executor(None, _with_records_read, response), answer)
            else:
                answer.set_result(response)

        self._dispatcher.dispatch(request, self._context, reply)
        return answer

    def send_oneway(self, request: Request) -> None:
        """Not supported: only producers send requests without a response (acks=0), and they have their own connections."""
        raise AssertionError("a request within the process needs a response")

    async def call(self, request: Request, *, timeout_ms: int) -> Any:
        """Pass the request to its handler and return the response. Raises the response's error, or RequestTimedOutError."""
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
    """The connections of a client in this process. Closing it does not close the broker's own connections."""

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
        """Return whether the address is this broker's. Its registered address counts, too: coordinators are found by it."""
        if (host, port) == HERE:
            return True
        try:
            return (host, port) == self._controller.address_of(self._node_id)
        except BarnabasError:
            return False  # not registered yet, so no response can contain its address

    async def close(self) -> None:
        """Does nothing: all connections belong to the broker."""
