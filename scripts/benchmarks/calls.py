"""`scripts/benchmark calls`: the Python calls of Barnabas that one operation costs, counted in a simulated cluster.

Three real brokers run in one process on virtual time (tests/simulation), so the same commit always gives the same numbers, on any
machine and beside any load. A request is sent as bytes by a client that costs nothing, so its row has the calls of brokers
alone, until the answer arrives; an operation of the SDK has those of client and brokers. A call is a Python frame that begins or
continues; calls of C functions are not counted. `--where NAME` lists the folders and the functions of one row.
"""

import argparse
import asyncio
import json
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import barnabas.net  # noqa: E402
from barnabas.log.format.record_codec import encode_batch  # noqa: E402
from barnabas.net.base.clock import SimulatedClock  # noqa: E402
from barnabas.net.client.admin.admin import Admin  # noqa: E402
from barnabas.net.client.consumer.consumer import Consumer  # noqa: E402
from barnabas.net.client.producer.producer import Producer  # noqa: E402
from barnabas.net.testing.simulation.cluster import SimulatedCluster, is_serving, wait_until  # noqa: E402
from barnabas.net.testing.simulation.observed_loop import ObservedLoop  # noqa: E402
from barnabas.net.wire.protocol.kafka.apis import is_flexible  # noqa: E402
from barnabas.net.wire.protocol.kafka.compiler import encoder  # noqa: E402
from barnabas.net.wire.protocol.kafka.message_classes import types_of  # noqa: E402
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, MsgpackCodec, write_hello  # noqa: E402
from barnabas.net.wire.protocol.requests import (  # noqa: E402
    FetchPartition,
    FetchRequest,
    MetadataRequest,
    ProducePartition,
    ProduceRequest,
)

PRODUCT = str(Path(barnabas.net.__file__).resolve().parents[1])
# Also what is compiled from Kafka's schemas, and constructors of data classes and named tuples.
PARTS = ("log/", "kraft/", "consumer_groups/", "net/", "<kafka ", "<string>")
SIMULATED = "net/testing/"  # the world round the brokers
IDLE_PARTITIONS = 100
STARTING_S = 20.0
SIMULATED_MS = 1_700_000_000_000  # when the wall clock of a SimulatedClock begins
BOOTSTRAP = "node-0:9092"
_SIZE = struct.Struct(">I")
_SESSION_ID_POSITION = 4 + 4 + 1 + 4 + 2  # of a fetch answer of version 12
_PRODUCE, _FETCH, _METADATA = 0, 1, 3


class Calls:
    """Counts frames of the product while it is entered."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            path = code.co_filename.removeprefix(f"{PRODUCT}/")
            if path == "<string>":
                made = frame.f_locals.get("_cls") or type(frame.f_locals.get("self"))
                if made.__module__.startswith("barnabas.") and ".testing." not in made.__module__:
                    self.found[path, f"{made.__qualname__} {code.co_name}"] += 1
            elif path.startswith(PARTS) and not path.startswith(SIMULATED):
                self.found[path, code.co_qualname] += 1


class RawClient(asyncio.Protocol):
    """Sends bytes and waits for one whole answer."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 or self._waiting is None:
            return
        end = 4 + _SIZE.unpack_from(self._received)[0]
        if len(self._received) >= end:
            answer = bytes(self._received[:end])
            del self._received[:end]
            self._waiting.set_result(answer)
            self._waiting = None

    async def ask(self, frame: bytes) -> bytes:
        self._waiting = asyncio.get_running_loop().create_future()
        waiting = self._waiting
        self._transport.write(frame)
        return await waiting


def own(request: Any) -> bytes:
    return b"".join(bytes(chunk) for chunk in MsgpackCodec().encode_request(7, request))  # type: ignore[arg-type]


def kafka(key: int, version: int, name: str, body: Any) -> bytes:
    parts: list[Any] = [struct.pack(">hhih", key, version, 7, 5), b"calls"]
    if is_flexible(f"{name}Request", version):
        parts.append(b"\0")
    encoder(f"{name}Request", version)(body, parts)
    raw = b"".join(parts)
    return _SIZE.pack(len(raw)) + raw


def kafka_produce(topic: str, acks: int) -> bytes:
    types = types_of("ProduceRequest")
    batch = encode_batch([b"x" * 100], timestamps_ms=SIMULATED_MS)
    partition = types["PartitionProduceData"](index=0, records=batch)
    topics = [types["TopicProduceData"](name=topic, partition_data=[partition])]
    return kafka(_PRODUCE, 9, "Produce", types["ProduceRequest"](acks=acks, timeout_ms=9_000, topic_data=topics))


def kafka_fetch(topic: str, offsets: dict[int, int], *, session_id: int = 0, epoch: int = -1) -> bytes:
    types = types_of("FetchRequest")
    partitions = [
        types["FetchPartition"](partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
        for number, offset in offsets.items()
    ]
    topics = [types["FetchTopic"](topic=topic, partitions=partitions)]
    body = types["FetchRequest"](max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics if offsets else [])
    body.session_id, body.session_epoch = session_id, epoch
    return kafka(_FETCH, 12, "Fetch", body)


def kafka_metadata(topic: str) -> bytes:
    types = types_of("MetadataRequest")
    body = types["MetadataRequest"](topics=[types["MetadataRequestTopic"](name=topic)])
    return kafka(_METADATA, 12, "Metadata", body)


def own_produce(topic: str, acks: int) -> bytes:
    batch = encode_batch([b"x" * 100], timestamps_ms=SIMULATED_MS)
    return own(
        ProduceRequest(
            acks=acks, timeout_ms=9_000, partitions=(ProducePartition(topic=topic, partition=0, records=batch),)
        )
    )


def own_fetch(topic: str, offsets: dict[int, int]) -> bytes:
    partitions = tuple(
        FetchPartition(topic=topic, partition=number, fetch_offset=offset, max_bytes=1 << 20)
        for number, offset in offsets.items()
    )
    return own(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, partitions=partitions))


class Measuring:
    """One cluster, and what was counted on it."""

    def __init__(self, loop: ObservedLoop) -> None:
        self.rows: dict[str, Counter[tuple[str, str]]] = {}
        self._loop = loop
        self._clock = SimulatedClock(loop)
        self._cluster = SimulatedCluster(
            loop,
            Random(1),
            brokers=3,
            settings={"log.segment.bytes": "1048576", "broker.heartbeat.interval.ms": "800"},
            violate=_violated,
        )
        self._network = self._cluster.world.node("client")

    async def run(self) -> None:
        for number in range(3):
            self._cluster.start(number)
        await wait_until(self._is_ready, limit_s=STARTING_S)
        async with Admin(BOOTSTRAP, network=self._network, clock=self._clock, rng=Random(2)) as admin:
            await admin.create_topic("one", partitions=1, replication_factor=1)
            await admin.create_topic("three", partitions=1, replication_factor=3)
            await admin.create_topic("idle", partitions=IDLE_PARTITIONS, replication_factor=1)
            await asyncio.sleep(1)
            await self._requests()
            await self._count("create topic (SDK)", lambda: _create(admin, "orders"))
            await asyncio.sleep(1)
        await self._produce()
        await self._transaction()
        await self._join()
        await self._beside_idle_replicas()

    def _is_ready(self) -> bool:
        return all(
            is_serving(node) and node.broker is not None and node.broker.is_ready for node in self._cluster.nodes
        )

    async def _count(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        with Calls() as calls:
            await work()
        self.rows[name] = calls.found

    # --- requests as bytes --------------------------------------------------------------------------------------------

    def _leader(self, topic: str) -> int:
        return self._cluster.newest_image().topics[topic].partitions[0].leader

    async def _connect(self, node_id: int, *, as_kafka: bool) -> RawClient:
        found = await self._network.connect(RawClient, f"node-{node_id}", 9092)
        assert isinstance(found, RawClient)
        if not as_kafka:
            await found.ask(PREAMBLE + write_hello(ClientHello(versions=(1,), client_id="calls")))
        return found

    async def _requests(self) -> None:
        for protocol, produce, fetch in (("Kafka", kafka_produce, kafka_fetch), ("own", own_produce, own_fetch)):
            as_kafka = protocol == "Kafka"
            for topic, replicas in (("one", 1), ("three", 3)):
                client = await self._connect(self._leader(topic), as_kafka=as_kafka)
                for acks in (1, -1):
                    name = f"produce acks={acks}, {replicas} replicas ({protocol})"
                    await self._ask(name, client, produce(topic, acks))
            client = await self._connect(self._leader("one"), as_kafka=as_kafka)
            await self._ask(f"fetch, one record ({protocol})", client, fetch("one", {0: 0}))
            await self._ask(f"fetch, nothing there ({protocol})", client, fetch("one", {0: 4}))
            held = self._held("idle")
            client = await self._connect(held[0], as_kafka=as_kafka)
            name = f"fetch, {len(held[1])} idle partitions ({protocol})"
            await self._ask(name, client, fetch("idle", dict.fromkeys(held[1], 0)))
            if as_kafka:
                await self._idle_session(client, held[1])
            question = kafka_metadata("idle") if as_kafka else own(MetadataRequest(topics=("idle",)))
            await self._ask(f"metadata of {IDLE_PARTITIONS} partitions ({protocol})", client, question)

    async def _idle_session(self, client: RawClient, numbers: list[int]) -> None:
        begun = await client.ask(kafka_fetch("idle", dict.fromkeys(numbers, 0), epoch=0))
        (session_id,) = _SIZE.unpack_from(begun, _SESSION_ID_POSITION)
        await client.ask(kafka_fetch("idle", {}, session_id=session_id, epoch=1))
        work = kafka_fetch("idle", {}, session_id=session_id, epoch=2)
        await self._count(f"fetch in a session, {len(numbers)} idle partitions (Kafka)", lambda: client.ask(work))

    def _held(self, topic: str) -> tuple[int, list[int]]:
        """A broker, and the partitions that it leads."""
        partitions = self._cluster.newest_image().topics[topic].partitions
        leader = partitions[0].leader
        return leader, [number for number, partition in enumerate(partitions) if partition.leader == leader]

    async def _ask(self, name: str, client: RawClient, frame: bytes) -> None:
        """The second answer counts: the first one compiles codecs and fills caches."""
        await client.ask(frame)
        await asyncio.sleep(0.03)
        await self._count(name, lambda: client.ask(frame))
        await asyncio.sleep(0.03)

    # --- the SDK ------------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        for acks in (1, "all"):
            async with Producer(
                BOOTSTRAP, network=self._network, clock=self._clock, rng=Random(3), acks=acks
            ) as producer:
                for _ in range(3):
                    await (await producer.send("orders", b"before"))
                await asyncio.sleep(0.03)
                await self._count(
                    f"send acks={acks}, 3 replicas (SDK)", lambda producer=producer: _send(producer, "orders")
                )

    async def _transaction(self) -> None:
        """With its markers and its end, which the producer does not wait for."""
        async with Producer(
            BOOTSTRAP, network=self._network, clock=self._clock, rng=Random(4), transactional_id="calls"
        ) as producer:
            for _ in range(3):
                await _transact(producer, "orders")
            await self._count("transaction of one record, 3 replicas (SDK)", lambda: _transact(producer, "orders"))

    async def _join(self) -> None:
        """The second group counts. The member of the first one has left: its heartbeats would count, too."""
        consumer = Consumer(
            "orders", bootstrap=BOOTSTRAP, network=self._network, clock=self._clock, rng=Random(6), group="first"
        )
        await consumer.start()
        for _ in range(10):
            await consumer.poll(timeout_ms=200)
        await consumer.close()
        await asyncio.sleep(0.1)  # until all brokers have learned of that
        joining = Consumer(
            "orders", bootstrap=BOOTSTRAP, network=self._network, clock=self._clock, rng=Random(7), group="second"
        )
        await self._count("join group (SDK)", lambda: _join(joining))
        await joining.close()

    async def _beside_idle_replicas(self) -> None:
        async with Admin(BOOTSTRAP, network=self._network, clock=self._clock, rng=Random(8)) as admin:
            await admin.create_topic("still", partitions=IDLE_PARTITIONS, replication_factor=3)
        await asyncio.sleep(3)  # until the leaders have told all that there is
        client = await self._connect(self._leader("three"), as_kafka=False)
        name = f"produce acks=-1, 3 replicas, beside {IDLE_PARTITIONS} idle partitions (own)"
        await self._ask(name, client, own_produce("three", -1))


async def _create(admin: Admin, topic: str) -> None:
    """Until all brokers have it: which of them have it before the answer is a matter of the simulated network."""
    await admin.create_topic(topic, partitions=1, replication_factor=3)
    await asyncio.sleep(0.03)


async def _send(producer: Producer, topic: str) -> None:
    await (await producer.send(topic, b"hello", key=b"key"))


async def _transact(producer: Producer, topic: str) -> None:
    async with producer.transaction() as transaction:
        await transaction.send(topic, b"hello")
    await asyncio.sleep(0.03)


async def _join(consumer: Consumer) -> None:
    await consumer.start()
    while not consumer.assignment:
        await consumer.poll(timeout_ms=10)


def _violated(what: str) -> None:
    raise AssertionError(what)


def _print_where(found: Counter[tuple[str, str]]) -> None:
    folders: Counter[str] = Counter()
    for (path, _), count in found.items():
        folders[path.rpartition("/")[0] or path] += count
    for folder, count in folders.most_common():
        print(f"{count:>16}  {folder}")
    print()
    for (path, function), count in found.most_common():
        print(f"{count:>16}  {path}  {function}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark calls", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument("--where", default="", metavar="NAME", help="list the functions of the rows that contain NAME")
    options = parser.parse_args(arguments)
    loop = ObservedLoop()
    asyncio.set_event_loop(loop)
    measuring = Measuring(loop)
    loop.run_until_complete(measuring.run())
    for name, found in measuring.rows.items():
        print(f"{name:<48}{found.total():>8}")
        if options.where and options.where in name:
            _print_where(found)
    if options.json is not None:
        numbers = {name: found.total() for name, found in measuring.rows.items()}
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")
    return 0
