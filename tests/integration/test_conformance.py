"""A part of the conformance folder, which lies beside the checkout: Kafka's clients and raw protocol bytes against three brokers.

The folder is no part of the repository; `BARNABAS_CONFORMANCE` names it where it lies elsewhere. Each check is a process of
its own with a limit. What is not served yet is left out by name, until it is served.
"""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.cluster import SESSION, Cluster, clean_environment

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.wire.protocol.kafka.apis import LISTED

FOLDER = Path(
    os.environ.get("BARNABAS_CONFORMANCE", Path(__file__).resolve().parents[3] / "shared" / "conformance")
)  # fmt: skip
CLIENTS = {"kafka-python": "c_kafka_python.py", "aiokafka": "c_aiokafka.py", "librdkafka": "c_confluent.py"}
LIBRARIES = {"kafka-python": "kafka", "aiokafka": "aiokafka", "librdkafka": "confluent_kafka"}
LIMIT_S = 60.0  # of a check, which takes a second or two where nothing else runs
SWEEP_LIMIT_S = 170.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 200
CREATE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS, CREATE_PARTITIONS = 19, 21, 32, 37
ADD_PARTITIONS_TO_TXN, TXN_OFFSET_COMMIT = 24, 28
# What a check asks for beside producing, fetching and groups, by API key.
NEEDS = {
    "group_rebalance": {CREATE_TOPICS},
    "admin_topics": {CREATE_TOPICS},
    "admin_configs": {CREATE_TOPICS, DESCRIBE_CONFIGS},
    "admin_partitions": {CREATE_TOPICS, CREATE_PARTITIONS},
    "admin_delete_records": {DELETE_RECORDS},
    "group_848": {CREATE_TOPICS},
    "txn_commit_abort": {ADD_PARTITIONS_TO_TXN},
    "txn_offsets": {TXN_OFFSET_COMMIT},
}
CHECKS = (
    "metadata", "produce_consume", "null_empty", "large_message", "offsets_for_time", "offset_reset", "group_resume",
    "group_rebalance", "admin_topics", "admin_configs", "admin_partitions", "admin_delete_records", "admin_groups",
    "idempotent", "txn_commit_abort", "txn_offsets", "group_848",
)  # fmt: skip
NOT_IMPLEMENTED = "not implemented by this client"
# How the checks of the script fail if a leader answers UNKNOWN_TOPIC_OR_PARTITION: a fetch that would wait is answered at once.
LEADER_IS_BEHIND = re.compile(
    rf"produce: got {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:d}, expected 0$|max_wait 700 ms: answered after \d ms$"
)

if not (FOLDER / "run_matrix.py").exists():
    pytest.skip(f"no conformance folder at {FOLDER}; BARNABAS_CONFORMANCE names it", allow_module_level=True)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three brokers that look for old records every five minutes only: the folder's are of the year 2023."""
    with Cluster(tmp_path_factory.mktemp("conformance"), 3, overrides=SESSION) as cluster:
        yield asyncio.run(cluster.ready()).bootstrap


def run(client: str, *arguments: str) -> str:
    """Return the verdict, one line: PASS, FAIL or SKIP, and why."""
    if importlib.util.find_spec(LIBRARIES[client]) is None:
        pytest.skip(f"{client} is not installed: scripts/setup.sh")
    return next(iter(verdicts(CLIENTS[client], *arguments, limit_s=LIMIT_S)), "FAIL no verdict")


def verdicts(script: str, *arguments: str, limit_s: float) -> Iterator[str]:
    ended = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=FOLDER, env=clean_environment(), capture_output=True, text=True, errors="replace", timeout=limit_s,
        check=False,
    )  # fmt: skip
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("PASS ", "FAIL ", "SKIP "))]
    assert lines, f"{script} ended with {ended.returncode} and no verdict: {ended.stderr[-1_000:]}"
    yield from lines


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("check", CHECKS)
def test_a_client_passes_a_check(bootstrap: str, client: str, check: str) -> None:
    missing = NEEDS.get(check, set()) - LISTED.keys()
    if missing:
        pytest.skip(f"Kafka's APIs {sorted(missing)} are not served yet")
    verdict = run(client, "--bootstrap", bootstrap, "--check", check)
    if verdict.startswith("SKIP") and NOT_IMPLEMENTED in verdict:
        pytest.skip(verdict)
    assert verdict.startswith("PASS"), verdict


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", CLIENTS)
def test_what_a_client_compresses_the_next_one_reads(bootstrap: str, producer: str, codec: str) -> None:
    """A third of all pairs; which one reads depends on the codec, so that each pair is seen with some of them."""
    topic = f"mx-io-{producer}-{codec}"
    names = list(CLIENTS)
    reader = names[(names.index(producer) + CODECS.index(codec)) % len(names)]
    written = run(producer, "--bootstrap", bootstrap, "--produce", topic, "--codec", codec, "--n", str(RECORDS))
    assert written.startswith("PASS"), written
    read = run(reader, "--bootstrap", bootstrap, "--consume", topic, "--n", str(RECORDS))
    assert read.startswith("PASS"), f"{producer} -> {reader}: {read}"


@pytest.mark.timeout(SWEEP_LIMIT_S + 10)
def test_every_version_of_every_api_that_is_listed_is_served(bootstrap: str) -> None:
    """And the behaviour that has broken some real client before.

    The folder's script sends to the leader of a topic as soon as another broker has named it. A leader that is some milliseconds
    behind answers UNKNOWN_TOPIC_OR_PARTITION, as Kafka's does; clients repeat the request, the script does not: its check is
    repeated, once.
    """
    found = list(verdicts("c_sweep.py", "--bootstrap", bootstrap, limit_s=SWEEP_LIMIT_S))
    too_early = [line for line in found if line.startswith("FAIL") and LEADER_IS_BEHIND.search(line)]
    for line in too_early:
        found.remove(line)
        name = line.split()[1].rstrip(":")
        found += verdicts("c_sweep.py", "--bootstrap", bootstrap, "--check", name, limit_s=LIMIT_S)
    assert [line for line in found if line.startswith("FAIL")] == []
    passed = [line for line in found if line.startswith("PASS")]
    assert len(passed) >= len(LISTED)
