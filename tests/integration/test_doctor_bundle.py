"""`barnabas doctor --bundle`: complete on a healthy cluster, useful on a broken one, and without contents and secrets."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.cluster import clean_environment
from integration.test_command import Up, run

from barnabas.sync import Admin, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

PASSWORD = "correct-horse-battery"
CONTENT = "the-content-of-a-record"
METADATA = "metadata-of-an-offset"
LIMIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Up, str]]:
    started = Up(tmp_path / "cluster", "-n", "3", "--override", f"ssl.key.password={PASSWORD}")
    try:
        bootstrap = started.wait_ready()
        run("topic", "create", "orders", "-p", "2", "-r", "3", "-c", "retention.ms=86400001", bootstrap=bootstrap)
        yield started, bootstrap
    finally:
        started.close()


def bundled(path: Path, bootstrap: str, code: int = 0, timeout_s: int = 60) -> dict[str, str]:
    """The parts of a new bundle, by name."""
    command = [sys.executable, "-m", "barnabas", "doctor", "--bundle", str(path), "--timeout", str(timeout_s)]
    ended = subprocess.run(
        [*command, "--bootstrap", bootstrap],
        capture_output=True, text=True, timeout=LIMIT_S + timeout_s, env=clean_environment(), check=False,
    )  # fmt: skip
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended
    with tarfile.open(path) as tar:
        return {item.name.partition("/")[2]: tar.extractfile(item).read().decode() for item in tar}  # type: ignore[union-attr]


def is_without_quorum(bootstrap: str) -> bool:
    asked = subprocess.run(
        [sys.executable, "-m", "barnabas", "cluster", "health", "--bootstrap", bootstrap],
        capture_output=True, text=True, timeout=LIMIT_S, env=clean_environment(), check=False,
    )  # fmt: skip
    return "the quorum has no leader" in asked.stdout + asked.stderr


def test_a_bundle_has_what_a_maintainer_needs_and_nothing_of_the_users(cluster: tuple[Up, str], tmp_path: Path) -> None:
    bootstrap = cluster[1]
    with Producer(bootstrap) as producer:
        producer.send("orders", CONTENT.encode(), key=CONTENT.encode(), headers=[("h", CONTENT.encode())]).result(
            LIMIT_S
        )
    run("user", "add", "anna", "--password-file", "-", given=f"{PASSWORD}\n", bootstrap=bootstrap)
    with Admin(bootstrap) as admin:
        admin.commit_offsets("billing", {("orders", 0): 0})
    path = tmp_path / "bundle.tar.gz"
    parts = bundled(path, bootstrap)
    assert path.stat().st_mode & 0o777 == 0o600
    names = {
        "README.txt",
        "findings.json",
        "cluster.json",
        "groups.json",
        "events.json",
        "versions.json",
        "unanswered.json",
    }
    assert names <= parts.keys() and json.loads(parts["unanswered.json"]) == {}
    for node in range(3):
        figures = json.loads(parts[f"figures/broker-{node}.json"])
        assert figures["memory_bytes"] > 1_000_000 and figures["descriptors"] > 5
        assert json.loads(parts[f"storage/broker-{node}.json"])["folders"][0]["free_bytes"] > 0
        assert any(item["key"] == "node.id" for item in json.loads(parts[f"configurations/broker-{node}.json"]))
        assert "barnabas_request_seconds_bucket" in parts[f"metrics/broker-{node}.txt"]
    assert {"key": "retention.ms", "value": "86400001", "source": "topic"} in json.loads(
        parts["configurations/topics.json"]
    )["orders"]
    assert "billing" in json.loads(parts["groups.json"])
    assert any(item["event"] == "created" for item in json.loads(parts["events.json"])["events"])
    for name, text in parts.items():
        for secret in (PASSWORD, CONTENT):
            assert secret not in text, f"{secret} is in {name}"


def test_a_bundle_of_a_broken_cluster(cluster: tuple[Up, str], tmp_path: Path) -> None:
    """Two of three brokers are killed: there is no quorum, and two do not answer."""
    up, bootstrap = cluster
    for node in (0, 1):
        os.kill(up.pids()[node], signal.SIGKILL)
    ends_s = time.monotonic() + LIMIT_S
    while not is_without_quorum(bootstrap):  # a leader that hears nobody gives up after a while
        assert time.monotonic() < ends_s
    began_s = time.monotonic()
    parts = bundled(tmp_path / "b.tar.gz", bootstrap, timeout_s=40)
    assert time.monotonic() - began_s < 55  # with the start of the program, on a machine that is busy
    findings: list[dict[str, Any]] = json.loads(parts["findings.json"])
    assert any(item["weight"] == "critical" and "no leader" in item["what"] for item in findings)
    assert "barnabas_request_seconds_bucket" in parts["metrics/broker-2.txt"]
    unanswered = json.loads(parts["unanswered.json"])
    assert {"figures/broker-0.json", "metrics/broker-1.txt"} <= unanswered.keys()
    assert json.loads(parts["cluster.json"])["cluster"]["brokers"]


def test_a_bundle_without_any_broker_says_so(tmp_path: Path) -> None:
    parts = bundled(tmp_path / "b.tar.gz", "127.0.0.1:1", code=4, timeout_s=3)
    assert parts.keys() == {"README.txt", "findings.json", "versions.json", "unanswered.json"}
    assert "cluster" in json.loads(parts["unanswered.json"])


def test_a_file_that_cannot_be_written_is_an_error_with_its_name(cluster: tuple[Up, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "barnabas", "doctor", "--bundle", str(tmp_path / "no" / "b.tar.gz")]
    ended = subprocess.run(
        [*command, "--bootstrap", cluster[1]],
        capture_output=True, text=True, timeout=LIMIT_S, env=clean_environment(), check=False,
    )  # fmt: skip
    assert ended.returncode == 1 and "no/b.tar.gz cannot be written" in ended.stderr, ended
