"""Brokers and clients on uvloop instead of asyncio's own loop: the classes of its transports and servers are others."""

import asyncio
import sys
import urllib.request
from collections.abc import Callable

import pytest
import uvloop
from integration.cluster import Cluster

from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
LIMIT_S = 60.0
COUNT = 300
LARGE = b"x" * 900_000  # more than one write takes
# `broker_process.run` uses the loop of the policy.
PROGRAM = """
import asyncio, sys, uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
from barnabas.__main__ import main
sys.exit(main())
"""
LAUNCHER = (sys.executable, "-P", "-c", PROGRAM, "broker", "start", "--config")


@pytest.mark.parametrize("secure", [False, True], ids=["plain text", "TLS"])
def test_records_are_replicated_and_read_on_uvloop(new_cluster: Maker, secure: bool) -> None:
    cluster = new_cluster(3, launcher=LAUNCHER, secure=secure)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_records(cluster))
    for node in cluster.nodes:
        assert "uvloop" in _libraries(node.process.pid), "the broker runs on another loop"
        assert "Traceback" not in node.log()
    if not secure:
        with urllib.request.urlopen(
            f"http://{cluster.nodes[0].property('admin.listener')}/metrics", timeout=30
        ) as page:
            assert b"barnabas_loop_delay_seconds_count" in page.read()


def _libraries(pid: int) -> str:
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return maps.read()


async def _records(cluster: Cluster) -> None:
    await cluster.ready()
    async with cluster.admin() as admin:
        await admin.create_topic("orders", partitions=3, replication_factor=3)
    sent = [b"%d" % number for number in range(COUNT)] + [LARGE]
    async with Producer(cluster.bootstrap, acks="all", **cluster.security) as producer:
        for number, value in enumerate(sent):
            await producer.send("orders", value, partition=number % 3)
        await producer.flush()
    found: list[bytes] = []
    reader = Consumer(
        "orders", bootstrap=cluster.bootstrap, group="readers", auto_offset_reset="earliest", **cluster.security
    )
    async with reader, asyncio.timeout(LIMIT_S):
        while len(found) < len(sent):
            found += [record.value or b"" for records in (await reader.poll()).values() for record in records]
    assert sorted(found) == sorted(sent)
