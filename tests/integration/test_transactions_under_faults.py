"""A short campaign on three real brokers under transactions of real clients. Longer: `scripts/faults --workload transactions`."""

import os
from pathlib import Path

import pytest
from faults.campaign import run
from faults.test_campaign import judge
from faults.transactions.load import TransactionalLoad

SECONDS = float(os.environ.get("BARNABAS_FAULT_SECONDS", "45"))
SEED = int(os.environ.get("BARNABAS_FAULT_SEED", "1"))
KINDS = (
    "kill_leader",
    "kill_transaction_coordinator",
    "kill_all",
    "kill_clients",
    "zombie_producer",
    "zombie_member",
    "delete_topic_in_transaction",
)


@pytest.mark.timeout(400)
def test_transactions_are_all_or_nothing_and_outputs_exactly_once(tmp_path: Path) -> None:
    outcome = run(tmp_path / "cluster", seed=SEED, seconds=SECONDS, kinds=KINDS, say=print, make=TransactionalLoad)
    judge(outcome, tmp_path)
