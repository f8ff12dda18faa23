"""`barnabas doctor` as a process, on clusters that are really sick."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from integration.cluster import clean_environment

from barnabas.net.testing.cluster import Cluster
from barnabas.sync import Admin, Consumer, Producer  # type: ignore[import-not-found]  # not in the tree that mypy sees

LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "barnabas", "doctor", "-f", "json", "--bootstrap"]


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    started.create_topic("orders", configs={"min.insync.replicas": "2"})
    yield started
    started.reset()


def doctor(cluster: Cluster, *, timeout_s: int = 20) -> tuple[int, dict[str, str]]:
    """The exit code, and the weight of each finding."""
    ended = subprocess.run(
        [*COMMAND, cluster.bootstrap_servers, "--timeout", str(timeout_s)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S + timeout_s,
        env=clean_environment(),
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, {item["what"]: item["weight"] for item in json.loads(ended.stdout)["findings"]}


def until_told(
    cluster: Cluster, exit_code: int, *wanted: tuple[str, str], harm: Callable[[], object] = lambda: None
) -> None:
    """Weight and begin of each finding: these and no others. `harm`: done before each look, where a finding needs a rate that a
    busy machine may not reach at once."""

    def is_told() -> Any:
        harm()
        code, found = doctor(cluster)
        fits = [any(known == weight and text in what for what, known in found.items()) for weight, text in wanted]
        seen[:] = [code, found]
        return code == exit_code and all(fits) and len(found) == len(wanted)

    seen: list[Any] = []
    _until(is_told, lambda: f"wanted {exit_code}, {wanted}; told {seen}")


def _until(condition: Callable[[], Any], what: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what()


def test_a_healthy_cluster_has_no_findings(cluster: Cluster) -> None:
    until_told(cluster, 0)


def test_a_killed_broker_costs_replicas_votes_and_writes(cluster: Cluster) -> None:
    cluster.create_topic("strict", configs={"min.insync.replicas": "3"})
    with cluster.kill(1):
        until_told(
            cluster,
            3,
            ("critical", "fewer replicas in sync than min.insync.replicas: strict-0 (2 of 3)"),
            ("problem", "broker 1 is fenced"),
            ("problem", "replicas out of sync"),
            ("problem", "voters [1] of the quorum do not answer"),
        )
    until_told(cluster, 0)


def test_a_lost_quorum_is_critical(cluster: Cluster) -> None:
    with cluster.lose_quorum():
        code, found = doctor(cluster)
        assert code == 3
        assert any(weight == "critical" and "the quorum has no leader" in what for what, weight in found.items()), found
    until_told(cluster, 0)


def test_a_frozen_broker_does_not_hide_what_the_others_say(cluster: Cluster) -> None:
    cluster.create_topic("alone", replication_factor=1)
    with cluster.pause(2):
        began_s = time.monotonic()
        code, found = doctor(cluster, timeout_s=150)
        assert time.monotonic() - began_s < 60, "questions to the frozen broker do not wait for most of the time"
        assert code == 3
        assert "1 topics have partitions with one replica: alone" in found, found
        # It may be fenced by then, or not yet.
        assert any(what.startswith(("broker 2 advertises", "broker 2 is fenced")) for what in found), found


def test_most_voters_killed(cluster: Cluster) -> None:
    def is_told() -> bool:
        seen[:] = [doctor(cluster)]
        code, found = seen[0]
        assert code == 3, found
        return any(weight == "critical" and "the quorum has no leader" in what for what, weight in found.items())

    seen: list[Any] = []
    with cluster.kill(1, 2):
        _until(is_told, lambda: f"told {seen}")


def test_old_records_of_a_compacted_topic_are_in_no_danger(cluster: Cluster) -> None:
    cluster.create_topic("latest", configs={"cleanup.policy": "compact", "retention.ms": "1"})
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send("latest", b"value", key=b"key").result(LIMIT_S)
    with Admin(cluster.bootstrap_servers) as admin:
        admin.commit_offsets("billing", {("latest", 0): 0})
    until_told(cluster, 0)


def test_one_replica_is_a_risk_and_no_illness(cluster: Cluster) -> None:
    cluster.create_topic("alone", replication_factor=1)
    until_told(cluster, 0, ("risk", "1 topics have partitions with one replica: alone"))


def test_min_insync_replicas_above_the_replicas(cluster: Cluster) -> None:
    cluster.create_topic("never", configs={"min.insync.replicas": "4"})
    until_told(cluster, 0, ("risk", "topic 'never' has 3 replicas and min.insync.replicas=4"))
    with Producer(cluster.bootstrap_servers, acks="all") as producer:
        producer.send("never", b"it counts as three").result(LIMIT_S)


def test_records_that_were_deleted_before_a_group_read_them(cluster: Cluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send_many("orders", [b"1", b"2", b"3"]).result(LIMIT_S)
    with Consumer(
        "orders", bootstrap=cluster.bootstrap_servers, group="billing", auto_offset_reset="earliest"
    ) as reader:
        _until(lambda: reader.poll(timeout_ms=200), lambda: "records")
        reader.commit()
    with Admin(cluster.bootstrap_servers) as admin:
        place = next(iter(admin.group_offsets("billing")))
        admin.reset_offsets("billing", {place: 1})
        until_told(cluster, 0)
        admin.delete_records("orders", 0, before_offset=3)
    until_told(
        cluster, 3, ("critical", "group 'billing' has read orders-0 up to offset 1, and the log begins at 3 now")
    )


def _until_line(lines: Iterable[str], event: str, weight: str = "", words: str = "") -> None:
    """A busy machine may bring others in between: brokers that are slow, or that are killed one after another."""
    seen = []
    for line in lines:
        told = json.loads(line)
        if told["event"] == event and told.get("weight", "") == weight and words in told.get("what", ""):
            return
        seen.append(told)
    raise AssertionError(f"no {event} {weight} {words}; told {seen}")


def test_watching_tells_what_comes_and_goes(cluster: Cluster) -> None:
    command = [*COMMAND, cluster.bootstrap_servers, "--timeout", "20", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as process:
        try:
            assert process.stdout is not None
            _until_line(process.stdout, "healthy")
            cluster.create_topic("alone", replication_factor=1)
            _until_line(process.stdout, "found", "risk", "alone")
            with Admin(cluster.bootstrap_servers) as admin:
                admin.delete_topic("alone")
            _until_line(process.stdout, "gone", "risk", "alone")
            _until_line(process.stdout, "healthy")
            with cluster.kill(0, 1, 2):
                _until_line(process.stdout, "found", "critical", "does not answer")
            _until_line(process.stdout, "healthy")
        finally:
            process.kill()
