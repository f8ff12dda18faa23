"""The HTTP API of a real broker: programs may use it, pages that a browser shows may not."""

import asyncio
import http.client
import json
from collections.abc import Callable

from integration.cluster import Cluster, until

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


async def test_a_page_that_a_browser_shows_can_neither_read_nor_change_a_cluster(new_cluster: Maker) -> None:
    cluster = await new_cluster(1, admin_allowed_hosts="metrics.example").ready()
    address = cluster.nodes[0].property("admin.listener")

    def call(method: str, path: str, headers: dict[str, str] | None = None, body: object = None) -> tuple[int, str]:
        return ask(address, method, path, headers or {}, body)

    async def known() -> str:
        _, told = await asyncio.to_thread(call, "GET", "/v3/clusters")
        return str(json.loads(told)["data"][0]["cluster_id"])

    topics = f"/v3/clusters/{await until(known, 'the cluster has an id')}/topics"
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
