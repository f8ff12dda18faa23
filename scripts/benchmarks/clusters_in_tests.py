"""`scripts/benchmark testing`: how long `barnabas.testing` lets a test wait, and what it costs in memory and in imports.

Each measurement that begins with an import runs in a process of its own. The goals stand beside the figures; no exit code depends
on them, because a busy machine misses them all.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import rss_mib

REPETITIONS = 5
GOALS_MS = {
    "in-process, 1 broker, ready": 100,
    "in-process, 3 brokers, ready": 300,
    "processes, 3 brokers, ready": 1000,
    "in-process, 3 brokers, reset": 20,
    "processes, 3 brokers, reset": 20,
    "down of 5 brokers": 2000,
}
GOAL_MIB = 60


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark testing", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--repeat", type=int, default=REPETITIONS, metavar="N")
    parser.add_argument("--part", choices=list(_PARTS), help="one part, as JSON: used by this command itself")
    arguments = parser.parse_args(words)
    if arguments.part:
        print(json.dumps(_PARTS[arguments.part](arguments.repeat)))
        return 0
    for part in _PARTS:
        for name, values in _in_own_process(part, arguments.repeat).items():
            print(_line(name, values), flush=True)
    return 0


def _in_own_process(part: str, repeat: int) -> dict[str, list[float]]:
    command = [sys.executable, str(Path(__file__).parent), "testing", "--part", part, "--repeat", str(repeat)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _line(name: str, values: list[float]) -> str:
    unit = "MiB" if "memory" in name else "ms"
    goal = GOAL_MIB if unit == "MiB" and name.endswith("3 brokers") else GOALS_MS.get(name)
    told = f", goal {goal}" if goal else ""
    return f"{name:44} {statistics.median(values):8.1f} {unit} (least {min(values):.1f}, most {max(values):.1f}{told})"


def _timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1000


def _imports(repeat: int) -> dict[str, list[float]]:
    programs = {
        "import of the pytest plugin": "import pytest, time; t = time.perf_counter(); import barnabas.net.testing.pytest_plugin",
        "import of barnabas.testing": "import time; t = time.perf_counter(); import barnabas.testing",
        "import of the brokers": (
            "import time, barnabas.testing; t = time.perf_counter(); import barnabas.net.testing.brokers.thread_broker"
        ),
    }
    show = "; print((time.perf_counter() - t) * 1000)"
    return {
        name: [float(subprocess.check_output([sys.executable, "-c", text + show])) for _ in range(repeat)]
        for name, text in programs.items()
    }


def _lives(backend: str, brokers: int) -> Callable[[int], dict[str, list[float]]]:
    def measure(repeat: int) -> dict[str, list[float]]:
        from barnabas.testing import Cluster

        name = f"{backend}, {brokers} broker{'s' if brokers > 1 else ''}"
        ready, reset, close = [], [], []
        with Cluster(brokers, backend=backend) as first:  # imports
            first.create_topic("orders", partitions=3)
            first.create_topic("bills")
            memory_mib = rss_mib(os.getpid())
        for _ in range(repeat):
            cluster = Cluster(brokers, backend=backend)
            ready.append(_timed(cluster.start))
            cluster.reset()
            for _ in range(3):
                cluster.create_topic("orders", partitions=3)
                cluster.create_topic("bills")
                reset.append(_timed(cluster.reset))
            close.append(_timed(cluster.close))
        found = {f"{name}, ready": ready, f"{name}, reset": reset, f"{name}, close": close}
        if backend == "in-process":
            found[f"memory of this process, {name}"] = [memory_mib]
        return found

    return measure


def _down(repeat: int) -> dict[str, list[float]]:
    import tempfile

    from barnabas.net.base.local import local_cluster

    times = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "cluster"
            subprocess.run(
                [sys.executable, "-m", "barnabas", "up", "-n", "5", "--port", "0", "--dir", str(folder), "--detach"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            times.append(_timed(lambda folder=folder: local_cluster.stop_folder(folder)))  # type: ignore[misc]
    return {"down of 5 brokers": times}


_PARTS: dict[str, Callable[[int], dict[str, list[float]]]] = {
    "imports": _imports,
    "in-process-1": _lives("in-process", 1),
    "in-process-3": _lives("in-process", 3),
    "processes-1": _lives("processes", 1),
    "processes-3": _lives("processes", 3),
    "down": _down,
}
