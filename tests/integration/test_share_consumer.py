"""`ShareConsumer` on real brokers: queues of the SDK, through transactions, deleted records, deleted topics and kill -9."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from integration.cluster import DEADLINE_S, Cluster, full_isr, partitions_of, until

from barnabas.log.vocabulary.errors import RequestTimedOutError
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.net.client.admin.admin import GROUP, Admin
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.client.share.share_record import ShareRecord

BATCH, PAUSE_S = 20, 0.05
EARLIEST = {"share.auto.offset.reset": "earliest"}


@asynccontextmanager
async def queue(
    cluster: Cluster, topic: str, group: str, values: range = range(0), **configs: str
) -> AsyncIterator[Admin]:
    """A topic of one partition with these values, and a group that begins with the first."""
    async with cluster.admin() as admin:
        await admin.create_topic(topic, partitions=1, replication_factor=3, configs={"min.insync.replicas": "2"})
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.alter_config(group, {**EARLIEST, **settings}, resource_type=GROUP)
        await produce(cluster, topic, values)
        yield admin


async def produce(cluster: Cluster, topic: str, values: range) -> None:
    async with Producer(cluster.bootstrap) as producer:
        for value in values:
            await producer.send(topic, str(value).encode(), partition=0)


async def take(consumer: ShareConsumer, count: int, *, timeout_s: float = DEADLINE_S) -> list[ShareRecord]:
    """At least so many; the last ones are not accepted yet."""
    found: list[ShareRecord] = []
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=500)
    return found


def numbers(records: list[ShareRecord]) -> list[int]:
    return [int(record.value) for record in records]


async def test_accept_release_reject_and_the_count_of_deliveries(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with queue(shared_cluster, "sdk", "sdk", range(10)) as admin:
        seen: Counter[tuple[int, int]] = Counter()
        async with ShareConsumer("sdk", bootstrap=shared_cluster.bootstrap, group="sdk") as consumer:
            async for record in consumer:
                seen[int(record.value), record.delivery_count] += 1
                if record.value == b"3" and record.delivery_count < 3:
                    consumer.acknowledge(record, "release")
                if record.value == b"4":
                    consumer.acknowledge(record, "reject")
                if sum(seen.values()) == 12:
                    consumer.acknowledge(record)
                    break
            await consumer.commit()
        assert seen == Counter([*((value, 1) for value in range(10)), (3, 2), (3, 3)])
        ((place, lag),) = (await admin.group_offsets("sdk")).items()
        assert (place.topic, lag.committed, lag.log_end_offset) == ("sdk", 10, 10)
        (group,) = [item for item in await admin.list_groups() if item.group_id == "sdk"]
        assert (group.protocol, group.state) == ("share", "empty")


async def test_what_is_not_acknowledged_is_released_at_the_end(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with queue(shared_cluster, "left", "left", range(5)):
        async with ShareConsumer("left", bootstrap=shared_cluster.bootstrap, group="left") as first:
            records = await take(first, 5)
            first.acknowledge(records[0])
        async with ShareConsumer("left", bootstrap=shared_cluster.bootstrap, group="left") as second:
            again = await take(second, 4)
    assert numbers(again) == [1, 2, 3, 4]
    assert {record.delivery_count for record in again} == {2}


async def test_close_waits_for_acknowledgements_that_are_on_their_way(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with queue(shared_cluster, "closing", "closing", range(10)):
        async with ShareConsumer("closing", bootstrap=shared_cluster.bootstrap, group="closing") as consumer:
            first: list[ShareRecord] = []
            async with asyncio.timeout(DEADLINE_S):
                while len(first) < 5:
                    first += await consumer.poll(max_records=5 - len(first), timeout_ms=500)
            assert await consumer.poll(max_records=1, timeout_ms=5_000)  # accepts the first five
            await asyncio.sleep(0)  # their request begins
        async with ShareConsumer("closing", bootstrap=shared_cluster.bootstrap, group="closing") as consumer:
            assert numbers(await take(consumer, 5)) == [5, 6, 7, 8, 9]


async def test_a_lock_that_is_over_is_told(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(
            queue(shared_cluster, "late", "late", range(2), share_record_lock_duration_ms="500")
        )
        slow, other = [
            await stack.enter_async_context(ShareConsumer("late", bootstrap=shared_cluster.bootstrap, group="late"))
            for _ in range(2)
        ]
        records = await take(slow, 2)
        assert {record.delivery_count for record in await take(other, 2)} == {2}  # as soon as the locks are over
        slow.acknowledge(records[0])
        with pytest.raises(InvalidRecordStateError):
            await slow.commit()
        await slow.close()

        async def other_accepts() -> bool:
            """On a busy machine, its own locks may be over before its commit: the records come again."""
            await other.poll(timeout_ms=100)
            await other.commit()
            ((_, lag),) = (await admin.group_offsets("late")).items()
            return lag.committed == 2

        await until(other_accepts, "the other accepts the records")


async def test_aborted_transactions_are_not_delivered(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with queue(shared_cluster, "txn", "txn", share_isolation_level="read_committed"):
        async with Producer(shared_cluster.bootstrap, transactional_id="share-txn") as producer:
            for start in range(0, 60, 20):
                try:
                    async with producer.transaction() as transaction:
                        for value in range(start, start + 20):
                            sent = await transaction.send("txn", str(value).encode(), partition=0)
                        await sent  # the log has them, also those of the transaction that is aborted
                        if start == 20:
                            raise LookupError
                except LookupError:
                    pass
        async with ShareConsumer("txn", bootstrap=shared_cluster.bootstrap, group="txn") as consumer:
            records = await take(consumer, 40)
            assert numbers(records) == [*range(20), *range(40, 60)]
            assert await consumer.poll(timeout_ms=500) == []
            await consumer.commit()


async def test_deleted_records_and_a_topic_made_anew(shared_cluster: Cluster) -> None:
    await shared_cluster.ready()
    async with queue(shared_cluster, "gone", "gone", range(30)) as admin:
        async with ShareConsumer("gone", bootstrap=shared_cluster.bootstrap, group="gone", max_records=10) as consumer:
            assert len(await take(consumer, 1)) > 0
            await admin.delete_records("gone", 0, before_offset=25)
        async with ShareConsumer("gone", bootstrap=shared_cluster.bootstrap, group="gone") as consumer:
            assert numbers(await take(consumer, 5)) == [25, 26, 27, 28, 29]
            await consumer.poll(timeout_ms=100)
            await consumer.commit()
        await admin.delete_topic("gone")
        await admin.create_topic("gone", partitions=1, replication_factor=3)
        await produce(shared_cluster, "gone", range(100, 103))
        async with ShareConsumer("gone", bootstrap=shared_cluster.bootstrap, group="gone") as consumer:
            assert numbers(await take(consumer, 3)) == [100, 101, 102]


@pytest.mark.timeout(120)
async def test_nothing_is_confirmed_without_the_quorum(new_cluster: Callable[..., Cluster]) -> None:
    # The controller, back after its pause, would otherwise take a broker for dead, and the records would have another leader.
    cluster = await new_cluster(3, broker_session_timeout_ms="60000").ready()
    async with queue(cluster, "stop", "stop", range(5)) as admin:
        leader = (await partitions_of(admin, "stop"))[0].leader
        others = [node for node in cluster.nodes if node.node_id != leader]
        async with ShareConsumer("stop", bootstrap=cluster.bootstrap, group="stop") as consumer:
            records = await take(consumer, 5)
            for node in others:
                node.signal(signal.SIGSTOP)
            try:
                for record in records:
                    consumer.acknowledge(record)
                with pytest.raises(RequestTimedOutError):
                    await consumer.commit(timeout_ms=2_000)
            finally:
                for node in others:
                    node.signal(signal.SIGCONT)
            await consumer.commit()


@pytest.mark.timeout(180)
async def test_what_a_commit_confirmed_never_comes_again(new_cluster: Callable[..., Cluster]) -> None:
    cluster = await new_cluster(3).ready()
    history = History()
    async with queue(cluster, "kills", "kills") as admin:
        workers = [asyncio.create_task(history.work(cluster)) for _ in range(3)]
        load = asyncio.create_task(history.produce(cluster))
        try:
            for step in range(1, 5):
                await until(lambda: len(history.confirmed) > 200 * step, "work goes on", timeout_s=60)  # noqa: B023
                leader = (await partitions_of(admin, "kills"))[0].leader
                victim = leader if step % 2 else (await admin.describe_group("kills")).coordinator
                cluster.kill(victim)
                before = len(history.confirmed)
                await until(lambda: len(history.confirmed) > before + 20, f"without {victim}", timeout_s=60)  # noqa: B023
                cluster.start(victim)
                await full_isr(admin, ["kills"])
            history.is_ending = True
            await load
            await until(lambda: history.is_complete, "every record is done", timeout_s=60)
        finally:
            for task in (*workers, load):
                task.cancel()
            await asyncio.gather(*workers, load, return_exceptions=True)
    assert not history.faults
    assert history.seen == set(range(history.count))


class History:
    """What the workers have seen, and what the group has confirmed; a worker knows nothing of an unanswered commit."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.confirmed: set[int] = set()
        self.doubtful: set[int] = set()
        self.faults: list[str] = []
        self.count = 0  # of records that were sent
        self.is_ending = False

    async def produce(self, cluster: Cluster) -> None:
        while not self.is_ending:
            await produce(cluster, "kills", range(self.count, self.count + BATCH))
            self.count += BATCH
            await asyncio.sleep(PAUSE_S)

    @property
    def is_complete(self) -> bool:
        return len(self.confirmed | self.doubtful) == self.count

    async def work(self, cluster: Cluster) -> None:
        async with ShareConsumer("kills", bootstrap=cluster.bootstrap, group="kills", max_records=20) as consumer:
            while True:
                records = await consumer.poll(timeout_ms=500)
                values = numbers(records)
                self.faults += [f"{value} came again" for value in values if value in self.confirmed]
                self.seen.update(values)
                for record in records:
                    consumer.acknowledge(record)
                try:
                    await consumer.commit()
                except InvalidRecordStateError:
                    self.doubtful.update(values)
                except Exception as error:
                    self.doubtful.update(values)
                    if not getattr(error, "retriable", False):
                        self.faults.append(repr(error))
                else:
                    self.confirmed.update(values)
