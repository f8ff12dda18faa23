"""`scripts/benchmark idle`: what a consumer and its broker spend on 1,000 partitions without records, with fetch sessions and
without them, in turns, in one run. Bytes are those of the connections, as the kernel counts them.

Once, nothing is sent; then a record goes to another partition every few milliseconds, and each of them must arrive.

`--beside-kafka`: one client of Kafka's protocol with a fetch session, at a broker of Barnabas and at one of Apache Kafka
(kafka_brokers.py), in turns; it polls without a pause.
"""

import argparse
import asyncio
import socket
import statistics
import struct
import time

import fetch_sessions
from clusters import Cluster
from kafka_brokers import KafkaCluster
from measure import Skipped, cpu_of

from barnabas import Consumer, Producer
from barnabas.net.client.positions import fetch_session
from barnabas.net.wire.network import ProtocolFactory
from barnabas.net.wire.tcp import TcpNetwork

TOPIC = "idle"
PARTITIONS = 1000
TRICKLE_S = 0.02  # between two records
NEVER = 10**9
IDLE, TRICKLE = "idle, a second", "trickle, a record"
_COUNTS = struct.Struct("=120xQQ")  # bytes_acked and bytes_received of Linux' tcp_info


class CountingNetwork(TcpNetwork):
    """Remembers its sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: list[socket.socket] = []

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        protocol = await super().connect(factory, host, port)
        self.sockets.append(protocol._transport.get_extra_info("socket"))  # type: ignore[attr-defined]
        return protocol

    def byte_count(self) -> int:
        found = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size) for one in self.sockets]
        return sum(sum(_COUNTS.unpack(item)) for item in found)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark idle", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3, help="of each kind; default: 3")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement; default: 5")
    parser.add_argument("--beside-kafka", action="store_true", help="the brokers, with one client for both")
    options = parser.parse_args(arguments)
    if options.beside_kafka:
        return _beside_kafka(options.turns, options.seconds)
    found: dict[str, list[tuple[float, ...]]] = {}
    few = fetch_session.MIN_PARTITIONS
    with Cluster(1) as cluster:
        cluster.create(TOPIC, partitions=PARTITIONS)
        for _ in range(options.turns):
            for kind, least in (("without", NEVER), ("session", few)):
                fetch_session.MIN_PARTITIONS = least  # type: ignore[misc]
                for work in (IDLE, TRICKLE):
                    figures = asyncio.run(_measure(cluster, options.seconds, is_idle=work == IDLE))
                    found.setdefault(f"{work} {kind}", []).append(figures)
    print(f"{'':30}{'bytes':>12}{'client CPU ms':>16}{'broker CPU ms':>16}{'p50 ms':>10}")
    for name, samples in sorted(found.items()):
        size, client, broker, p50 = (statistics.median(column) for column in zip(*samples, strict=True))
        print(f"{name:30}{size:12,.0f}{client:16.2f}{broker:16.2f}{p50:10.2f}")
    return 0


def _beside_kafka(turns: int, seconds: float) -> int:
    found: dict[tuple[str, str], list[fetch_sessions.Polls]] = {}
    try:
        with Cluster(1) as ours, KafkaCluster(1) as theirs:
            sides = {"Barnabas": (ours.bootstrap, ours.pids()[0]), "Kafka": (theirs.bootstrap, theirs.pids()[0])}
            ours.create(TOPIC, partitions=PARTITIONS)
            theirs.create(TOPIC, partitions=PARTITIONS, replicas=1)
            for _ in range(turns):
                for work, pause_s in (("idle", 0.0), ("trickle", TRICKLE_S)):
                    for side, (bootstrap, pid) in sides.items():
                        polls = fetch_sessions.measure(bootstrap, pid, TOPIC, PARTITIONS, seconds, pause_s)
                        found.setdefault((work, side), []).append(polls)
    except Skipped as reason:
        print(f"skipped: {reason}")
        return 1
    print(
        f"{'':20}{'polls a second':>16}{'bytes a poll':>14}{'broker CPU ms a second':>24}{'bytes of the first poll':>25}"
    )
    for (work, side), samples in sorted(found.items()):
        rate, size, cpu, first = (statistics.median(column) for column in zip(*samples, strict=True))
        print(f"{work + ', ' + side:20}{rate:16.1f}{size:14,.0f}{cpu:24.1f}{first:25,.0f}")
    return 0


async def _measure(cluster: Cluster, seconds: float, *, is_idle: bool) -> tuple[float, ...]:
    """Bytes, and milliseconds of processor time of the client and of the broker, for a second or for a record; the median time
    from `send` to the record."""
    network = CountingNetwork()
    (pid,) = cluster.pids()
    delays: list[float] = []
    async with (
        Consumer(TOPIC, bootstrap=cluster.bootstrap, auto_offset_reset="latest", network=network) as consumer,
        Producer(cluster.bootstrap) as producer,
    ):
        await consumer.poll(timeout_ms=3000)
        began, size, own, other = time.perf_counter(), network.byte_count(), time.process_time(), cpu_of(pid)
        number = 0
        while time.perf_counter() < began + seconds:
            if is_idle:
                await consumer.poll(timeout_ms=500)
                continue
            sent = time.perf_counter()
            number += 1
            await producer.send(TOPIC, b"x", partition=number * 7 % PARTITIONS)
            while not await consumer.poll(timeout_ms=5000):
                pass
            delays.append((time.perf_counter() - sent) * 1000)
            await asyncio.sleep(TRICKLE_S)
        count = number or time.perf_counter() - began
        return (
            (network.byte_count() - size) / count,
            (time.process_time() - own) / count * 1000,
            (cpu_of(pid) - other) / count * 1000,
            statistics.median(delays) if delays else 0.0,
        )
