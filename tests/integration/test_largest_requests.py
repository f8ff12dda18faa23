"""The largest request that each API of both protocols permits, to a real broker: none holds its loop.

`python -m fuzz.largest` sends more of them and shows what each costs. That long work is cut into slices is tested without a clock
in tests/unit; this test finds the request that has been forgotten.
"""

from pathlib import Path

import pytest
from fuzz.largest import Cost, Reach, measure
from integration.cluster import Cluster

# What the loop computed between a ping and its answer. The worst takes half of it: a follower's fetch of 262,144 partitions.
MAX_BUSY_S = 0.5
MAX_RSS_MIB = 300


@pytest.mark.alone("how long a thread computes depends on the processor's caches, which other tests fill")
@pytest.mark.timeout(600)
async def test_no_permitted_request_holds_the_loop(tmp_path: Path) -> None:
    with Cluster(tmp_path, 1) as cluster:
        await cluster.ready()
        costs = await measure(cluster, reach=Reach.QUICK, say=lambda cost: None)
        lines = cluster.nodes[0].log().splitlines()
    worst = sorted(costs, key=lambda cost: cost.busy_s)[-10:]
    print("\n".join(map(str, worst)))
    assert len(costs) > 100
    assert not [str(cost) for cost in costs if cost.busy_s > MAX_BUSY_S or cost.peak_rss_mib > MAX_RSS_MIB]
    assert not [line for line in lines if "Traceback" in line]


def test_a_cost_is_told_in_one_line() -> None:
    cost = Cost(crowd="c", frame_bytes=1_000_000, answer_bytes=0, busy_s=0.25, longest_s=1, peak_rss_mib=90)
    assert str(cost).startswith("computed   250 ms") and str(cost).endswith(": c")
