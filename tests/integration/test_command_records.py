"""`topic consume` and `topic produce` on real brokers: formats, JSON that comes back as it was, positions by time."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.cluster import clean_environment
from integration.test_command import BARNABAS, Up, run, run_json


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    started = Up(tmp_path_factory.mktemp("records") / "cluster", "-n", "3")
    try:
        yield started.wait_ready()
    finally:
        started.close()


def test_a_copy_by_json_is_equal(brokers: str) -> None:
    for name in ("source", "copy", "other"):
        run("topic", "create", name, "-p", "3", "-r", "3", bootstrap=brokers)
    shapes = [
        {"key": f"k{number}", "value": f"v{number}", "timestamp": 1_700_000_000_000 + number} for number in range(300)
    ]
    shapes += [
        {"value": None, "key": "gone"},
        {"value": "", "key": "", "headers": [{"key": "n", "value": None}, {"key": "n", "value_base64": "/v8="}]},
        {"value_base64": "AP8=", "key_base64": "/w==", "partition": 2, "timestamp": 5},
    ]
    given = "".join(json.dumps(shape) + "\n" for shape in shapes)
    run("topic", "produce", "source", "-f", "json", "-z", "zstd", given=given, bootstrap=brokers)
    read = run("topic", "consume", "source", "-f", "json", bootstrap=brokers)
    assert read.count("\n") == len(shapes)
    run("topic", "produce", "copy", "-f", "json", "-z", "lz4", given=read, bootstrap=brokers)
    copied = run("topic", "consume", "copy", "-f", "json", bootstrap=brokers)

    def rows(text: str) -> list[str]:
        return sorted(json.dumps({**json.loads(line), "topic": ""}, sort_keys=True) for line in text.splitlines())

    assert rows(copied) == rows(read)
    both = run("topic", "consume", "-r", "source|copy", "-o", "-1", "-f", r"%t-%p\n", bootstrap=brokers)
    assert sorted(both.split()) == [f"{name}-{number}" for name in ("copy", "source") for number in range(3)]
    late = run(
        "topic",
        "consume",
        "source",
        "-o",
        "@2023-11-14T22:13:20.100Z..@1700000000200",
        "-f",
        r"%T\n",
        bootstrap=brokers,
    )
    assert sorted(map(int, late.split())) == [1_700_000_000_000 + number for number in range(100, 200)]
    found = run("topic", "consume", "source", "--grep", "^v17[0-9]$", "-f", r"%k=%v\n", bootstrap=brokers)
    assert sorted(found.split()) == [f"k{number}=v{number}" for number in range(170, 180)]
    run("topic", "produce", "other", "-f", r"%k=%v\n", given=found, bootstrap=brokers)
    assert sorted(run("topic", "consume", "other", bootstrap=brokers).split()) == [f"v{n}" for n in range(170, 180)]


def test_a_typo_creates_no_topic(brokers: str) -> None:
    run("topic", "produce", "tpyo", given="x\n", bootstrap=brokers, code=1)
    run("topic", "consume", "tpyo", bootstrap=brokers, code=1)
    run("topic", "consume", "tpyo", "-g", "g", bootstrap=brokers, code=1)
    assert "tpyo" not in {row["topic"] for row in run_json("topic", "list", bootstrap=brokers)}
    run("topic", "produce", "tpyo", "--create", given="x\n", bootstrap=brokers)
    assert run("topic", "consume", "tpyo", bootstrap=brokers) == "x\n"


def test_configurations_offsets_and_members(brokers: str) -> None:
    for name in ("seen", "unseen"):
        run("topic", "create", name, "-r", "3", bootstrap=brokers)
    run("topic", "produce", "seen", given="a\nb\n", bootstrap=brokers)
    run("config", "set", "retention.ms=7000", "-t", "seen", "-t", "unseen", bootstrap=brokers)
    run("config", "set", "retention.ms=no", "-t", "seen", bootstrap=brokers, code=1)
    run("config", "reset", "retention.ms", "-t", "unseen", bootstrap=brokers)
    assert run("config", "get", "retention.ms", "-t", "seen", bootstrap=brokers) == "7000\n"
    listed = run_json("config", "list", "-t", "seen", "-t", "unseen", bootstrap=brokers)
    assert [(row["resource"], row["key"]) for row in listed] == [("topic seen", "retention.ms")]
    run("config", "set", "message.max.bytes=2000000", "-b", "1", bootstrap=brokers)
    assert {row["value"] for row in run_json("config", "get", "message.max.bytes", bootstrap=brokers)} >= {"2000000"}
    (partition,) = run_json("topic", "describe", "seen", "--rate", "1", bootstrap=brokers)["partitions"]
    assert (partition["start"], partition["end"], partition["records_per_s"]) == (0, 2, 0.0)

    member = subprocess.Popen(
        [*BARNABAS, "topic", "consume", "seen", "-g", "watchers", "--follow"],
        stdout=subprocess.PIPE,
        env={**clean_environment(), "BARNABAS_BOOTSTRAP": brokers},
    )
    try:
        assert member.stdout is not None and member.stdout.readline() == b"a\n"
        (found,) = run_json("group", "describe", "watchers", bootstrap=brokers)["members"]
        run("group", "remove-member", "watchers", found["member"], bootstrap=brokers)
        assert "removed by an operator" in run("group", "explain", "watchers", bootstrap=brokers)
    finally:
        member.kill()
        member.communicate()
    (group,) = [row for row in run_json("group", "list", bootstrap=brokers) if row["group"] == "watchers"]
    assert group["lag"] in (0, 2)  # 2: killed before its first commit


def test_offsets_are_deleted_unless_a_member_reads_the_topic(brokers: str) -> None:
    for name in ("left", "kept"):
        run("topic", "create", name, "-p", "2", "-r", "3", bootstrap=brokers)
        run("topic", "produce", name, "-p", "1", given="a\n", bootstrap=brokers)
    run("topic", "consume", "left", "kept", "-g", "forgetful", bootstrap=brokers)
    member = subprocess.Popen(
        [*BARNABAS, "topic", "consume", "kept", "-g", "forgetful", "--follow"],
        stdout=subprocess.PIPE,
        env={**clean_environment(), "BARNABAS_BOOTSTRAP": brokers},
    )
    try:
        run("topic", "produce", "kept", given="b\n", bootstrap=brokers)
        assert member.stdout is not None and member.stdout.readline() == b"b\n"
        run("group", "delete-offsets", "forgetful", "-t", "kept", bootstrap=brokers, code=1)
        run("group", "delete-offsets", "forgetful", "-t", "left", bootstrap=brokers)
        left = run_json("group", "describe", "forgetful", bootstrap=brokers)["partitions"]
        assert {row["topic"] for row in left} == {"kept"}
    finally:
        member.kill()
        member.communicate()


def test_near_names_and_profiles(brokers: str, tmp_path: Path) -> None:
    run("topic", "create", "customers", bootstrap=brokers)

    def said(*words: str, code: int) -> str:
        environment = {**clean_environment(), "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(
            [*BARNABAS, *words], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    said("profile", "add", "here", "--bootstrap", brokers, code=0)
    assert "(did you mean customers?)" in said("topic", "describe", "custmers", code=1)
    assert "(did you mean customers?)" in said("config", "get", "retention.ms", "-t", "custmers", code=1)
    assert said("__complete", "topic", "describe", "cust", code=0) == "customers\n"


def test_a_paused_broker_and_a_lost_quorum_keep_to_the_timeout(tmp_path: Path) -> None:
    cluster = Up(tmp_path / "cluster", "-n", "3")
    try:
        address = cluster.wait_ready()
        run("topic", "create", "t", "-p", "3", "-r", "3", bootstrap=address)
        pids = cluster.pids()
        for node in (1, 2):
            os.kill(pids[node], signal.SIGSTOP)
            if node == 1:
                described = run_json("topic", "describe", "t", "--timeout", "15", bootstrap=address)
                assert len(described["partitions"]) == 3
        for words in (
            ("topic", "create", "u"),
            ("config", "set", "retention.ms=1", "-t", "t"),
            ("group", "list"),
            ("doctor",),
        ):
            started_s = time.monotonic()
            run(*words, "--timeout", "2", bootstrap=address, code=4)
            assert time.monotonic() - started_s < 20  # with the start of the program, on a machine that is busy
    finally:
        for pid in cluster.pids().values():
            os.kill(pid, signal.SIGCONT)
        cluster.close()


def test_bench_and_top(brokers: str) -> None:
    run("topic", "create", "measured", "-p", "3", "-r", "3", bootstrap=brokers)
    told = run_json("bench", "produce", "measured", "-n", "3000", "--in-flight", "200", bootstrap=brokers)
    assert told["records"] == 3_000 and told["max_ms"] >= told["p50_ms"] > 0
    assert run_json("bench", "consume", "measured", bootstrap=brokers)["records"] == 3_000
    assert "topic=measured records_per_s=0.0 end=3000" in run("top", "-i", "1", "-n", "1", bootstrap=brokers)
