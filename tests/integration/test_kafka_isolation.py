"""Kafka clients over raw sockets that wait, vanish, do not read or say too much: none of them costs the others anything."""

import asyncio
import contextlib
import itertools
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from integration.cluster import Cluster, Node, until
from integration.kafka_wire import (
    API_VERSIONS,
    CONSUMER_GROUP_HEARTBEAT,
    FETCH,
    JOIN_GROUP,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    answered,
    asked,
    call,
    end_offset,
    fetch,
    join_group,
    make,
    metadata,
    produce,
)
from integration.wire import SIZE, TIMEOUT_S, connected, until_closed
from simulation.log_building import batch_of

from barnabas.net.wire.protocol.kafka.apis import SERVED

Maker = Callable[..., Cluster]
LONG_MS = 60_000  # of a poll that ends by what happens, not by time
LEFT_WITHIN_S = 20.0  # far from a long poll's own end
numbers = itertools.count()


class Broker:
    """One broker with a topic of its own, seen from outside."""

    def __init__(self, node: Node, topic: str) -> None:
        self.node = node
        self.topic = topic
        self.address = (node.host, node.port)

    def metric(self, name: str) -> float:
        with urlopen(f"http://{self.node.property('admin.listener')}/metrics") as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.node.process.pid}/fd").iterdir()))

    async def files_when_idle(self) -> int:
        """Of a broker without clients; one file more or less may be that of somebody who read its metrics."""
        await until(lambda: self.metric("barnabas_connections") == 0, "nobody is connected", timeout_s=LEFT_WITHIN_S)
        await until(lambda: self.left_behind() == (0, 0, 0), "nobody waits", timeout_s=LEFT_WITHIN_S)
        return self.open_files()

    def left_behind(self) -> tuple[float, ...]:
        names = ("barnabas_parked_requests", "barnabas_parked_group_requests", "barnabas_pending_answers")
        return tuple(self.metric(name) for name in names)


@pytest.fixture(scope="module")
def bearer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    overrides = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": str(LONG_MS)}
    with Cluster(tmp_path_factory.mktemp("isolation"), 1, overrides=overrides) as cluster:
        yield cluster


@pytest.fixture
async def broker(bearer: Cluster) -> AsyncIterator[Broker]:
    await bearer.ready()
    topic = f"t-{next(numbers)}"
    async with bearer.admin() as admin:
        await admin.create_topic(topic, partitions=1)
    broker = Broker(bearer.nodes[0], topic)
    log_size = broker.node.log_size()
    with connected(broker.address) as sock:
        await until(lambda: _leads(sock, topic), "the topic has a leader")
    yield broker
    assert "Traceback" not in "\n".join(broker.node.log_since(log_size))


def _leads(sock: socket.socket, topic: str) -> bool:
    (told,) = call(sock, METADATA, 9, metadata(topic)).topics
    return told.error_code == 0 and all(item.leader_id >= 0 for item in told.partitions)


def stored(broker: Broker) -> int:
    with connected(broker.address) as sock:
        found: int = call(sock, LIST_OFFSETS, 7, end_offset(broker.topic)).topics[0].partitions[0].offset
        return found


# --- order ------------------------------------------------------------------------------------------------------------


async def test_acks_0_is_not_answered_and_what_comes_behind_it_is(broker: Broker) -> None:
    with connected(broker.address) as sock:
        for number in range(3):
            batch = bytes(batch_of(b"silent %d" % number))
            sock.sendall(asked(PRODUCE, 9, produce(broker.topic, batch, acks=0), correlation_id=number))
        sock.sendall(asked(METADATA, 9, metadata(broker.topic), correlation_id=7))
        assert answered(sock, METADATA, 9)[0] == 7
    assert stored(broker) == 3


async def test_acks_0_that_fails_ends_the_connection_after_what_was_asked_before(broker: Broker) -> None:
    with connected(broker.address) as sock:
        sock.sendall(asked(FETCH, 12, fetch(broker.topic, 0, max_wait_ms=200), correlation_id=1))
        sock.sendall(asked(PRODUCE, 9, produce("nobody-made-this", bytes(batch_of(b"x")), acks=0), correlation_id=2))
        assert answered(sock, FETCH, 12)[0] == 1
        assert not await asyncio.to_thread(until_closed, sock)


@pytest.mark.parametrize("version", [4, 12])
async def test_answers_keep_the_order_of_requests_behind_a_long_poll_too(broker: Broker, version: int) -> None:
    with connected(broker.address) as sock, connected(broker.address) as other:
        behind = [
            (METADATA, 9, metadata(broker.topic)),
            (LIST_OFFSETS, 7, end_offset(broker.topic)),
            (API_VERSIONS, 3, make("ApiVersionsRequest")),
            (FETCH, version, fetch(broker.topic, 0)),
            (METADATA, 0, metadata(broker.topic)),
        ]
        sock.sendall(asked(FETCH, version, fetch(broker.topic, 0, max_wait_ms=LONG_MS), correlation_id=1))
        for number, (key, key_version, body) in enumerate(behind, 2):
            sock.sendall(asked(key, key_version, body, correlation_id=number))
        await until(lambda: broker.metric("barnabas_parked_requests") >= 1, "the fetch waits")
        assert call(other, PRODUCE, 9, produce(broker.topic, bytes(batch_of(b"now")))).responses
        correlation_id, polled = await asyncio.to_thread(answered, sock, FETCH, version)
        assert correlation_id == 1 and polled.responses[0].partitions[0].records
        for number, (key, key_version, _) in enumerate(behind, 2):
            assert answered(sock, key, key_version)[0] == number


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_frame_over_the_limit_is_refused_before_it_is_read(new_cluster: Maker) -> None:
    cluster = await new_cluster(1, socket_request_max_bytes="100000").ready()
    node = cluster.nodes[0]
    address, log_size, before = (node.host, node.port), node.log_size(), node.rss_mib()
    with connected(address) as sock:
        assert call(sock, API_VERSIONS, 3, make("ApiVersionsRequest")).error_code == 0
        whole = asked(METADATA, 9, metadata(*["x" * 99] * 900), correlation_id=1)
        assert 90_000 < len(whole) <= 100_000
        sock.sendall(whole)
        assert answered(sock, METADATA, 9)[0] == 1
        sock.sendall(SIZE.pack(100_001) + struct.pack(">hhi", METADATA, 9, 2))
        assert not await asyncio.to_thread(until_closed, sock)
    (line,) = [line for line in node.log_since(log_size) if "refused" in line]
    assert "100001" in line and "the limit is 100000" in line
    socks = []
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            sock = stack.enter_context(connected(address))
            call(sock, API_VERSIONS, 3, make("ApiVersionsRequest"))
            sock.sendall(SIZE.pack(99_999) + struct.pack(">hhi", METADATA, 9, 2))
            socks.append(sock)
        assert call(stack.enter_context(connected(address)), API_VERSIONS, 0, make("ApiVersionsRequest")).api_keys
        grown = node.rss_mib() - before
    assert grown < 30, f"{grown:.0f} MiB for what was announced and never sent"


async def test_a_client_that_does_not_read_holds_up_nobody_and_little_memory(broker: Broker) -> None:
    batch = bytes(batch_of(*[bytes(1_000) for _ in range(900)]))
    with connected(broker.address) as sock:
        for _ in range(24):
            assert (
                call(sock, PRODUCE, 9, produce(broker.topic, batch)).responses[0].partition_responses[0].error_code == 0
            )
    end = stored(broker)
    wanted = asked(FETCH, 12, fetch(broker.topic, 0, max_bytes=16 << 20), correlation_id=1)
    before = broker.node.rss_mib()
    sent = 0
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            greedy = stack.enter_context(connected(broker.address))
            greedy.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(2_000):
                    sent += greedy.send(wanted)
        with connected(broker.address) as sock:
            longest_s = 0.0
            for number in range(30):
                began_s = time.monotonic()
                assert call(sock, PRODUCE, 9, produce(broker.topic, bytes(batch_of(b"meanwhile")))).responses
                records = call(sock, FETCH, 12, fetch(broker.topic, end + number)).responses[0].partitions[0].records
                assert b"meanwhile" in bytes(records)
                longest_s = max(longest_s, time.monotonic() - began_s)
        grown = broker.node.rss_mib() - before
    print(
        f"8 clients asked for 16,000 answers of 16 MB and read none: {grown:.0f} MiB; others waited {longest_s:.3f} s"
    )
    assert grown < 60, f"{grown:.0f} MiB for eight clients"


async def test_answers_that_wait_behind_a_long_poll_are_bounded(broker: Broker) -> None:
    """A client may ask for much more while it waits: it is not read on, rather than answered into memory."""
    large = asked(METADATA, 9, metadata(*[f"{number:0100}" for number in range(900)]), correlation_id=2)
    before = broker.node.rss_mib()
    with connected(broker.address) as sock:
        sock.sendall(asked(FETCH, 12, fetch(broker.topic, 0, max_wait_ms=LONG_MS), correlation_id=1))
        await until(lambda: broker.metric("barnabas_parked_requests") >= 1, "the fetch waits")
        sent = await asyncio.to_thread(_push, sock, large * 1_000)
        assert sent < 400 * len(large), "all of it was taken"
        grown = broker.node.rss_mib() - before
        with connected(broker.address) as other:
            assert call(other, PRODUCE, 9, produce(broker.topic, bytes(batch_of(b"now")))).responses
        assert (await asyncio.to_thread(answered, sock, FETCH, 12))[0] == 1
        for _ in range(sent // len(large)):
            correlation_id, told = await asyncio.to_thread(answered, sock, METADATA, 9)
            assert correlation_id == 2 and len(told.topics) == 900
    print(f"{sent >> 20} MiB of questions behind a long poll: {grown:.0f} MiB")
    assert grown < 40, f"{grown:.0f} MiB"


def _push(sock: socket.socket, data: bytes) -> int:
    """Send until nothing more is taken for a while; returns how much was."""
    left = memoryview(data)
    sock.settimeout(2.0)
    try:
        while left:
            left = left[sock.send(left[:65_536]) :]
    except TimeoutError:
        pass
    sock.settimeout(TIMEOUT_S)
    return len(data) - len(left)


# --- clients that go --------------------------------------------------------------------------------------------------


def vanish(sock: socket.socket, *, by_reset: bool) -> None:
    if by_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("by_reset", [False, True])
async def test_clients_that_go_in_the_middle_of_a_long_poll_leave_nothing_behind(
    broker: Broker, by_reset: bool
) -> None:
    files = await broker.files_when_idle()
    socks = []
    for number in range(20):
        sock = socket.create_connection(broker.address)
        sock.sendall(asked(FETCH, 12, fetch(broker.topic, 0, max_wait_ms=LONG_MS), correlation_id=1))
        sock.sendall(asked(METADATA, 9, metadata(broker.topic), correlation_id=2))  # whose answer waits for its turn
        socks.append(sock)
        sock = socket.create_connection(broker.address)
        group = f"{broker.topic}-{by_reset}-{number % 4}"
        sock.sendall(asked(JOIN_GROUP, 3, join_group(group), correlation_id=3))
        socks.append(sock)
    await until(lambda: broker.left_behind()[:2] == (20, 20), "all of them wait")
    assert broker.open_files() >= files + 38
    for sock in socks:
        vanish(sock, by_reset=by_reset)
    await until(lambda: broker.left_behind() == (0, 0, 0), "nobody waits any more", timeout_s=LEFT_WITHIN_S)
    await until(lambda: broker.open_files() <= files + 1, "their files are closed", timeout_s=LEFT_WITHIN_S)


async def test_clients_that_go_right_after_a_heartbeat_leave_nothing_behind(broker: Broker) -> None:
    files = await broker.files_when_idle()
    for number in range(30):
        with connected(broker.address) as sock:
            body = make(
                "ConsumerGroupHeartbeatRequest",
                group_id=f"{broker.topic}-new",
                member_id=f"member-{number}",
                member_epoch=0,
                rebalance_timeout_ms=LONG_MS,
                subscribed_topic_names=[broker.topic],
                topic_partitions=[],
            )
            sock.sendall(asked(CONSUMER_GROUP_HEARTBEAT, 1, body, correlation_id=number))
            vanish(sock, by_reset=number % 2 == 0)
    await until(lambda: broker.left_behind() == (0, 0, 0), "nobody waits any more", timeout_s=LEFT_WITHIN_S)
    await until(lambda: broker.open_files() <= files + 1, "their files are closed", timeout_s=LEFT_WITHIN_S)


async def test_idle_connections_are_closed_and_those_that_wait_are_not(new_cluster: Maker) -> None:
    """connections.max.idle.ms; what a peer that lost its network leaves behind looks the same from here."""
    cluster = await new_cluster(1, connections_max_idle_ms="1500").ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=1)
    broker = Broker(cluster.nodes[0], "t")
    with connected(broker.address) as sock:
        await until(lambda: _leads(sock, "t"), "the topic has a leader")
    with connected(broker.address) as idle, connected(broker.address) as waiting:
        assert call(idle, API_VERSIONS, 3, make("ApiVersionsRequest")).error_code == 0
        waiting.sendall(asked(FETCH, 12, fetch("t", 0, max_wait_ms=LONG_MS), correlation_id=5))
        assert not await asyncio.to_thread(until_closed, idle)
        with connected(broker.address) as other:
            call(other, PRODUCE, 9, produce("t", bytes(batch_of(b"after all"))))
        correlation_id, polled = await asyncio.to_thread(answered, waiting, FETCH, 12)
        assert correlation_id == 5 and b"after all" in bytes(polled.responses[0].partitions[0].records)
    assert broker.metric("barnabas_connections") <= 2


# --- what is not known ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 30, 31])
async def test_an_unknown_version_of_api_versions_is_told_what_there_is(broker: Broker, version: int) -> None:
    with connected(broker.address) as sock:
        request = struct.pack(">hhih", API_VERSIONS, version, 5, 3) + b"new" + b"\0" + b"\x05abcd\x05abcd\0"
        if version in SERVED[API_VERSIONS].versions:
            pytest.skip(f"version {version} is served")
        sock.sendall(SIZE.pack(len(request)) + request)
        correlation_id, told = answered(sock, API_VERSIONS, 0)
        assert (correlation_id, told.error_code) == (5, 35)
        assert any(item.api_key == API_VERSIONS for item in told.api_keys)
        assert call(sock, API_VERSIONS, 3, make("ApiVersionsRequest")).error_code == 0, "the same connection goes on"


async def test_unknown_tagged_fields_pass(broker: Broker) -> None:
    with connected(broker.address) as sock:
        frame = asked(METADATA, 9, metadata(broker.topic), correlation_id=1)
        assert frame.endswith(b"\0")
        body = frame[SIZE.size : -1] + b"\x02" + b"\x64\x03new" + b"\xe8\x07\x00"
        sock.sendall(SIZE.pack(len(body)) + body)
        correlation_id, told = answered(sock, METADATA, 9)
        assert correlation_id == 1 and told.topics[0].error_code == 0
