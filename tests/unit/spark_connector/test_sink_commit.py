"""Commits of effectively-once sinks against a cluster in memory: drivers that die at every step, two drivers at once, losses."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import iter_records
from barnabas.log.vocabulary.errors import InvalidRecordError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.clock import SystemClock
from barnabas.net.client.connection.errors import ErrorCode, NotEnoughReplicasError, RecordTooLargeError
from barnabas.net.client.producer.handles import extents
from barnabas.net.client.producer.producer import Producer
from barnabas.net.protocol import responses as r
from barnabas.net.protocol.api_keys import ApiKey
from barnabas.spark_connector.common.sink_ledger import LEDGER_TOPIC, StagedBatch, stage_of
from barnabas.spark_connector.write.sink_commit import SinkCommitter, StagedRowsLostError, no_probe

TOPICS = {LEDGER_TOPIC: 1, "t": 2, stage_of("t"): 2}
PARTITIONS = (0, 1)
STEPS = ("staged", "decided", "copied t-0", "copied t-1", "copied", "published")
DECIDED_FROM = STEPS.index("decided")
TIMEOUT_MS = 5_000
SINK = "query-1"


class Died(BaseException):
    """kill -9 as seen from inside."""


class WallClock(SystemClock):
    """At a certain time of history."""

    def __init__(self, wall_ms: int) -> None:
        super().__init__()
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms


class Driver:
    """One life of a driver: a client, a producer and a committer of its own, and rows that carry its name."""

    def __init__(self, cluster: FakeCluster, name: str, *, wall_ms: int | None = None) -> None:
        self.name = name
        self.client = cluster.client() if wall_ms is None else cluster.client(clock=WallClock(wall_ms))
        self.producer = Producer(client=self.client, batch_size=256)

    async def __aenter__(self) -> "Driver":
        await self.producer.start()
        self.committer = SinkCommitter(self.client, self.producer, timeout_ms=TIMEOUT_MS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.producer.close(timeout_ms=0)

    async def stage(self, batch_id: int, rows: int) -> list[StagedBatch]:
        sent = [
            await self.producer.send_many(
                stage_of("t"),
                [b"%d %d %s" % (batch_id, row, self.name.encode()) for row in range(partition, rows, 2)],
                partition=partition,
            )
            for partition in PARTITIONS
        ]
        return [
            StagedBatch(
                topic="t",
                partition=item.partition.partition,
                base_offset=item.base_offset,
                record_count=item.record_count,
            )
            for item in await extents(sent)
        ]

    async def commit(
        self, batch_id: int, rows: int = 40, *, probe: Callable[[str], None] = no_probe, **more: Any
    ) -> bool:
        return await self.committer.commit(SINK, batch_id, await self.stage(batch_id, rows), probe=probe, **more)


def dying_at(step: str) -> Callable[[str], None]:
    def probe(reached: str) -> None:
        if reached == step:
            raise Died

    return probe


def rows_of(cluster: FakeCluster) -> list[tuple[int, int, str]]:
    found = []
    for partition in PARTITIONS:
        for value in cluster.logs[TopicPartition("t", partition)].values():
            batch_id, row, name = (value or b"").decode().split()
            found.append((int(batch_id), int(row), name))
    return found


def check_once(cluster: FakeCluster, batches: dict[int, str], rows: int = 40) -> None:
    """Each row of each micro-batch once, all of them of the driver that is named."""
    assert Counter(rows_of(cluster)) == Counter((b, row, name) for b, name in batches.items() for row in range(rows))


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(step: str) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            assert await driver.commit(0)
            with pytest.raises(Died):
                await driver.commit(1, probe=dying_at(step))
        async with Driver(cluster, "second") as driver:
            is_mine = await driver.commit(1)
            await driver.commit(2)
        is_decided = STEPS.index(step) >= DECIDED_FROM
        assert is_mine is not is_decided
        check_once(cluster, {0: "first", 1: "first" if is_decided else "second", 2: "second"})

    run(main())


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
def test_the_one_who_resumes_may_die_as_well(first: str, second: str) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        for name, step in (("first", first), ("second", second)):
            async with Driver(cluster, name) as driver:
                try:
                    await driver.commit(0, probe=dying_at(step))
                except Died:
                    pass
        async with Driver(cluster, "third") as driver:
            await driver.commit(0)
            await driver.commit(1)
        names = {name for batch_id, _, name in rows_of(cluster) if batch_id == 0}
        assert len(names) == 1
        check_once(cluster, {0: names.pop(), 1: "third"})

    run(main())


def test_a_copy_that_stopped_between_two_batches_goes_on_there_though_brokers_have_forgotten_the_producer() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            appended = 0

            def few(node_id: int, request: Any) -> None:
                nonlocal appended
                appended += request.partitions[0].topic == "t"
                if appended > 5:
                    raise Died

            staged = await driver.stage(0, 400)
            cluster.script(ApiKey.PRODUCE, few, forever=True)
            with pytest.raises(Died):
                await driver.committer.commit(SINK, 0, staged)
        cluster.scripts.clear()
        assert 0 < len(rows_of(cluster)) < 400
        for partition in PARTITIONS:
            cluster.logs[TopicPartition("t", partition)].producers.clear()
        async with Driver(cluster, "second") as driver:
            assert not await driver.commit(0, 400)
        check_once(cluster, {0: "first"}, rows=400)

    run(main())


def test_two_drivers_at_the_same_moment_publish_the_same_rows_once() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "left") as left, Driver(cluster, "right") as right:
            for batch_id in range(3):
                outcomes = await asyncio.gather(left.commit(batch_id, 200), right.commit(batch_id, 200))
                assert sum(outcomes) == 1
        found = rows_of(cluster)
        owners = {batch_id: name for batch_id, _, name in found}
        check_once(cluster, owners, rows=200)

    run(main())


def test_a_zombie_that_wakes_up_behind_its_decision_changes_nothing() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "zombie") as zombie, Driver(cluster, "next") as driver:
            sleeps, wakes = asyncio.Event(), asyncio.Event()

            async def later(node_id: int, request: Any) -> Any:
                sleeps.set()
                await wakes.wait()
                return cluster.produce(node_id, request)

            def hold(node_id: int, request: Any) -> Any:
                is_decision = request.partitions[0].topic == LEDGER_TOPIC and not sleeps.is_set()
                return later(node_id, request) if is_decision else None

            staged = await zombie.stage(0, 40)
            cluster.script(ApiKey.PRODUCE, hold, forever=True)
            late = asyncio.create_task(zombie.committer.commit(SINK, 0, staged))
            await sleeps.wait()
            for batch_id in range(3):
                assert await driver.commit(batch_id)
            wakes.set()
            assert not await late
            assert await driver.commit(3)
        check_once(cluster, dict.fromkeys(range(4), "next"))

    run(main())


def test_every_micro_batch_has_an_epoch_of_its_own_and_sequences_from_zero() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            for batch_id in range(3):
                await driver.commit(batch_id)
        headers = [
            header for _, _, data in cluster.logs[TopicPartition("t", 0)].batches for header in iter_headers(data)
        ]
        assert len({header.producer_id for header in headers}) == 1
        firsts = {header.producer_epoch: header.base_sequence for header in reversed(headers)}
        assert firsts == {0: 0, 1: 0, 2: 0}

    run(main())


def refusing(error: ErrorCode) -> Callable[[int, Any], Any]:
    """What the sink's topic answers, whatever comes."""

    def answer(node_id: int, request: Any) -> Any:
        (item,) = request.partitions
        if item.topic != "t":
            return None
        refusal = r.ProducePartitionResponse(topic=item.topic, partition=item.partition, error=int(error), message="no")
        return r.ProduceResponse(partitions=(refusal,))

    return answer


def test_what_the_topic_refuses_for_good_names_the_cures() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            cluster.script(ApiKey.PRODUCE, refusing(ErrorCode.INVALID_RECORD), forever=True)
            with pytest.raises(
                InvalidRecordError, match=r"is decided, but t-. does not have all of it.*refuses it: no.*another sinkId"
            ):
                await driver.commit(0)
            cluster.scripts.clear()
            assert not await driver.commit(0)
        check_once(cluster, {0: "first"})

    run(main())


def test_a_micro_batch_of_too_many_batches_is_refused_before_it_is_decided() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            many = [
                StagedBatch(topic="t", partition=0, base_offset=offset, record_count=1) for offset in range(100_000)
            ]
            with pytest.raises(RecordTooLargeError, match=r"100000 staged batches.*lower maxOffsetsPerTrigger"):
                await driver.committer.commit(SINK, 0, many)
            assert await driver.commit(0)
        check_once(cluster, {0: "first"})

    run(main())


def test_trouble_while_publishing_is_tried_again_and_then_told() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            staged = await driver.stage(0, 40)
            cluster.script(ApiKey.PRODUCE, refusing(ErrorCode.NOT_ENOUGH_REPLICAS), forever=True)
            with pytest.raises(NotEnoughReplicasError):
                await driver.committer.commit(SINK, 0, staged)
            cluster.scripts.clear()
            assert not await driver.commit(0)
        check_once(cluster, {0: "first"})

    run(main())


def test_staged_rows_that_retention_took_are_missed_before_anything_is_decided() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            staged = await driver.stage(0, 40)
            cluster.logs[TopicPartition(stage_of("t"), 1)].start_offset = 1
            with pytest.raises(StagedRowsLostError, match="nothing of the micro-batch was published"):
                await driver.committer.commit(SINK, 0, staged)
            assert rows_of(cluster) == []
            assert await driver.commit(0)

    run(main())


def test_a_decided_micro_batch_whose_stage_is_gone_is_an_error_not_silence() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "first") as driver:
            with pytest.raises(Died):
                await driver.commit(0, probe=dying_at("decided"))
        log = cluster.logs[TopicPartition(stage_of("t"), 0)]
        log.start_offset = log.end_offset
        async with Driver(cluster, "second") as driver:
            with pytest.raises(StagedRowsLostError, match=r"is decided, but t-0 does not have all of it.*retention.ms"):
                await driver.commit(0)

    run(main())


def test_a_sink_that_never_writes_again_leaves_nothing_in_the_ledger() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        async with Driver(cluster, "job") as driver:
            await driver.commit(0, is_last=True)
        batches = cluster.logs[TopicPartition(LEDGER_TOPIC, 0)].batches
        last = {record.key: record.value for _, _, data in batches for record in iter_records(data)}
        assert last and set(last.values()) == {None}

    run(main())


def test_what_is_old_and_not_needed_is_trimmed_from_the_stage() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics=TOPICS)
        deleted: dict[int, int] = {}

        def delete(node_id: int, request: Any) -> Any:
            assert request.topic == stage_of("t")
            deleted[request.partition] = request.before_offset
            return r.DeleteRecordsResponse(log_start_offset=request.before_offset)

        cluster.answers[ApiKey.DELETE_RECORDS] = delete
        hour = 3_600_000
        old_ms = 1_000_000_000_000
        async with Driver(cluster, "old", wall_ms=old_ms) as driver:
            assert await driver.commit(0)
            with pytest.raises(Died):
                await driver.committer.commit("other", 0, await driver.stage(1, 40), probe=dying_at("decided"))
        assert deleted == {}, "an hour has not passed"
        async with Driver(cluster, "young", wall_ms=old_ms + 2 * hour) as driver:
            assert await driver.commit(1)
        assert deleted == {0: 20, 1: 20}, "the other sink's decision is not published yet"

    run(main())
