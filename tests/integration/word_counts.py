"""WordCount.java, an application of Kafka Streams, under harm: what it was given, and what it made of it.

The application writes each new count of a word. Exactly once means that a reader of committed records sees 1, 2, 3, ... of each
word, and at the end as many as the input has.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

from integration import whole_topic
from integration.cluster import Cluster, until
from integration.harm import Harm
from integration.programs import QUICK_JAVA, Program

from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer

APPLICATION = "words"
INPUT, OUTPUT = "lines", "counted"
CHANGELOG, REPARTITION = f"{APPLICATION}-counts-changelog", f"{APPLICATION}-words-repartition"
TOPICS = (INPUT, OUTPUT, CHANGELOG, REPARTITION)
PARTITIONS = 3
WORDS = 60
WORDS_IN_LINE = 8
SETTINGS = (
    "replication.factor=3",
    "num.standby.replicas=1",
    "commit.interval.ms=100",
    "repartition.purge.interval.ms=500",
    "session.timeout.ms=6000",
    "heartbeat.interval.ms=1000",
    "topic.min.insync.replicas=2",
    "topic.segment.bytes=32768",
    "topic.min.cleanable.dirty.ratio=0.01",
    "producer.delivery.timeout.ms=120000",
)
NAMES = ("a", "b")  # of the instances
PAUSE_S = 0.01  # between lines
START_LIMIT_S = 90.0
END_LIMIT_S = 180.0


async def under_harm(
    folder: Path, cluster: Cluster, class_path: str, steps: Callable[[Harm], Awaitable[None]], *, seed: int
) -> Harm:
    """Count words with two instances while `steps` does harm; then judge what they counted."""
    await create_topics(cluster)
    programs = [application(folder, class_path, cluster.bootstrap, name) for name in NAMES]
    lines = Lines(cluster.bootstrap, seed)
    reader = Reader(cluster.bootstrap)
    harm = Harm(cluster, programs, TOPICS, done=reader.counts.total, given=lines.words.total)
    try:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(lines.run())
            reading = tasks.create_task(reader.run())
            for program in programs:
                program.start()
            for program in programs:
                await program.prints("STATE RUNNING", timeout_s=START_LIMIT_S)
            await until(lambda: reader.counts, "the first counts", timeout_s=START_LIMIT_S)
            await steps(harm)
            lines.stop()
            await writing
            what = f"counts of all {lines.words.total()} words"
            await until(lambda: reader.counts.total() >= lines.words.total() or None, what, timeout_s=END_LIMIT_S)
            reading.cancel()
        await judge(cluster, lines.words)
    finally:
        for program in programs:
            program.kill()
    return harm


def application(
    folder: Path, class_path: str, bootstrap: str, name: str, settings: Sequence[str] = SETTINGS
) -> Program:
    command = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *QUICK_JAVA, "-cp", class_path]
    state = str(folder / f"state-{name}")
    return Program(
        name, [*command, "WordCount", bootstrap, APPLICATION, state, INPUT, OUTPUT, *settings], folder / "programs"
    )


def transactional_id(folder: Path, name: str) -> str:
    """Of the first thread of an application: Kafka Streams makes it of the id that it keeps beside its stores."""
    noted = folder / f"state-{name}" / APPLICATION / "kafka-streams-process-metadata"
    return f"{APPLICATION}-{json.loads(noted.read_text(encoding='utf-8'))['processId']}-1"


async def create_topics(cluster: Cluster) -> None:
    async with cluster.admin() as admin:
        for topic in (INPUT, OUTPUT):
            await admin.create_topic(
                topic, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
            )


class Lines:
    """Writes random lines until it is stopped, each once; `words` has what was acknowledged."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.words: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._rng = Random(seed)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        async with Producer(self._bootstrap, delivery_timeout_ms=240_000, request_timeout_ms=5_000) as producer:
            number = 0
            sent: list[Awaitable[object]] = []
            while not self._stop.is_set():
                line = [f"w{int(self._rng.triangular(0, WORDS, 0))}" for _ in range(WORDS_IN_LINE)]
                sent.append(await producer.send(INPUT, " ".join(line).encode(), key=b"%d" % number))
                self.words.update(line)
                number += 1
                await asyncio.sleep(PAUSE_S)
            await asyncio.gather(*sent)

    def stop(self) -> None:
        self._stop.set()


class Reader:
    """Reads committed counts as they come, and checks that each follows the one before."""

    def __init__(self, bootstrap: str) -> None:
        self.counts: Counter[str] = Counter()
        self._bootstrap = bootstrap

    async def run(self) -> None:
        async with Consumer(
            OUTPUT, bootstrap=self._bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            async for record in consumer:
                assert record.key is not None and record.value is not None
                take(self.counts, record.key.decode(), int(record.value), f"{record.partition}@{record.offset}")


def take(counts: Counter[str], word: str, count: int, place: str) -> None:
    assert count == counts[word] + 1, f"{word} at {place} is {count} after {counts[word]}"
    counts[word] = count


def committed(bootstrap: str, topic: str) -> list[tuple[str, int, str]]:
    """All committed records of a topic: words, counts and places."""
    return [
        (message.key().decode(), _number(topic, message.value()), f"{message.partition()}@{message.offset()}")
        for message in whole_topic.messages(bootstrap, topic, partitions=PARTITIONS)
    ]


def _number(topic: str, value: bytes) -> int:
    return int.from_bytes(value[-8:], "big") if topic == CHANGELOG else int(value)


async def judge(cluster: Cluster, words: Counter[str]) -> None:
    """The output from its start, the store's changelog, and what of the input of the store was removed."""
    counts: Counter[str] = Counter()
    for word, count, place in await asyncio.to_thread(committed, cluster.bootstrap, OUTPUT):
        take(counts, word, count, place)
    assert counts == words
    changes = await asyncio.to_thread(committed, cluster.bootstrap, CHANGELOG)
    assert {word: count for word, count, _ in changes} == words
    async with cluster.admin() as admin:

        async def is_purged() -> bool:
            """The applications, which still run, do so after a commit."""
            starts = await admin.list_offsets(REPARTITION, timestamp_ms=-2)
            ends = await admin.list_offsets(REPARTITION)
            assert all(starts[place].offset <= found.offset for place, found in ends.items())
            return any(found.offset > 0 for found in starts.values())

        await until(is_purged, "records of the repartition topic are deleted")
