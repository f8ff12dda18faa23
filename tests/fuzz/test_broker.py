"""A real broker's ports under damaged and odd requests of every kind: it lives, says no traceback, stays small, and serves."""

import contextlib
import struct
from collections.abc import Iterator
from random import Random

import pytest
from fuzz.mutations import mutated
from fuzz.wire_targets import MESSAGES, ODD_REQUESTS, request_frame, sample
from integration.cluster import Cluster, until
from integration.load import send
from integration.wire import HELLO, call, connected, greeted

from barnabas.kraft.raft.net.wire import frame
from barnabas.net.wire.protocol.msgpack import MsgpackCodec
from barnabas.net.wire.protocol.requests import MetadataRequest

CONNECTIONS = 120
MAX_GROWTH_MIB = 150  # P19
BOMB = struct.pack(">I", 2**31 - 1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("target"), 1) as cluster:
        yield cluster


async def check_after(cluster: Cluster, before_mib: float, log_size: int) -> None:
    node = cluster.nodes[0]
    assert node.is_running, node.log()[-3000:]

    async def has_brokers() -> bool:
        return bool((await call((node.host, node.port), MetadataRequest())).brokers)

    await until(has_brokers, "the broker is registered (again)")
    assert node.is_running
    assert node.rss_mib() - before_mib < MAX_GROWTH_MIB
    assert "Traceback" not in "\n".join(node.log_since(log_size))


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """A broker that closes while we write is within its rights."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        yield


async def test_damaged_requests_of_every_kind(target: Cluster) -> None:
    await target.ready()
    node = target.nodes[0]
    before_mib, log_size, rng = node.rss_mib(), node.log_size(), Random(1)
    for number in range(CONNECTIONS):
        with refusals(), connected((node.host, node.port), f"127.0.2.{number % 250 + 1}") as sock:
            sock.sendall(mutated(rng, HELLO) if number % 5 == 0 else HELLO)
            for _ in range(8):
                damaged = mutated(rng, request_frame(rng, ODD_REQUESTS))
                size = struct.pack(">I", len(damaged[4:]))
                sock.sendall(damaged if rng.random() < 0.3 else size + damaged[4:])
            sock.sendall(rng.choice((b"", BOMB, b"\0\0", b"\xff" * 64)))
            sock.settimeout(0.05)
            sock.recv(4096)
    await check_after(target, before_mib, log_size)
    async with target.admin() as admin:
        await admin.create_topic("served", partitions=1)
    assert await send(target.bootstrap, "served", [b"x"]) == [0]


async def test_damaged_messages_on_the_quorums_port(target: Cluster) -> None:
    await target.ready()
    node = target.nodes[0]
    voter = node.property("controller.quorum.voters").split("@")[1].rpartition(":")
    before_mib, log_size, rng = node.rss_mib(), node.log_size(), Random(2)
    for number in range(CONNECTIONS):
        with refusals(), connected((voter[0], int(voter[2])), f"127.0.3.{number % 250 + 1}") as sock:
            sock.sendall(b"".join(mutated(rng, frame(rng.choice(MESSAGES))) for _ in range(4)) + BOMB)
            sock.settimeout(0.05)
            sock.recv(4096)
    await check_after(target, before_mib, log_size)


async def test_well_formed_requests_with_values_that_cannot_be(target: Cluster) -> None:
    """Every kind of request, numbers from the edges, names that are none: each is answered or refused, none is a bug of ours.

    Brokers' own requests are among them, so the cluster may be changed; hence it is the last test of this broker.
    """
    await target.ready()
    node = target.nodes[0]
    before_mib, log_size, rng, codec = node.rss_mib(), node.log_size(), Random(3), MsgpackCodec()
    for number in range(CONNECTIONS):
        with refusals(), greeted((node.host, node.port), f"127.0.4.{number % 250 + 1}") as sock:
            for correlation_id, request_type in enumerate(rng.sample(ODD_REQUESTS, 6)):
                chunks = codec.encode_request(correlation_id, sample(rng, request_type))
                sock.sendall(b"".join(bytes(chunk) for chunk in chunks))
            sock.settimeout(0.05)
            sock.recv(65_536)
    await check_after(target, before_mib, log_size)
