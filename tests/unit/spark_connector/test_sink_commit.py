"""Commits of effectively-once sinks against a cluster in memory with the real coordinator of transactions: drivers that die at
every step, two drivers at once, what is left of attempts that do not count."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_transactions import FakeTransactions
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import iter_records
from barnabas.log.vocabulary.errors import InvalidTxnStateError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.log.vocabulary.transaction_messages import ProducerIdentity, TransactionState
from barnabas.net.client.connection.errors import (
    BarnabasError,
    CoordinatorNotAvailableError,
    NetworkError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
)
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.producer_config import TAKEN_OVER_LATER
from barnabas.net.client.transactions.prepared import PreparedTransaction
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.spark_connector.common.sink_ledger import LEDGER_TOPIC
from barnabas.spark_connector.write.sink_commit import SinkCommitter, no_probe
from barnabas.spark_connector.write.task_transaction import MAX_IDS, SinkBatch, TaskTransaction

TOPICS = {LEDGER_TOPIC: 1, "t": 2}
TASKS = ("0", "1")
STEPS = ("staged", "decided", "copied 0", "copied 1", "copied", "published")
DECIDED_FROM = STEPS.index("decided")
TIMEOUT_MS = 5_000
SINK = "query-1"
JOBS = ("job-1", "job-2")  # without a sinkId


class Died(BaseException):
    """kill -9 as seen from inside."""


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster(brokers=2, topics=TOPICS)
        self.cluster.configs[LEDGER_TOPIC] = {"cleanup.policy": "compact"}
        self.coordinator = FakeTransactions(self.cluster)

    def rows(self) -> Counter[tuple[int, int, str]]:
        """That readers of committed records see."""
        found = [value.decode().split() for value in self.coordinator.committed("t")]
        return Counter((int(batch_id), int(row), name) for batch_id, row, name in found)

    def check_once(self, batches: dict[int, str], rows: int = 40) -> None:
        """Each row of each micro-batch once, all of them of the driver that is named; and no transaction is left."""
        assert self.rows() == Counter((b, row, name) for b, name in batches.items() for row in range(rows))
        assert not self.open()

    def open(self) -> list[str]:
        return [item.transactional_id for item in self.coordinator.known() if TransactionState(item.state).is_open]

    def ledger(self) -> dict[bytes | None, bytes | None]:
        """What compaction leaves."""
        batches = self.cluster.logs[TopicPartition(LEDGER_TOPIC, 0)].batches
        return {record.key: record.value for _, _, data in batches for record in iter_records(data)}


class Driver:
    """One life of a driver and its tasks: a client, producers and a committer of its own, and rows that carry its name."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.client = world.cluster.client()
        self.producer = Producer(client=self.client, batch_size=256)
        self.of_tasks = Producer(client=self.client, batch_size=256, transactional_id=TAKEN_OVER_LATER)

    async def __aenter__(self) -> "Driver":
        await self.producer.start()
        await self.of_tasks.start()
        self.committer = SinkCommitter(self.client, self.producer, timeout_ms=TIMEOUT_MS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.producer.close(timeout_ms=0)

    async def task(self, task: str, batch_id: int, rows: Sequence[int], sink: str = SINK) -> PreparedTransaction:
        attempt = TaskTransaction(
            self.client,
            self.of_tasks,
            SinkBatch(sink_id=sink, batch_id=batch_id, is_job=sink in JOBS),
            task=f"{task}.0",
        )
        transaction = await attempt.begin()
        for partition in (0, 1):
            values = [b"%d %d %s" % (batch_id, row, self.name.encode()) for row in rows if row // 2 % 2 == partition]
            if values:
                await transaction.send_many("t", values, partition=partition)
        prepared = await attempt.prepare(transaction)
        assert prepared is not None
        return prepared

    async def write(self, batch_id: int, rows: int = 40, sink: str = SINK) -> list[PreparedTransaction]:
        """All tasks of a micro-batch."""
        return [await self.task(task, batch_id, range(int(task), rows, len(TASKS)), sink) for task in TASKS]

    async def commit(
        self, batch_id: int, rows: int = 40, *, probe: Callable[[str], None] = no_probe, sink: str = SINK, **more: Any
    ) -> bool:
        return await self.committer.commit(sink, batch_id, await self.write(batch_id, rows, sink), probe=probe, **more)


def dying_at(step: str) -> Callable[[str], None]:
    def probe(reached: str) -> None:
        kind, _, name = reached.partition(" ")
        task = name.rpartition("/")[2].partition(".")[0]
        if f"{kind} {task}".strip() == step:
            raise Died

    return probe


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(step: str) -> None:
    async def main() -> None:
        world = World()
        is_decided = STEPS.index(step) >= DECIDED_FROM
        async with Driver(world, "first") as driver:
            assert await driver.commit(0)
            with pytest.raises(Died):
                await driver.commit(1, probe=dying_at(step))
            if not is_decided:
                assert {batch_id for batch_id, _, _ in world.rows()} == {0}, (
                    "readers see nothing of what is not decided"
                )
        await asyncio.sleep(86_400)  # a timeout ends nothing that is prepared
        async with Driver(world, "second") as driver:
            is_mine = await driver.commit(1)
            await driver.commit(2)
        assert is_mine is not is_decided
        world.check_once({0: "first", 1: "first" if is_decided else "second", 2: "second"})

    run(main())


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
def test_the_one_who_resumes_may_die_as_well(first: str, second: str) -> None:
    async def main() -> None:
        world = World()
        for name, step in (("first", first), ("second", second)):
            async with Driver(world, name) as driver:
                try:
                    await driver.commit(0, probe=dying_at(step))
                except Died:
                    pass
        async with Driver(world, "third") as driver:
            await driver.commit(0)
            await driver.commit(1)
        names = {name for batch_id, _, name in world.rows() if batch_id == 0}
        assert len(names) == 1
        world.check_once({0: names.pop(), 1: "third"})

    run(main())


def test_two_drivers_at_the_same_moment_publish_the_rows_of_one() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "left") as left, Driver(world, "right") as right:
            for batch_id in range(3):
                both = [(driver, await driver.write(batch_id, 200)) for driver in (left, right)]
                outcomes = await asyncio.gather(
                    *(driver.committer.commit(SINK, batch_id, prepared) for driver, prepared in both)
                )
                assert sum(outcomes) == 1
        owners = {batch_id: name for batch_id, _, name in world.rows()}
        world.check_once(owners, rows=200)

    run(main())


def test_a_zombie_that_wakes_up_behind_its_decision_changes_nothing() -> None:
    async def main() -> None:
        world = World()
        cluster = world.cluster
        async with Driver(world, "zombie") as zombie, Driver(world, "next") as driver:
            sleeps, wakes = asyncio.Event(), asyncio.Event()

            async def later(node_id: int, request: Any) -> Any:
                sleeps.set()
                await wakes.wait()
                return world.coordinator.produce(node_id, request)

            def hold(node_id: int, request: Any) -> Any:
                is_decision = request.partitions[0].topic == LEDGER_TOPIC and not sleeps.is_set()
                return later(node_id, request) if is_decision else None

            prepared = await zombie.write(0)
            cluster.script(ApiKey.PRODUCE, hold, forever=True)
            late = asyncio.create_task(zombie.committer.commit(SINK, 0, prepared))
            await sleeps.wait()
            for batch_id in range(3):
                assert await driver.commit(batch_id)
            wakes.set()
            assert not await late
            assert await driver.commit(3)
        world.check_once(dict.fromkeys(range(4), "next"))

    run(main())


def test_a_driver_aborts_nothing_of_a_later_micro_batch_that_another_one_may_decide() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "ahead") as ahead, Driver(world, "behind") as behind:
            assert await ahead.commit(0)
            prepared = await ahead.write(1)
            assert not await behind.commit(0)
            assert len(world.open()) == len(TASKS), "what is prepared for micro-batch 1"
            assert await ahead.committer.commit(SINK, 1, prepared)
        world.check_once({0: "ahead", 1: "ahead"})

    run(main())


def test_a_transaction_that_is_prepared_and_decided_while_another_driver_cleans_up_is_not_aborted() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "ahead") as ahead, Driver(world, "behind") as behind:
            assert await ahead.commit(0)
            attempt = TaskTransaction(ahead.client, ahead.of_tasks, SinkBatch(sink_id=SINK, batch_id=1), task="7.0")
            transaction = await attempt.begin()
            await transaction.send_many("t", [b"1 %d ahead" % row for row in range(40)], partition=0)
            await asyncio.sleep(1)
            decided = []

            async def prepared_meanwhile(node_id: int, request: Any) -> Any:
                answer = world.coordinator.list_all(node_id, request)
                if not node_id:
                    assert "Ongoing" in [item.state for item in answer.transactions]
                    world.cluster.scripts.clear()
                    prepared = await attempt.prepare(transaction)
                    with pytest.raises(Died):
                        await ahead.committer.commit(SINK, 1, [prepared], probe=dying_at("decided"))  # type: ignore[list-item]
                    decided.append(prepared)
                return answer

            world.cluster.script(ApiKey.LIST_TRANSACTIONS, prepared_meanwhile, forever=True)
            assert not await behind.commit(0)
            assert decided and len(world.open()) == 1, "it is prepared, and decided"
            assert not await behind.commit(1)
        world.check_once({0: "ahead", 1: "ahead"})

    run(main())


def test_of_two_attempts_of_a_task_only_the_reported_one_counts() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "one") as driver:
            await driver.task("0", 0, range(0, 40, 2))  # its report got lost
            assert await driver.commit(0)
        world.check_once({0: "one"})

    run(main())


def test_a_task_that_is_taken_over_cannot_prepare_any_more() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "zombie") as zombie, Driver(world, "next") as driver:
            attempt = TaskTransaction(zombie.client, zombie.of_tasks, SinkBatch(sink_id=SINK, batch_id=0), task="0.0")
            transaction = await attempt.begin()
            await transaction.send("t", b"0 0 zombie", partition=0)
            assert await driver.commit(0)
            with pytest.raises((ProducerFencedError, TransactionAbortedError)):
                await attempt.prepare(transaction)
        world.check_once({0: "next"})

    run(main())


@pytest.mark.parametrize("is_open_before", [False, True], ids=["begins after the job", "was open"])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_attempt_that_outlives_its_job_prepares_nothing(end: str, is_open_before: bool) -> None:
    """No later driver would abort its transaction, and readers of committed records would wait for it."""

    async def main() -> None:
        world = World()
        async with Driver(world, "late") as late, Driver(world, "job") as driver:
            batch = SinkBatch(sink_id="job-1", batch_id=0, is_job=True)
            await driver.committer.open_job("job-1")
            attempt = TaskTransaction(late.client, late.of_tasks, batch, task="0.1")
            if is_open_before:
                transaction = await attempt.begin()
                await (await transaction.send("t", b"0 0 late", partition=0))
            if end == "commit":
                assert await driver.commit(0, sink="job-1", is_last=True)
            else:
                await driver.committer.abort("job-1", await driver.write(0, sink="job-1"), is_job=True)
            if not is_open_before:
                transaction = await attempt.begin()
                await transaction.send("t", b"0 0 late", partition=0)
            with pytest.raises((InvalidTxnStateError, ProducerFencedError, TransactionAbortedError)):
                await attempt.prepare(transaction)
            assert not [item for item in world.coordinator.known() if item.state == TransactionState.PREPARED]
            with suppress(BarnabasError):
                await transaction.abort()
        world.check_once({0: "job"} if end == "commit" else {})

    run(main())


def test_a_task_finds_an_id_while_others_wait_and_says_so_when_there_is_none() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "one") as driver:
            for _ in range(MAX_IDS):
                await driver.task("0", 0, [0])
            with pytest.raises(InvalidTxnStateError, match=r"32 attempts of this task wait.*barnabas transaction list"):
                await driver.task("0", 0, [0])
            assert await driver.committer.commit(SINK, 0, [await driver.task("1", 0, range(40))])
            assert await driver.commit(1)
        world.check_once(dict.fromkeys(range(2), "one"))

    run(main())


def test_a_job_that_failed_aborts_what_its_tasks_prepared() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "job") as driver:
            prepared = await driver.write(0)
            await driver.committer.abort(SINK, prepared, is_job=False)
            assert not world.open() and not world.rows()
            assert await driver.commit(0)
        world.check_once({0: "job"})

    run(main())


@pytest.mark.parametrize("is_decided", [False, True])
def test_the_abort_of_a_job_decides_too_in_case_that_its_commit_has(is_decided: bool) -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "job") as driver:
            await driver.committer.open_job("job-1")
            prepared = await driver.write(0, sink="job-1")
            with pytest.raises(Died):
                probe = dying_at("decided" if is_decided else "staged")
                await driver.committer.commit("job-1", 0, prepared, is_last=True, probe=probe)
        async with Driver(world, "its abort") as driver:
            await driver.committer.abort("job-1", prepared, is_job=True)
        world.check_once({0: "job"} if is_decided else {})
        assert set(world.ledger().values()) == {None} and not world.coordinator.known()

    run(main())


def test_a_decided_transaction_that_an_operator_aborted_is_an_error_not_silence() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "first") as driver:
            with pytest.raises(Died):
                await driver.commit(0, probe=dying_at("decided"))
        world.coordinator.abort(world.open()[0])
        async with Driver(world, "second") as driver:
            with pytest.raises(
                TransactionAbortedError, match=r"is decided, but its topics do not have all.*by an operator"
            ):
                await driver.committer.commit(SINK, 0, [])

    run(main())


def test_a_micro_batch_of_too_many_tasks_is_refused_before_it_is_decided() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "first") as driver:
            many = [
                PreparedTransaction(
                    transactional_id=f"{SINK}/{number}", producer=ProducerIdentity(producer_id=number, producer_epoch=0)
                )
                for number in range(60_000)
            ]
            with pytest.raises(RecordTooLargeError, match=r"60000 tasks with rows.*fewer partitions"):
                await driver.committer.commit(SINK, 0, many)
            assert await driver.commit(0)
        world.check_once({0: "first"})

    run(main())


def test_a_coordinator_that_stays_away_is_an_error_and_the_next_commit_goes_on() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "first") as driver:
            prepared = await driver.write(0)
            world.cluster.script(ApiKey.END_TRANSACTION, lambda *_: NetworkError("cut"), forever=True)
            with pytest.raises((NetworkError, CoordinatorNotAvailableError)):
                await driver.committer.commit(SINK, 0, prepared)
            world.cluster.scripts.clear()
            assert not await driver.commit(0)
        world.check_once({0: "first"})

    run(main())


def test_a_list_that_fails_delays_no_commit() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "first") as driver:
            world.cluster.script(ApiKey.LIST_TRANSACTIONS, lambda *_: NetworkError("cut"), forever=True)
            assert await driver.commit(0)
        world.check_once({0: "first"})

    run(main())


def test_a_sink_that_never_writes_again_leaves_nothing() -> None:
    async def main() -> None:
        world = World()
        async with Driver(world, "job") as driver:
            await driver.committer.open_job("job-2")
            await driver.task("0", 0, range(0, 40, 2), sink="job-2")  # an attempt whose report got lost
            await driver.commit(0, sink="job-2", is_last=True)
        world.check_once({0: "job"})
        assert set(world.ledger().values()) == {None}
        assert not world.coordinator.known(), "transactional ids of one job are forgotten"

    run(main())
