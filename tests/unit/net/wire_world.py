"""What the tests of the wire share: the real and the simulated network behind one face, handlers, and raw clients."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from barnabas.net.server.dispatcher import Dispatcher, Handler, RequestContext
from barnabas.net.server.server import Server
from barnabas.net.testing.simulation.loop import run_simulated
from barnabas.net.testing.simulation.network import SimulatedNetwork
from barnabas.net.wire.network import Network
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, MsgpackCodec, write_hello
from barnabas.net.wire.protocol.requests import (
    FetchPartition,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
    Request,
)
from barnabas.net.wire.protocol.responses import (
    FetchPartitionResponse,
    FetchResponse,
    ProducePartitionResponse,
    ProduceResponse,
)
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork


@dataclass
class World:
    server: Network
    client: Network
    host: str
    simulated: SimulatedNetwork | None = None


Body = Callable[[World], Coroutine[Any, Any, None]]


def run_real(body: Body) -> None:
    async def main() -> None:
        network = TcpNetwork()
        unseen: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        async with asyncio.timeout(30):
            await body(World(network, network, "127.0.0.1"))
        assert not unseen, unseen

    asyncio.run(main())


def run_in_simulation(body: Body) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        simulated = SimulatedNetwork(loop, Random(7))
        await body(World(simulated.node("broker"), simulated.node("client"), "broker", simulated))

    run_simulated(main)


class RawClient(asyncio.Protocol):
    """Sends any bytes and keeps what comes back."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.closed = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._changed.set()
        self.closed.set_result(None)

    async def until(self, size_bytes: int) -> bytes:
        """Wait until this much has come, then return all of it."""
        while len(self.received) < size_bytes and not self.closed.done():
            self._changed.clear()
            await self._changed.wait()
        return bytes(self.received)

    async def frame(self) -> bytes:
        """Take the next frame, without its size."""
        await self.until(4)
        size = int.from_bytes(self.received[:4], "big")
        await self.until(4 + size)
        frame = bytes(self.received[4 : 4 + size])
        del self.received[: 4 + size]
        return frame


async def raw_client(world: World, address: tuple[str, int], *, greet: bool = True) -> RawClient:
    client = await world.client.connect(RawClient, *address)
    assert isinstance(client, RawClient)
    if greet:
        client.transport.write(PREAMBLE + write_hello(ClientHello(versions=(1,), client_id="raw")))
        await client.frame()
    return client


def request_bytes(correlation_id: int, request: Request) -> bytes:
    return b"".join(bytes(chunk) for chunk in MsgpackCodec().encode_request(correlation_id, request))  # type: ignore[arg-type]


def produce_request(records: bytes = b"records", topic: str = "t", acks: int = 1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks, timeout_ms=1000, partitions=(ProducePartition(topic=topic, partition=0, records=records),)
    )


def produce_response(base_offset: int, topic: str = "t") -> ProduceResponse:
    return ProduceResponse(partitions=(ProducePartitionResponse(topic=topic, partition=0, base_offset=base_offset),))


def fetch_request(fetch_offset: int = 0, max_bytes: int = 1 << 20) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        partitions=(FetchPartition(topic="t", partition=0, fetch_offset=fetch_offset, max_bytes=max_bytes),),
    )


def fetch_response(*records: Any) -> FetchResponse:
    return FetchResponse(
        partitions=tuple(
            FetchPartitionResponse(topic="t", partition=index, high_watermark=index, records=item)
            for index, item in enumerate(records)
        )
    )


async def serve(world: World, handlers: dict[ApiKey, Handler], **options: Any) -> Server:
    server = Server(world.server, Dispatcher(handlers), **options)
    await server.start(world.host, 0)
    return server


async def connect(world: World, server: Server) -> RpcConnection:
    return await RpcConnection.open(world.client, *server.address, client_id="tester")


def offset_of(decoded_frame: bytes) -> tuple[int, int]:
    """Correlation id and base offset of a produce answer."""
    codec = MsgpackCodec()
    received = codec.decode_response(memoryview(decoded_frame))
    response = codec.response_body(ProduceRequest, received)
    assert isinstance(response, ProduceResponse)
    return received.correlation_id, response.partitions[0].base_offset


def count_up() -> Handler:
    """A produce handler that gives each batch the next offset."""
    next_offset = 0

    def produce(request: ProduceRequest, context: RequestContext, reply: Any) -> None:
        nonlocal next_offset
        if request.acks == 0:
            context.no_reply()
        else:
            reply(produce_response(next_offset))
        next_offset += 1

    return produce


class Parked:
    """A handler that keeps its requests until the test answers them."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, RequestContext, Any]] = []
        self.disconnected = 0
        self._arrived = asyncio.Event()

    def __call__(self, request: Any, context: RequestContext, reply: Any) -> None:
        self.calls.append((request, context, reply))
        context.on_disconnect(self._gone)
        self._arrived.set()

    def _gone(self) -> None:
        self.disconnected += 1
        self._arrived.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._arrived.clear()
            await self._arrived.wait()
