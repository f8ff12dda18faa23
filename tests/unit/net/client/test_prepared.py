"""Transactions that a producer prepares and another client decides, against the coordinator's real machine, on virtual time."""

import asyncio
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_transactions import TX, FakeTransactions
from unit.net.client.test_producer import refusing
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import InvalidTxnStateError
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import NetworkError, TransactionAbortedError, TransactionStateError
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.prepared import PreparedTransaction, end_prepared
from barnabas.net.wire.protocol.api_keys import ApiKey


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster(topics={"t": 2})
        self.coordinator = FakeTransactions(self.cluster)
        self.producer = Producer(client=self.cluster.client(), transactional_id=TX)

    async def prepared(self, value: bytes = b"value") -> PreparedTransaction:
        async with self.producer.transaction() as transaction:
            await transaction.send("t", value)
            prepared = await transaction.prepare("batch 7")
        assert prepared is not None and transaction.outcome == "prepared"
        return prepared

    async def end(self, prepared: PreparedTransaction, *, is_commit: bool = True, **more: Any) -> None:
        """By another client."""
        client = self.cluster.client()
        await client.start()
        await end_prepared(client, prepared, is_commit=is_commit, timeout_ms=5_000, **more)
        await client.close()

    def state(self) -> str:
        return str(self.coordinator.machine(TX).describe(TX).response.state)


@pytest.mark.parametrize("is_commit", [True, False])
def test_another_client_decides_however_late_and_again(is_commit: bool) -> None:
    async def main() -> None:
        world = World()
        async with world.producer:
            prepared = await world.prepared()
        await asyncio.sleep(86_400)
        assert world.state() == "Prepared" and not world.coordinator.committed("t")
        for _ in range(3):
            await world.end(prepared, is_commit=is_commit)
        assert world.coordinator.committed("t") == ([b"value"] if is_commit else [])
        async with Producer(client=world.cluster.client(), transactional_id=TX):
            await world.end(prepared, is_commit=is_commit)  # the id has gone on
        # A coordinator that was replaced, and does not know it, must not say how it ended.
        assert [asked.is_confirmed for asked in world.coordinator.described] == [True] * is_commit

    run(main())


def test_the_producer_goes_on_under_another_id_only() -> None:
    async def main() -> None:
        world = World()
        producer = world.producer
        async with producer:
            prepared = await world.prepared()
            with pytest.raises(TransactionStateError, match="go on under another id"):
                await world.prepared()
            with pytest.raises(InvalidTxnStateError, match="prepared for 'batch 7'"):
                await producer.take_over(TX)
            await producer.take_over("other")
            async with producer.transaction() as transaction:
                await transaction.send("t", b"of the other")
            await world.end(prepared)
            await producer.take_over(TX)
            async with producer.transaction() as transaction:
                await transaction.send("t", b"again")
        assert world.coordinator.committed("t") == [b"again", b"of the other", b"value"]

    run(main())


def test_an_empty_transaction_is_not_prepared_and_a_failed_one_is_aborted() -> None:
    async def main() -> None:
        world = World()
        async with world.producer as producer:
            async with producer.transaction() as transaction:
                assert await transaction.prepare() is None
            world.cluster.script(ApiKey.PRODUCE, refusing(10))
            with pytest.raises(TransactionAbortedError, match="a part of it failed"):
                async with producer.transaction() as transaction:
                    await transaction.send("t", b"too large")
                    await transaction.prepare()
            assert transaction.outcome == "aborted"
            world.cluster.script(ApiKey.PREPARE_TRANSACTION, lambda *_: NetworkError("cut"), forever=True)
            with pytest.raises(NetworkError):
                async with producer.transaction() as transaction:
                    await transaction.send("t", b"not prepared")
                    preparing = asyncio.create_task(transaction.prepare())
                    await asyncio.sleep(0.01)
                    with pytest.raises(TransactionStateError, match="takes no more records"):
                        await transaction.send("t", b"too late")
                    await preparing
            assert transaction.outcome == "aborted" and not world.coordinator.committed("t")

    run(main())


def test_a_commit_of_what_an_operator_aborted_is_an_error() -> None:
    async def main() -> None:
        world = World()
        async with world.producer:
            prepared = await world.prepared()
        world.coordinator.abort(TX)
        await world.end(prepared, is_commit=False)
        with pytest.raises(TransactionAbortedError, match="aborted, by an operator: its records are lost"):
            await world.end(prepared)

    run(main())


def test_an_id_that_is_used_for_the_last_time_is_forgotten() -> None:
    async def main() -> None:
        world = World()
        async with world.producer:
            prepared = await world.prepared()
        for _ in range(2):
            await world.end(prepared, is_last=True)
        assert world.coordinator.committed("t") == [b"value"] and not world.coordinator.known()

    run(main())


@pytest.mark.parametrize("delay_s", [1.0, 60.0])
def test_a_commit_waits_a_while_until_readers_see_it(delay_s: float) -> None:
    async def main() -> None:
        world = World()
        async with world.producer:
            prepared = await world.prepared()
        write = world.coordinator.write_markers
        world.coordinator.write_markers = lambda: None  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def marked() -> None:
            world.coordinator.write_markers = write  # type: ignore[method-assign]
            write()

        loop.call_later(delay_s, marked)
        await world.end(prepared, completion_ms=2_000)
        if delay_s < 2:
            assert world.coordinator.committed("t") == [b"value"]
        else:
            assert world.state() == "PrepareCommit" and 1 < loop.time() - began_s < 4

    run(main())


def test_a_text_that_is_stored_with_the_decision_is_enough_to_carry_it_out() -> None:
    async def main() -> None:
        world = World()
        async with world.producer:
            text = str(await world.prepared())
        async with Admin(client=world.cluster.client()) as admin:
            for _ in range(2):
                await admin.transactions.end_prepared(PreparedTransaction.parse(text), is_commit=True)
        assert world.coordinator.committed("t") == [b"value"]

    run(main())


@pytest.mark.parametrize("name", ["plain", "with:colons:7", "ü"])
def test_a_prepared_transaction_is_read_as_it_was_written(name: str) -> None:
    prepared = PreparedTransaction(
        transactional_id=name, producer=ProducerIdentity(producer_id=2**62, producer_epoch=7)
    )
    assert PreparedTransaction.parse(str(prepared)) == prepared


@pytest.mark.parametrize("text", ["", "7", "7:0", "7:0:", "-1:0:orders", "7:x:orders", "orders"])
def test_another_text_is_no_prepared_transaction(text: str) -> None:
    with pytest.raises(ValueError, match="is no prepared transaction: use what str"):
        PreparedTransaction.parse(text)
