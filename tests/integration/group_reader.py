"""A member of a group inside of the test: it reads all the time, and remembers what it read and what came and went."""

import asyncio
from collections import Counter
from typing import Any, Self

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer


class Reader:
    def __init__(self, bootstrap: str, group: str, *topics: str, **options: Any) -> None:
        self.read: Counter[TopicPartition] = Counter()
        self.changes: list[tuple[str, TopicPartition]] = []
        self.consumer = Consumer(
            *topics,
            bootstrap=bootstrap,
            group=group,
            auto_offset_reset="earliest",
            on_assigned=lambda partitions: self.changes.extend(("came", it) for it in partitions),
            on_revoked=lambda partitions: self.changes.extend(("went", it) for it in partitions),
            **{"auto_commit_interval_ms": 200, "request_timeout_ms": 5_000, "assignor": "uniform", **options},
        )

    async def __aenter__(self) -> Self:
        await self.consumer.start()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.close()

    @property
    def owned(self) -> set[TopicPartition]:
        assert not self._task.done(), self._task
        return set(self.consumer.assignment)

    async def _run(self) -> None:
        while True:
            for place, records in (await self.consumer.poll(timeout_ms=500)).items():
                self.read[place] += len(records)


def shared_out(readers: list[Reader], wanted: set[TopicPartition]) -> bool:
    """Every partition is read by exactly one of them."""
    owned = [place for reader in readers for place in reader.owned]
    return len(owned) == len(set(owned)) and set(owned) == wanted


def shared_evenly(readers: list[Reader], wanted: set[TopicPartition]) -> bool:
    """No member has two partitions more than another. Before it is so, one that came early may have more, and give it away."""
    counts = [len(reader.owned) for reader in readers]
    return shared_out(readers, wanted) and max(counts) - min(counts) <= 1


def places(**topics: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)}
