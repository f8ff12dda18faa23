"""acks=all while followers are cut off: it goes on without one of three, and refuses without two, before it appends."""

import asyncio
import time
from pathlib import Path

import pytest
from faults import network
from faults.cluster import CLIENT_PORT, CONFIG, NETWORK_NEED, FaultCluster
from faults.replicas import read_replica
from faults.test_campaign import connected
from integration.cluster import until

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import DeliveryTimeoutError
from barnabas.net.client.producer.producer import Producer

TOPIC = "campaign"
LAG_MS = 1_000
# Sessions are long, so that only the lag of a replica can take it out of the ISR.
LAGGING = {**CONFIG, "replica.lag.time.max.ms": str(LAG_MS), "broker.session.timeout.ms": "60000"}


def cluster_of(folder: Path) -> FaultCluster:
    if lacking := network.why_not():
        pytest.skip(lacking)
    return FaultCluster(folder / "cluster", needs=frozenset({NETWORK_NEED}), config=LAGGING)


async def isr_is(admin: Admin, *wanted: int) -> None:
    """Returns when it is. `until` gives up after a minute, and says what it saw last."""

    async def is_so() -> bool:
        return set((await admin.describe_topic(TOPIC)).partitions[0].isr) == set(wanted)

    await until(is_so, f"the ISR is {wanted}")


def test_acks_all_goes_on_without_a_follower_that_is_cut_off(tmp_path: Path) -> None:
    asyncio.run(cut_one_off(tmp_path))


async def cut_one_off(folder: Path) -> None:
    with cluster_of(folder) as cluster:
        cluster.start()
        async with await connected(cluster) as admin, Producer(cluster.bootstrap) as producer:
            controller = (await admin.describe_cluster()).controller_id
            leader, follower = (node_id for node_id in range(3) if node_id != controller)
            await admin.create_topic(TOPIC, assignment=[[leader, follower, controller]])
            assert (await (await producer.send(TOPIC, b"0"))).offset == 0
            await isr_is(admin, leader, follower, controller)
            assert cluster.network is not None
            began_s = time.monotonic()
            cluster.network.part([leader], [follower])  # both still have the controller
            assert (await (await producer.send(TOPIC, b"1"))).offset == 1
            print(
                f"a follower is cut off, replica.lag.time.max.ms={LAG_MS}: {time.monotonic() - began_s:.2f} s of silence"
            )
            assert time.monotonic() - began_s > LAG_MS / 1000 * 0.9  # it did wait for the follower until then
            await isr_is(admin, leader, controller)
            assert (await (await producer.send(TOPIC, b"2"))).offset == 2
            cluster.network.mend()
            await isr_is(admin, leader, follower, controller)
            assert (await (await producer.send(TOPIC, b"3"))).offset == 3


def test_without_enough_followers_acks_all_is_refused_before_anything_is_appended(tmp_path: Path) -> None:
    asyncio.run(cut_two_off(tmp_path))


async def cut_two_off(folder: Path) -> None:
    with cluster_of(folder) as cluster:
        cluster.start()
        async with await connected(cluster) as admin:
            leader = (await admin.describe_cluster()).controller_id  # so that it can have its ISR changed
            await admin.create_topic(TOPIC, assignment=[[leader, *(n for n in range(3) if n != leader)]])
            async with Producer(cluster.bootstrap) as producer:
                assert (await (await producer.send(TOPIC, b"before"))).offset == 0
            assert cluster.network is not None
            cluster.network.cut_port(leader, CLIENT_PORT)  # replication; the quorum and the clients go on
            here = cluster.brokers[leader].address
            async with Admin(here, client_id="here") as local:
                async with Producer(here, acks=1) as producer:  # followers that lack nothing do not lag
                    assert (await (await producer.send(TOPIC, b"acks=1"))).offset == 1
                await isr_is(local, leader)
                async with Producer(
                    here, request_timeout_ms=2_500, delivery_timeout_ms=3_000, on_error=lambda *_: None
                ) as producer:
                    for _ in range(3):
                        with pytest.raises(
                            DeliveryTimeoutError, match=r"1 in-sync replicas, but min\.insync\.replicas"
                        ):
                            await (await producer.send(TOPIC, b"refused"))
            stored = read_replica(leader, cluster.brokers[leader].data / "logs", (TOPIC, 0)).batches
            assert [(first, end) for first, end, _ in stored] == [(0, 1), (1, 2)]
            cluster.network.mend()
            await isr_is(admin, 0, 1, 2)
            async with Producer(cluster.bootstrap) as producer:
                assert (await (await producer.send(TOPIC, b"after"))).offset == 2
