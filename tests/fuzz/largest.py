"""The largest request that every list of every API permits, sent to a real broker, and what it cost the broker.

    PYTHONPATH=tests .venv/bin/python -m fuzz.largest [--all] [--only TEXT] [--limit-ms 100]

`requests` makes them from the types of both protocols (`crowds`), so a new API is among them. What counts is how long the loop
computed between a ping and its answer: another process on the machine does not change that.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from hostile.watch import Watch
from integration.cluster import Cluster, until
from integration.kafka_wire import JOIN_GROUP, asked, make
from integration.wire import HELLO

from barnabas.kraft.metadata.requests import REQUESTS
from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.group_messages import OffsetToCommit
from barnabas.net.base.limits import MAX_DATA_ITEMS
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.apis import REQUEST_OF
from barnabas.net.wire.protocol.apis import max_items as own_max_items
from barnabas.net.wire.protocol.kafka.apis import SERVED
from barnabas.net.wire.protocol.kafka.compiler import max_items as kafka_max_items
from barnabas.net.wire.protocol.kafka.schema import messages
from barnabas.net.wire.protocol.msgpack import MsgpackCodec
from barnabas.net.wire.protocol.requests import (
    DeleteGroupRequest,
    OffsetCommitRequest,
    ProducePartition,
    ProduceRequest,
    ResetOffsetsRequest,
    UndoOffsetResetRequest,
)
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

from .crowds import (
    Crowd,
    Filling,
    World,
    crowded_paths,
    depth,
    kafka_crowd,
    kafka_shape,
    own_crowd,
    own_frame,
    own_shape,
    own_values,
    shared,
)

GROUPS: Final = 1_000
MEMBERS: Final = 200  # of one classic group
PARTITIONS: Final = 5_000
TOPICS: Final = 50  # with one partition each
OTHER_LISTS: Final = 24  # more than a request has beside the crowd, each with one item
CONTROLLER_ITEMS: Final = 10_000
ANSWER_S: Final = 30.0
FILLINGS: Final = (Filling.STRANGE, Filling.EXISTING, Filling.ONE)


class Reach(IntEnum):
    """How many of the requests that are possible are made."""

    QUICK = 0  # the innermost lists are full, of what exists
    USUAL = 1  # and with names that do not exist, and evenly shared items
    THOROUGH = 2  # and each way to share items between lists, and the oldest versions


_TIMEOUT_MS: Final = 60_000
_JOIN_VERSION: Final = 3
# What changes the world for the requests behind it comes last.
_LAST: Final = ("Undo", "Delete", "Reset", "Remove", "Alter", "Assign", "Unregister", "Leave", "Elect")

Make = partial[Crowd]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    crowd: str
    frame_bytes: int
    answer_bytes: int  # 0: the broker hung up, or did not answer in time
    busy_s: float
    longest_s: float
    peak_rss_mib: float

    def __str__(self) -> str:
        return (
            f"computed {self.busy_s * 1000:5.0f} ms, longest {self.longest_s * 1000:5.0f} ms, peak {self.peak_rss_mib:4.0f} MiB,"
            f" {self.frame_bytes / 1e6:6.2f} MB asked, {self.answer_bytes / 1e6:6.2f} MB answered: {self.crowd}"
        )


# --- the requests -----------------------------------------------------------------------------------------------------


def requests(world: World, *, reach: Reach) -> Iterator[tuple[str, Make]]:
    """Names and makers, those that change the world last."""
    every = [
        *_own(world, reach),
        *_to_controller(world, reach),
        *_kafka(world, reach),
        *_sound(world),
    ]
    yield from sorted(every, key=lambda one: any(word in one[0] for word in _LAST))


def _ways(levels: int, items: int, reach: Reach) -> Iterable[tuple[int, ...]]:
    found = shared(levels, items)
    return dict.fromkeys({Reach.QUICK: found[:1], Reach.USUAL: (found[0], found[-1])}.get(reach, found))


def _own(world: World, reach: Reach) -> Iterator[tuple[str, Make]]:
    for api, request in REQUEST_OF.items():
        shape = own_shape("", request)
        for path in crowded_paths(shape):
            for lengths in _ways(depth(shape, path), own_max_items(api) - OTHER_LISTS, reach):
                for filling in FILLINGS if reach > Reach.QUICK else (Filling.ONE,):
                    yield request.__name__, partial(own_crowd, api, path, lengths, filling, world)


def _to_controller(world: World, reach: Reach) -> Iterator[tuple[str, Make]]:
    for kind, (request, _) in REQUESTS.items():
        shape = own_shape("", request)
        for path in crowded_paths(shape):
            for lengths in _ways(depth(shape, path), CONTROLLER_ITEMS - OTHER_LISTS, reach):
                for filling in FILLINGS if reach > Reach.QUICK else (Filling.ONE,):
                    yield request.__name__, partial(_controller_crowd, kind, path, lengths, filling, world)


def _controller_crowd(
    kind: int, path: tuple[str, ...], lengths: tuple[int, ...], filling: Filling, world: World
) -> Crowd:
    request = REQUESTS[kind][0]
    body = msgspec.msgpack.encode((kind, own_values(request, path, lengths, filling, world)))
    call = REQUEST_OF[ApiKey.CONTROLLER_CALL]
    fields = {field.name: 0 for field in msgspec.structs.fields(call)} | {"body": body}
    frame = own_frame(ApiKey.CONTROLLER_CALL, list(fields.values()))
    return Crowd(api=f"controller's {request.__name__}", path=path, lengths=lengths, filling=filling, frame=frame)


def _sound(world: World) -> Iterator[tuple[str, Make]]:
    """Requests that are carried out for every item: what `crowds` makes is refused somewhere on the way."""
    for acks in (1, -1):
        for compression in (Compression.NONE, Compression.LZ4):
            yield "ProduceRequest", partial(_produced, world, PARTITIONS, acks, compression)
            yield "ProduceRequest", partial(_produced, world, MAX_DATA_ITEMS, acks, compression)
    yield "DescribeConfigsRequest", partial(_described_configs)
    offsets = tuple(OffsetToCommit(topic=world.topic, partition=number, offset=1) for number in range(PARTITIONS))
    for group in (world.groups[0], "newcomers"):
        commit = OffsetCommitRequest(group_id=group, member_id="", member_epoch=-1, partitions=offsets)
        yield "OffsetCommitRequest", partial(_sent, commit)
    reset = ResetOffsetsRequest(group_id=world.groups[0], partitions=offsets)
    yield "ResetOffsetsRequest", partial(_sent, reset)
    yield "UndoOffsetResetRequest", partial(_sent, UndoOffsetResetRequest(group_id=world.groups[0]))
    yield "DeleteGroupRequest", partial(_sent, DeleteGroupRequest(group_id=world.groups[0]))


def _produced(world: World, count: int, acks: int, compression: Compression) -> Crowd:
    """A batch of one record for so many partitions, which begin again when there are no more."""
    records = encode_batch([b"v"], timestamps_ms=1_700_000_000_000, compression=compression)
    items = tuple(
        ProducePartition(topic=world.topic, partition=number % world.partition_count, records=records)
        for number in range(count)
    )
    request = ProduceRequest(acks=acks, timeout_ms=10_000, partitions=items)
    return _sent(request, f"acks={acks} {compression.name.lower()}")


def _described_configs() -> Crowd:
    """Of groups that need not exist, with all that can be said of each key."""
    names = [f"group-{number}" for number in range(MAX_DATA_ITEMS)]
    make_resource = partial(make, "DescribeConfigsRequest", "DescribeConfigsResource", configuration_keys=None)
    body = make(
        "DescribeConfigsRequest",
        resources=[make_resource(resource_type=32, resource_name=name) for name in names],
        include_synonyms=True,
        include_documentation=True,
    )
    frame = asked(32, 4, body, correlation_id=7)
    return Crowd(
        api="Kafka DescribeConfigs of groups", path=(), lengths=(len(names),), filling=Filling.STRANGE, frame=frame
    )


def _sent(request: Any, what: str = "") -> Crowd:
    frame = b"".join(
        chunk
        for chunk in MsgpackCodec().encode_request(7, request)
        if isinstance(chunk, bytes | bytearray | memoryview)
    )
    count = len(getattr(request, "partitions", "1"))
    return Crowd(
        api=f"{type(request).__name__} with sound values {what}",
        path=(),
        lengths=(count,),
        filling=Filling.ONE,
        frame=frame,
    )


def _kafka(world: World, reach: Reach) -> Iterator[tuple[str, Make]]:
    for key, served in SERVED.items():
        first, last = max(served.versions.first, served.taken_from), served.versions.last
        for version in dict.fromkeys((first, last) if reach is Reach.THOROUGH else (last,)):
            name = f"{served.name}Request"
            shape = kafka_shape(messages()[name].body, version)
            for path in crowded_paths(shape):
                for lengths in _ways(depth(shape, path), kafka_max_items(name) - OTHER_LISTS, reach):
                    for filling in FILLINGS if reach > Reach.QUICK else (Filling.ONE,):
                        yield name, partial(kafka_crowd, key, version, path, lengths, filling, world)


# --- the world --------------------------------------------------------------------------------------------------------


async def build_world(cluster: Cluster) -> World:
    names = [f"many-{number}" for number in range(TOPICS)]
    groups = ["crowd-group", *(f"group-{number}" for number in range(1, GROUPS))]
    async with cluster.admin() as admin:
        await admin.create_topic("crowd", partitions=PARTITIONS)
        for name in names:
            await admin.create_topic(name, partitions=1)
        topics = {topic.name: topic.topic_id for topic in await admin.describe_topics()}
    node = cluster.nodes[0]
    await _commits(node.host, node.port, groups)
    return World(
        topic="crowd",
        topic_id=topics["crowd"],
        partition_count=PARTITIONS,
        topics=tuple(names),
        topic_ids=tuple(topics[name] for name in names),
        groups=tuple(groups),
    )


async def _commits(host: str, port: int, groups: Sequence[str]) -> None:
    """One group has an offset of every partition, the others have ten."""
    connection = await RpcConnection.open(TcpNetwork(), host, port, client_id="world")
    try:
        await asyncio.gather(
            *(_commit(connection, group, PARTITIONS if number == 0 else 10) for number, group in enumerate(groups))
        )
    finally:
        connection.abort()


async def _commit(connection: RpcConnection, group: str, count: int) -> None:
    offsets = tuple(OffsetToCommit(topic="crowd", partition=number, offset=1) for number in range(count))
    request = OffsetCommitRequest(group_id=group, member_id="", member_epoch=-1, partitions=offsets)
    while True:
        try:
            await connection.call(request, timeout_ms=_TIMEOUT_MS)
            return
        except BarnabasError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.1)


async def crowded_group(host: str, port: int, group: str, members: int, metadata: bytes) -> asyncio.StreamWriter:
    """A classic group whose members have joined, and stay while the writer is open."""
    protocols = [make("JoinGroupRequest", "JoinGroupRequestProtocol", name="range", metadata=metadata)]
    body: Any = make(
        "JoinGroupRequest", group_id=group, session_timeout_ms=1_800_000, rebalance_timeout_ms=1_800_000,
        protocol_type="consumer", protocols=protocols,
    )  # fmt: skip
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"".join(asked(JOIN_GROUP, _JOIN_VERSION, body, correlation_id=one) for one in range(members)))
    for _ in range(members):
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
    return writer


# --- what they cost ---------------------------------------------------------------------------------------------------


async def cost_of(address: tuple[str, int], watch: Watch, crowd: Crowd) -> Cost:
    watch.begin()
    reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
    answer_bytes = 0
    try:
        if not crowd.api.startswith("Kafka"):
            writer.write(HELLO)
            await _read_frame(reader)
        writer.write(crowd.frame)
        async with asyncio.timeout(ANSWER_S):
            answer_bytes = await _read_frame(reader)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    pings = watch.pings
    await until(lambda: watch.pings >= pings + 2, "two more pings")
    return Cost(
        crowd=str(crowd),
        frame_bytes=len(crowd.frame),
        answer_bytes=answer_bytes,
        busy_s=watch.longest_busy_s,
        longest_s=watch.longest_answer_s,
        peak_rss_mib=watch.peak_rss_mib,
    )


async def _read_frame(reader: asyncio.StreamReader) -> int:
    size = left = int.from_bytes(await reader.readexactly(4), "big")
    while left:
        read = await reader.read(min(left, 1 << 20))
        if not read:
            raise ConnectionResetError
        left -= len(read)
    return size


async def measure(
    cluster: Cluster, *, reach: Reach, only: str = "", is_sound_only: bool = False, say: Callable[[Cost], None]
) -> list[Cost]:
    node, found = cluster.nodes[0], []
    world = await build_world(cluster)
    address = (node.host, node.port)
    crowd_of_members = await crowded_group(node.host, node.port, "crowd-classic", MEMBERS, b"m" * 100)
    try:
        async with Watch(address, node.process.pid) as watch:
            for name, made in requests(world, reach=reach):
                if only.lower() not in name.lower() or (
                    is_sound_only and made.func not in (_produced, _sent, _described_configs)
                ):
                    continue
                found.append(await cost_of(address, watch, made()))
                say(found[-1])
                if not node.is_running:
                    raise AssertionError(f"the broker ended: {node.log()[-2000:]}")
    finally:
        crowd_of_members.transport.abort()
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz.largest", description=__doc__)
    parser.add_argument("--all", action="store_true", help="each way to share items between lists, and old versions")
    parser.add_argument("--only", default="", help="requests whose name has this text")
    parser.add_argument("--sound", action="store_true", help="only requests that are carried out for every item")
    parser.add_argument("--limit-ms", type=float, default=50.0, help="show requests that cost more")
    options = parser.parse_args()

    def say(cost: Cost) -> None:
        if cost.busy_s * 1000 >= options.limit_ms:
            print(cost, flush=True)

    with tempfile.TemporaryDirectory(prefix="largest-") as folder, Cluster(Path(folder), 1) as cluster:
        await cluster.ready()
        found = await measure(
            cluster,
            reach=Reach.THOROUGH if options.all else Reach.USUAL,
            only=options.only,
            is_sound_only=options.sound,
            say=say,
        )
    print(f"{len(found)} requests; the worst:")
    for cost in sorted(found, key=lambda one: one.busy_s, reverse=True)[:25]:
        print(cost)


if __name__ == "__main__":
    asyncio.run(main())
