"""`barnabas transaction ...` on a cluster in memory."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.admin.test_transactions_api import IDLE, OPEN, PAYMENTS
from unit.net.cli.fake_cluster import FakeCluster

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.transactions import TransactionDescription, TransactionPartition
from barnabas.net.wire.protocol.transaction_operations import DescribeTransactionResponse


def test_list_shows_a_table_and_passes_the_filters_on(run: Any, cluster: FakeCluster) -> None:
    cluster.transactions.known = (IDLE, PAYMENTS)
    code, out, _ = run("transaction", "list")
    assert code == 0 and [line.split() for line in out.splitlines()] == [
        ["TRANSACTIONAL-ID", "STATE", "PRODUCER-ID", "EPOCH", "COORDINATOR", "DURATION-S", "TIMEOUT-S", "PARTITIONS", "GROUPS"],
        ["idle", "Empty", "7", "1", "0", "-", "60.0", "0", "1"],
        ["payments", "Ongoing", "7", "1", "0", "65.001", "60.0", "1", "1"],
    ]  # fmt: skip
    cluster.transactions.left_out = 3
    code, out, err = run(
        "transaction", "list", "--state", "Ongoing", "--producer-id", "7", "--longer-than", "30", "-f", "json"
    )
    assert code == 0 and json.loads(out)[1]["transactional_id"] == "payments" and "3 more are not shown" in err
    assert cluster.calls[-1] == ("list", {"states": ["Ongoing"], "producer_ids": [7], "longer_than_ms": 30_000})
    assert run("transaction", "list", "--state", "Odd")[0] == 2


def test_describe_shows_how_far_readers_of_committed_records_are_behind(run: Any, cluster: FakeCluster) -> None:
    place = TransactionPartition(partition=TopicPartition("t", 0), last_stable_offset=40, high_watermark=90)
    said = DescribeTransactionResponse(summary=PAYMENTS, started_ms=5, groups=("g",))
    cluster.transactions.described = TransactionDescription(said=said, partitions=(place,))
    code, out, _ = run("transaction", "describe", "payments")
    assert code == 0 and out.splitlines()[-1].split() == ["t", "0", "40", "90", "50"]
    described = json.loads(run("transaction", "describe", "payments", "-f", "json")[1])
    assert described["partitions"] == [
        {"topic": "t", "partition": 0, "last_stable_offset": 40, "high_watermark": 90, "lag": 50}
    ]
    assert "prepared_for" not in described
    waits = replace(PAYMENTS, state="Prepared", prepared_for="batch 7")
    cluster.transactions.described = TransactionDescription(
        said=DescribeTransactionResponse(summary=waits), partitions=()
    )
    assert "batch 7" in run("transaction", "describe", "payments")[1]
    cluster.transactions.described = TransactionDescription(
        said=DescribeTransactionResponse(summary=IDLE), partitions=()
    )
    assert json.loads(run("transaction", "describe", "idle", "-f", "json")[1])["started_ms"] is None


def test_abort_by_id_or_in_a_partition(run: Any, cluster: FakeCluster) -> None:
    code, out, _ = run("transaction", "abort", "payments")
    assert code == 0 and "its producer is fenced" in out and cluster.calls[-1] == ("abort", "payments")
    place = ("--topic", "t", "--partition", "0", "--producer-id", "4711")
    assert run("transaction", "abort", *place)[0] == 0
    assert cluster.calls[-1:] == [("abort_hanging", "t", 0, {"producer_id": 4711, "producer_epoch": -1})]


@pytest.mark.parametrize("given", [(), ("tx", "--topic", "t"), ("--topic", "t", "--partition", "0")])
def test_an_abort_needs_either_an_id_or_a_place(run: Any, cluster: FakeCluster, given: tuple[str, ...]) -> None:
    code, _, err = run("transaction", "abort", *given)
    assert code == 2 and "either a transactional id, or --topic" in err and cluster.calls == []


def test_hanging_is_an_exit_code_and_says_how_to_abort(run: Any, cluster: FakeCluster) -> None:
    code, _, err = run("transaction", "hanging")
    assert code == 0 and "no transaction hangs" in err
    cluster.transactions.strays = (OPEN,)
    code, out, err = run("transaction", "hanging")
    assert code == 3 and out.splitlines()[1].split() == ["t", "0", "7", "1", "40", "30.0"]
    assert "barnabas transaction abort --topic t --partition 0 --producer-id 7" in err
    assert run("transaction", "hanging", "--older-than", "31")[0] == 0
