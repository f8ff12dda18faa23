"""A real Prometheus scrapes three real brokers, and its alerts fire at real faults: none before them.

The rules are those of docs/monitoring, with shorter times. Needs Debian's package prometheus (scripts/test.sh installs it).
"""

import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.prometheus import LIMIT_S, ROOT, RULES, Prometheus, needs_prometheus, until, watching
from integration.test_command import Up, run

from barnabas.sync import Admin, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

pytestmark = [needs_prometheus, pytest.mark.timeout(240)]


def admin_of(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("admin.listener=")[2].split()[0].rpartition("/")[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, str]]:
    """For all tests: each but the last undoes what it has done."""
    started = Up(tmp_path_factory.mktemp("prometheus") / "cluster", "-n", "3")
    try:
        bootstrap = started.wait_ready()
        run("topic", "create", "t", "-p", "3", "-r", "3", "-c", "min.insync.replicas=2", bootstrap=bootstrap)
        run("topic", "produce", "t", given="a\nb\n", bootstrap=bootstrap)
        run("topic", "consume", "t", "-g", "g", bootstrap=bootstrap)
        yield started, bootstrap
    finally:
        started.close()


@pytest.fixture(scope="module")
def prometheus(cluster: tuple[Up, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    admins = [admin_of(path) for path in sorted(cluster[0].folder.glob("*/server.properties"))]
    with watching(admins, tmp_path_factory.mktemp("watched") / "prometheus") as started:
        yield started


@pytest.fixture
def watched(cluster: tuple[Up, str], prometheus: Prometheus) -> Prometheus:
    until(lambda: is_whole(cluster[1]), lambda: "three brokers take part again")
    prometheus.wait_quiet()
    return prometheus


def is_whole(bootstrap: str) -> bool:
    with Admin(bootstrap) as admin:
        found = admin.describe_cluster()
    return found.controller_id >= 0 and sum(not broker.fenced for broker in found.brokers) == 3


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


def test_a_lost_quorum(cluster: tuple[Up, str], watched: Prometheus) -> None:
    pids = [cluster[0].pids()[node] for node in (0, 1)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        watched.wait_for("NoController")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_killed_broker(cluster: tuple[Up, str], watched: Prometheus) -> None:
    """The last one: the broker stays dead."""
    up, bootstrap = cluster
    run("topic", "create", "one", "-p", "3", "-r", "1", bootstrap=bootstrap)
    run("topic", "create", "all", "-p", "1", "-r", "3", "-c", "min.insync.replicas=3", bootstrap=bootstrap)
    os.kill(up.pids()[1], signal.SIGKILL)
    watched.wait_for("BrokerDown", "UnderReplicated", "UnderMinIsr", "PartitionWithoutLeader")
