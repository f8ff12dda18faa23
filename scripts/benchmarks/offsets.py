"""`scripts/benchmark offsets`: how fast groups commit, and what a million committed offsets cost.

Commits go through real brokers. The million is replayed in this process by the code of a voter: its memory, its snapshot, and
for how long these operations block the quorum's thread.
"""

import argparse
import asyncio
import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from clusters import Cluster
from measure import rss_mib

from barnabas import Admin, TopicPartition
from barnabas.kraft.group_state.group_slots import GroupSlots, slot_of
from barnabas.kraft.metadata.image import SLOT_COUNT, MetadataImage
from barnabas.kraft.metadata.records import OffsetCommitRecord, RecordBatch, decode_batch, encode_batch
from barnabas.kraft.node.snapshot import decode_snapshot, encode_snapshot
from barnabas.kraft.quorum.snapshot_format import pack_snapshot

TOPIC = "t"
PARTITIONS = 100
COMMITS_PER_COMMAND = 500
TICK_S = 0.005
NO_OP = (b"", 1, 1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark offsets", description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each measurement of commits")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument(
        "--offsets", type=int, default=1_000_000, help="committed offsets in the state; 0: skip this measurement"
    )
    parser.add_argument("--only-state", action="store_true", help="no brokers")
    options = parser.parse_args(arguments)
    if not options.only_state:
        with Cluster(options.brokers) as cluster:
            cluster.create(TOPIC, partitions=1)
            for groups in (1, options.groups):
                asyncio.run(_commits(cluster.bootstrap, groups, options.seconds))
    if options.offsets:
        _state(options.offsets)
    return 0


# --- commits ----------------------------------------------------------------------------------------------------------


async def _commits(bootstrap: str, groups: int, seconds: float) -> None:
    """Every group commits in a loop, one commit after the other."""
    latencies_ms: list[float] = []
    async with Admin(bootstrap=bootstrap) as admin:
        names = [f"group-{number}" for number in range(groups)]
        for name in names:  # finding coordinators and making groups is not what is measured
            await admin.commit_offsets(name, {TopicPartition(TOPIC, 0): 0})
        began = time.perf_counter()
        end = began + seconds
        await asyncio.gather(*(_loop(admin, name, end, latencies_ms) for name in names))
        took = time.perf_counter() - began
    latencies_ms.sort()
    p50, p99 = (latencies_ms[int(len(latencies_ms) * share)] for share in (0.5, 0.99))
    print(
        f"{groups:5} groups committing in a loop: {len(latencies_ms) / took:7.0f} commits/s,"
        f" p50 {p50:.2f} ms, p99 {p99:.2f} ms",
        flush=True,
    )


async def _loop(admin: Admin, group: str, end: float, latencies_ms: list[float]) -> None:
    offset = 0
    while (began := time.perf_counter()) < end:
        offset += 1
        await admin.commit_offsets(group, {TopicPartition(TOPIC, 0): offset})
        latencies_ms.append((time.perf_counter() - began) * 1000)


# --- the state --------------------------------------------------------------------------------------------------------


def _state(count: int) -> None:
    slots = GroupSlots()
    before_mib = rss_mib(os.getpid())
    began, cpu = time.perf_counter(), time.process_time()
    for index, command in enumerate(_commands(count), 1):
        for record in decode_batch(command).records:
            slots.replay(record, index)
    took = time.perf_counter() - began
    gc.collect()
    print(
        f"{count} offsets made and replayed: {count / took:.0f}/s ({time.process_time() - cpu:.1f} s of CPU),"
        f" {rss_mib(os.getpid()) - before_mib:.0f} MiB",
        flush=True,
    )
    _report("nothing else", _stalls(lambda: time.sleep(2), lambda: None))
    largest = max(range(SLOT_COUNT), key=lambda number: sum(map(len, slots.slot(number).offsets.values())))
    held = sum(map(len, slots.slot(largest).offsets.values()))
    _time(f"a copy of the slot with most offsets ({held}) for a coordinator", lambda: slots.view(largest).copy())
    began = time.perf_counter()
    view = slots.copy()
    copied_ms = (time.perf_counter() - began) * 1000
    packed: list[bytes] = []
    image = MetadataImage(cluster_id="benchmark")
    commits = _writer(slots)

    def pack() -> None:
        packed.append(pack_snapshot(NO_OP, NO_OP, encode_snapshot(image, view)))

    began, cpu = time.perf_counter(), time.process_time()
    stalls = _stalls(pack, commits)
    print(
        f"snapshot: view taken in {copied_ms:.2f} ms, packed in {time.perf_counter() - began:.1f} s"
        f" ({time.process_time() - cpu:.1f} s of CPU) beside the quorum, {len(packed[0]) / 2**20:.1f} MiB",
        flush=True,
    )
    _report("while it is packed and groups commit", stalls)
    chunks = list(encode_snapshot(image, view))
    began, cpu = time.perf_counter(), time.process_time()
    restored = GroupSlots()
    for record in decode_snapshot(chunks)[1]:
        restored.replay(record, slots.index)
    took = time.perf_counter() - began
    print(f"restored in {took:.1f} s ({time.process_time() - cpu:.1f} s of CPU)", flush=True)


def _commands(count: int) -> Iterator[bytes]:
    """As they come from the quorum: every text is an object of its own."""
    made = 0
    while made < count:
        group = f"group-{made // PARTITIONS // 10}"
        some = tuple(
            OffsetCommitRecord(
                slot=slot_of(group), coordinator_epoch=1, group_id=group,
                topic=f"topic-{number // PARTITIONS % 10}", partition=number % PARTITIONS, offset=10**6 + number,
                leader_epoch=3, metadata="", commit_timestamp_ms=1_700_000_000_000 + number,
            )
            for number in range(made, min(made + COMMITS_PER_COMMAND, count))
        )  # fmt: skip
        yield encode_batch(RecordBatch(controller_epoch=1, records=some))
        made += len(some)


def _writer(slots: GroupSlots) -> Callable[[], None]:
    """A commit to another slot with every tick: the first one to each pays for its copy."""
    groups = [f"group-{number}" for number in range(1_000)]
    turn = [0]

    def commit() -> None:
        group = groups[turn[0] % len(groups)]
        turn[0] += 1
        record = OffsetCommitRecord(
            slot=slot_of(group), coordinator_epoch=1, group_id=group, topic="topic-0", partition=0, offset=turn[0],
            leader_epoch=3, metadata="", commit_timestamp_ms=1_700_000_000_000,
        )  # fmt: skip
        slots.replay(record, slots.index + 1)

    return commit


def _stalls(work: Callable[[], None], each_tick: Callable[[], None]) -> list[float]:
    """How late a loop's ticks are, in ms, while `work` runs in another thread."""
    late_ms: list[float] = []
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        due = time.perf_counter() + TICK_S
        time.sleep(TICK_S)
        each_tick()
        late_ms.append((time.perf_counter() - due) * 1000)
    return sorted(late_ms)


def _report(when: str, late_ms: list[float]) -> None:
    p99 = late_ms[int(len(late_ms) * 0.99)]
    median = statistics.median(late_ms)
    print(f"quorum thread held up {when}: p50 {median:.1f} ms, p99 {p99:.1f} ms, most {late_ms[-1]:.1f} ms", flush=True)


def _time(what: str, work: Callable[[], object]) -> None:
    began = time.perf_counter()
    work()
    print(f"{what}: {(time.perf_counter() - began) * 1000:.1f} ms", flush=True)
