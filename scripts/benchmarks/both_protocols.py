"""`scripts/benchmark kafka`: the broker's cost of a produce and a fetch of 64 KB, with Kafka's protocol and Barnabas' own.

CPU time of the broker's process per request, as the kernel counts it (nanoseconds, all threads). Both protocols take turns in one
run, some hundred requests each, so that a busy moment of the machine meets both; every pair of turns gives a ratio; the
output shows their median and quartiles. The client is a blocking socket that sends bytes encoded before.
"""

import argparse
import asyncio
import json
import math
import socket
import ssl
import statistics
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusters import Cluster
from kafka_frames import frame
from measure import records

from barnabas import Admin
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.msgpack import PREAMBLE, ClientHello, MsgpackCodec, write_hello
from barnabas.net.wire.protocol.requests import (
    FetchPartition,
    FetchRequest,
    MetadataRequest,
    ProducePartition,
    ProduceRequest,
    Request,
)

BATCH_BYTES = 65_536
RECORD_BYTES = 100
STORED_BATCHES = 64  # what fetches read, one after the other, over and over
DEPTH = 5  # requests in flight
GOAL_PERCENT = 20
METADATA_PARTITIONS = 100  # of the topic that is asked about
_RECORDS = (BATCH_BYTES - 61) // (RECORD_BYTES + 8)
_SIZE = struct.Struct(">I")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One protocol: its name, how a connection begins, and the frames of one turn, sent over and over."""

    name: str
    preamble: bytes
    frames: list[bytes]
    answer_bytes: int  # of one answer, at least


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark kafka", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400, help="requests per turn; default: 400")
    parser.add_argument("--turns", type=int, default=25, help="turns of each protocol; default: 25")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to this file")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, list[float]]] = {}
    missed = False
    with Cluster(1, log_retention_bytes=str(256 << 20), log_segment_bytes=str(64 << 20)) as cluster:
        for number, (case, make) in enumerate(CASES.items()):
            topic = f"bench-{number}"
            partitions = METADATA_PARTITIONS if case in FOR_INFORMATION else 1
            cluster.create(topic, partitions=partitions)
            pair = make(cluster, topic)
            before = end_offset(cluster, topic)
            found[case] = _alternate(cluster, pair, max(DEPTH, options.requests // partitions), options.turns)
            written = end_offset(cluster, topic) - before
            expected = 2 * (options.turns + 1) * options.requests * _RECORDS if case.startswith("produce") else 0
            if written != expected:
                raise RuntimeError(f"{written} records were written instead of {expected}: {case} measured errors")
            missed |= not _show(case, found[case]) and case not in FOR_INFORMATION
            cluster.delete(topic)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(missed)


def _alternate(cluster: Cluster, pair: tuple[Side, Side], requests: int, turns: int) -> dict[str, list[float]]:
    """Microseconds of the broker's CPU per request, by protocol and turn."""
    (pid,) = cluster.pids()
    address = cluster.bootstrap.rpartition(":")
    clients = [Client((address[0], int(address[2])), side) for side in pair]
    found: dict[str, list[float]] = {side.name: [] for side in pair}
    for client in clients:
        client.run(requests)
    for turn in range(turns):
        for client in clients if turn % 2 == 0 else reversed(clients):  # the second one has warmer caches
            before = cpu_ns(pid)
            client.run(requests)
            found[client.name].append((cpu_ns(pid) - before) / requests / 1000)
    for client in clients:
        client.close()
    return found


def _show(case: str, found: dict[str, list[float]]) -> bool:
    """Print a line; return whether the protocols are as near to each other as they shall be."""
    (ours, our_costs), (theirs, their_costs) = found.items()
    ratios = sorted(theirs / ours for ours, theirs in zip(our_costs, their_costs, strict=True))
    low, ratio, high = statistics.quantiles(ratios, n=4)
    goal = ""
    is_met = abs(math.log(ratio)) <= math.log(1 + GOAL_PERCENT / 100)
    if case not in FOR_INFORMATION:
        goal = f"   goal: within {GOAL_PERCENT} %  {'met' if is_met else 'MISSED'}"
    print(
        f"{case:<19} {ours} {statistics.median(our_costs):6.1f} us   {theirs} {statistics.median(their_costs):6.1f} us   "
        f"ratio {ratio:.2f} (quartiles {low:.2f} to {high:.2f}){goal}",
        flush=True,
    )
    return is_met


def end_offset(cluster: Cluster, topic: str) -> int:
    async def ask() -> int:
        async with Admin(cluster.bootstrap) as admin:
            return (await admin.list_offsets(topic))[TopicPartition(topic, 0)].offset

    return asyncio.run(ask())


def cpu_ns(pid: int) -> int:
    """Of all threads: the loop, the quorum's, and those that work for them."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total


class Client:
    def __init__(self, address: tuple[str, int], side: Side, tls: ssl.SSLContext | None = None) -> None:
        self.name = side.name
        self._frames = side.frames
        self._answer_bytes = side.answer_bytes
        self._sock = socket.create_connection(address)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._sock = tls.wrap_socket(self._sock, server_hostname=address[0])
        self._view = memoryview(bytearray(1 << 20))
        if side.preamble:
            self._sock.sendall(side.preamble)
            self._answer(0)

    def run(self, requests: int) -> None:
        """With `DEPTH` in flight; returns when all are answered and the broker has nothing left to do."""
        frames = self._frames
        for number in range(min(DEPTH, requests)):
            self._sock.sendall(frames[number % len(frames)])
        for number in range(DEPTH, requests + DEPTH):
            self._answer(self._answer_bytes)
            if number < requests:
                self._sock.sendall(frames[number % len(frames)])
        time.sleep(0.002)

    def close(self) -> None:
        self._sock.close()

    def _answer(self, least_bytes: int) -> None:
        self._read(4)
        (size,) = _SIZE.unpack_from(self._view)
        if size < least_bytes:
            raise RuntimeError(f"an answer of {size} bytes by {self.name} protocol: an error was measured")
        self._read(size)

    def _read(self, size: int) -> None:
        got = 0
        while got < size:
            count = self._sock.recv_into(self._view[got:size])
            if not count:
                sys.exit(f"the broker closed the connection of {self.name}")
            got += count


# --- the cases --------------------------------------------------------------------------------------------------------


def _batch() -> bytes:
    return encode_batch(records(_RECORDS, RECORD_BYTES), timestamps_ms=int(time.time() * 1000))


def produce(version: int, acks: int) -> Callable[[Cluster, str], tuple[Side, Side]]:
    def make(cluster: Cluster, topic: str) -> tuple[Side, Side]:
        batch = _batch()
        ours = ProduceRequest(
            acks=acks, timeout_ms=30_000, partitions=(ProducePartition(topic=topic, partition=0, records=batch),)
        )
        types = types_of("ProduceRequest")
        data = types["PartitionProduceData"](index=0, records=batch)
        theirs = types["ProduceRequest"](
            acks=acks,
            timeout_ms=30_000,
            topic_data=[types["TopicProduceData"](name=topic, partition_data=[data])],
        )
        return _sides([ours], 0, version, [theirs], 0)

    return make


def fetch(version: int) -> Callable[[Cluster, str], tuple[Side, Side]]:
    def make(cluster: Cluster, topic: str) -> tuple[Side, Side]:
        filler, _ = produce(9, 1)(cluster, topic)
        address = cluster.bootstrap.rpartition(":")
        client = Client((address[0], int(address[2])), filler)
        client.run(STORED_BATCHES)
        client.close()
        ours, theirs = [], []
        types = types_of("FetchRequest")
        for number in range(STORED_BATCHES):
            partition = FetchPartition(
                topic=topic, partition=0, fetch_offset=number * _RECORDS, max_bytes=BATCH_BYTES, current_leader_epoch=-1
            )
            ours.append(FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, partitions=(partition,)))
            item = types["FetchPartition"](
                partition=0, fetch_offset=number * _RECORDS, partition_max_bytes=BATCH_BYTES, current_leader_epoch=-1
            )
            theirs.append(
                types["FetchRequest"](
                    max_wait_ms=500,
                    min_bytes=1,
                    max_bytes=1 << 20,
                    topics=[types["FetchTopic"](topic=topic, partitions=[item])],
                )
            )
        return _sides(ours, 1, version, theirs, _RECORDS * RECORD_BYTES)

    return make


def _metadata(version: int) -> Callable[[Cluster, str], tuple[Side, Side]]:
    def make(cluster: Cluster, topic: str) -> tuple[Side, Side]:
        types = types_of("MetadataRequest")
        theirs = types["MetadataRequest"](
            topics=[types["MetadataRequestTopic"](name=topic)], allow_auto_topic_creation=False
        )
        return _sides([MetadataRequest(topics=(topic,))], 3, version, [theirs], METADATA_PARTITIONS * 10)

    return make


def _sides(ours: list[Request], key: int, version: int, theirs: list[object], answer_bytes: int) -> tuple[Side, Side]:
    codec = MsgpackCodec()
    our_frames = [b"".join(map(bytes, codec.encode_request(7, request))) for request in ours]  # type: ignore[arg-type]
    hello = PREAMBLE + write_hello(ClientHello(versions=(1,), client_id="benchmark"))
    return (
        Side(name="ours", preamble=hello, frames=our_frames, answer_bytes=answer_bytes),
        Side(
            name="Kafka's",
            preamble=b"",
            frames=[frame(key, version, body) for body in theirs],
            answer_bytes=answer_bytes,
        ),
    )


CASES = {
    "produce v7 acks=1": produce(7, 1),
    "produce v9 acks=1": produce(9, 1),
    "produce v9 acks=all": produce(9, -1),
    "fetch v4": fetch(4),
    "fetch v11": fetch(11),
    "fetch v12": fetch(12),
    "metadata v9, 100": _metadata(9),
}
FOR_INFORMATION = ("metadata v9, 100",)
