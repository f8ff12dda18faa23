"""Bit rot: it is found, refused to readers with its offsets, and everything round it is served; the file is kept aside."""

from dataclasses import replace

import pytest
from simulation.log_building import DIRECTORY, NOW_MS, append, base_offsets, batch_of, open_log
from unit.log.replication.test_flush_first import assignment

from barnabas.log.partition.log_damage import MOST_KEPT_FILES
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.replication.effects import Resign
from barnabas.log.replication.partition import Partition
from barnabas.log.segment.damage import DamagedRange, scan
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import CorruptRecordError, MissingFileError
from barnabas.net.testing.simulation.disk import SimulatedDisk

BATCH = len(batch_of(b"value-00"))
CONFIG = LogConfig(segment_bytes=10 * BATCH, index_interval_bytes=2 * BATCH)
FIRST = f"{DIRECTORY}/{0:020d}.log"
PLACES = {"base offset": 3, "length": 10, "crc": 18, "delta": 26, "value": BATCH - 3}


def filled(disk: SimulatedDisk, count: int = 25) -> PartitionLog:
    log = open_log(disk, config=CONFIG)
    for number in range(count):
        append(log, b"value-%02d" % number)
    log.set_high_watermark(count)
    return log


def find(log: PartitionLog) -> list[DamagedRange]:
    found = []
    for base_offset in log.damage.sealed():
        view = log.damage.view(base_offset)
        assert view is not None
        position, next_offset, is_done = 0, view.base_offset, False
        while not is_done:
            step = scan(view, position=position, next_offset=next_offset, most_bytes=3 * BATCH)
            position, next_offset, is_done = step.position, step.next_offset, step.is_done
            if step.damage is not None:
                found.append(step.damage)
    return found


def readable(log: PartitionLog) -> tuple[list[int], list[int]]:
    """Offsets that are served, each asked for by itself, and those that are refused."""
    served, refused = [], []
    for offset in range(log.log_start_offset, log.log_end_offset):
        try:
            data = log.read(offset, max_bytes=1, up_to_offset=log.log_end_offset).read()
        except CorruptRecordError:
            refused.append(offset)
        else:
            assert base_offsets(data) == [offset]
            served.append(offset)
    return served, refused


@pytest.mark.parametrize("place", PLACES)
def test_what_is_damaged_is_refused_and_everything_round_it_is_served(place: str) -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    disk.flip_bit(FIRST, 4 * BATCH + PLACES[place], 6)
    found = find(log)
    assert len(found) == 1 and found[0].first_offset == 4 and 5 <= found[0].end_offset <= 8
    assert log.damage.note(found[0]) and not log.damage.note(found[0])
    served, refused = readable(log)
    assert refused == list(range(4, found[0].end_offset)) and served + refused != [] and len(served + refused) == 25
    with pytest.raises(
        CorruptRecordError, match=rf"offsets 4 to {found[0].end_offset - 1} .*{FIRST}.* go on at offset"
    ):
        log.read(4, max_bytes=1_000, up_to_offset=25)
    assert base_offsets(log.read(0, max_bytes=100_000, up_to_offset=25).read()) == [0, 1, 2, 3]
    behind = base_offsets(log.read(found[0].end_offset, max_bytes=100_000, up_to_offset=25).read())
    assert behind == list(range(found[0].end_offset, 10))
    assert base_offsets(log.read(2, max_bytes=BATCH, up_to_offset=25).read()) == [2]
    assert base_offsets(log.read(2, max_bytes=10 * BATCH, up_to_offset=3).read()) == [2]


def test_a_sound_log_has_none() -> None:
    log = filled(SimulatedDisk())
    assert (
        find(log) == [] and log.damage.sealed() == [0, 10] and log.damage.view(20) is None and not log.damage.is_known
    )
    assert log.damage.verify(0, max_bytes=100_000) and log.damage.verify(24, max_bytes=100_000)


def test_two_faults_in_one_segment() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    for number in (1, 8):
        disk.flip_bit(FIRST, number * BATCH + PLACES["value"])
    assert not log.damage.verify(0, max_bytes=100_000)
    assert readable(log)[1] == [1, 8] and [damaged.position for damaged in log.damage.ranges] == [BATCH, 8 * BATCH]


def test_what_a_peer_refused_is_checked_at_once_also_in_the_active_segment() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    disk.flip_bit(f"{DIRECTORY}/{20:020d}.log", 2 * BATCH + PLACES["value"])
    assert not log.damage.verify(21, max_bytes=100_000)
    assert readable(log)[1] == [22]


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_the_log_is_cut_before_the_damaged_segment_and_the_file_is_kept(segment: int) -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    path = f"{DIRECTORY}/{10 * segment:020d}.log"
    disk.flip_bit(path, 2 * BATCH + PLACES["length"], 6)
    assert not log.damage.verify(10 * segment, max_bytes=100_000)
    log.set_damage_aside()
    assert log.log_end_offset == 10 * segment and not log.damage.is_known
    assert disk.exists(f"{path}.damaged")
    assert append(log, b"again") == 10 * segment
    log.close()
    again = open_log(disk, config=CONFIG)
    assert again.log_end_offset == 10 * segment + 1 and disk.exists(f"{path}.damaged")


def test_only_so_many_damaged_files_are_kept() -> None:
    disk = SimulatedDisk()
    log = filled(disk, 0)
    for round_number in range(4):
        disk.now_ms += 1
        for number in range(3):
            append(log, b"value-%02d" % number)
        log.tail.roll(0, log.config)
        path = f"{DIRECTORY}/{3 * round_number:020d}.log"
        disk.flip_bit(path, PLACES["value"])
        assert not log.damage.verify(3 * round_number, max_bytes=100_000)
        log.set_damage_aside()
        for number in range(3):
            append(log, b"value-%02d" % number)
        log.tail.roll(0, log.config)
    assert sum(name.endswith(".damaged") for name in disk.list_dir(DIRECTORY)) == MOST_KEPT_FILES


@pytest.mark.parametrize(("number", "kept"), [(1, 10), (2, 20)])
def test_a_segment_whose_file_somebody_removes_is_damaged_as_a_whole(number: int, kept: int) -> None:
    """The segment in the middle, and the last one, which takes no records any more."""
    disk = SimulatedDisk()
    log = filled(disk)
    for segment in log.segments.all:
        segment.release()
    removed = log.segments.all[number]
    disk.remove(removed.path)
    assert not log.damage.is_known, "nobody has needed the file"
    with pytest.raises(MissingFileError):
        log.read(kept, max_bytes=1, up_to_offset=25)
    assert log.damage.is_known
    (damaged,) = log.damage.ranges
    assert (damaged.first_offset, damaged.end_offset) == (kept, removed.next_offset)
    assert not log.damage.verify(kept, max_bytes=1)
    served, refused = readable(log)
    assert refused == list(range(kept, removed.next_offset)) and len(served) + len(refused) == 25
    log.set_damage_aside()
    assert log.log_end_offset == kept and not log.damage.is_known
    append(log, b"value-00")
    assert readable(log) == ([*range(kept + 1)], [])


def test_a_leader_whose_segment_file_is_gone_asks_another_replica_to_lead() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    partition = Partition(log, 0)
    partition.make_leader(
        replace(assignment(leader=0, leader_epoch=3), topic_partition=log.topic_partition, topic_id=log.topic_id), 0
    )
    log.segments.active.release()
    disk.remove(log.segments.active.path)
    with pytest.raises(MissingFileError):
        partition.leading.append(batch_of(b"lost"), acks=1, now_ms=NOW_MS)
    assert partition.repair.resign_if_damaged() == [
        Resign(topic_partition=log.topic_partition, topic_id=log.topic_id, leader_epoch=3)
    ]


def test_a_scan_takes_the_bytes_that_it_may_and_comes_to_the_end_in_any_steps() -> None:
    log = filled(SimulatedDisk())
    for base_offset in log.damage.sealed():
        view = log.damage.view(base_offset)
        assert view is not None
        for most_bytes in (BATCH, BATCH + 1, 3 * BATCH, view.size_bytes, 10 * view.size_bytes):
            position, next_offset, is_done = 0, view.base_offset, False
            while not is_done:
                step = scan(view, position=position, next_offset=next_offset, most_bytes=most_bytes)
                assert step.damage is None and 0 < step.position - position <= most_bytes
                position, next_offset, is_done = step.position, step.next_offset, step.is_done
            assert (position, next_offset) == (view.size_bytes, view.next_offset)
