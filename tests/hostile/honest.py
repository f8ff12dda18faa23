"""The honest clients beside an attack: what they send, when it was acknowledged, and whether all of it is there once."""

import asyncio
import threading
import time
from collections import Counter
from typing import Any, Self

from integration.cluster import until
from integration.load import Load, read_all

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer

PACE_S = 0.05  # between two rounds over all partitions: the machine is for the brokers
DELIVERY_TIMEOUT_MS = 120_000
READ_TIMEOUT_S = 60.0


class Gaps:
    """The longest time between two acknowledgements, of each partition by itself."""

    def __init__(self, partitions: int) -> None:
        self.counts = [0] * partitions
        self.begin()

    def begin(self) -> None:
        self._last_s = [time.monotonic()] * len(self.counts)
        self._longest_s = 0.0

    def acknowledged(self, partition: int) -> None:
        now_s = time.monotonic()
        self._longest_s = max(self._longest_s, now_s - self._last_s[partition])
        self._last_s[partition] = now_s
        self.counts[partition] += 1

    @property
    def longest_s(self) -> float:
        """The one that has not ended counts, too."""
        return max(self._longest_s, time.monotonic() - min(self._last_s))


class SdkProducer(Load):
    """The SDK's producer with acks=all, which is idempotent by default."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions=partitions, producers=1, pace_s=PACE_S)
        self.gaps = Gaps(partitions)

    async def _note(self, value: bytes, handle: Any) -> None:
        before = self.count
        await super()._note(value, handle)
        if self.count > before:
            self.gaps.acknowledged(int(value.split(b":")[1]))

    @property
    def values(self) -> set[bytes]:
        return {value for records in self.acknowledged.values() for value in records.values()}


class LibrdkafkaProducer:
    """librdkafka's producer, idempotent, in a thread of its own. A context."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int) -> None:
        import confluent_kafka

        self.topic = topic
        self.gaps = Gaps(partitions)
        self.values: set[bytes] = set()
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="librdkafka", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Send no more, and wait until everything sent is acknowledged or has failed."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        sequence = 0
        while not self._stop.is_set():
            for partition in range(len(self.gaps.counts)):
                value = b"%d:%d" % (partition, sequence)
                sequence += 1
                self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
            deadline_s = time.monotonic() + PACE_S
            while (left_s := deadline_s - time.monotonic()) > 0:
                self._producer.poll(left_s)
        self._producer.flush(DELIVERY_TIMEOUT_MS / 1000)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        self.values.add(message.value())
        self.gaps.acknowledged(message.partition())


class GroupReader:
    """One member of a consumer group: everything that was delivered to it. A context."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.seen: Counter[bytes] = Counter()
        self._consumer = Consumer(
            topic,
            bootstrap=bootstrap,
            group=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            request_timeout_ms=5_000,
        )

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.close()

    async def _run(self) -> None:
        while True:
            for records in (await self._consumer.poll(timeout_ms=500)).values():
                self.seen.update(record.value for record in records if record.value is not None)

    async def has_all(self, values: set[bytes]) -> None:
        def complete() -> bool:
            assert not self._task.done(), self._task
            return not values - self.seen.keys()

        await until(complete, "the group has read everything", timeout_s=READ_TIMEOUT_S)


async def lost_and_doubled(bootstrap: str, topic: str, acknowledged: set[bytes]) -> tuple[int, int]:
    """How many acknowledged records a reading from the first to the last does not find, and how many records are there twice."""
    stored: dict[TopicPartition, dict[int, bytes]] = await read_all(bootstrap, topic)
    counts = Counter(value for records in stored.values() for value in records.values())
    return len(acknowledged - counts.keys()), sum(count - 1 for count in counts.values())
