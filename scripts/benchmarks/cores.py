"""`scripts/benchmark cores`: what one, two and three brokers on this machine take together, in turns, in one run.

Each broker leads one partition without other replicas, and has a client of its own, in a process of its own. Clients and brokers
share the cores, so the processor time of the brokers stands beside the rates: where their cores are all busy, more brokers cannot
bring more.
"""

import argparse
import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from clusters import CLIENT, Cluster
from measure import HERE, Metrics, child, cpu_of

from barnabas import Admin

CONNECTIONS = 50  # of each client, with one request in flight each
RECORDS = 1_000_000  # of each client, of 100 bytes
REQUESTS, BATCHES = "one-record requests", "records of send_many"
RATES = {REQUESTS: "req/s", BATCHES: "msg/s"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark cores", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=3, help="brokers; default: 3")
    parser.add_argument("--turns", type=int, default=3, help="of each number of brokers; default: 3")
    options = parser.parse_args(arguments)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(options.turns):
        for count in range(1, options.most + 1):
            with Cluster(count) as cluster:
                topics = asyncio.run(_topic_of_each(cluster))
                for work in RATES:
                    found.setdefault((work, count), []).append(_together(cluster, topics, work))
    print(f"{os.cpu_count()} cores; medians of {options.turns} turns, their range")
    print(f"{'':24}{'brokers':>8}{'a second, together':>38}{'to one broker':>15}{'cores of brokers':>18}")
    for (work, count), samples in sorted(found.items()):
        rates, cores = zip(*samples, strict=True)
        ratio = statistics.median(rates) / statistics.median(rate for rate, _ in found[work, 1])
        shown = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        print(f"{work:24}{count:8}{shown:>38}{ratio:15.2f}{statistics.median(cores):18.2f}")
    return 0


async def _topic_of_each(cluster: Cluster) -> list[str]:
    """A topic with one partition for each broker, which leads it."""
    topics: dict[int, str] = {}
    async with Admin(cluster.bootstrap) as admin:
        for number in range(10 * cluster.size):
            name = f"cores-{number}"
            await admin.create_topic(name, partitions=1, replication_factor=1)
            topics.setdefault((await admin.describe_topic(name)).partitions[0].leader, name)
            if len(topics) == cluster.size:
                return list(topics.values())
    raise RuntimeError(f"only the brokers {sorted(topics)} got a partition")


def _together(cluster: Cluster, topics: list[str], work: str) -> tuple[float, float]:
    """What all clients get in a second, and the cores that the brokers use meanwhile, starts of the clients included."""

    def run(topic: str) -> Metrics:
        shared = ("--bootstrap", cluster.bootstrap, "--topic", topic)
        if work == REQUESTS:
            servers = ",".join(map(str, cluster.pids()))
            return child(HERE / "kafka_client.py", "requests", *shared, "--depth", CONNECTIONS, "--servers", servers)
        return child(CLIENT, "produce", *shared, "--api", "send_many", "--acks", 1, "--count", RECORDS)

    before, began = sum(map(cpu_of, cluster.pids())), time.perf_counter()
    with ThreadPoolExecutor(len(topics)) as pool:
        rate = sum(found[RATES[work]] for found in pool.map(run, topics))
    used = sum(map(cpu_of, cluster.pids())) - before
    return rate, used / (time.perf_counter() - began)
