"""`Lanes` whose partitions go and come back, and what `process_each` does with records that come at the wrong time."""

import asyncio
from random import Random
from typing import Any

from unit.net.client.test_process_each import a_cluster, a_consumer
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import inside_of
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.processing.lanes import Lanes
from barnabas.net.client.processing.options import options_of
from barnabas.net.client.processing.process_each import process_each
from barnabas.net.wire.protocol.requests import OffsetCommitRequest

T0 = TopicPartition("t", 0)


async def _records(count: int) -> list[ConsumerRecord]:
    async with Consumer(client=a_cluster(1, count).client(), auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        return (await consumer.poll(timeout_ms=1_000))[T0]


def test_the_end_of_a_closed_lane_does_not_open_the_one_that_came_after_it() -> None:
    running: set[int] = set()

    async def handle(record: ConsumerRecord) -> None:
        running.add(record.offset)
        await asyncio.sleep(10 if record.offset else 5)
        running.discard(record.offset)

    async def main() -> None:
        first, second, third, *_ = await _records(10)
        options = options_of(
            order="partition",
            concurrency=8,
            max_in_flight=None,
            attempts=1,
            backoff_ms=(1, 1),
            timeout_ms=None,
            on_failure="stop",
            commit_interval_ms=0,
            delay_ms=0,
            is_blocking=False,
        )
        failed: list[BaseException] = []
        lanes = Lanes(
            handle,
            options,
            executor=None,
            random=Random(1).random,
            wall_ms=lambda: 0,
            on_done=lambda _: None,
            on_failed=failed.append,
        )
        lanes.submit(first)
        await asyncio.sleep(1)
        assert not await lanes.close([T0], timeout_s=0.1), "its handler goes on"
        lanes.submit(second)
        await asyncio.sleep(4.5)  # the first one has ended
        lanes.submit(third)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert running == {1}, "the third waits for the second"
        await lanes.close_all(timeout_s=20)
        assert not failed

    run(main())


def test_no_handler_begins_for_a_partition_that_was_lost() -> None:
    begun: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        begun.append(record.offset)
        await asyncio.sleep(1)

    async def main() -> None:
        stop, listening = asyncio.Event(), []
        async with a_consumer(a_cluster(1, 20)) as consumer, asyncio.timeout(100):
            inside = inside_of(consumer)
            add = inside.add_listeners

            def noted(listeners: Any) -> Any:
                listening.append(listeners)
                return add(listeners)

            inside.add_listeners = noted  # type: ignore[method-assign]
            task = asyncio.create_task(process_each(consumer, handle, order="partition", stop=stop))
            while len(begun) < 3:  # noqa: ASYNC110 - time is virtual
                await asyncio.sleep(0.1)
            await listening[0].lost([T0])
            await asyncio.sleep(5)
            assert begun == [0, 1, 2]
            stop.set()
            await task

    run(main())


def test_a_record_that_comes_while_handlers_end_is_read_again() -> None:
    """As of a partition that is assigned just then, and not paused yet."""
    stop, seen = asyncio.Event(), []

    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)
        stop.set()
        await asyncio.sleep(2)

    async def main() -> None:
        async with a_consumer(a_cluster(1, 5)) as consumer, asyncio.timeout(100):
            poll = consumer.poll

            async def unpaused(**options: Any) -> Any:
                if stop.is_set():
                    consumer.resume(*consumer.paused)
                return await poll(**options)

            consumer.poll = unpaused  # type: ignore[assignment]
            for expected in range(1, 4):
                stop.clear()
                await process_each(consumer, handle, concurrency=1, max_in_flight=1, stop=stop)
                assert seen == list(range(expected))

    run(main())


def test_what_is_committed_is_not_committed_again() -> None:
    async def handle(record: ConsumerRecord) -> None:
        return

    async def main() -> None:
        stop, cluster = asyncio.Event(), a_cluster(2, 10)
        async with a_consumer(cluster) as consumer:
            task = asyncio.create_task(process_each(consumer, handle, stop=stop))
            await asyncio.sleep(20)
            before = len(cluster.sent(OffsetCommitRequest))
            assert before
            await asyncio.sleep(60)
            assert len(cluster.sent(OffsetCommitRequest)) == before
            stop.set()
            await task

    run(main())
