"""Old segments are read again without being asked; what is damaged is told once per round, and the pace is limited."""

import asyncio

from simulation.log_building import append, batch_of
from unit.net.shell_world import simulated

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.segment.damage import MIN_COST_BYTES, DamagedRange
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.scrubber import Scrubber
from barnabas.net.testing.simulation.cluster import wait_until
from barnabas.net.testing.simulation.disk import SimulatedDisk

TP = TopicPartition("t", 0)
BATCH = len(batch_of(b"value-00"))
CONFIG = LogConfig(segment_bytes=10 * BATCH)


class World:
    def __init__(self, *, bytes_per_second: int = 1 << 20) -> None:
        self.disk = SimulatedDisk()
        self.logs = LogManager(self.disk, ["/d"], node_id=0)
        self.logs.load(now_ms=0)
        log = self.logs.get_or_create(TP, topic_id="t1", now_ms=0, config=CONFIG)
        for number in range(25):
            append(log, b"value-%02d" % number)
        self.found: list[tuple[TopicPartition, DamagedRange]] = []
        self.scrubber = Scrubber(
            self.logs,
            bytes_per_second=bytes_per_second,
            interval_ms=1_000,
            found=lambda topic_partition, damaged: self.found.append((topic_partition, damaged)),
        )

    async def rounds(self, count: int) -> float:
        """Virtual seconds that it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        running = asyncio.ensure_future(self.scrubber.run())
        assert await wait_until(lambda: self.scrubber.rounds >= count, limit_s=60, every_s=0.001)
        took = loop.time() - began
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return took


@simulated
async def test_damage_is_found_and_everything_behind_it_is_looked_at_too() -> None:
    world = World()
    for number in (3, 17):
        path = f"/d/t-0/{number // 10 * 10:020d}.log"
        world.disk.flip_bit(path, number % 10 * BATCH + BATCH - 3)
    await world.rounds(1)
    assert [(tp, damaged.first_offset, damaged.end_offset) for tp, damaged in world.found] == [(TP, 3, 4), (TP, 17, 18)]


@simulated
async def test_the_pace_is_limited_also_for_tiny_batches() -> None:
    world = World(bytes_per_second=10 * MIN_COST_BYTES)
    assert 2.0 <= await world.rounds(1) < 2.1  # twenty batches, of which each costs as much as MIN_COST_BYTES
    assert world.found == []


@simulated
async def test_a_disk_that_refuses_is_passed_over() -> None:
    world = World()
    world.disk.fail_next("read", "*.log")
    await world.rounds(2)
    assert world.found == []


@simulated
async def test_it_can_be_switched_off() -> None:
    await World(bytes_per_second=0).scrubber.run()
