"""What a mirror does with a read: records and positions in one transaction, and partitions whose position the source lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.producer.producer import Producer
from barnabas.net.programs.mirror.mirror import Mirror, MirrorConfig
from barnabas.net.programs.mirror.positions import POSITIONS_TOPIC, key_of
from barnabas.net.programs.mirror.source import Read, Source, SourceRecord

T0 = TopicPartition("t", 0)


class FakeSource:
    cluster_id = "west"

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.assigned: list[dict[TopicPartition, int]] = []

    async def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        return self.start, self.end

    async def assign(self, positions: dict[TopicPartition, int]) -> None:
        self.assigned.append(dict(positions))

    async def topic_ids(self, topics: list[str]) -> dict[str, str]:
        return {}

    def known_end(self, partition: TopicPartition) -> int | None:
        return self.end


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, Any]] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["FakeProducer"]:
        yield self

    async def send(self, topic: str, value: Any, *, key: Any, **_: Any) -> None:
        self.sent.append((topic, key, value))


class World:
    def __init__(self, *, start: int, end: int, position: int) -> None:
        self.mirror = Mirror(MirrorConfig(name="m", topics=["t"], source="west:9092", bootstrap="east:9092"))
        self.mirror._positions = {T0: position}
        self.mirror._active = {T0: None}
        self.source, self.producer = FakeSource(start, end), FakeProducer()

    async def take(self, *offsets: int, lost: bool = False, ends: dict[TopicPartition, int] | None = None) -> None:
        records = [SourceRecord(T0, offset, None, b"%d" % offset, None, 1) for offset in offsets]
        await self.mirror._take(
            Read(records, [T0] if lost else [], ends or {}),
            cast(Source, self.source),
            cast(Producer, self.producer),
            "east",
        )

    @property
    def copied(self) -> list[int]:
        return [int(value) for topic, _, value in self.producer.sent if topic == "t"]

    @property
    def position(self) -> int:
        return self.mirror._positions[T0]


async def test_records_and_the_position_behind_them_are_written_together() -> None:
    world = World(start=0, end=9, position=3)
    await world.take(2, 3, 5)
    assert world.copied == [3, 5] and world.position == 6, "what lies before the position was copied already"
    assert world.producer.sent[-1] == (POSITIONS_TOPIC, key_of("m", T0), b"6")
    await world.take(ends={T0: 9})
    assert world.position == 9 and world.mirror.lag == 0


@pytest.mark.parametrize(
    "start, end, told", [(20, 30, "event=lost partition=t-0 records=8 "), (0, 4, "event=made_anew")]
)
async def test_a_position_that_the_source_has_not_is_told_and_left(
    start: int, end: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(start=start, end=end, position=10)
    await world.take(10, 11, lost=True, ends={T0: 12})  # these were read before the position was lost
    assert world.copied == [10, 11]
    assert world.position == start and world.source.assigned == [{T0: start}]
    assert told in caplog.text
    await world.take(start, start + 1)
    assert world.copied == [10, 11, start, start + 1]


async def test_a_topic_that_was_deleted_is_no_goal_any_more() -> None:
    world = World(start=0, end=9, position=9)
    world.mirror._goals = {T0: 9, TopicPartition("gone", 0): 5}
    assert world.mirror._has_reached_its_goals
    world.mirror._positions[T0] = 8
    assert not world.mirror._has_reached_its_goals
