"""`scripts/benchmark o1`: does a log of 100 GB cost more than one of 100 MB? Append, fetch at an old offset, look-up by time.

The large log is a real one: its segments have the usual size, real indexes with an entry for every batch of 16 KB, and real
batches wherever a read of this run goes; the rest of each file is a hole. The small log is made in the same way, with as
many places that are read, so that both are equally warm. Each figure is the median of many operations, taken in turns of
the two logs so that a busy machine slows both.

In the process: `PartitionLog` as the broker opens it. On the wire: a real broker, which finds both logs in its data folder.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from clusters import START_TIMEOUT_S, Cluster

from barnabas import Admin, BarnabasError
from barnabas.log.disk.files import RealFiles
from barnabas.log.format.record_batch import patch
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.local import local_cluster
from barnabas.net.wire.protocol.requests import (
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ProducePartition,
    ProduceRequest,
)
from barnabas.net.wire.rpc import RpcConnection
from barnabas.net.wire.tcp import TcpNetwork

BATCH_BYTES = 16_384
BATCHES_PER_SEGMENT = (1 << 30) // BATCH_BYTES
STEP_MS = 5  # between two batches
READ_BYTES = BATCH_BYTES + BATCH_BYTES // 2  # one batch and a half: what a fetch returns is one
REAL_AROUND = range(-2, 4)  # batches round a read point that a read may look at
SIZES = {"small": 100 * 10**6, "large": 100 * 10**9}
LIMIT = 1.2
EPOCH = 0
Places = list[int]  # numbers of batches
Work = Callable[[str, int], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class BuiltLog:
    """A log on disk: batch n has offset n, the timestamp `first_ms + STEP_MS * n` and lies at n * BATCH_BYTES."""

    batches: int
    first_ms: int
    places: Places

    def timestamp_ms(self, number: int) -> int:
        return self.first_ms + STEP_MS * number


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/benchmark o1", description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=int, default=1_000, help="old offsets that are read, in each log")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is read; the median counts")
    parser.add_argument("--dir", type=Path, help="where the logs are built; default: the folder for temporary files")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="barnabas-o1-", dir=options.dir))
    try:
        return _run(folder, options.places, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, places: int, rounds: int) -> int:
    built = {name: build(folder / f"{name}-0", size, places) for name, size in SIZES.items()}
    for name, log in built.items():
        used = sum(path.stat().st_blocks for path in (folder / f"{name}-0").iterdir()) * 512
        print(f"{name}: {log.batches * BATCH_BYTES / 1e9:.1f} GB in {len(list((folder / f'{name}-0').glob('*.log')))}"
              f" segments, of which {used / 1e6:.0f} MB are on the disk", flush=True)  # fmt: skip
    ratios = asyncio.run(in_process(folder, built, rounds))
    ratios |= on_the_wire(folder, built, rounds)
    missed = [label for label, ratio in ratios.items() if ratio > LIMIT]
    print(f"all ratios <= {LIMIT}" if not missed else f"above {LIMIT}: {', '.join(missed)}")
    return 1 if missed else 0


# --- building -----------------------------------------------------------------------------------------------------------


def build(directory: Path, size_bytes: int, place_count: int) -> BuiltLog:
    """The files of a partition that was stopped cleanly."""
    directory.mkdir(parents=True)
    batches = size_bytes // BATCH_BYTES
    rng = random.Random(7)
    places = sorted(rng.sample(range(-REAL_AROUND.start, batches - REAL_AROUND.stop), place_count))
    first_ms = int(time.time() * 1000) - STEP_MS * batches - 60_000
    log = BuiltLog(batches=batches, first_ms=first_ms, places=places)
    real = {place + near for place in places for near in REAL_AROUND}
    starts = range(0, batches, BATCHES_PER_SEGMENT)
    real |= {number for start in starts for number in (start, min(start + BATCHES_PER_SEGMENT, batches) - 1)}
    for start in starts:
        _build_segment(directory, log, start, min(start + BATCHES_PER_SEGMENT, batches), real)
    _opened(directory, log, None).close()  # which writes what a clean stop writes
    return log


def _build_segment(directory: Path, log: BuiltLog, start: int, end: int, real: set[int]) -> None:
    stem = directory / f"{start:020d}"
    with open(f"{stem}.log", "wb") as file:
        file.truncate((end - start) * BATCH_BYTES)
        for number in sorted(real.intersection(range(start, end))):
            file.seek((number - start) * BATCH_BYTES)
            file.write(_batch(number, log.timestamp_ms(number)))
    entries = range(1, end - start)
    offset_entry, time_entry = struct.Struct(">II").pack, struct.Struct(">qI").pack
    first_ms = log.timestamp_ms(start)
    stem.with_suffix(".index").write_bytes(b"".join(offset_entry(n, n * BATCH_BYTES) for n in entries))
    stem.with_suffix(".timeindex").write_bytes(b"".join(time_entry(first_ms + STEP_MS * n, n) for n in entries))


_VALUE = bytes(random.Random(1).randbytes(BATCH_BYTES))


def _batch(number: int, timestamp_ms: int, size_bytes: int = BATCH_BYTES) -> bytearray:
    head = len(encode_batch([_VALUE[: size_bytes - 100]], timestamps_ms=timestamp_ms)) - (size_bytes - 100)
    batch = bytearray(encode_batch([_VALUE[: size_bytes - head]], timestamps_ms=timestamp_ms))
    assert len(batch) == size_bytes
    patch(batch, 0, base_offset=number, leader_epoch=EPOCH)
    return batch


def _opened(directory: Path, log: BuiltLog, recovery_point: int | None) -> PartitionLog:
    """Opened as after a clean stop, or after a crash with this recovery point."""
    return PartitionLog(
        RealFiles(),
        str(directory),
        topic_partition=TopicPartition("bench", 0),
        topic_id="bench",
        config=LogConfig(segment_ms=1 << 40),
        now_ms=int(time.time() * 1000),
        recovery_point=recovery_point or 0,
        was_stopped_cleanly=recovery_point is None,
        folder_is_durable=True,
    )


# --- measuring ----------------------------------------------------------------------------------------------------------


async def compare(label: str, built: dict[str, BuiltLog], rounds: int, work: Work) -> dict[str, float]:
    """Time `work(name, place)` for every place of both logs, in turns; print and return the ratio of the medians."""
    taken: dict[str, list[float]] = {name: [] for name in built}
    for round_number in range(rounds + 1):
        for pair in zip(*(log.places for log in built.values()), strict=True):
            for name, place in zip(built, pair, strict=True):
                began = time.perf_counter()
                await work(name, place)
                if round_number:  # the first one warms
                    taken[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) * 1e6 for name, values in taken.items()}
    ratio = medians["large"] / medians["small"]
    print(
        f"{label:<34} small {medians['small']:8.1f} us   large {medians['large']:8.1f} us   ratio {ratio:.2f}",
        flush=True,
    )
    return {label: ratio}


async def in_process(folder: Path, built: dict[str, BuiltLog], rounds: int) -> dict[str, float]:
    logs = {}
    for name, log in built.items():
        for how, recovery_point in (("kill -9", log.batches), ("clean stop", None)):
            before, began = _read_bytes("self"), time.perf_counter()
            logs[name] = _opened(folder / f"{name}-0", log, recovery_point)
            print(f"open {name} after {how}: {(time.perf_counter() - began) * 1e3:.1f} ms, "
                  f"{(_read_bytes('self') - before) / 1e6:.2f} MB read", flush=True)  # fmt: skip

    async def append(name: str, _: int) -> None:
        log = logs[name]
        log.append_as_leader(batch, leader_epoch=EPOCH, now_ms=now_ms)
        log.set_high_watermark(log.log_end_offset)

    async def fetch(name: str, place: int) -> None:
        found = logs[name].read(place, max_bytes=READ_BYTES, up_to_offset=built[name].batches)
        assert found.size_bytes == BATCH_BYTES
        found.read()

    async def look_up(name: str, place: int) -> None:
        assert logs[name].offset_for_timestamp(built[name].timestamp_ms(place) - 1) is not None

    now_ms = int(time.time() * 1000)
    batch = _batch(0, now_ms, 1_000)
    ratios = await compare("log: append 1 KB", built, rounds, append)
    ratios |= await compare("log: fetch at a random old offset", built, rounds, fetch)
    ratios |= await compare("log: look-up by time", built, rounds, look_up)
    for log in logs.values():
        log.close()
    return ratios


def on_the_wire(folder: Path, built: dict[str, BuiltLog], rounds: int) -> dict[str, float]:
    """The same through a broker, which starts on these logs."""
    with Cluster(1) as cluster:
        for name in built:
            cluster.create(name, partitions=1)
        stop(cluster, signal.SIGTERM)
        data = cluster.brokers[0].folder / "data"
        for name in built:
            _plant(data, folder / f"{name}-0", name)
        _show_start(cluster, built, "a clean stop")
        ratios = asyncio.run(_on_the_wire(cluster.brokers[0].address, built, rounds))
        stop(cluster, signal.SIGKILL)
        _show_start(cluster, built, "kill -9")
    return ratios


def _plant(data: Path, source: Path, name: str) -> None:
    """Put the built files in the place of an empty partition's."""
    target = data / f"{name}-0"
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        os.rename(path, target / path.name)
    end_offset = RealFiles().list_dir(str(target))
    end = max(int(file.removesuffix(".snapshot")) for file in end_offset if file.endswith(".snapshot"))
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        lines = (data / checkpoint).read_text(encoding="ascii").splitlines()
        changed = [f"{name} 0 {end}" if line.startswith(f"{name} 0 ") else line for line in lines]
        (data / checkpoint).write_text("\n".join(changed) + "\n", encoding="ascii")


def stop(cluster: Cluster, number: signal.Signals) -> None:
    for broker in cluster.brokers:
        broker.process.send_signal(number)
        broker.process.wait(60)


def _show_start(cluster: Cluster, built: dict[str, BuiltLog], how: str) -> None:
    began = time.perf_counter()
    cluster.brokers = [local_cluster.restart(broker, die_with_parent=True) for broker in cluster.brokers]
    asyncio.run(_until_led(cluster.bootstrap, list(built)))
    seconds = time.perf_counter() - began
    read = _read_bytes(str(cluster.brokers[0].process.pid))
    print(f"broker with both logs served {seconds:.2f} s after its start after {how}; {read / 1e6:.1f} MB read in all")


async def _until_led(bootstrap: str, topics: list[str]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            async with Admin(bootstrap) as admin:
                for topic in topics:
                    await admin.list_offsets(topic)
            return
        except BarnabasError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.01)


async def _on_the_wire(address: str, built: dict[str, BuiltLog], rounds: int) -> dict[str, float]:
    host, _, port = address.rpartition(":")
    connection = await RpcConnection.open(TcpNetwork(), host, int(port), client_id="benchmark")
    batch = _batch(0, int(time.time() * 1000), 1_000)

    async def append(name: str, _: int) -> None:
        part = ProducePartition(topic=name, partition=0, records=batch)
        answer = await connection.call(ProduceRequest(acks=1, timeout_ms=30_000, partitions=(part,)), timeout_ms=30_000)
        assert not answer.partitions[0].error, answer

    async def fetch(name: str, place: int) -> None:
        part = FetchPartition(topic=name, partition=0, fetch_offset=place, max_bytes=READ_BYTES)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=READ_BYTES, partitions=(part,))
        answer = await connection.call(request, timeout_ms=30_000)
        assert len(answer.partitions[0].records) == BATCH_BYTES, answer

    async def look_up(name: str, place: int) -> None:
        part = ListOffsetsPartition(topic=name, partition=0, timestamp_ms=built[name].timestamp_ms(place) - 1)
        answer = await connection.call(ListOffsetsRequest(partitions=(part,)), timeout_ms=30_000)
        assert answer.partitions[0].offset == place, answer

    ratios = await compare("broker: append 1 KB, acks=1", built, rounds, append)
    ratios |= await compare("broker: fetch at a random old offset", built, rounds, fetch)
    ratios |= await compare("broker: look-up by time", built, rounds, look_up)
    await connection.close()
    return ratios


def _read_bytes(pid: str) -> int:
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return int(next(line.removeprefix("rchar: ") for line in lines if line.startswith("rchar")))
