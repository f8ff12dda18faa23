"""A whole cluster stops quickly: nothing waits for a quorum that stops as well."""

import time
from collections.abc import Callable

from integration.cluster import Cluster

from barnabas.net.base.local import local_cluster

# A controlled shutdown may take 30 s. Without the second signal, brokers without a vote needed all of that.
STOP_S = 15.0  # On an idle machine less than 1 s.


async def test_five_brokers_stop_at_once(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(5).ready()
    began_s = time.monotonic()
    stopped = local_cluster.stop_folder(cluster.folder)
    assert time.monotonic() - began_s < STOP_S
    assert sorted(stopped) == sorted(node.process.pid for node in cluster.nodes)
    assert [node.process.wait() for node in cluster.nodes] == [0] * 5


async def test_a_broker_that_is_asked_twice_does_not_wait_for_its_clients(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(4).ready()
    observer = cluster.nodes[3]
    cluster.kill(0, 1, 2)
    began_s = time.monotonic()
    observer.process.terminate()
    observer.process.terminate()
    assert observer.process.wait(STOP_S) == 0
    assert time.monotonic() - began_s < STOP_S
