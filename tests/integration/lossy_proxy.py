"""Proxies between clients and brokers that repeat produce requests and lose answers, for both protocols.

Each produce request goes to its broker twice, one copy behind the other. Of the two answers the first is passed on; with
some probability it is lost, and the connection with it, as when a network breaks between request and answer.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import msgpack
from integration.cluster import Cluster, until, write_properties

from barnabas.net.base.local.ports import free_ports
from barnabas.net.client.connection.client import Client

_SIZE = struct.Struct(">I")
_KAFKA_HEAD = struct.Struct(">hhi")
_PREAMBLE = b"BNB1"
_PRODUCE = 0
_OFFSET_COMMIT = 8
_PIPE_BYTES = 65_536
P = TypeVar("P", bound="LossyProxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The two ends of one connection: the client's, and the one to the broker."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    broker_reader: asyncio.StreamReader
    broker_writer: asyncio.StreamWriter


class LossyProxy:
    """One broker's. `target` is where that listens; `port` where clients are to connect."""

    def __init__(self, rng: Random, *, loses: float, apis: frozenset[int] = frozenset({_PRODUCE})) -> None:
        """`apis`: the requests that it repeats, and whose answers it loses."""
        self.apis = apis
        self.port = 0
        self.target = ("", 0)
        self.repeated = 0
        self.lost = 0
        self._rng = rng
        self._loses = loses
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        link = Link(reader=reader, writer=writer, broker_reader=broker_reader, broker_writer=broker_writer)
        pumps = [asyncio.ensure_future(pump) for pump in self.pumps(link)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.close()
            link.broker_writer.close()

    def pumps(self, link: Link) -> list[Coroutine[Any, Any, None]]:
        """What carries one connection; the first that ends, ends it."""
        ways = Ways(self, link)
        return [ways.requests(), ways.answers()]

    def loses_this(self) -> bool:
        lost = self._rng.random() < self._loses
        self.lost += lost
        return lost


class Ways:
    """The two directions of one connection."""

    def __init__(self, proxy: LossyProxy, link: Link) -> None:
        self._proxy = proxy
        self._link = link
        self._is_ours = False
        self._repeated: Counter[int] = Counter()  # correlation ids of produce requests -> answers still to come

    async def requests(self) -> None:
        first = await self._link.reader.readexactly(4)
        if first == _PREAMBLE:
            self._is_ours = True
            hello = await _frame(self._link.reader)
            self._link.broker_writer.write(first + hello)
            frame = await _frame(self._link.reader)
        else:
            frame = first + await self._link.reader.readexactly(_SIZE.unpack(first)[0])
        while True:
            correlation_id, api = self._asked(frame)
            self._link.broker_writer.write(frame)
            if api in self._proxy.apis:
                self._proxy.repeated += 1
                self._repeated[correlation_id] = 2
                self._link.broker_writer.write(frame)
            await self._link.broker_writer.drain()
            frame = await _frame(self._link.reader)

    async def answers(self) -> None:
        is_hello = True
        while True:
            frame = await _frame(self._link.broker_reader)
            if not (self._is_ours and is_hello):
                correlation_id = self._answered(frame)
                left = self._repeated.pop(correlation_id, 0)
                if left == 2:
                    self._repeated[correlation_id] = 1
                    if self._proxy.loses_this():
                        return
                elif left == 1:
                    continue
            is_hello = False
            self._link.writer.write(frame)
            await self._link.writer.drain()

    def _asked(self, frame: bytes) -> tuple[int, int]:
        if self._is_ours:
            correlation_id, api, *_ = _envelope(frame)
            return correlation_id, api
        api, _, correlation_id = _KAFKA_HEAD.unpack_from(frame, 4)
        return correlation_id, api

    def _answered(self, frame: bytes) -> int:
        if self._is_ours:
            found: int = _envelope(frame)[0]
            return found
        return int(struct.unpack_from(">i", frame, 4)[0])


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(_SIZE.unpack(size)[0])


def _envelope(frame: bytes) -> list[int]:
    (size,) = _SIZE.unpack_from(frame, 4)
    unpacked: list[int] = msgpack.unpackb(frame[8 : 8 + size], raw=False)
    return unpacked


class HoldingProxy(LossyProxy):
    """Of Kafka's protocol, produce requests wait until `let_pass`, their answers until `answer`; `cut` ends the connection
    in place of the next answer to a produce request."""

    def __init__(self) -> None:
        super().__init__(Random(0), loses=0.0)
        self.arrived = 0  # produce requests
        self.answered = 0  # by the broker
        self.answer = asyncio.Event()
        self.cut = False
        self.may_pass = asyncio.Semaphore(0)
        self.passes_all = False

    def let_pass(self, number: int) -> None:
        for _ in range(number):
            self.may_pass.release()

    def let_all_pass(self) -> None:
        self.passes_all = True
        self.let_pass(1)
        self.answer.set()

    def pumps(self, link: Link) -> list[Coroutine[Any, Any, None]]:
        held = HeldWays(self, link)
        return [held.requests(), held.forward(), held.answers(), held.give_back()]


class HeldWays:
    """The two directions of one connection through a HoldingProxy."""

    def __init__(self, proxy: HoldingProxy, link: Link) -> None:
        self._proxy = proxy
        self._link = link
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._answered: asyncio.Queue[bytes] = asyncio.Queue()
        self._produced: set[int] = set()  # correlation ids

    async def requests(self) -> None:
        size = await self._link.reader.readexactly(4)
        is_ours = size == _PREAMBLE
        if is_ours:
            self._link.broker_writer.write(size)
            size = await self._link.reader.readexactly(4)
        while True:
            frame = size + await self._link.reader.readexactly(_SIZE.unpack(size)[0])
            api, _, correlation_id = _KAFKA_HEAD.unpack_from(frame, 4)
            if api == _PRODUCE and not is_ours:
                self._produced.add(correlation_id)
                self._proxy.arrived += 1
                self._waiting.put_nowait(frame)
            else:
                self._link.broker_writer.write(frame)
            size = await self._link.reader.readexactly(4)

    async def forward(self) -> None:
        while True:
            frame = await self._waiting.get()
            if not self._proxy.passes_all:
                await self._proxy.may_pass.acquire()
            self._link.broker_writer.write(frame)

    async def answers(self) -> None:
        while True:
            frame = await _frame(self._link.broker_reader)
            if self._is_of_produce(frame):
                self._proxy.answered += 1
                if self._proxy.cut:
                    self._proxy.cut = False
                    return
            self._answered.put_nowait(frame)

    async def give_back(self) -> None:
        while True:
            frame = await self._answered.get()
            if self._is_of_produce(frame):
                await self._proxy.answer.wait()
            self._link.writer.write(frame)

    def _is_of_produce(self, answer: bytes) -> bool:
        return struct.unpack_from(">i", answer, 4)[0] in self._produced


class LateProxy(LossyProxy):
    """Loses the connection behind the next commit of our protocol, and delivers that commit when `deliver` says so.

    So does TCP behind a wire that is mended: the client has given the connection up and goes on by a new one, while its system
    still holds what was sent before, and sends it again.
    """

    def __init__(self) -> None:
        super().__init__(Random(0), loses=0.0)
        self.holds_next = False
        self.held = asyncio.Event()
        self.deliver = asyncio.Event()
        self.answered = asyncio.Event()  # The broker has answered the commit that came late.

    def pumps(self, link: Link) -> list[Coroutine[Any, Any, None]]:
        return [self._carry(link)]

    async def _carry(self, link: Link) -> None:
        answers = asyncio.ensure_future(_pipe(link.broker_reader, link.writer))
        try:
            late = await self._requests(link.reader, link.broker_writer)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
        link.writer.close()
        self.held.set()
        await self.deliver.wait()
        link.broker_writer.write(late)
        correlation_id = _envelope(late)[0]
        while _envelope(await _frame(link.broker_reader))[0] != correlation_id:
            pass
        self.answered.set()

    async def _requests(self, reader: asyncio.StreamReader, broker_writer: asyncio.StreamWriter) -> bytes:
        """Return the commit that is held."""
        preamble = await reader.readexactly(4)
        broker_writer.write(preamble + await _frame(reader))
        while True:
            frame = await _frame(reader)
            if self.holds_next and preamble == _PREAMBLE and _envelope(frame)[1] == _OFFSET_COMMIT:
                self.holds_next = False
                return frame
            broker_writer.write(frame)
            await broker_writer.drain()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIPE_BYTES):
        writer.write(data)
        await writer.drain()


async def put_behind_proxies(
    cluster: Cluster, rng: Random, *, loses: float, apis: frozenset[int] = frozenset({_PRODUCE})
) -> list[LossyProxy]:
    """As `behind`, with proxies that lose answers."""
    return await behind(cluster, lambda: LossyProxy(rng, loses=loses, apis=apis))


async def behind(cluster: Cluster, make: Callable[[], P]) -> list[P]:
    """Give every broker a second listener, which it advertises at its proxy. The brokers are started again for it."""
    proxies: list[P] = []
    await cluster.ready()
    cluster.kill(*range(len(cluster.nodes)))
    for node in cluster.nodes:
        proxy = make()
        await proxy.start()
        proxies.append(proxy)
        lines = (line.partition("=") for line in node.config.read_text(encoding="utf-8").splitlines())
        values = {key: value for key, _, value in lines}
        values["listeners"] += f",LOSSY://127.0.0.1:{free_ports(1)[0]}"
        values["advertised.listeners"] = f"LOSSY://127.0.0.1:{proxy.port}"
        values["inter.broker.listener.name"] = "PLAINTEXT"
        write_properties(node.config, values)
        proxy.target = ("127.0.0.1", int(values["listeners"].rpartition(":")[2]))
    cluster.start(*range(len(cluster.nodes)))
    ports = {proxy.port for proxy in proxies}

    async def are_registered() -> bool:
        """Not as they were before: the cluster believes in those registrations for a while."""
        client = Client(f"127.0.0.1:{proxies[0].port}")
        try:
            await client.start()
            return {broker.port for broker in client.metadata.brokers.values()} == ports
        finally:
            await client.close()

    await until(are_registered, "all brokers are known by their proxies")
    await cluster.ready()
    return proxies
