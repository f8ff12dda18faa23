"""A real Prometheus scrapes three real brokers, and its alerts fire at real faults: none before them.

The rules are those of docs/monitoring, with shorter times. Needs Debian's package prometheus (scripts/test.sh installs it).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.test_command import Up, run

from barnabas.net.ports import free_ports
from barnabas.sync import Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "monitoring" / "alerts.yml"
LIMIT_S = 60.0
pytestmark = [
    pytest.mark.skipif(not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs Prometheus"),
    pytest.mark.timeout(240),
]


class Prometheus:
    """Scrapes each second, with the rules of the documentation over the last seconds instead of minutes."""

    def __init__(self, folder: Path, admins: list[str]) -> None:
        folder.mkdir()
        text = re.sub(r"for: \d+[mh]", "for: 0s", RULES.read_text(encoding="utf-8"))
        (folder / "alerts.yml").write_text(re.sub(r"\[\d+[mh]\]", "[6s]", text))
        told = {"job_name": "barnabas", "static_configs": [{"targets": admins}]}
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "alerts.yml")],
            "scrape_configs": [told],
        }
        (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        (port,) = free_ports(1)
        self._base = f"http://127.0.0.1:{port}/api/v1/"
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self._base}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def firing(self) -> set[str]:
        return {item["labels"]["alertname"] for item in self.ask("alerts")["alerts"] if item["state"] == "firing"}

    def scrapes(self) -> int:
        """Of each broker, at least."""
        found = self.ask("query", query="min(count_over_time(up[10m]))")["result"]
        return int(found[0]["value"][1]) if found else 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def until(condition: Callable[[], Any], what: Callable[[], str], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # it has not started yet
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.2)  # between two questions to Prometheus, which looks once a second


def admin_of(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("admin.listener=")[2].split()[0].rpartition("/")[2]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Up, str]]:
    started = Up(tmp_path / "cluster", "-n", "3")
    try:
        bootstrap = started.wait_ready()
        run("topic", "create", "t", "-p", "3", "-r", "3", "-c", "min.insync.replicas=2", bootstrap=bootstrap)
        run("topic", "produce", "t", given="a\nb\n", bootstrap=bootstrap)
        run("topic", "consume", "t", "-g", "g", bootstrap=bootstrap)
        yield started, bootstrap
    finally:
        started.close()


@pytest.fixture
def watched(cluster: tuple[Up, str], tmp_path: Path) -> Iterator[Prometheus]:
    """A healthy cluster, of which no alert fires after ten scrapes."""
    admins = [admin_of(path) for path in sorted(cluster[0].folder.glob("*/server.properties"))]
    prometheus = Prometheus(tmp_path / "prometheus", admins)
    try:
        until(lambda: prometheus.scrapes() >= 10, lambda: "ten scrapes")
        assert prometheus.firing() == set()
        yield prometheus
    finally:
        prometheus.close()


def test_the_rules_and_a_scrape_are_what_promtool_accepts(cluster: tuple[Up, str]) -> None:
    checked = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for path in sorted(cluster[0].folder.glob("*/server.properties")):
        with urllib.request.urlopen(f"http://{admin_of(path)}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        complaints = [line for line in checked.stderr.splitlines() if line.startswith("barnabas_")]
        assert checked.returncode in (0, 3), checked.stderr  # 3: it has advice, here on names of kafka_exporter
        assert not complaints, complaints
        assert 'barnabas_request_seconds_bucket{api="produce",part="followers",le="+Inf"}' in text


def test_rules_hold_what_their_unit_tests_say() -> None:
    tests = ROOT / "tests" / "integration" / "alerts_test.yml"
    checked = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_killed_broker(cluster: tuple[Up, str], watched: Prometheus) -> None:
    up, bootstrap = cluster
    run("topic", "create", "one", "-p", "3", "-r", "1", bootstrap=bootstrap)
    run("topic", "create", "all", "-p", "1", "-r", "3", "-c", "min.insync.replicas=3", bootstrap=bootstrap)
    os.kill(up.pids()[1], signal.SIGKILL)
    wanted = {"BrokerDown", "UnderReplicated", "UnderMinIsr", "PartitionWithoutLeader"}
    until(
        lambda: {f"Barnabas{name}" for name in wanted} <= watched.firing(),
        lambda: f"{sorted(wanted)}: {sorted(watched.firing())}",
    )


def test_a_lost_quorum(cluster: tuple[Up, str], watched: Prometheus) -> None:
    for node in (0, 1):
        os.kill(cluster[0].pids()[node], signal.SIGSTOP)
    until(lambda: "BarnabasNoController" in watched.firing(), lambda: f"{sorted(watched.firing())}")


def test_frozen_followers_make_produce_slow(cluster: tuple[Up, str], watched: Prometheus) -> None:
    """A follower that does not answer, and is still in sync, is what acks=all waits for."""
    up, bootstrap = cluster
    is_ended = threading.Event()

    def produce() -> None:
        with Producer(bootstrap, linger_ms=0) as producer:
            number = 0
            while not is_ended.wait(0.05):
                producer.send("t", b"x", partition=number % 3)
                number += 1

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        run("topic", "describe", "t", bootstrap=bootstrap)
        paused = up.pids()[2]
        deadline_s = time.monotonic() + LIMIT_S
        while "BarnabasProduceSlow" not in watched.firing():
            assert time.monotonic() < deadline_s, sorted(watched.firing())
            os.kill(paused, signal.SIGSTOP)
            is_ended.wait(1.8)
            os.kill(paused, signal.SIGCONT)
            is_ended.wait(0.3)
    finally:
        is_ended.set()
        os.kill(up.pids()[2], signal.SIGCONT)
        producing.join(LIMIT_S)


def test_frozen_voters_make_commits_slow(cluster: tuple[Up, str], watched: Prometheus) -> None:
    up, bootstrap = cluster
    (leading,) = watched.ask("query", query="barnabas_active_controller == 1")["result"]
    admins = {admin_of(path): int(path.parent.name) for path in up.folder.glob("*/server.properties")}
    others = [pid for node, pid in up.pids().items() if node != admins[leading["metric"]["instance"]]]
    deadline_s = time.monotonic() + LIMIT_S
    number = 0
    while "BarnabasQuorumCommitSlow" not in watched.firing():
        assert time.monotonic() < deadline_s, sorted(watched.firing())
        changing = threading.Thread(
            target=run,
            args=("topic", "alter", "t", "-c", f"retention.ms={100_000_000 + number}"),
            kwargs={"bootstrap": bootstrap},
        )
        changing.start()
        number += 1
        while changing.is_alive():
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.45)  # less than an election takes
            for pid in others:
                os.kill(pid, signal.SIGCONT)
            changing.join(0.05)
