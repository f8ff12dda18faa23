"""A short campaign on three real brokers under transactions of real clients. Longer: `scripts/faults --workload transactions`."""

from pathlib import Path

import pytest
from faults.test_campaign import campaign, judge
from faults.transactions.load import TransactionalLoad

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
    judge(campaign(tmp_path, KINDS, TransactionalLoad), tmp_path)
