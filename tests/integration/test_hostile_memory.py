"""What clients can make a broker hold: bounded together, given back at once, and honest clients get their turn."""

from collections.abc import Callable

from hostile.idle_connections import idle_connections
from hostile.unfinished_requests import ABORTED_ONES, UNFINISHED
from hostile.watch import Watch, rss_mib
from integration.cluster import Cluster, until

from barnabas.net.client.producer.producer import Producer

MAX_RSS_MIB = 300  # 128 MiB of network.memory.max.bytes, a buffer that is copied as it grows, and the broker itself
MAX_RSS_AFTERWARDS_MIB = 100
LONGEST_HELD_S = 2.0  # of a machine that is busy with other tests
IDLE = 2_000
MAX_IDLE_MIB = 40  # 20 KiB each; a buffer of 32 KiB for each was 62 MiB by itself
TOPIC = "orders"
Maker = Callable[..., Cluster]
Report = Callable[[str], None]


async def test_unfinished_requests_share_one_budget(new_cluster: Maker, report_line: Report) -> None:
    cluster = await new_cluster(1).ready()
    (node,) = cluster.nodes
    async with Watch((node.host, node.port), node.process.pid) as watch, Producer(node.address) as producer:
        await (await producer.send(TOPIC, b"before"))
        async with UNFINISHED.run([(node.host, node.port)]):
            await until(lambda: watch.peak_rss_mib > 120, "the strangers have sent what the broker takes")
            for _ in range(5):  # larger than what is read without memory of its own
                await (await producer.send(TOPIC, b"x" * 600_000))
        report_line(f"{UNFINISHED.name}: {watch}")
        assert watch.peak_rss_mib < MAX_RSS_MIB
        assert watch.longest_held_s < LONGEST_HELD_S
        await until(lambda: rss_mib(node.process.pid) < MAX_RSS_AFTERWARDS_MIB, "the memory went back")


async def test_a_closed_connection_leaves_nothing(new_cluster: Maker, report_line: Report) -> None:
    cluster = await new_cluster(1).ready()
    (node,) = cluster.nodes
    async with Watch((node.host, node.port), node.process.pid) as watch:
        async with ABORTED_ONES.run([(node.host, node.port)]):
            pass
        report_line(f"{ABORTED_ONES.name}: {watch}")
        assert watch.peak_rss_mib < MAX_RSS_MIB
        await until(lambda: rss_mib(node.process.pid) < MAX_RSS_AFTERWARDS_MIB, "the memory went back")


async def test_an_idle_connection_has_no_buffer_of_its_own(new_cluster: Maker, report_line: Report) -> None:
    cluster = await new_cluster(1).ready()
    (node,) = cluster.nodes
    async with Watch((node.host, node.port), node.process.pid) as watch:
        before = rss_mib(node.process.pid)
        async with idle_connections([(node.host, node.port)], IDLE):
            grown = rss_mib(node.process.pid) - before
            report_line(f"{IDLE} idle connections: {grown:.0f} MiB; {watch}")
            assert grown < MAX_IDLE_MIB
        assert watch.longest_held_s < LONGEST_HELD_S
