"""A broker's event loop and its quorum's thread perform only the file operations listed here, with the reasons.

Three real brokers under load record all file system calls on threads that must not wait for a disk (`watched`), while topics are
created and deleted, segments roll, leaders change, and a broker returns with a log that must be truncated.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest
from faults.cluster import CONFIG, FaultCluster
from faults.test_campaign import connected
from faults.watched import PLANT, PROGRAM, WATCH_FILE
from integration.cluster import until

from barnabas.net.client.producer.producer import Producer

TESTS = Path(__file__).parent.parent
TOPIC = "campaign"
RECORDS: Final = 1_500
SMALL: Final = {**CONFIG, "log.segment.bytes": "65536", "log.flush.offset.checkpoint.interval.ms": "1000"}

FLUSHES: Final = {"flush", "sync_dir", "write_atomically", "reserve", "drop_cached", "remove_tree", "shutil.rmtree", "os.fsync",
                  "os.fdatasync", "os.sync"}  # fmt: skip
# Who may ask for a file on the loop of a broker, and why. The kernel answers it from its caches while the disk takes writes at
# all; where it does not, the loop stands still, and `loop_watch` and the session of the broker end its leaderships.
ON_THE_LOOP: Final = {
    "an append, and what finds the place of a batch for a reader": (
        "segment.append", "file_records.file", "segment.read", "file_records.header_at", "file_records.places",
        "file_records.batches", "segment.age", "damage.scan", "sparse_index.load", "transaction_index.append",
    ),
    "a new segment begins, or an old one goes: files are made, written and renamed, and flushed later by a thread": (
        "segment.start_empty", "segment.rename_as_deleted", "file_records.__init__", "file_records.create",
        "file_records.retire", "sparse_index.save",
        "sparse_index.file_to_flush", "sparse_index.forget_file", "producer_snapshots.take",
        "producer_snapshots.offsets", "log_segments._forget_made",
    ),
    "hints are saved with a checkpoint, without a flush": ("saved_append_times.save",),
    "a new replica: its empty folder is made and opened, and a thread makes it durable": (
        "partition_folder.make_partition_folder", "log_manager._make_folder", "recovery._found_segments",
        "segment_swap.finish_swaps", "checkpoint._read", "checkpoint._text", "saved_append_times._read",
        "partition_folder.read_topic_id", "partition_folder.has_records", "transaction_index.recover",
    ),
    "a replica goes: its folder gets another name, and a thread flushes and removes it": (
        "log_removals.retire", "log_removals.set_aside",
    ),
    "a cleaned segment takes the place of others by renames, between two flushes in a thread": (
        "segment_swap.offer", "segment_swap.take", "segment_swap.discard",
    ),
}  # fmt: skip
IN_THE_QUORUM: Final = {
    "the journal, and term and vote: a voter must not answer before its vote is on the disk": (
        "journal_ballast.<lambda>",
    )
}


SEEN: Final = {
    "a flush of a log on the loop": "MainThread flush pending_flush.perform",
    "a flush past the files layer": "MainThread os.fsync planted.flushes_past_the_files_layer",
    "a read on the loop": "MainThread open planted.reads_a_file",
    "a read in the thread of the quorum": "quorum open planted.reads_a_file",
}


@pytest.mark.timeout(300)
def test_no_thread_that_must_not_wait_asks_for_more_than_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    found = asyncio.run(watched(tmp_path))
    print("\n".join(sorted(found)))
    assert any(line.startswith("MainThread append ") for line in found), "nothing was watched"
    assert violations(found) == [], "give it to the folder's writers, or name it here with its reason"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("planted", "line"), SEEN.items())
def test_a_planted_file_operation_is_seen(
    planted: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    assert line in violations(asyncio.run(watched(tmp_path, planted=planted)))


def violations(found: set[str]) -> list[str]:
    """What is not allowed on its thread."""
    return sorted(line for line in found if not _is_allowed(*line.split()))


def _is_allowed(thread: str, operation: str, asked_by: str) -> bool:
    if thread.startswith("quorum"):
        return any(asked_by in names for names in IN_THE_QUORUM.values())
    return operation not in FLUSHES and any(asked_by in names for names in ON_THE_LOOP.values())


async def watched(folder: Path, *, planted: str | None = None) -> set[str]:
    """What the brokers wrote down; those with a planted violation take a few records and stop."""
    with FaultCluster(folder / "cluster", needs=frozenset(), config=SMALL, program=PROGRAM) as cluster:
        for broker in cluster.brokers:
            broker.environment[WATCH_FILE] = str(broker.folder / "watched")
            if planted is not None:
                broker.environment[PLANT] = planted
        cluster.start()
        async with await connected(cluster) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic(TOPIC, partitions=3, replication_factor=3)
            if planted is not None:
                await (await producer.send(TOPIC, b"", partition=0))
                return _written(cluster)
            await admin.create_topic("gone", partitions=3, replication_factor=3)
            for share in range(3):
                sent = [await producer.send(TOPIC, bytes(500), partition=n % 3) for n in range(RECORDS // 3)]
                await asyncio.gather(*sent)
                broker = cluster.brokers[(await admin.describe_topic(TOPIC)).partitions[share].leader]
                broker.kill()
                broker.launch()

                async def is_whole() -> bool:
                    """With what runs now: the replica of what was killed is in the ISR until its session ends."""
                    partitions = (await admin.describe_topic(TOPIC)).partitions
                    is_back = any("broker unfenced" in line for line in broker.log_of_process())  # noqa: B023
                    return is_back and all(len(partition.isr) == 3 for partition in partitions)

                await until(is_whole, "every ISR is full")
            await admin.delete_topic("gone")
            await (await producer.send(TOPIC, b"last", partition=0))
        return _written(cluster)


def _written(cluster: FaultCluster) -> set[str]:
    return {line for broker in cluster.brokers for line in (broker.folder / "watched").read_text().splitlines()}
