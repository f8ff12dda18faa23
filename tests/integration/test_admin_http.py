"""The HTTP API of a real broker: programs may use it, pages that a browser shows may not."""

import asyncio
import http.client
import json
from collections.abc import Callable
from functools import partial

from integration.cluster import Cluster, until

from barnabas.net.client.producer.producer import Producer

Maker = Callable[..., Cluster]
EVIL = {"Host": "evil.example:35502", "Origin": "http://evil.example:35502"}
JSON = {"Content-Type": "application/json"}


def ask(address: str, method: str, path: str, headers: dict[str, str], body: object = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def cluster_id_of(address: str) -> str:
    status, told = await asyncio.to_thread(ask, address, "GET", "/v3/clusters", {})
    return str(json.loads(told)["data"][0]["cluster_id"]) if status == 200 else ""


async def test_a_page_that_a_browser_shows_can_neither_read_nor_change_a_cluster(new_cluster: Maker) -> None:
    cluster = await new_cluster(1, admin_allowed_hosts="metrics.example").ready()
    address = cluster.nodes[0].property("admin.listener")

    def call(method: str, path: str, headers: dict[str, str] | None = None, body: object = None) -> tuple[int, str]:
        return ask(address, method, path, headers or {}, body)

    topics = f"/v3/clusters/{await until(partial(cluster_id_of, address), 'the cluster has an id')}/topics"
    new = {"topic_name": "kept", "partitions_count": 1}
    assert (await asyncio.to_thread(call, "POST", topics, JSON, new))[0] == 201
    expected = (
        (call("GET", "/v3/clusters", EVIL), 403),
        (call("GET", "/metrics", EVIL), 403),
        (call("DELETE", f"{topics}/kept", EVIL), 403),
        (call("DELETE", f"{topics}/kept", {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}), 403),
        (call("POST", topics, {"Content-Type": "text/plain", "Origin": "http://evil.example"}, new), 403),
        (call("POST", topics, {"Content-Type": "text/plain"}, new), 415),
        (call("OPTIONS", f"{topics}/kept", {"Origin": "http://evil.example"}), 405),
        (call("GET", "/metrics", {"Host": "metrics.example:9094"}), 200),
        (call("GET", f"{topics}/kept"), 200),
    )
    for (status, told), wanted in expected:
        assert status == wanted, told


async def test_every_broker_shows_the_records_of_every_partition(new_cluster: Maker) -> None:
    """Also those that it leads itself: there the records still lie in a file when its own dispatcher answers."""
    cluster = await new_cluster(3).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("read", partitions=3, replication_factor=3)
    async with Producer(cluster.bootstrap) as producer:
        for number in range(30):
            await producer.send("read", b"%d" % number, partition=number % 3)
    cluster_id = await until(
        partial(cluster_id_of, cluster.nodes[0].property("admin.listener")), "the cluster has an id"
    )
    for node in cluster.nodes:
        for partition in range(3):
            path = f"/v3/clusters/{cluster_id}/topics/read/partitions/{partition}/records?offset=0"
            status, told = await asyncio.to_thread(ask, node.property("admin.listener"), "GET", path, {})
            assert status == 200, told
            values = [int(row["value"]["text"]) for row in json.loads(told)["data"]]
            assert values == list(range(partition, 30, 3))
