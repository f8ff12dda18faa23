"""Clients that send nonsense: each is refused on its own, logged once, and everybody else is served as before.

One broker bears all of it. What it says once a minute, it says once for each peer, so every test comes from an address of
its own; and it must have lost nothing, and serve, after each of them.
"""

import asyncio
import contextlib
import itertools
import pickle
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgpack
import pytest
from integration.cluster import Cluster, Node
from integration.load import read_all, send
from integration.wire import SIZE, answer, call, connected, frame, greeted, produce, request, until_closed
from simulation.log_building import batch_of

from barnabas.log.format.record_batch import CRC_POSITION, LENGTH_POSITION
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CorruptRecordError,
    ErrorCode,
    InvalidTopicError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import CreateTopicRequest, FetchPartition, FetchRequest, MetadataRequest

Maker = Callable[..., Cluster]
TOPIC = "orders"
WARNINGS = ("WARNING", "ERROR", "CRITICAL", "Traceback")
NOW_MS = 1_790_000_000_000  # the clock of the machine that runs the tests may say anything; topics take any timestamp


numbers = itertools.count(1)


class Victim:
    """The broker, where one test comes from, and what was said since it began."""

    def __init__(self, cluster: Cluster, topic: str, source: str) -> None:
        self.topic = topic
        self.source = source
        self.cluster = cluster
        self.node: Node = cluster.nodes[0]
        self.client = (self.node.host, self.node.port)
        voter = self.node.property("controller.quorum.voters").split("@")[1]
        self.quorum = (voter.rpartition(":")[0], int(voter.rpartition(":")[2]))
        self.log_size = self.node.log_size()

    def complaints(self) -> list[str]:
        return [line for line in self.node.log_since(self.log_size) if any(word in line for word in WARNINGS)]


@pytest.fixture(scope="module")
def bearer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    overrides = {"auto.create.topics.enable": "false"}
    with Cluster(tmp_path_factory.mktemp("bearer"), 1, overrides=overrides) as cluster:
        yield cluster


@pytest.fixture
async def victim(bearer: Cluster) -> AsyncIterator[Victim]:
    await bearer.ready()
    topic = f"{TOPIC}-{next(numbers)}"
    async with bearer.admin() as admin:
        await admin.create_topic(topic, partitions=1)
    assert await send(bearer.bootstrap, topic, [b"first"]) == [0]
    victim = Victim(bearer, topic, f"127.0.1.{next(numbers)}")
    yield victim
    assert victim.node.is_running
    (last,) = await send(bearer.bootstrap, topic, [b"last"])
    (stored,) = (await read_all(bearer.bootstrap, topic)).values()
    assert (stored[0], stored[last]) == (b"first", b"last")
    assert "Traceback" not in "\n".join(victim.node.log_since(victim.log_size))


# --- names of topics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "x" * 250, "a\0b", "../../etc", "naïve", "a b"])
async def test_names_that_could_walk_out_of_their_folder_are_refused(victim: Victim, name: str) -> None:
    before = folders_of(victim)
    with pytest.raises(InvalidTopicError, match=r"249|folder|a-z"):
        await call(victim.client, CreateTopicRequest(name=name, partition_count=1))
    (found,) = (await call(victim.client, MetadataRequest(topics=(name,), allow_auto_topic_creation=True))).topics
    assert found.error in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    told = await produce(victim.client, name, batch_of(b"x"))
    assert told.error in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert folders_of(victim) == before
    assert not victim.complaints()


def folders_of(victim: Victim) -> list[str]:
    """Of replicas, and what else a name could lead to. Files come and go: checkpoints are written all the time."""
    data = victim.node.data
    return sorted(
        str(path) for place in (data, data.parent, data.parent.parent) for path in place.iterdir() if path.is_dir()
    )


async def test_an_unknown_topic_is_named(victim: Victim) -> None:
    told = await produce(victim.client, "nowhere", batch_of(b"x"))
    assert told.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "nowhere" in told.message
    wanted = FetchPartition(topic="nowhere", partition=0, fetch_offset=0, max_bytes=1_000)
    fetched = await call(victim.client, FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1_000, partitions=(wanted,)))
    assert fetched.partitions[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        async with victim.cluster.admin() as admin:
            await admin.describe_topic("nowhere")


# --- batches ----------------------------------------------------------------------------------------------------------


def flipped(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


def lying_counts(batch: bytearray) -> bytearray:
    struct.pack_into(">i", batch, 57, 1_000_000)
    return with_crc(batch)


def negative_delta(batch: bytearray) -> bytearray:
    struct.pack_into(">i", batch, 23, -5)
    return with_crc(batch)


def cut(batch: bytearray) -> bytearray:
    return batch[:-7]


def header_only(batch: bytearray) -> bytearray:
    return batch[:30]


def long_length(batch: bytearray) -> bytearray:
    struct.pack_into(">i", batch, LENGTH_POSITION, 2**31 - 1)
    return batch


def magic_1(batch: bytearray) -> bytearray:
    batch[16] = 1
    return batch


def unknown_codec(batch: bytearray) -> bytearray:
    struct.pack_into(">h", batch, 21, 7)
    return with_crc(batch)


def control(batch: bytearray) -> bytearray:
    struct.pack_into(">h", batch, 21, 0x20)
    return with_crc(batch)


def nothing(_: bytearray) -> bytearray:
    return bytearray()


def too_large(_: bytearray) -> bytearray:
    return batch_of(b"x" * 2_000_000)


def with_crc(batch: bytearray) -> bytearray:
    from crc32c import crc32c

    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[21:]))
    return batch


@pytest.mark.parametrize(
    ("spoil", "error", "told"),
    [
        (flipped, ErrorCode.CORRUPT_MESSAGE, "CRC"),
        (lying_counts, ErrorCode.INVALID_RECORD, "1000000 records"),
        (negative_delta, ErrorCode.INVALID_RECORD, "delta -5"),
        (cut, ErrorCode.CORRUPT_MESSAGE, "only 70 bytes are there"),
        (header_only, ErrorCode.CORRUPT_MESSAGE, "truncated"),
        (long_length, ErrorCode.CORRUPT_MESSAGE, "only 77 bytes are there"),
        (magic_1, ErrorCode.CORRUPT_MESSAGE, "magic 1"),
        (unknown_codec, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "7"),
        (control, ErrorCode.INVALID_RECORD, "control"),
        (nothing, ErrorCode.INVALID_RECORD, "no record batch"),
        (too_large, ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
async def test_a_bad_batch_is_refused_and_named(
    victim: Victim, spoil: Callable[[bytearray], bytearray], error: ErrorCode, told: str
) -> None:
    bad = spoil(batch_of(b"a", b"b"))
    for _ in range(3):
        answered = await produce(victim.client, victim.topic, bytearray(bad))
        assert answered.error == error and told in answered.message, answered
    if error == ErrorCode.CORRUPT_MESSAGE:
        # A client, a network or a memory that spoils bytes is the operator's business; a wrong setting is the client's.
        (line,) = victim.complaints()
        assert "127.0.0.1" in line and f"{victim.topic}-0" in line and told in line
    assert (await produce(victim.client, victim.topic, batch_of(b"good"))).base_offset == 1


async def test_the_other_partitions_of_a_request_are_appended(victim: Victim) -> None:
    """A lying size of the batches, on the other hand, makes the whole frame senseless."""
    with greeted(victim.client, victim.source) as sock:
        sock.sendall(request(1, ApiKey.PRODUCE, [-1, 1000, [[victim.topic, 0, 2**31 - 1]], None]))
        correlation_id, api, body = answer(sock)
        assert (correlation_id, api) == (1, -1) and body[0] != 0
        sock.sendall(request(2, ApiKey.METADATA, [[victim.topic], False, 0, 0]))
        assert answer(sock)[:2] == [2, ApiKey.METADATA]


# --- bytes that are no requests ---------------------------------------------------------------------------------------

TLS_CLIENT_HELLO = bytes.fromhex("16030100f0010000ec0303") + bytes(200)
HTTP = b"GET /v3/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        HTTP,
        TLS_CLIENT_HELLO,
        b"\x7f\xff\xff\xff" + bytes(100),
        b"\xff" * 4096,
        bytes(range(256)) * 16,
        b"BNB1" + SIZE.pack(2**31 - 1) + bytes(100),
        b"BNB1" + SIZE.pack(5) + b"\xc1\xc1\xc1\xc1\xc1",
        b"BNB1" + SIZE.pack(12) + msgpack.packb(["no", "hello"]) + bytes(2),
        b"BNB2" + bytes(100),
    ],
    ids=["http", "tls", "2 GB", "ff", "garbage", "hello of 2 GB", "hello of garbage", "other hello", "BNB2"],
)
async def test_strangers_are_turned_away(victim: Victim, sent: bytes) -> None:
    for _ in range(3):
        with connected(victim.client, victim.source) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(sent)
            assert not await asyncio.to_thread(until_closed, sock)
    (line,) = victim.complaints()
    assert victim.source in line and "refused" in line


async def test_a_kafka_client_of_the_future_is_told_which_versions_there_are(victim: Victim) -> None:
    """ApiVersions answers a version that it does not know in the form of version 0 (KIP-35)."""
    client_id = b"kafka-client"
    body = struct.pack(">hhih", 18, 31, 77, len(client_id)) + client_id + b"\0\x02a\x02b\0"
    with connected(victim.client, victim.source) as sock:
        sock.sendall(SIZE.pack(len(body)) + body)
        told = await asyncio.to_thread(sock.recv, 4096)
    size, correlation_id, error, count = struct.unpack_from(">iihi", told)
    assert (size, correlation_id, error) == (len(told) - 4, 77, ErrorCode.UNSUPPORTED_VERSION)
    ranges = {struct.unpack_from(">hhh", told, 14 + 6 * index) for index in range(count)}
    assert any(key == 18 and first == 0 for key, first, _ in ranges)


@pytest.mark.parametrize(
    "request_of_kafka",
    [
        struct.pack(">hhih", 0, 2, 1, -1) + bytes(40),
        struct.pack(">hhih", 99, 0, 1, -1) + bytes(40),
        struct.pack(">hhih", 0, 9, 1, -1) + b"\0" + b"\xff" * 64,
        struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">hhih", 1, 4, 1, 30_000) + bytes(40),
    ],
    ids=["too old", "unknown", "varints without end", "array of 2^31-1", "client id behind the end"],
)
async def test_kafka_requests_that_make_no_sense_end_their_connection_only(
    victim: Victim, request_of_kafka: bytes
) -> None:
    with connected(victim.client, victim.source) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(SIZE.pack(len(request_of_kafka)) + request_of_kafka)
        assert not await asyncio.to_thread(until_closed, sock)
    (line,) = victim.complaints()
    assert victim.source in line and "refused" in line


@pytest.mark.parametrize(
    "envelope",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of 2^32-1
        b"\xdf\xff\xff\xff\xff",  # a map of as many
        b"\xc6\xff\xff\xff\xff",  # bytes of as many
        b"\x91" * 100_000 + b"\xc0",
        b"\xdc\xff\xff" * 30_000,
        b"\xc1",
        b"",
        msgpack.packb({"a": 1}),
        msgpack.packb([1]),
        msgpack.packb(["one", "two", "three", "four"]),
    ],
    ids=["list", "map", "bytes", "depth", "wide depth", "c1", "empty", "no list", "short", "words"],
)
async def test_envelopes_of_nonsense_end_their_connection_only(victim: Victim, envelope: bytes) -> None:
    before = victim.node.rss_mib()
    for _ in range(3):
        with greeted(victim.client, victim.source) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(frame(envelope))
            await asyncio.to_thread(until_closed, sock)
    (line,) = victim.complaints()
    assert victim.source in line and "refused" in line
    assert victim.node.rss_mib() - before < 30


async def test_requests_that_make_no_sense_are_answered(victim: Victim) -> None:
    """The envelope is right, so the client learns by its correlation id what is wrong, and may go on."""
    with greeted(victim.client, victim.source) as sock:
        for number, (api, version, body) in enumerate(
            [
                (9_999, 1, []),
                (int(ApiKey.METADATA), 99, []),
                (int(ApiKey.METADATA), 1, "no list"),
                (int(ApiKey.CREATE_TOPIC), 1, [None, "many"]),
                (int(ApiKey.FETCH), 1, [1, 2, 3]),
            ]
        ):
            sock.sendall(request(number, api, body, version=version))
            correlation_id, answered_api, told = answer(sock)
            assert (correlation_id, answered_api) == (number, -1)
            assert told[0] != 0 and told[1], "a code and words"
        sock.sendall(request(99, ApiKey.METADATA, [[victim.topic], False, 0, 0]))
        assert answer(sock)[:2] == [99, ApiKey.METADATA]


async def test_a_frame_of_2_gb_after_the_hello(victim: Victim) -> None:
    before = victim.node.rss_mib()
    with greeted(victim.client, victim.source) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(SIZE.pack(2**31 - 1) + bytes(100_000))
        await asyncio.to_thread(until_closed, sock)
    (line,) = victim.complaints()
    assert str(2**31 - 1) in line and "the limit is" in line
    assert victim.node.rss_mib() - before < 30


# --- clients that use a broker up -------------------------------------------------------------------------------------


async def test_a_client_that_reads_nothing_is_not_read_and_grows_nothing(victim: Victim) -> None:
    async with victim.cluster.admin() as admin:
        await admin.create_topic("wide", partitions=200)
    before = victim.node.rss_mib()
    wanted = request(1, ApiKey.METADATA, [None, False, 0, 0])
    with greeted(victim.client, victim.source) as sock:
        sock.setblocking(False)
        left = memoryview(wanted * 10_000)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3):  # of pushing: the broker stops reading long before all is sent
                while left:
                    try:
                        left = left[sock.send(left) :]
                    except BlockingIOError:
                        await _writable(loop, sock)
        for number in range(20):
            assert await send(victim.cluster.bootstrap, victim.topic, [b"meanwhile %d" % number]) == [number + 1]
        grown = victim.node.rss_mib() - before
        assert grown < 60, f"{grown:.0f} MiB for one client"
    assert not victim.complaints()


async def _writable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready = loop.create_future()
    loop.add_writer(sock, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(sock)


async def test_300_idle_connections_cost_little(victim: Victim) -> None:
    before = victim.node.rss_mib()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(greeted(victim.client, victim.source)) for _ in range(300)]
        assert await send(victim.cluster.bootstrap, victim.topic, [b"meanwhile"]) == [1]
        socks[150].sendall(request(7, ApiKey.METADATA, [[victim.topic], False, 0, 0]))
        assert answer(socks[150])[:2] == [7, ApiKey.METADATA]
        grown = victim.node.rss_mib() - before
    print(f"300 idle connections: {grown:.1f} MiB")
    assert grown < 30
    assert not victim.complaints()


async def test_connections_beyond_the_limit_are_refused(new_cluster: Maker) -> None:
    cluster = await new_cluster(1, max_connections="30").ready()
    address = (cluster.nodes[0].host, cluster.nodes[0].port)
    size = cluster.nodes[0].log_size()
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(greeted(address))
        more = [stack.enter_context(connected(address)) for _ in range(5)]  # each is closed after two seconds
        told = await asyncio.gather(*(asyncio.to_thread(until_closed, sock) for sock in more))
        assert told == [b""] * 5
    lines = [line for line in cluster.nodes[0].log_since(size) if "too many connections" in line]
    assert len(lines) == 1 and "limit=30" in lines[0]
    assert await send(cluster.bootstrap, TOPIC, [b"again"]) == [0]


# --- the port of the quorum -------------------------------------------------------------------------------------------


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return (Path.touch, (self.path,))


async def test_strangers_on_the_port_of_the_quorum_are_refused_and_nothing_is_unpickled(victim: Victim) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "executed"
        bomb = pickle.dumps(Bomb(trace))
        pickle.loads(bomb)
        assert trace.exists(), "the bomb works"
        trace.unlink()
        sent = [
            bomb,
            SIZE.pack(len(bomb)) + bomb,
            struct.pack("<I", len(bomb)) + bomb,
            SIZE.pack(len(msgpack.packb(bomb))) + msgpack.packb(bomb),
            HTTP,
            TLS_CLIENT_HELLO,
            SIZE.pack(2**31 - 1) + bytes(1_000),
            b"\xff" * 1_000,
            SIZE.pack(5) + b"\xdd\xff\xff\xff\xff",
            SIZE.pack(1_000) + b"\x91" * 1_000,
        ]
        before = victim.node.rss_mib()
        for bytes_sent in sent:
            with connected(victim.quorum, victim.source) as sock, contextlib.suppress(ConnectionError):
                sock.sendall(bytes_sent)
                assert not await asyncio.to_thread(until_closed, sock), bytes_sent[:30]
        assert not trace.exists()
    assert victim.node.rss_mib() - before < 30
    (line,) = victim.complaints()
    assert f"barnabas.quorum connection refused from={victim.source}" in line


async def test_the_sdk_names_a_server_that_is_none_of_ours(victim: Victim) -> None:
    """The other side of the wire: a client that is pointed at the wrong port says which and why."""
    with pytest.raises(BarnabasError) as caught:
        await send(f"{victim.quorum[0]}:{victim.quorum[1]}", victim.topic, [b"x"], max_block_ms=2_000, request_timeout_ms=2_000,
                   delivery_timeout_ms=4_000)  # fmt: skip
    assert str(victim.quorum[1]) in str(caught.value)
    assert not isinstance(caught.value, CorruptRecordError)
