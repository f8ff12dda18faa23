"""Transactions of the producer against the coordinator's real machine, on virtual time: what waits, fails, or comes late."""

import asyncio
from typing import Any

import pytest
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.fake_transactions import TX, FakeTransactions
from unit.net.client.test_producer import refusing
from unit.net.client.virtual_time import run

from barnabas.net.client.connection.errors import (
    InvalidConfigError,
    NetworkError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    TransactionStateError,
    TransactionTimedOutError,
)
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol.api_keys import ApiKey


def world(**options: Any) -> tuple[FakeCluster, FakeTransactions, Producer]:
    cluster = FakeCluster(topics={"t": 2})
    return cluster, FakeTransactions(cluster), Producer(client=cluster.client(), transactional_id=TX, **options)


def lost(node_id: int, request: Any) -> Any:
    return NetworkError("lost")


def test_records_that_wait_or_travel_do_not_leak_from_an_aborted_transaction() -> None:
    async def main() -> None:
        cluster, coordinator, producer = world(batch_size=300, buffer_memory=900, delivery_timeout_ms=40_000)
        loop = asyncio.get_running_loop()
        bugs: list[Any] = []
        loop.set_exception_handler(lambda _, context: bugs.append(context))
        async with producer:
            late: asyncio.Future[Any] = loop.create_future()

            async def answers_late(node_id: int, request: Any) -> Any:
                await late
                return coordinator.produce(node_id, request)

            cluster.script(ApiKey.PRODUCE, lambda node, request: answers_late(node, request))
            with pytest.raises(ValueError, match="no") as raised:
                async with producer.transaction() as transaction:
                    travels = await transaction.send("t", b"travels" * 30, partition=0)
                    await asyncio.sleep(0.1)
                    fills = [await transaction.send("t", b"waits" * 40, partition=0) for _ in range(2)]
                    waiting = asyncio.create_task(transaction.send_many("t", [b"has no room" * 20] * 9, partition=0))
                    await asyncio.sleep(0.1)
                    assert not waiting.done()
                    raise ValueError("no")
            assert raised.value.__notes__ == ["the transaction was aborted"] and transaction.outcome == "aborted"
            for handle in (travels, *fills):
                with pytest.raises(TransactionAbortedError):
                    await handle
            with pytest.raises(TransactionAbortedError):
                await waiting
            with pytest.raises(TransactionStateError, match="has ended"):
                await transaction.send("t", b"behind the end")
            async with producer.transaction() as transaction:
                await transaction.send("t", b"next", partition=0)
                late.set_result(None)
            assert producer._buffer.reserved_bytes == 0
        assert coordinator.committed("t") == [b"next"] and not bugs

    run(main())


def test_records_without_a_key_touch_few_partitions() -> None:
    """Each partition of a transaction costs its brokers a question and a marker. The next transaction takes others."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 50})
        coordinator = FakeTransactions(cluster)
        touched: list[int] = []

        def produce(node_id: int, request: Any) -> Any:
            touched.extend(item.partition for item in request.partitions)
            return coordinator.produce(node_id, request)

        cluster.script(ApiKey.PRODUCE, *[produce] * 100)
        async with Producer(client=cluster.client(), transactional_id=TX, batch_size=2_000) as producer:
            async with producer.transaction() as transaction:
                for number in range(10):
                    await transaction.send("t", b"%d" % number)
            assert len(touched) == 1 or len(touched) == 2, (
                "the first record does not leave alone when the topic is known"
            )
            touched.clear()
            async with producer.transaction() as transaction:
                for _ in range(10):
                    await transaction.send("t", b"x")
            assert len(touched) == 1
            places = set()
            for _ in range(5):
                touched.clear()
                async with producer.transaction() as transaction:
                    for _ in range(5):
                        await (await transaction.send("t", b"small"))
                assert len(touched) == 5 and len(set(touched)) == 1, "small batches go to one partition"
                places.add(touched[0])
            assert len(places) > 1
            touched.clear()
            async with producer.transaction() as transaction:
                for _ in range(5):
                    await (await transaction.send("t", b"x" * 1_500))
            assert len(set(touched)) > 1, "batches that are not small are shared out"

    run(main())


def test_a_record_that_failed_makes_the_commit_impossible() -> None:
    async def main() -> None:
        cluster, coordinator, producer = world()
        async with producer:
            cluster.script(ApiKey.PRODUCE, refusing(87))
            with pytest.raises(TransactionAbortedError) as raised:
                async with producer.transaction() as transaction:
                    await transaction.send("t", b"refused", partition=0)
                    await transaction.send("t", b"taken", partition=1)
            assert type(raised.value.__cause__).__name__ == "InvalidRecordError"
            for wrong in ({"value": "text"}, {"value": b"x" * 2**21}):
                with pytest.raises(TransactionAbortedError):
                    async with producer.transaction() as transaction:
                        await transaction.send("t", b"taken", partition=1)
                        with pytest.raises((TypeError, Exception)):
                            await transaction.send("t", **wrong)
            async with producer.transaction() as transaction:
                await transaction.send("t", b"next")
        assert coordinator.committed("t") == [b"next"]

    run(main())


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_whose_answer_is_lost_is_asked_for_again(arrives: bool) -> None:
    async def main() -> None:
        cluster, coordinator, producer = world()

        def loses(node_id: int, request: Any) -> Any:
            if arrives:
                coordinator.end(request)
            return NetworkError("lost")

        async with producer:
            async with producer.transaction() as transaction:
                await transaction.send("t", b"one")
                cluster.script(ApiKey.END_TRANSACTION, loses, lost)
            assert transaction.outcome == "committed"
        assert coordinator.committed("t") == [b"one"]

    run(main())


@pytest.mark.parametrize("arrives", [True, False])
def test_a_coordinator_that_stays_away_leaves_the_outcome_unknown_until_the_next_transaction(arrives: bool) -> None:
    async def main() -> None:
        cluster, coordinator, producer = world(max_block_ms=5_000, transaction_timeout_ms=2_000)

        def loses(node_id: int, request: Any) -> Any:
            if arrives and len(cluster.sent(type(request))) == 1:
                coordinator.end(request)
            return NetworkError("lost")

        async with producer:
            cluster.script(ApiKey.END_TRANSACTION, loses, forever=True)
            with pytest.raises(TransactionOutcomeUnknownError, match="entirely or not at all"):
                async with producer.transaction() as first:
                    await first.send("t", b"one")
            assert first.outcome == "unknown"
            with pytest.raises(TransactionOutcomeUnknownError):
                await producer.transaction().begin()
            del cluster.scripts[ApiKey.END_TRANSACTION]
            async with producer.transaction() as second:
                await second.send("t", b"two")
            assert first.outcome == ("committed" if arrives else "aborted")
        assert coordinator.committed("t") == ([b"one", b"two"] if arrives else [b"two"])

    run(main())


@pytest.mark.parametrize("cancelled_at", ["the block", "the delivery", "the commit"])
def test_a_cancelled_task_leaves_a_producer_that_goes_on(cancelled_at: str) -> None:
    async def main() -> None:
        cluster, coordinator, producer = world()
        async with producer:
            transaction = producer.transaction()

            async def work() -> None:
                async with transaction:
                    await (await transaction.send("t", b"one"))
                    if cancelled_at == "the block":
                        await asyncio.sleep(1_000)
                    if cancelled_at == "the delivery":
                        cluster.script(ApiKey.PRODUCE, lambda *_: HANG)
                        await transaction.send("t", b"two")
                    if cancelled_at == "the commit":
                        cluster.script(ApiKey.END_TRANSACTION, lambda *_: HANG)

            task = asyncio.create_task(work())
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction() as another:
                await another.send("t", b"next")
            assert transaction.outcome == ("committed" if cancelled_at == "the commit" else "aborted")
        expected = [b"next", b"one"] if cancelled_at == "the commit" else [b"next"]
        assert coordinator.committed("t") == expected

    run(main())


def test_timeouts_and_fencing_are_told_apart() -> None:
    async def main() -> None:
        cluster, coordinator, producer = world(transaction_timeout_ms=1_000)
        async with producer:
            for is_awaited in (True, False):
                with pytest.raises(TransactionTimedOutError):
                    async with producer.transaction() as transaction:
                        await (await transaction.send("t", b"late"))
                        await asyncio.sleep(2)
                        handle = await transaction.send("t", b"too late")
                        if is_awaited:
                            await handle
            async with producer.transaction() as transaction:
                await transaction.send("t", b"in time")
            transaction = producer.transaction()
            await transaction.begin()
            await (await transaction.send("t", b"of the first"))
            async with Producer(client=cluster.client(), transactional_id=TX) as another:
                with pytest.raises(ProducerFencedError, match="create another producer"):
                    await transaction.commit()
                async with another.transaction() as second:
                    await second.send("t", b"of the second")
        assert coordinator.committed("t") == [b"in time", b"of the second"]

    run(main())


def test_a_producer_that_is_closed_aborts() -> None:
    async def main() -> None:
        _, coordinator, producer = world()
        async with producer:
            transaction = producer.transaction()
            await transaction.begin()
            await transaction.send("t", b"one")
        assert transaction.outcome == "aborted" and coordinator.committed("t") == []
        with pytest.raises(TransactionStateError, match="has ended"):
            await transaction.send("t", b"two")

    run(main())


def test_what_a_transactional_producer_refuses() -> None:
    async def main() -> None:
        _, _, producer = world()
        async with producer:
            for call in (producer.send("t", b"x"), producer.send_many("t", [b"x"])):
                with pytest.raises(TransactionStateError, match="sends in transactions only"):
                    await call
            with pytest.raises(TransactionStateError):
                producer.send_nowait("t", b"x")
            async with producer.transaction() as transaction:
                await transaction.send("t", b"x")
                with pytest.raises(TransactionStateError, match="sends in transactions only"):
                    await producer.send("t", b"x")
        with pytest.raises(TransactionStateError, match="transactional_id"):
            Producer(client=FakeCluster().client()).transaction()

    run(main())
    for wrong in ({"acks": 1}, {"enable_idempotence": False}, {"transaction_timeout_ms": 0}, {"transactional_id": ""}):
        with pytest.raises(InvalidConfigError):
            Producer(**{"transactional_id": TX, **wrong})  # type: ignore[arg-type]
