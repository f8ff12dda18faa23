"""Which file operations a broker's loop and its quorum's thread make: none but those that are named here, with the reasons.

Three real brokers under load write down who touches the file system on a thread that must not wait for a disk (`watched`), while
topics are made and deleted, segments roll, leaders change, and a broker comes back with a log that must be truncated.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest
from faults.cluster import CONFIG, FaultCluster
from faults.test_campaign import connected
from faults.watched import PROGRAM, WATCH_FILE
from integration.cluster import until

from barnabas.net.client.producer.producer import Producer

TESTS = Path(__file__).parent.parent
TOPIC = "campaign"
RECORDS: Final = 1_500
SMALL: Final = {**CONFIG, "log.segment.bytes": "65536", "log.flush.offset.checkpoint.interval.ms": "1000"}

FLUSHES: Final = {"flush", "sync_dir", "write_atomically", "reserve", "drop_cached", "remove_tree", "shutil.rmtree"}
# Who may ask for a file on the loop of a broker, and why. The kernel answers it from its caches while the disk takes writes at
# all; where it does not, the loop stands still, and `loop_watch` and the session of the broker end its leaderships.
ON_THE_LOOP: Final = {
    "an append, and what finds the place of a batch for a reader": (
        "log.segment.append", "log.segment.file", "log.segment.read", "log.segment._header_at", "log.segment._places",
        "log.segment.batches", "log.segment.age", "log.damage.scan", "log.sparse_index.load", "log.transaction_index.append",
    ),
    "a new segment begins, or an old one goes: files are made, written and renamed, and flushed later by a thread": (
        "log.segment.start_empty", "log.segment.rename_as_deleted", "log.segment.__init__", "log.sparse_index.save",
        "log.sparse_index.file_to_flush", "log.sparse_index.forget_file", "log.producer_snapshots.take",
        "log.producer_snapshots.offsets", "log.log_segments._forget_made",
    ),
    "hints are saved with a checkpoint, without a flush": ("log.saved_append_times.save",),
    "a new replica: its empty folder is made and opened, and a thread makes it durable": (
        "log.partition_folder.make_partition_folder", "log.log_manager._make_folder", "log.recovery._found_segments",
        "log.segment_swap.finish_swaps", "log.checkpoint._read", "log.checkpoint._text", "log.saved_append_times._read",
        "log.partition_folder.read_topic_id", "log.partition_folder.has_records",
    ),
    "a replica goes: its folder gets another name, and a thread flushes and removes it": (
        "log.log_manager._retire", "log.log_manager._set_aside",
    ),
    "a cleaned segment takes the place of others by renames, between two flushes in a thread": (
        "log.segment_swap.offer", "log.segment_swap.take", "log.segment_swap.withdraw", "log.segment_swap.discard",
    ),
}  # fmt: skip
IN_THE_QUORUM: Final = {
    "the journal, and term and vote: a voter must not answer before its vote is on the disk": (
        "net.journal_ballast.<lambda>",
    )
}


@pytest.mark.timeout(300)
def test_no_thread_that_must_not_wait_asks_for_more_than_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    found = asyncio.run(watched(tmp_path))
    print("\n".join(sorted(found)))
    assert any(line.startswith("MainThread append ") for line in found), "nothing was watched"
    for line in found:
        thread, operation, asked_by = line.split()
        is_quorum = thread.startswith("quorum")
        known = {name for names in (IN_THE_QUORUM if is_quorum else ON_THE_LOOP).values() for name in names}
        assert asked_by in known, f"{line}: give it to the folder's writers, or name it here with its reason"
        assert is_quorum or operation not in FLUSHES, line


async def watched(folder: Path) -> set[str]:
    with FaultCluster(folder / "cluster", needs=frozenset(), config=SMALL, program=PROGRAM) as cluster:
        for broker in cluster.brokers:
            broker.environment[WATCH_FILE] = str(broker.folder / "watched")
        cluster.start()
        async with await connected(cluster) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic(TOPIC, partitions=3, replication_factor=3)
            await admin.create_topic("gone", partitions=3, replication_factor=3)
            for share in range(3):
                sent = [await producer.send(TOPIC, bytes(500), partition=n % 3) for n in range(RECORDS // 3)]
                await asyncio.gather(*sent)
                leader = (await admin.describe_topic(TOPIC)).partitions[share].leader
                cluster.brokers[leader].kill()
                cluster.brokers[leader].start()

                async def is_whole() -> bool:
                    partitions = (await admin.describe_topic(TOPIC)).partitions
                    return all(len(partition.isr) == 3 for partition in partitions)

                await until(is_whole, "every ISR is full")
            await admin.delete_topic("gone")
            await (await producer.send(TOPIC, b"last", partition=0))
        return {line for broker in cluster.brokers for line in (broker.folder / "watched").read_text().splitlines()}
