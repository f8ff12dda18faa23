"""A cluster of real brokers that is operated over HTTP alone: moves, leaders, records, groups, voters; a broker that leaves."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from integration.cluster import Cluster, full_isr, partitions_of, until
from integration.load import send

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer

pytestmark = pytest.mark.timeout(240)


class Http:
    def __init__(self, cluster: Cluster) -> None:
        self._base = f"http://{cluster.nodes[0].property('admin.listener')}/v3/clusters"
        self._base += f"/{self._asked('GET', '')[1]['data'][0]['cluster_id']}/"

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """The answer. Errors are errors of the test."""
        status, answer = await asyncio.to_thread(self._asked, method, path, body)
        assert status < 300, (method, path, answer)
        return answer

    def _asked(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._base}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, error.read()


async def test_partitions_records_and_groups(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    http = await asyncio.to_thread(Http, cluster)
    place = "topics/orders/partitions/0"
    async with cluster.admin() as admin:
        await admin.create_topic("orders", assignment=[[0, 1]])
        await send(cluster.bootstrap, "orders", [b"%d" % number for number in range(10)])
        await http("POST", f"{place}/reassignment", {"replicas": [2, 1]})

        async def has_moved() -> bool:
            return (await partitions_of(admin, "orders"))[0].replicas == (2, 1) and not (
                await http("GET", "barnabas/moves")
            )["data"]

        await until(has_moved, "the partition has moved")
        await full_isr(admin, ["orders"])
        assert (await http("POST", f"{place}/leader", {"broker_id": 1}))["leader"] == 1
        assert (await http("POST", f"{place}/leader", {}))["leader"] == 2, "the preferred one"
        assert (await http("DELETE", f"{place}/records?before_offset=4"))["start_offset"] == 4
        async with Consumer("orders", bootstrap=cluster.bootstrap, group="g", auto_commit=False) as consumer:
            while not consumer.assignment:
                await consumer.poll(timeout_ms=200)
            await consumer.commit({TopicPartition("orders", 0): 7})
            (member,) = (await http("GET", "consumer-groups/g/consumers"))["data"]
            await http("DELETE", f"consumer-groups/g/consumers/{member['consumer_id']}")
            causes = (await http("GET", "consumer-groups/g/explain"))["rebalances"]
            assert "removed by an operator" in json.dumps(causes)
        assert await http("DELETE", "consumer-groups/g/offsets/orders") == {
            "topic_name": "orders",
            "partition_ids": [0],
        }
        assert (await http("GET", "consumer-groups/g/lags"))["data"] == []


async def test_a_broker_comes_and_leaves(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    http = await asyncio.to_thread(Http, cluster)
    async with cluster.admin() as admin:
        await admin.create_topic("orders", partitions=8, replication_factor=3)
        cluster.add(3)
        await cluster.ready()
        assert (await http("POST", "brokers/3/barnabas/fill"))["moves_count"] > 0
        await http("PUT", "quorum/voters/3")

        async def is_voter() -> bool:
            """The broker that is asked may know it a moment later than the controller that answered."""
            return 3 in (await http("GET", "quorum"))["voters"]

        await until(is_voter, "broker 3 is a voter")
        await http("DELETE", "quorum/voters/3")

        async def holds(count: int) -> bool:
            if (await http("GET", "barnabas/moves"))["data"]:
                return False
            overview = await http("GET", "overview")
            found = next(item for item in overview["brokers"] if item["broker_id"] == 3)
            return bool(found["replicas"] > 0) == (count > 0)

        await until(lambda: holds(1), "broker 3 has its share")
        await http("POST", "brokers/3/barnabas/decommission")
        await http("DELETE", "brokers/3/barnabas/decommission")
        await http("POST", "brokers/3/barnabas/decommission")
        await until(lambda: holds(0), "broker 3 is empty")
        await http("POST", "brokers/3/barnabas/drain")
        await until(lambda: not cluster.nodes[3].is_running, "it has stopped")

        async def is_gone() -> bool:
            status, _ = await asyncio.to_thread(http._asked, "DELETE", "brokers/3")
            listed = [item["broker_id"] for item in (await http("GET", "brokers"))["data"]]
            return status in (204, 404) and listed == [0, 1, 2]

        await until(is_gone, "it is unregistered, and not listed any more")
        await full_isr(admin, ["orders"])
