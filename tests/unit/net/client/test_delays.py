"""Delay topics: `process_each(delay_ms=...)` handles a record when its time has come; on virtual time."""

import asyncio
from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.test_process_each import a_consumer
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import InvalidConfigError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.processing.process_each import process_each

HOUR_MS = 3_600_000
T0 = TopicPartition("t", 0)


class Delayed:
    """A topic of one partition whose records have these ages when the consumer starts, and what was handled when."""

    def __init__(self, *ages_ms: float) -> None:
        self.ages_ms = ages_ms
        self.cluster = FakeCluster(topics={"t": 1})
        FakeGroups(self.cluster)
        self.handled: dict[int, float] = {}  # by offset, in ms since the start
        self.stop = asyncio.Event()

    async def fill(self) -> None:
        now_ms = await self._now_ms()
        (log,) = self.cluster.logs.values()
        times_ms = [int(now_ms - age_ms) for age_ms in self.ages_ms]
        keys = [b"k%d" % offset for offset in range(len(times_ms))]
        log.append(encode_batch([b"v"] * len(times_ms), keys=keys, timestamps_ms=times_ms))

    async def _now_ms(self) -> float:
        async with Consumer(client=self.cluster.client()) as reader:
            return reader.client.clock.wall_ms()

    async def process(self, **options: Any) -> dict[int, int]:
        """Returns what the group has committed at the end."""
        loop = asyncio.get_running_loop()
        async with a_consumer(self.cluster) as consumer:
            began_s = loop.time()

            async def handle(record: ConsumerRecord) -> None:
                self.handled[record.offset] = (loop.time() - began_s) * 1000
                if len(self.handled) == len(self.ages_ms):
                    self.stop.set()

            await process_each(consumer, handle, stop=self.stop, **options)
            return {place.partition: offset for place, offset in (await consumer.committed(T0)).items()}


def within(found: dict[int, float], wanted: dict[int, float]) -> bool:
    return found.keys() == wanted.keys() and all(abs(found[key] - wanted[key]) < 1_000 for key in wanted)


def test_a_record_is_handled_when_its_time_has_come() -> None:
    """Hours pass, longer than any limit of the group: the consumer keeps its membership."""

    async def main() -> None:
        world = Delayed(2 * HOUR_MS, HOUR_MS, HOUR_MS / 2, 0)
        await world.fill()
        assert await world.process(delay_ms=HOUR_MS) == {0: 4}
        assert within(world.handled, {0: 0, 1: 0, 2: HOUR_MS / 2, 3: HOUR_MS})

    run(main())


def test_a_function_decides_for_each_record() -> None:
    async def main() -> None:
        world = Delayed(0, 0, 0)
        await world.fill()
        assert await world.process(delay_ms=lambda record: (0, 60_000, 5_000)[record.offset]) == {0: 3}
        assert within(world.handled, {0: 0, 1: 60_000, 2: 5_000}), "other keys do not wait"

    run(main())


def test_records_of_a_lane_wait_for_the_one_before_them() -> None:
    async def main() -> None:
        world = Delayed(0, 0)
        await world.fill()
        await world.process(delay_ms=lambda record: 0 if record.offset else 60_000, order="partition")
        assert list(world.handled) == [0, 1] and min(world.handled.values()) >= 59_000

    run(main())


def test_a_clock_that_goes_fast_holds_nothing_up_for_ever() -> None:
    async def main() -> None:
        world = Delayed(-1_000 * HOUR_MS)
        await world.fill()
        await world.process(delay_ms=HOUR_MS)
        assert within(world.handled, {0: HOUR_MS})

    run(main())


def test_a_stop_waits_for_no_delay_and_loses_nothing() -> None:
    async def main() -> None:
        world = Delayed(2 * HOUR_MS, 0)
        await world.fill()
        loop = asyncio.get_running_loop()
        loop.call_later(10, world.stop.set)
        began_s = loop.time()
        assert await world.process(delay_ms=HOUR_MS) == {0: 1}
        assert loop.time() - began_s < 15
        world.stop = asyncio.Event()
        assert await world.process(delay_ms=HOUR_MS) == {0: 2}
        assert world.handled.keys() == {0, 1}

    run(main())


def test_a_delay_below_zero_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(InvalidConfigError, match="delay_ms is -1; it must be a number of 0 or more"):
            await Delayed(0).process(delay_ms=-1)

    run(main())
