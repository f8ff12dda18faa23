"""Decisions about staged rows, of versions without transactions: the first driver of this version finishes them."""

from collections import Counter
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_transactions import FakeTransactions
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import InvalidRecordError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import ErrorCode, NotEnoughReplicasError
from barnabas.net.client.producer.handles import extents
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.spark_connector.common.sink_ledger import (
    LEDGER_TOPIC,
    Decision,
    ProducerEpoch,
    StagedPartition,
    stage_of,
)
from barnabas.spark_connector.write.sink_commit import SinkCommitter
from barnabas.spark_connector.write.staged_publishing import SinkFencedError, StagedRowsLostError

TOPICS = {LEDGER_TOPIC: 1, "t": 2, stage_of("t"): 2}
SINK = "query-1"
ROWS = 400


class Died(BaseException):
    """kill -9 as seen from inside."""


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster(brokers=2, topics=TOPICS)
        self.cluster.configs[LEDGER_TOPIC] = {"cleanup.policy": "compact"}
        self.coordinator = FakeTransactions(self.cluster)

    def driver(self) -> "Driver":
        return Driver(self)

    def check_once(self) -> None:
        found = Counter(int(value or b"-1") for number in (0, 1) for value in self.log("t", number).values())
        assert found == Counter(range(ROWS))

    def log(self, topic: str, number: int) -> Any:
        return self.cluster.logs[TopicPartition(topic, number)]


class Driver:
    def __init__(self, world: World) -> None:
        self.client = world.cluster.client()
        self.producer = Producer(client=self.client, batch_size=256)
        self.committer = SinkCommitter(self.client, self.producer, timeout_ms=5_000)

    async def __aenter__(self) -> "Driver":
        await self.producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.producer.close(timeout_ms=0)

    async def decide(self, epoch: int = 0) -> None:
        """As a driver of a former version: staged and decided, and nothing is copied."""
        parts = []
        for number in (0, 1):
            rows = [b"%d" % row for row in range(number, ROWS, 2)]
            sent = await self.producer.send_many(stage_of("t"), rows, partition=number)
            batches = tuple((item.base_offset, item.record_count) for item in await extents([sent]))
            parts.append(StagedPartition(target=TopicPartition("t", number), batches=batches, not_before=0))
        producer = ProducerEpoch(producer_id=900, epoch=epoch)
        made = Decision(sink_id=SINK, batch_id=0, attempt="old", producer=producer, partitions=tuple(parts))
        await (await self.producer.send_many(LEDGER_TOPIC, [made.to_bytes()], [made.key], partition=0))

    async def finish(self) -> bool:
        return await self.committer.commit(SINK, 0, [])


def refusing(error: ErrorCode) -> Any:
    """What the sink's topic answers, whatever comes."""

    def answer(node_id: int, request: Any) -> Any:
        (item,) = request.partitions
        if item.topic != "t":
            return None
        refusal = r.ProducePartitionResponse(topic=item.topic, partition=item.partition, error=int(error), message="no")
        return r.ProduceResponse(partitions=(refusal,))

    return answer


def test_a_decided_micro_batch_is_copied_once() -> None:
    async def main() -> None:
        world = World()
        async with world.driver() as former:
            await former.decide()
        for _ in range(2):
            async with world.driver() as driver:
                assert not await driver.finish(), "it is published"
        world.check_once()

    run(main())


def test_a_copy_that_stopped_goes_on_there_though_brokers_have_forgotten_the_producer() -> None:
    async def main() -> None:
        world = World()
        async with world.driver() as driver:
            await driver.decide()
            appended = 0

            def few(node_id: int, request: Any) -> None:
                nonlocal appended
                appended += request.partitions[0].topic == "t"
                if appended > 3:
                    raise Died

            world.cluster.script(ApiKey.PRODUCE, few, forever=True)
            with pytest.raises(Died):
                await driver.finish()
        world.cluster.scripts.clear()
        assert 0 < sum(len(world.log("t", number).values()) for number in (0, 1)) < ROWS
        for number in (0, 1):
            world.log("t", number).producers.clear()
        async with world.driver() as driver:
            await driver.finish()
        world.check_once()

    run(main())


@pytest.mark.parametrize(
    ("code", "raised", "told"),
    [
        (ErrorCode.INVALID_RECORD, InvalidRecordError, r"t-. does not have all of it.*refuses it: no.*another sinkId"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, SinkFencedError, r"a later micro-batch was written.*stop one"),
        (ErrorCode.NOT_ENOUGH_REPLICAS, NotEnoughReplicasError, "no"),
    ],
)
def test_what_the_topic_refuses_is_told_and_the_next_attempt_goes_on(
    code: ErrorCode, raised: type[Exception], told: str
) -> None:
    async def main() -> None:
        world = World()
        async with world.driver() as driver:
            await driver.decide()
            world.cluster.script(ApiKey.PRODUCE, refusing(code), forever=True)
            with pytest.raises(raised, match=told):
                await driver.finish()
            world.cluster.scripts.clear()
            await driver.finish()
        world.check_once()

    run(main())


def test_a_decided_micro_batch_whose_stage_is_gone_is_an_error_not_silence() -> None:
    async def main() -> None:
        world = World()
        async with world.driver() as driver:
            await driver.decide()
        stage = world.log(stage_of("t"), 0)
        stage.start_offset = stage.end_offset
        async with world.driver() as driver:
            with pytest.raises(StagedRowsLostError, match=r"is decided, but t-0 does not have all of it.*retention.ms"):
                await driver.finish()

    run(main())
