"""What an operation costs in Python calls: none may get dearer unnoticed (`scripts/benchmark calls` counts, in virtual time)."""

import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
# A change that needs more says here what for, in its commit; one that needs much less lowers the number.
CEILINGS: Final = {
    "produce acks=1, 1 replicas (Kafka)": 99,
    "produce acks=-1, 1 replicas (Kafka)": 128,
    "produce acks=1, 3 replicas (Kafka)": 252,
    "produce acks=-1, 3 replicas (Kafka)": 770,
    "fetch, one record (Kafka)": 99,
    "fetch, nothing there (Kafka)": 72,
    "fetch, 34 idle partitions (Kafka)": 610,
    "fetch in a session, 34 idle partitions (Kafka)": 68,
    "metadata of 100 partitions (Kafka)": 50,
    "produce acks=1, 1 replicas (own)": 98,
    "produce acks=-1, 1 replicas (own)": 131,
    "produce acks=1, 3 replicas (own)": 490,
    "produce acks=-1, 3 replicas (own)": 770,
    "fetch, one record (own)": 82,
    "fetch, nothing there (own)": 88,
    "fetch, 34 idle partitions (own)": 590,  # and a tick of the quorum
    "metadata of 100 partitions (own)": 390,
    "create topic (SDK)": 3_260,  # on all three brokers
    "send acks=1, 3 replicas (SDK)": 656,
    "send acks=all, 3 replicas (SDK)": 1_020,
    "transaction of one record, 3 replicas (SDK)": 5_600,
    "produce acks=-1, 3 replicas, beside 100 idle partitions (own)": 775,  # without sessions of followers: 6,844
    "join group (SDK)": 2_520,  # one commit of the quorum, which also confirms the offsets that come with the assignment
}


@pytest.mark.timeout(300)
def test_no_operation_takes_more_calls_than_it_did(tmp_path: Path) -> None:
    counted = tmp_path / "calls.json"
    pure = os.environ | {"BARNABAS_PURE": "1"}  # calls within compiled modules are not seen
    command = [ROOT / "scripts/benchmark", "calls", "--json", counted]
    subprocess.run(command, cwd=ROOT, env=pure, check=True, timeout=240)
    found = json.loads(counted.read_text(encoding="utf-8"))
    assert found.keys() == CEILINGS.keys()
    dearer = {name: (count, CEILINGS[name]) for name, count in found.items() if count > CEILINGS[name]}
    assert not dearer, f"calls, and how many are allowed: {dearer}"
    lowered = {name: (count, CEILINGS[name]) for name, count in found.items() if count < 0.75 * CEILINGS[name]}
    assert not lowered, f"lower these ceilings, so that the gain stays: {lowered}"
