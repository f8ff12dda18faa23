"""`scripts/benchmark start`: from the start of a cluster to its first acknowledged record, and the memory of its idle brokers.

Each turn starts a new cluster of one broker, then one of three. The record goes to a topic that is created first, with acks=all
and a replica on every broker; the client is this process, which has imported all it needs. Bytecode is there, as pip leaves it: a
first start, which is not measured, writes it. Seconds of the wall depend on what else the machine does, and on its cores, which
three brokers share; the processor time of the brokers until the record is acknowledged depends less. Memory is VmRSS of the
largest broker, at rest. `scripts/compiled scripts/benchmark start` measures what mypyc has compiled.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from measure import cpu_of, rss_mib

from barnabas import Admin, BarnabasError, Producer
from barnabas.net.base.local import local_cluster
from barnabas.net.base.local.local_cluster import Plan

START_TIMEOUT_S = 60.0
SETTLE_S = 5.0  # until what the start has left behind is freed
RETRY_S = 0.01
SIZES = (1, 3)
TOPIC = "first"
GOAL_S = 1.0


class _Start(NamedTuple):
    wall_s: float
    cpu_s: float  # of all brokers
    memory_mib: float  # of the largest one


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark start", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="starts of each size; default: 5")
    options = parser.parse_args(arguments)
    found: dict[int, list[_Start]] = {size: [] for size in SIZES}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="barnabas-bytecode-") as bytecode:
        # Without bytecode, a broker would compile 860 modules at each start.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        _start(1)
        for _ in range(options.turns):
            for size, starts in found.items():
                starts.append(_start(size))
    print(
        f"{_version()}; {os.cpu_count()} cores, load {load:.1f} before; medians of {options.turns} turns, their range"
    )
    for size, starts in found.items():
        walls, cpus, memories = zip(*starts, strict=True)
        print(
            f"{size} broker{'s' if size > 1 else ''}: first acks=all after {_spread(walls)} s (goal {GOAL_S:g}, quiet), "
            f"processor time of the brokers {_spread(cpus)} s, memory of an idle broker {_spread(memories, 1)} MiB"
        )
    return 0


def _version() -> str:
    """What is compiled, too."""
    return subprocess.check_output([sys.executable, "-P", "-m", "barnabas", "--version"], text=True).strip()


def _spread(values: tuple[float, ...], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _start(size: int) -> _Start:
    with tempfile.TemporaryDirectory(prefix="barnabas-start-") as name:
        began = time.perf_counter()
        plan = Plan(folder=Path(name) / "cluster", broker_count=size, base_port=0, die_with_parent=True)
        brokers = local_cluster.start(plan)
        try:
            asyncio.run(_first_record(",".join(broker.address for broker in brokers), size))
            wall_s = time.perf_counter() - began
            pids = [broker.process.pid for broker in brokers]
            cpu_s = sum(map(cpu_of, pids))
            time.sleep(SETTLE_S)
            return _Start(wall_s, cpu_s, max(map(rss_mib, pids)))
        finally:
            local_cluster.stop(brokers, timeout_s=10)


async def _first_record(bootstrap: str, size: int) -> None:
    """The cluster may still be forming."""
    deadline = time.perf_counter() + START_TIMEOUT_S
    while True:
        try:
            async with Admin(bootstrap) as admin:
                await admin.create_topic(TOPIC, partitions=1, replication_factor=size)
            break
        except BarnabasError:
            if time.perf_counter() > deadline:
                raise
            await asyncio.sleep(RETRY_S)
    async with Producer(bootstrap, acks="all") as producer:
        await (await producer.send(TOPIC, b"first"))
