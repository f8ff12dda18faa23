"""What a broker sees of its transactions from time to time: metrics, and a line in the log when one outlives its timeout."""

import asyncio
import logging

import pytest
from unit.net.handlers.test_kafka_transactions import World, upgraded
from unit.net.handlers.test_transaction_operations import hang
from unit.net.shell_world import partition, simulated, topic, turns

from barnabas.consumer_groups.transactions.counts import TransactionCounts
from barnabas.kraft.metadata.image import NO_LEADER, SLOT_COUNT
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.broker.metrics import transaction_samples
from barnabas.net.coordination.transactions.transaction_watch import TransactionTotals, TransactionWatch


def watch_of(world: World) -> TransactionWatch:
    inner = world.world
    watch = TransactionWatch(
        clock=inner.shell.clock,
        replication=inner.replication,
        service=inner.services.transactions,
        operations=inner.services.transaction_operations,
    )
    inner.slots.observe(watch)
    return watch


@simulated
async def test_open_transactions_lags_and_outcomes_are_counted() -> None:
    world = await World.start()
    watch = watch_of(world)
    who = await world.init()
    await world.add(who, 0, 1)
    await world.produce(who)
    await world.produce(who, 1)
    await watch.look()
    totals = watch.totals
    assert (totals.open, totals.lagging, totals.lags) == (1, 1, ((TopicPartition("t", 0), 2),))
    assert (totals.overdue, totals.hanging, totals.waiting_for_markers) == (0, 0, 0)
    await world.end(who, commit=True)
    await watch.look()
    assert (totals.open, totals.oldest_ms, totals.lagging, totals.lags) == (0, 0, 0, ())
    await world.add(who, 0)
    await world.end(who, commit=False)
    assert (totals.committed, totals.aborted) == (1, 1)


@simulated
async def test_a_transaction_that_outlives_its_timeout_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = await World.start()
    watch = watch_of(world)
    who = await world.init()
    await world.add(who, 0)
    slots = tuple(range(SLOT_COUNT))
    leaderless = topic("t", partition(NO_LEADER, replicas=(0,)), partition(0, replicas=(0,)))
    world.world.show(leaderless, brokers=(upgraded(0),), slots=slots, offset=11)
    await world.end(who, commit=True)
    await asyncio.sleep(65.1)
    with caplog.at_level(logging.WARNING, "barnabas.transactions"):
        await watch.look()
        await watch.look()
    assert (watch.totals.overdue, watch.totals.waiting_for_markers) == (1, 1)
    (line,) = [item.getMessage() for item in caplog.records if "outlived" in item.getMessage()]
    assert "transaction=tx state=PrepareCommit has outlived its timeout timeout_ms=60000" in line


@simulated
async def test_a_hanging_transaction_is_logged_once_with_its_cure(caplog: pytest.LogCaptureFixture) -> None:
    world = await World.start()
    watch = watch_of(world)
    hang(world)
    await watch.look()
    assert watch.totals.hanging == 0, "it is young"
    await asyncio.sleep(11)
    with caplog.at_level(logging.WARNING, "barnabas.transactions"):
        await watch.look()
        await watch.look()
    assert watch.totals.hanging == 1
    (line,) = [item.getMessage() for item in caplog.records]
    assert "barnabas transaction abort --topic t --partition 0 --producer-id 4711" in line
    await world.world.services.transaction_operations.abort_hanging(TopicPartition("t", 0), producer_id=4711)
    await turns()
    await watch.look()
    assert watch.totals.hanging == 0


def test_metrics_name_the_partitions_with_the_largest_lag() -> None:
    totals = TransactionTotals(committed=3, oldest_ms=1_500, lags=((TopicPartition("t", 0), 7),))
    found = {item.name: item for item in transaction_samples(totals, TransactionCounts(timed_out=2))}
    assert found["barnabas_transactions_committed_total"].value == 3
    assert found["barnabas_transactions_timed_out_total"].value == 2
    assert found["barnabas_transactions_oldest_seconds"].value == 1.5
    lag = found["barnabas_last_stable_offset_lag"]
    assert (lag.value, lag.labels) == (7, {"topic": "t", "partition": "0"})
