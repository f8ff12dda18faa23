"""What is read from the disk: the files of a partition and of a data folder, the quorum's files, the configuration.

Three outcomes are allowed: it is made anew from what is whole, it is refused with an error that names the file and the cure, or
the damage is in records that a CRC of theirs gives away. Damage that is not in a `.log` file never changes what is read.
"""

import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzz.mutations import mutated
from fuzz.wire_targets import sample
from simulation.log_building import NOW_MS, batch_of
from simulation.raft_disk import FakeDisk
from simulation.raft_loop import VirtualLoop
from unit.kraft.group_state_fake import FakeGroupState

from barnabas.kraft.metadata.image import MetadataImage, SlotImage
from barnabas.kraft.metadata.records import RecordBatch, UnknownRecordError, decode_batch, encode_batch
from barnabas.kraft.node.snapshot import SnapshotError, decode_snapshot, encode_snapshot
from barnabas.kraft.quorum.journal_format import RecordKind, encode_record
from barnabas.kraft.quorum.snapshot_format import pack_snapshot, unpack_snapshot
from barnabas.kraft.raft.disk.folder import QuorumFolder
from barnabas.kraft.raft.disk.storage import DamagedQuorumError
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.format.record_batch import check_crc, iter_headers
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import BarnabasError, StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.settings import config as broker_config
from barnabas.net.base.settings.endpoints import Endpoints, read_endpoints, write_endpoints
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.testing.simulation.executor import DelayedExecutor

DATA: Final = "/data"
PARTITION: Final = TopicPartition("orders", 0)
FOLDER: Final = f"{DATA}/{PARTITION}"
CONFIG: Final = LogConfig(segment_bytes=2_000, index_interval_bytes=200)
Contents = dict[str, bytes]


# --- the folder of a broker -----------------------------------------------------------------------------------------------


@cache
def valid_folder(how: str) -> tuple[Contents, bytes]:
    """The files of a data folder that was stopped so, and the records of its partition."""
    disk = SimulatedDisk()
    logs = opened(disk)
    logs.join_cluster("cluster")
    log = logs.get_or_create(PARTITION, topic_id="an-id", now_ms=NOW_MS, config=CONFIG)
    for number in range(60):
        producer = ProducerFields(producer_id=number % 3, producer_epoch=0, base_sequence=number // 3)
        batch = batch_of(b"value %d" % number * 5, timestamp_ms=NOW_MS + number, producer=producer)
        log.append_as_leader(batch, leader_epoch=number // 20, now_ms=NOW_MS + number)
        log.set_high_watermark(log.log_end_offset)
        if number == 40:
            log.flush()
            logs.checkpoints.take()
    records = whole(log)
    if how == "cleanly":
        logs.close()
    disk.kill()
    return contents(disk, DATA) | contents(disk, FOLDER), records


def opened(disk: SimulatedDisk) -> LogManager:
    logs = LogManager(disk, [DATA], node_id=0, new_directory_id=lambda: "directory")
    logs.load(now_ms=NOW_MS, config_for=lambda _: CONFIG)
    return logs


def contents(disk: SimulatedDisk, folder: str) -> Contents:
    paths = [f"{folder}/{name}" for name in disk.list_dir(folder)]
    return {path: disk.read_bytes(path) for path in paths if path != FOLDER}


def whole(log: PartitionLog) -> bytes:
    """All batches; what a CRC gives away is an error of the reader."""
    parts = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=1_000, up_to_offset=log.log_end_offset).read()
        headers = list(iter_headers(data))
        if not headers:
            break
        for header in headers:
            check_crc(data, header)
        parts.append(data)
        offset = max(headers[-1].next_offset, offset + 1)
    return b"".join(parts)


def restored(files: Contents) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs(FOLDER)
    for path, data in files.items():
        disk.write_atomically(path, data)
    return disk


def partition_files(rng: Random) -> None:
    """One to three files of a data folder are damaged or gone; then the broker starts, serves, and starts again."""
    files, records = valid_folder(rng.choice(("cleanly", "killed")))
    files = dict(files)
    damaged = rng.sample(sorted(path for path in files if not path.endswith(".lock")), rng.randint(1, 3))
    for path in damaged:
        if rng.random() < 0.15:
            del files[path]
        else:
            files[path] = mutated(rng, files[path])
    disk = restored(files)
    logs_are_whole = not any(path.endswith(".log") for path in damaged)
    try:
        logs = opened(disk)
    except StorageError as error:
        assert any(path in error.message for path in (*damaged, DATA)), error.message
        return
    for message in logs.offline.values():
        assert any(path in message for path in damaged) or not logs_are_whole, message
    log = logs.get(PARTITION)
    if log is not None:
        use(log, rng, records if logs_are_whole else None)
    logs.close()
    disk.kill()
    opened(disk).close()


def use(log: PartitionLog, rng: Random, records: bytes | None) -> None:
    """Everything that a broker does with a log. `records`: what it must read, where the damage is elsewhere."""
    try:
        found = whole(log)
    except BarnabasError:
        assert records is None, "the log files are whole"
        found = b""
    if records is not None:
        # Log start offsets may be lost or lie: then some of the oldest are not served, but nothing else is.
        assert records.endswith(found) and (found or log.log_start_offset == log.log_end_offset)
    actions: tuple[Callable[[], Any], ...] = (
        lambda: log.offset_for_timestamp(NOW_MS + rng.randrange(-5, 70)),
        lambda: log.read(rng.randrange(-2, 70), max_bytes=rng.choice((0, 100, 5_000)), up_to_offset=rng.randrange(70)),
        lambda: log.max_timestamp(),
        lambda: log.end_offset_for_epoch(rng.randrange(4)),
        lambda: log.append_as_leader(batch_of(b"new"), leader_epoch=max(log.latest_epoch, 0) + 1, now_ms=NOW_MS),
        lambda: log.truncate_to(rng.randrange(max(log.log_end_offset - 20, 0), log.log_end_offset + 1)),
        lambda: log.delete_records_before(rng.randrange(log.log_start_offset, log.log_end_offset + 1)),
        lambda: log.delete_old_segments(NOW_MS + rng.choice((0, 10**12))),
        lambda: log.tail.roll(NOW_MS, log.config),
        log.flush,
    )
    for action in rng.sample(actions, rng.randint(1, len(actions))):
        try:
            action()
        except BarnabasError as error:
            assert not isinstance(error, StorageError) or records is None, error


def producer_snapshots(rng: Random) -> None:
    files, _ = valid_folder("cleanly")
    state = next(data for path, data in files.items() if path.endswith(".snapshot"))
    try:
        again = ProducerState.from_snapshot(mutated(rng, state)).to_snapshot()
        assert again == state  # the only one that passes its CRC
    except BarnabasError:
        pass


# --- the quorum -----------------------------------------------------------------------------------------------------------


def quorum_journal(rng: Random) -> None:
    """Damage cuts unflushed entries off, or stops the voter; never is an entry other than it was written."""
    entries = [(b"\x00command %d" % index, index, 1 + index // 8) for index in range(1, rng.randint(2, 20))]
    data, durable = b"", 0
    for command, index, term in entries:
        data += encode_record(RecordKind.ENTRY, index, term, durable, command)
        if rng.random() < 0.4:
            durable = len(data)
            data += encode_record(RecordKind.MARK, 0, 0, durable)
    disk = FakeDisk(random.Random(0))
    loop = VirtualLoop()
    try:
        folder = _folder(disk, loop)
        folder.hard_state.clear_blank()
        folder.close()
        target = rng.choice(("/q/quorum.journal", "/q/quorum.journal.meta.0", "/q/quorum.journal.meta.1", "both"))
        disk.write_atomically(
            "/q/quorum.journal", mutated(rng, data) if target in ("/q/quorum.journal", "both") else data
        )
        for path in ("/q/quorum.journal.meta.0", "/q/quorum.journal.meta.1"):
            if target in (path, "both") and disk.exists(path):
                disk.write_atomically(path, mutated(rng, disk.read_bytes(path)))
        try:
            found = _folder(disk, loop).journal.entries_from(1, len(entries) + 1)
        except DamagedQuorumError as error:
            assert "/q" in error.message and "others" in error.message
            return
        assert found == entries[: len(found)]
    finally:
        loop.close()


def _folder(disk: FakeDisk, loop: VirtualLoop) -> QuorumFolder:
    executor = DelayedExecutor(loop, lambda: 0.001)
    return QuorumFolder(
        storage=disk, directory="/q", loop=loop, executor=executor, clock=loop.time, wake=lambda: None, fatal=_fatal
    )


def _fatal(reason: str) -> None:
    raise AssertionError(reason)


def metadata_snapshots(rng: Random) -> None:
    """The quorum's snapshot from its file to the image: each layer refuses what it cannot read."""
    image = MetadataImage(cluster_id="cluster", offset=7, slots=tuple(SlotImage() for _ in MetadataImage().slots))
    chunks = list(encode_snapshot(image, FakeGroupState()))
    number = rng.randrange(len(chunks))
    chunks[number] = mutated(rng, chunks[number])
    packed = pack_snapshot((b"\x01", 9, 2), (b"\x01", 8, 2), chunks)
    try:
        decode_snapshot(unpack_snapshot(packed).chunks())
    except SnapshotError:
        pass


@cache
def _record_types() -> tuple[type, ...]:
    from barnabas.kraft.metadata import records

    return records.RECORD_TYPES


def metadata_commands(rng: Random) -> None:
    batch = RecordBatch(
        controller_epoch=3, records=tuple(sample(rng, rng.choice(_record_types())) for _ in range(rng.randint(1, 3)))
    )
    data = encode_batch(batch)
    assert decode_batch(data) == batch
    try:
        decode_batch(mutated(rng, data))
    except UnknownRecordError:
        pass


# --- small files ----------------------------------------------------------------------------------------------------------

_PROPERTIES: Final = b"""# a broker
node.id=0
listeners=PLAINTEXT://127.0.0.1:9092
admin.listener=127.0.0.1:9094
controller.quorum.voters=0@127.0.0.1:9093,1@127.0.0.1:9103
log.dirs=/var/lib/one,/var/lib/two
log.retention.hours=72
log.segment.bytes=1048576
num.partitions : 3
min.insync.replicas=2
"""


def server_properties(rng: Random) -> None:
    """A configuration is taken, or refused with a sentence."""
    with tempfile.TemporaryDirectory(prefix="barnabas-fuzz-") as folder:
        path = Path(folder, "server.properties")
        path.write_bytes(mutated(rng, _PROPERTIES))
        try:
            loaded = broker_config.load(str(path), {}, {})
            _ = loaded.topics, loaded.voters(), loaded.data_folders()
        except BarnabasError as error:
            assert len(error.message) > 10


def endpoints_json(rng: Random) -> None:
    """Who reads it is told None for a file that makes no sense, and real addresses otherwise."""
    with tempfile.TemporaryDirectory(prefix="barnabas-fuzz-") as folder:
        write_endpoints(folder, Endpoints(node_id=1, pid=77, listeners={"PLAINTEXT": "127.0.0.1:9092"}, quorum="h:1"))
        path = Path(folder, "endpoints.json")
        path.write_bytes(mutated(rng, path.read_bytes()))
        found = read_endpoints(folder)
        if found is not None:
            assert type(found.pid) is int and type(found.node_id) is int
            assert all(type(name) is str and type(at) is str for name, at in found.listeners.items())


TARGETS: Final = (
    partition_files,
    producer_snapshots,
    quorum_journal,
    metadata_snapshots,
    metadata_commands,
    server_properties,
    endpoints_json,
)
