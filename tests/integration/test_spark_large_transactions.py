"""A transaction of very many changes through the format "postgres-changes" into a topic, with kill -9 in its middle.

`BARNABAS_LARGE_TRANSACTION` sets how many changes; docs/connect.md has what a million of them took.
"""

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from integration import postgres
from integration.cluster import Cluster
from integration.spark_world import create_topic
from integration.whole_topic import messages

if postgres.find()[0] is None:
    pytest.skip(postgres.find()[1], allow_module_level=True)
pytest.importorskip("psycopg")

from integration import connect_world as world
from integration.test_spark_postgres_changes import driver, wait

pytestmark = pytest.mark.timeout(3_000)
CHANGES = int(os.environ.get("BARNABAS_LARGE_TRANSACTION", "20000"))
PART = max(1_000, CHANGES // 5)  # of a segment
MAX_PYTHON_MB = 400  # of the process that captures: about 100 of them are there without any change
SAMPLE_S = 0.2
TIMEOUT_S = 240 + CHANGES / 1_000
PARTITIONS = 3


class Peak:
    """The largest resident memory of the processes of a group, by their program: java, python."""

    def __init__(self) -> None:
        self.megabytes: Counter[str] = Counter()
        self._is_done = threading.Event()

    @contextmanager
    def of(self, leader: int) -> Iterator[None]:
        self._is_done.clear()
        watcher = threading.Thread(target=self._watch, args=(leader,))
        watcher.start()
        try:
            yield
        finally:
            self._is_done.set()
            watcher.join()

    def _watch(self, leader: int) -> None:
        while not self._is_done.wait(SAMPLE_S):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if os.getpgid(int(process.name)) != leader:
                        continue
                    program = "capture" if int(process.name) == leader else (process / "comm").read_text().strip()
                    pages = int((process / "statm").read_text().split()[1])
                except (OSError, ValueError):
                    continue  # it has ended meanwhile
                self.megabytes[program] = max(self.megabytes[program], pages * os.sysconf("SC_PAGE_SIZE") >> 20)


def test_a_huge_transaction_is_there_once_after_a_kill_in_its_middle_and_takes_little_memory(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster()
    asyncio.run(cluster.ready())
    with postgres.server(**postgres.LOGICAL) as server:
        dsn = server.address
        world.execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION large FOR TABLE t")
        create_topic(cluster, "public.t", partitions=PARTITIONS)
        source = {"dsn": dsn, "publication": "large", "slot": "large", "spoolLocation": str(tmp_path / "spool")}
        arguments = {
            "source": {**source, "maxTransactionChanges": PART, "maxChangesPerTrigger": PART},
            "sink": {"bootstrap.servers": cluster.bootstrap, "delivery": "effectively_once"},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        log, commits, peak = tmp_path / "driver.log", tmp_path / "checkpoint" / "commits", Peak()

        def done() -> int:
            return max((int(item.name) for item in commits.glob("[0-9]*")), default=-1)

        with driver(arguments, log):
            world.execute(dsn, "INSERT INTO t VALUES (0, 'first')")
            wait(lambda: done() >= 0, "the first micro-batch", log)
        before = done()
        world.execute(dsn, f"INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, {CHANGES}) i")
        began_s = time.monotonic()
        with driver(arguments, log) as leader, peak.of(leader):
            wait(lambda: done() >= before + 2, "micro-batches with parts of the transaction", log)
        assert offsets(cluster) < CHANGES, "the kill was in the middle"
        with driver(arguments, log) as leader, peak.of(leader):
            wait(
                lambda: offsets(cluster) > CHANGES and len(keys(cluster)) > CHANGES,
                "all changes in the topic",
                log,
                timeout_s=TIMEOUT_S,
            )
        print(f"changes={CHANGES} seconds={time.monotonic() - began_s:.0f} peak_mb={dict(peak.megabytes)}")
        assert Counter(keys(cluster)) == Counter(range(CHANGES + 1)), "each once"
    assert peak.megabytes["capture"] < MAX_PYTHON_MB, peak.megabytes


def offsets(cluster: Cluster) -> int:
    """A little more than there are records: ends of transactions have offsets, too."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends"})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition("public.t", number)) for number in range(PARTITIONS)]
        return sum(end for _, end in ends)
    finally:
        consumer.close()


def keys(cluster: Cluster) -> list[int]:
    """Of the records that a reader of committed ones sees."""
    found = messages(cluster.bootstrap, "public.t", partitions=PARTITIONS)
    return [int(json.loads(message.key() or b"")["id"]) for message in found]
