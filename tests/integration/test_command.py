"""The command and the scripts, end to end: from `up` to `down`, with what they print and the exit codes that scripts rely on."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.cluster import clean_environment
from integration.load import send

from barnabas.net.base.local.local_cluster import read_pid_file
from barnabas.net.base.local.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
BARNABAS = (sys.executable, "-P", "-m", "barnabas")
TIMEOUT_S = 90
MAX_IDLE_RSS_MIB = 60


class Up:
    """`barnabas up` in the foreground, in a folder of its own, on free ports."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [*BARNABAS, "up", "--dir", str(folder), "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def wait_ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready_s = time.monotonic() - self.started_s
        assert line.startswith("ready "), line + self.complaint() + self.logs()
        return line.split()[1]

    def complaint(self) -> str:
        """What it said when it failed."""
        self.process.kill()
        return self.process.communicate()[1]

    def pids(self) -> dict[int, int]:
        found = {int(path.parent.name): read_pid_file(path) for path in self.folder.glob("*/broker.pid")}
        return {node: pid for node, pid in found.items() if pid is not None}

    def logs(self) -> str:
        paths = sorted(self.folder.glob("*/broker.log"))
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def close(self) -> None:
        for pid in self.pids().values():
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def run(*words: str, given: str = "", bootstrap: str = "", code: int = 0) -> str:
    """Run the command; returns what it says on stdout. Any other exit code than `code` shows both outputs."""
    environment = {**clean_environment(), **({"BARNABAS_BOOTSTRAP": bootstrap} if bootstrap else {})}
    done = subprocess.run(
        [*BARNABAS, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def run_json(*words: str, bootstrap: str) -> Any:
    return json.loads(run(*words, "--format", "json", bootstrap=bootstrap))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("up") / "cluster", "-n", "3")
    yield started
    started.close()


@pytest.fixture(scope="module")
def bootstrap(up: Up) -> str:
    return up.wait_ready()


def test_up_is_quick_and_small(up: Up, bootstrap: str) -> None:
    assert asyncio.run(send(bootstrap, "first", [b"value"])) == [0]
    acknowledged_s = time.monotonic() - up.started_s
    sizes = {}
    for node, pid in up.pids().items():
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        sizes[node] = int(found[1]) / 1024
    told = ", ".join(f"{size:.0f}" for _, size in sorted(sizes.items()))
    print(
        f"\nbarnabas up -n 3: ready after {up.ready_s:.2f} s, first acks=all acknowledgement after "
        f"{acknowledged_s:.2f} s; RSS of idle brokers {told} MiB"
    )
    assert len(sizes) == 3 and max(sizes.values()) <= MAX_IDLE_RSS_MIB


def test_a_topic_from_its_creation_to_its_end(bootstrap: str) -> None:
    run("topic", "create", "orders", "-p", "3", "-r", "3", "-c", "min.insync.replicas=2", bootstrap=bootstrap)
    run("topic", "create", "orders", "-p", "3", bootstrap=bootstrap, code=1)
    run("topic", "create", "orders", "--if-not-exists", bootstrap=bootstrap)
    assert "orders" in run("topic", "list", bootstrap=bootstrap).split()
    told = run_json("topic", "describe", "orders", bootstrap=bootstrap)
    assert [len(item["isr"]) for item in told["partitions"]] == [3, 3, 3]
    lines = [f"customer-{number % 7}:order {number}" for number in range(1_000)]
    run("topic", "produce", "orders", "-k", ":", given="\n".join(lines) + "\n", bootstrap=bootstrap)
    read = run("topic", "consume", "orders", bootstrap=bootstrap).splitlines()
    assert sorted(read) == sorted(line.partition(":")[2] for line in lines)
    assert len(run("topic", "consume", "orders", "-n", "10", bootstrap=bootstrap).splitlines()) == 10
    run("topic", "alter", "orders", "-c", "retention.ms=3600000", bootstrap=bootstrap)
    run("topic", "add-partitions", "orders", "-n", "2", bootstrap=bootstrap)
    told = run_json("topic", "describe", "orders", bootstrap=bootstrap)
    assert len(told["partitions"]) == 5 and told["configs"]["retention.ms"] == "3600000"
    run("topic", "create", "short-lived", bootstrap=bootstrap)
    run("topic", "delete", "short-lived", bootstrap=bootstrap)
    run("topic", "describe", "short-lived", bootstrap=bootstrap, code=1)


def test_a_group_from_its_first_commit_to_a_seek(bootstrap: str) -> None:
    run("topic", "create", "jobs", "-p", "2", "-r", "3", bootstrap=bootstrap)
    run("topic", "produce", "jobs", given="".join(f"job {number}\n" for number in range(100)), bootstrap=bootstrap)
    first = run("topic", "consume", "jobs", "-g", "workers", "-n", "40", bootstrap=bootstrap).splitlines()
    second = run("topic", "consume", "jobs", "-g", "workers", bootstrap=bootstrap).splitlines()
    assert len(first) == 40 and len(second) == 60
    assert {*first, *second} == {f"job {number}" for number in range(100)}
    assert "workers" in run("group", "list", bootstrap=bootstrap)
    assert "jobs" in run("group", "describe", "workers", bootstrap=bootstrap)
    run("group", "explain", "workers", bootstrap=bootstrap)
    preview = run_json("group", "seek", "workers", "--to", "start", "--preview", bootstrap=bootstrap)
    assert {row["after"] for row in preview} == {0} and sum(row["before"] for row in preview) == 100
    run("group", "seek", "workers", "--to", "start", bootstrap=bootstrap)
    assert len(run("topic", "consume", "jobs", "-g", "workers", bootstrap=bootstrap).splitlines()) == 100
    run("group", "delete", "workers", bootstrap=bootstrap)
    run("group", "describe", "workers", bootstrap=bootstrap, code=1)


def test_the_cluster_tells_of_itself(bootstrap: str) -> None:
    assert run_json("cluster", "health", bootstrap=bootstrap) == {"healthy": True, "causes": []}
    told = run_json("cluster", "describe", bootstrap=bootstrap)
    assert [row["state"] for row in told["brokers"]] == ["active"] * 3
    quorum = run_json("cluster", "quorum", bootstrap=bootstrap)
    assert quorum["voters"] == [0, 1, 2] and quorum["leader"] in (0, 1, 2)


def test_nobody_there_is_exit_code_4() -> None:
    run("cluster", "health", "--timeout", "3", bootstrap=f"127.0.0.1:{free_ports(1)[0]}", code=4)
    run("topic", "list", "--timeout", "3", bootstrap=f"127.0.0.1:{free_ports(1)[0]}", code=4)


def test_a_second_up_in_the_same_folder_is_refused(up: Up, bootstrap: str) -> None:
    done = subprocess.run(
        [*BARNABAS, "up", "--dir", str(up.folder), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 1 and "barnabas down" in done.stderr
    assert bootstrap and run_json("cluster", "health", bootstrap=bootstrap)["healthy"]


def test_a_dead_broker_is_exit_code_3_and_down_ends_the_rest(up: Up, bootstrap: str) -> None:
    """The last test of this cluster."""
    pids = up.pids()
    controller = run_json("cluster", "quorum", bootstrap=bootstrap)["leader"]
    victim = next(node for node in pids if node != controller)
    os.kill(pids[victim], signal.SIGKILL)
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        health = subprocess.run(
            [*BARNABAS, "cluster", "health", "--format", "json", "--bootstrap", bootstrap],
            capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment(), check=False,
        )  # fmt: skip
        if health.returncode == 3 or time.monotonic() > deadline_s:
            break
    assert health.returncode == 3, health.stdout + health.stderr
    assert f"broker {victim} is fenced" in " ".join(json.loads(health.stdout)["causes"])
    began_s = time.monotonic()
    run("down", "--dir", str(up.folder))
    print(f"\nbarnabas down: {time.monotonic() - began_s:.2f} s")
    assert time.monotonic() - began_s < 25  # less than the 30 s of controlled.shutdown.timeout.ms
    _, told = up.process.communicate(timeout=TIMEOUT_S)
    assert up.process.returncode == 0
    assert f"broker {victim} was ended by signal 9" in told
    assert not up.pids()


def test_the_scripts_start_and_stop_n_brokers(tmp_path: Path) -> None:
    """In a tree whose .venv is the environment of this test. In ours they would take another, or build one, for a minute."""
    (tmp_path / "scripts").mkdir()
    start, stop, setup = (tmp_path / "scripts" / f"{name}.sh" for name in ("start-cluster", "stop-cluster", "setup"))
    for script in (start, stop):
        shutil.copy(ROOT / "scripts" / script.name, script)
    setup.write_text(
        f"#!/bin/sh\necho set up $1\nln -sfn {shlex.quote(sys.prefix)} {shlex.quote(str(tmp_path / '.venv'))}\n"
    )
    setup.chmod(0o755)
    folder = tmp_path / "cluster"
    done = subprocess.run(
        [start, "3", str(folder), "--port", "0"],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment(), check=False,
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("set up dev\n"), done.stdout
        (ready,) = [line for line in done.stdout.splitlines() if line.startswith("ready ")]
        address = ready.split()[1]
        run("topic", "create", "t", "-r", "3", bootstrap=address)
        run("topic", "produce", "t", given="kept\n", bootstrap=address)
    finally:
        stopped = subprocess.run(
            [stop, str(folder)],
            capture_output=True, text=True, timeout=TIMEOUT_S, env=clean_environment(), check=False,
        )  # fmt: skip
    assert stopped.returncode == 0, stopped.stderr
    assert not [path for path in folder.glob("*/broker.pid") if read_pid_file(path) is not None]
    run("topic", "list", "--timeout", "3", bootstrap=address, code=4)
