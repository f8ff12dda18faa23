"""Transactions over HTTP, and in the health of the cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace
from unit.net.admin.fake_broker import FakeBroker

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.admin.app import build_app
from barnabas.net.wire.protocol import responses
from barnabas.net.wire.protocol.transaction_operations import (
    AbortHangingRequest,
    AbortTransactionRequest,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    OpenTransaction,
    OpenTransactionsRequest,
    OpenTransactionsResponse,
)

CLUSTER = "/v3/clusters/c1"
HttpClient = TestClient[Any, Any]
PAYMENTS = ListedTransaction(
    transactional_id="payments",
    producer_id=7,
    producer_epoch=1,
    state="Ongoing",
    timeout_ms=60_000,
    duration_ms=65_001,
    partition_count=1,
    group_count=1,
    coordinator=0,
)
IDLE = replace(PAYMENTS, transactional_id="idle", state="Empty", duration_ms=-1, partition_count=0)
OPEN = OpenTransaction(
    topic="t",
    topic_id="a" * 32,
    partition=0,
    producer_id=7,
    producer_epoch=1,
    coordinator_epoch=-1,
    first_offset=40,
    age_ms=30_000,
)


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.transactions = (PAYMENTS, IDLE)
    return made


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[HttpClient]:
    async with TestClient(TestServer(build_app(broker))) as opened:
        yield opened


async def get(client: HttpClient, path: str) -> Any:
    answer = await client.get(CLUSTER + path)
    assert answer.status == 200, await answer.text()
    return await answer.json()


async def test_transactions_are_listed_and_described(client: HttpClient) -> None:
    listed = await get(client, "/transactions")
    assert [(item["transactional_id"], item["state"], item["duration_ms"]) for item in listed["data"]] == [
        ("idle", "Empty", None),
        ("payments", "Ongoing", 65_001),
    ]
    assert listed["left_out"] == 0
    described = await get(client, "/transactions/payments")
    assert (described["producer_id"], described["coordinator_id"], described["groups"]) == (7, 0, ["g"])
    (place,) = described["partitions"]
    assert (place["topic_name"], place["partition_id"]) == ("t", 0)
    assert place["lag"] == place["high_watermark"] - place["last_stable_offset"]


async def test_a_list_without_all_coordinators_is_refused(client: HttpClient, broker: FakeBroker) -> None:
    broker.answers[ListTransactionsRequest] = lambda _: ListTransactionsResponse(
        transactions=(), slots=tuple(range(49))
    )
    answer = await client.get(f"{CLUSTER}/transactions")
    assert answer.status >= 500 and "1 of 50 coordinators" in await answer.text()


async def test_a_transaction_is_aborted_by_its_id_or_in_one_partition(client: HttpClient, broker: FakeBroker) -> None:
    assert (await client.delete(f"{CLUSTER}/transactions/payments")).status == 204
    assert AbortTransactionRequest(transactional_id="payments") in broker.asked
    assert (await client.delete(f"{CLUSTER}/topics/t/partitions/0/hanging-transactions/4711")).status == 204
    assert AbortHangingRequest(topic="t", partition=0, producer_id=4711) in broker.asked
    broker.answers[AbortTransactionRequest] = lambda _: responses.ErrorResponse(
        error=ErrorCode.INVALID_TXN_STATE, message="no open transaction"
    )
    refused = await client.delete(f"{CLUSTER}/transactions/payments")
    assert refused.status in (400, 409) and "no open transaction" in await refused.text()


async def test_what_hangs_is_what_no_coordinator_knows(client: HttpClient, broker: FakeBroker) -> None:
    stray = replace(OPEN, producer_id=4711, first_offset=3)
    other_topic = replace(OPEN, topic_id="b" * 32, first_offset=9)
    broker.opened = (OPEN, stray, other_topic)
    found = (await get(client, "/hanging-transactions"))["data"]
    assert {(item["producer_id"], item["first_offset"]) for item in found} == {(4711, 3), (7, 9)}


async def test_what_has_ended_meanwhile_does_not_hang(client: HttpClient, broker: FakeBroker) -> None:
    def opened(_: Any) -> OpenTransactionsResponse:
        is_over = any(isinstance(asked, ListTransactionsRequest) for asked in broker.asked)
        return OpenTransactionsResponse(transactions=() if is_over else (replace(OPEN, producer_id=4711),))

    broker.answers[OpenTransactionsRequest] = opened
    assert (await get(client, "/hanging-transactions"))["data"] == []


async def test_health_names_overdue_and_hanging_transactions(client: HttpClient, broker: FakeBroker) -> None:
    broker.opened = (replace(OPEN, producer_id=4711),)
    causes = " ".join((await get(client, "/health"))["causes"])
    assert "1 transactions have outlived their timeout by more than 5 s: payments (Ongoing, 65 s)" in causes
    assert "transactions hang" in causes and "t-0 (producer 4711)" in causes
    broker.transactions, broker.opened = (replace(PAYMENTS, duration_ms=64_999),), (OPEN,)
    assert "transaction" not in " ".join((await get(client, "/health"))["causes"])


async def test_health_says_what_prepared_transactions_wait_for(client: HttpClient, broker: FakeBroker) -> None:
    waits = replace(PAYMENTS, state="Prepared", prepared_for="micro-batch 3 of Spark sink s")
    broker.transactions = (waits,)
    causes = " ".join((await get(client, "/health"))["causes"])
    assert "1 prepared transactions wait for their decision" in causes and "outlived" not in causes
    assert "payments (micro-batch 3 of Spark sink s, 65 s)" in causes and "barnabas transaction abort ID" in causes
    described = await get(client, "/transactions")
    assert [(item["state"], item["prepared_for"]) for item in described["data"]] == [("Prepared", waits.prepared_for)]
