"""Every operation on the disk that a log makes is refused once, in each way in which a disk refuses: memory says what the disk
says, a reader gets all or an error, and the same thing asked again (or after opening the log again) is done.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from simulation.checkers.logs import check_log, headers_of
from simulation.compaction import start_cleaning
from simulation.log_building import NOW_MS, PARTITION, batch_of, open_log, retain
from unit.log.refusing_files import KINDS, RefusingFiles

from barnabas.log.folders.log_manager import LogManager
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import CorruptRecordError, StorageError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import SimulatedDisk

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=512, file_delete_delay_ms=0)
MOST_OPERATIONS = 400  # of one scenario; none makes so many
FIRST_BATCHES = 8

Known = tuple[int, int]  # base offset, CRC


class World:
    """Broker 0 with one log of some segments, on a disk that refuses when it is told to."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.files = RefusingFiles(SimulatedDisk())
        self.config = config
        self.is_down = False
        self.sequences = {7: 0, 9: 0}
        self.manager = self.start()
        self.log = self.manager.get_or_create(PARTITION, topic_id="id", now_ms=NOW_MS, config=config)
        for number in range(FIRST_BATCHES):
            self.append(self.log, 7 if number % 3 else 9)
        self.log.flush()
        self.manager.checkpoints.take()

    def start(self) -> LogManager:
        manager = LogManager(self.files, ["/data"], node_id=0, defaults=self.config)
        manager.load(now_ms=NOW_MS)
        return manager

    def batch(self, producer_id: int, *, after: int = 0) -> bytearray:
        producer = ProducerFields(
            producer_id=producer_id, producer_epoch=0, base_sequence=self.sequences[producer_id] + after
        )
        key = b"key-%d" % (self.sequences[producer_id] % 2)
        return bytearray(encode_batch([bytes(200)], keys=[key], timestamps_ms=NOW_MS, producer=producer))

    def append(self, log: PartitionLog, producer_id: int) -> None:
        info = log.append_as_leader(self.batch(producer_id), leader_epoch=1, now_ms=NOW_MS)
        self.sequences[producer_id] += not info.duplicate

    def open_again(self) -> None:
        """kill -9, and a start on a disk that works."""
        self.files.disk.kill()
        self.manager = self.start()
        self.is_down = False
        assert not self.manager.offline
        self.log = self.manager.get_or_create(PARTITION, topic_id="id", now_ms=NOW_MS, config=self.config)

    def content(self) -> list[Known]:
        return [(header.base_offset, header.crc) for header in headers_of(self.log)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`act` may be asked twice. `prepare` goes before, and nothing is refused then."""

    act: Callable[[World], None]
    prepare: Callable[[World], None] = lambda world: None
    config: LogConfig = CONFIG
    keeps: int = 0  # batches that are in the log whatever is refused, counted from its end


def _append(world: World) -> None:
    """Enough for a roll; what got in before is a repetition."""
    for producer_id, sequence in ((7, 5), (9, 3), (7, 6)):
        world.sequences[producer_id] = sequence
        world.append(world.log, producer_id)


def _append_across_a_border(world: World) -> None:
    """One answer of a leader that reaches over two borders of this replica's segments."""
    leader = open_log(SimulatedDisk(), "/data/leader-0", config=LogConfig())
    parts = [bytes(world.batch(7, after=number)) for number in range(6)]
    for part in (*[bytes(batch_of(b"x"))] * FIRST_BATCHES, *parts):
        leader.append_as_leader(part, leader_epoch=1, now_ms=NOW_MS)
    fetched = leader.read(world.log.log_end_offset, max_bytes=1 << 20, up_to_offset=FIRST_BATCHES + 6).read()
    world.log.append_as_follower(fetched, now_ms=NOW_MS)


def _commit_all(world: World) -> None:
    world.log.set_high_watermark(world.log.log_end_offset)


def _retain(world: World) -> None:
    _commit_all(world)
    world.log.config = replace(CONFIG, retention_bytes=900)
    refused = retain(world.manager, NOW_MS)
    for folder in world.manager.folders:
        world.manager.removals.remove_due(folder, NOW_MS)
    for error in refused.values():
        raise error


def _retain_all(world: World) -> None:
    _commit_all(world)
    world.log.config = replace(CONFIG, retention_ms=1)
    for error in retain(world.manager, NOW_MS + 100).values():
        raise error


def _delete_records(world: World) -> None:
    _commit_all(world)
    world.log.delete_records_before(5)
    for error in retain(world.manager, NOW_MS).values():
        raise error
    for error in world.manager.checkpoints.take().values():
        raise error


def _clean(world: World) -> None:
    """As the cleaner's shell does it."""
    _commit_all(world)
    world.log.segments.remove_due_files(NOW_MS)  # withdraws what an earlier cleaning has given up
    cleaning = start_cleaning(world.log, world.files)
    if cleaning is None:
        return
    try:
        for step in cleaning.steps():
            step()
    except StorageError:
        cleaning.abandon()
        raise


def _open(world: World) -> None:
    """After a kill."""
    world.files.disk.kill()
    world.is_down = True
    world.manager = world.start()
    log = world.manager.get(PARTITION)
    if log is None:
        raise StorageError(f"{world.manager.offline} {world.manager.offline_folders}")
    world.log = log
    world.is_down = False


def _checkpoint(world: World) -> None:
    for error in world.manager.checkpoints.take().values():
        raise error


def _create(world: World) -> None:
    other = TopicPartition("other", 0)
    world.append(world.manager.get_or_create(other, topic_id="id-2", now_ms=NOW_MS, config=CONFIG), 7)


def _write_down_an_epoch_without_records(world: World) -> None:
    world.append(world.log, 9)
    world.log.assign_epoch_start(5, world.log.log_end_offset)
    world.log.flush()


def _read_with_lost_indexes(world: World) -> None:
    list(headers_of(world.log))


def _lose_indexes(world: World) -> None:
    for segment in world.log.segments.all[:-1]:
        segment.release()
        for suffix in (".index", ".timeindex"):
            world.files.disk.remove(segment.path.replace(".log", suffix))


OPERATIONS = {
    "append": Operation(act=_append, keeps=FIRST_BATCHES),
    "append as follower": Operation(act=_append_across_a_border, keeps=FIRST_BATCHES),
    "roll": Operation(act=lambda world: world.log.tail.roll(NOW_MS, world.log.config), keeps=FIRST_BATCHES),
    "flush": Operation(
        act=lambda world: world.log.flush(), prepare=lambda world: world.append(world.log, 9), keeps=FIRST_BATCHES
    ),
    "checkpoint": Operation(act=_checkpoint, prepare=lambda world: world.append(world.log, 9), keeps=FIRST_BATCHES),
    "retention": Operation(act=_retain, keeps=3),
    "retention of everything": Operation(act=_retain_all),
    "delete records": Operation(act=_delete_records, keeps=3),
    "truncate": Operation(act=lambda world: world.log.truncate_to(3)),
    "truncate within the active segment": Operation(act=lambda world: world.log.truncate_to(FIRST_BATCHES - 1)),
    "truncate at the end": Operation(
        act=lambda world: world.log.truncate_to(FIRST_BATCHES + 1),
        prepare=_write_down_an_epoch_without_records,
        keeps=FIRST_BATCHES,
    ),
    "start over": Operation(act=lambda world: world.log.truncate_fully_and_start_at(3)),
    "read with lost indexes": Operation(act=_read_with_lost_indexes, prepare=_lose_indexes, keeps=FIRST_BATCHES),
    "open after a kill": Operation(act=_open, prepare=lambda world: world.append(world.log, 9), keeps=FIRST_BATCHES),
    "compaction": Operation(act=_clean, config=replace(CONFIG, cleanup_policy=("compact",)), keeps=2),
    "create": Operation(act=_create, keeps=FIRST_BATCHES),
    "close": Operation(act=lambda world: world.log.close(), keeps=FIRST_BATCHES),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_after_a_refusal_memory_is_what_the_disk_is(name: str, kind: type) -> None:
    operation = OPERATIONS[name]
    wanted = _untouched(operation)
    for number in range(1, MOST_OPERATIONS):
        world = World(operation.config)
        before = world.content()
        operation.prepare(world)
        world.files.arm(number, kind)
        refused = _try(world, operation)
        has_refused, asked = world.files.has_refused, world.files.log[-1:]
        world.files.arm(0, kind)
        if not has_refused:
            assert number > 1 and not refused
            return
        where = f"{name}: {kind.__name__} at operation {number}, {asked}"
        try:
            _judge(world, operation, before, wanted)
        except (AssertionError, StorageError, CorruptRecordError) as error:
            raise AssertionError(f"{where}: {error}") from error
    raise AssertionError(f"{name} makes more than {MOST_OPERATIONS} operations")


def _untouched(operation: Operation) -> list[Known]:
    world = World(operation.config)
    operation.prepare(world)
    operation.act(world)
    return world.content()


def _try(world: World, operation: Operation) -> bool:
    try:
        operation.act(world)
    except (StorageError, CorruptRecordError):
        return True
    return False


def _judge(world: World, operation: Operation, before: list[Known], wanted: list[Known]) -> None:
    """Now, once it is asked again, and after a start."""
    if not world.is_down:
        _check(world, operation, before)
    if world.is_down or any(log.failed for log in world.manager.logs.values()):
        world.open_again()
        _check(world, operation, before)
    operation.act(world)
    _check_done(world, operation, before, wanted)
    world.open_again()
    _check_done(world, operation, before, wanted)


def _check_done(world: World, operation: Operation, before: list[Known], wanted: list[Known]) -> None:
    if operation.config.is_compacted:
        _check(world, operation, before)  # what is cleaned in two goes is grouped in another way
        assert len(world.content()) < len(before)
    else:
        check_log(world.log, world.files)
        assert world.content() == wanted


def _check(world: World, operation: Operation, before: list[Known]) -> None:
    try:
        found = world.content()
    except StorageError:
        assert world.log.failed, "a reader is refused, and nobody will open the log again"
        return
    is_compacted = operation.config.is_compacted
    check_log(world.log, world.files, is_compacted=is_compacted)
    kept = before[len(before) - operation.keeps :]
    assert [batch for batch in found if batch in kept] == kept, (
        f"a reader gets {found}, of {before} must be there {kept}"
    )
    offsets = [base_offset for base_offset, _ in found]
    assert is_compacted or offsets == list(range(world.log.log_start_offset, world.log.log_end_offset)), offsets
