"""What an operator is told when something is wrong that the metadata does not show: no quorum, wrong addresses."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest
from integration.cluster import Cluster, clean_environment, full_isr, until

Maker = Callable[..., Cluster]


async def barnabas(bootstrap: str, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "barnabas",
        *words,
        "--bootstrap",
        bootstrap,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def has_topic(cluster: Cluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=3, replication_factor=3)
        await full_isr(admin, ["t"])


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_without_a_quorum_state_is_told_with_its_age_and_who_is_missing(
    new_cluster: Maker, end: signal.Signals
) -> None:
    cluster = await new_cluster(4, voters=3).ready()
    await has_topic(cluster)
    one, observer = cluster.nodes[0].address, cluster.nodes[3].address
    code, out, err = await barnabas(one, "cluster", "describe", "-f", "json")
    assert code == 0 and json.loads(out)["unconfirmed"] is None, err
    told = "".join(node.log() for node in cluster.nodes)
    assert "barnabas.topics event=created topic=t " in told and "barnabas.replication event=leads" in told
    for node in cluster.nodes[1:3]:
        node.signal(end)

    async def has_noticed() -> bool:
        """One voter after the other."""
        code, out, _ = await barnabas(one, "cluster", "describe", "-f", "json")
        told = json.loads(out) if code == 3 else {}
        states = [broker["state"] for broker in told.get("brokers", ())]
        return (
            states == ["active", "unreachable", "unreachable", "active"]
            and told["unconfirmed"] is not None
            and told["unconfirmed"]["unreachable_voters"] == [1, 2]
        )

    await until(has_noticed, "the loss of the quorum is told, and both voters that are missing")
    words = "s ago; voters unreachable: 1, 2"

    def is_told_over_http() -> bool:
        with urlopen(f"http://{cluster.nodes[0].property('admin.listener')}/v3/clusters", timeout=30) as answer:
            return words in json.load(answer)["unconfirmed"]["message"]

    async def is_told(*command: str) -> bool:
        """The observer has noticed it by itself."""
        code, out, _ = await barnabas(*command)
        return code == 3 and "no quorum: as of " in out and words in out

    asked = (
        (one, "cluster", "describe"),
        (one, "topic", "describe", "t"),
        (one, "cluster", "health"),
        (observer, "cluster", "health"),
    )  # at the same time, since each waits for brokers that do not answer
    await asyncio.gather(
        until(lambda: asyncio.to_thread(is_told_over_http), "HTTP tells it"),
        *(until(partial(is_told, *command), f"{command} tells it") for command in asked),
    )


async def test_an_advertised_address_at_which_nobody_listens_is_named(new_cluster: Maker) -> None:
    cluster = await new_cluster(1, advertised_listeners="PLAINTEXT://127.0.0.1:1").ready()
    code, out, err = await barnabas(cluster.nodes[0].address, "cluster", "health", "-f", "json")
    (cause,) = json.loads(out)["causes"]
    assert code == 3 and cause.startswith("broker 0 advertises 127.0.0.1:1, which cannot be reached"), err
    assert "advertised.listeners" in cause


async def test_a_broker_that_advertises_the_address_of_another_is_named(new_cluster: Maker) -> None:
    cluster = await new_cluster(1).ready()
    first = cluster.nodes[0]
    node = cluster.add(5, advertised_listeners=f"PLAINTEXT://{first.address}")

    async def named() -> Any:
        assert node.is_running, node.log()
        code, out, _ = await barnabas(first.address, "cluster", "health", "-f", "json")
        return code == 3 and [item for item in json.loads(out)["causes"] if item.startswith("broker 5 advertises")]

    (cause,) = await until(named, "the mismatch is named")
    words = f"broker 5 advertises {first.address}, where broker 0 answers"
    assert words in cause
    await until(lambda: words in node.log(), "the broker itself warns of it")
