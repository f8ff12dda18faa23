"""Batches that cost much to look into: the broker answers others meanwhile, and its memory stays within its bounds."""

import signal
from collections.abc import Callable

import pytest
from hostile.attack import Attack
from hostile.expensive_batches import ATTACKS
from hostile.watch import Watch
from integration.cluster import Cluster, until

LONGEST_HELD_S = 1.5  # The loop is never held for 0.1 s; the rest is for disks and clocks of a busy machine.
MAX_RSS_MIB = 300
MAX_RSS_AFTERWARDS_MIB = 100
Maker = Callable[..., Cluster]


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
async def test_others_are_answered_meanwhile(
    new_cluster: Maker, attack: Attack, report_line: Callable[[str], None]
) -> None:
    cluster = await new_cluster(1).ready()
    (node,) = cluster.nodes
    async with Watch((node.host, node.port), node.process.pid) as watch:
        async with attack.run([(node.host, node.port)]):
            pass
        report_line(f"{attack.name}: {watch}")
        assert watch.pings > 3
        assert watch.longest_held_s < LONGEST_HELD_S
        assert watch.peak_rss_mib < MAX_RSS_MIB
        await until(lambda: watch.rss_mib < MAX_RSS_AFTERWARDS_MIB, "the memory went back")
    assert "broker=0 fenced" not in node.log()


async def test_a_loop_that_stands_still_is_seen(new_cluster: Maker) -> None:
    cluster = await new_cluster(1).ready()
    (node,) = cluster.nodes
    async with Watch((node.host, node.port), node.process.pid) as watch:
        await until(lambda: watch.pings > 3, "it answers")
        node.signal(signal.SIGSTOP)
        try:
            await until(lambda: watch.longest_held_s > LONGEST_HELD_S, "the answer is missed")
        finally:
            node.signal(signal.SIGCONT)
