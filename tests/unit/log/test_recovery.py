from dataclasses import replace
from random import Random

import pytest
from simulation.checkers.logs import check_producers
from simulation.log_building import DIRECTORY, NOW_MS, append, base_offsets, batch_of, open_log, read_all

from barnabas.log.format.record_batch import LENGTH_POSITION
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.errors import OutOfOrderSequenceError
from barnabas.net.testing.simulation.disk import SimulatedDisk

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)
LOG = f"{DIRECTORY}/{0:020d}.log"


def test_cut_at_every_byte_of_the_last_batches():
    disk = SimulatedDisk()
    log = open_log(disk)
    ends = [0]
    for values in ([b"a"], [b"b" * 20, b"c"], [b"d"]):
        append(log, *values)
        ends.append(log.size_bytes)
    data = disk.read_bytes(LOG)
    for size in range(len(data) + 1):
        disk = SimulatedDisk()
        disk.make_dirs(DIRECTORY)
        disk.open_append(LOG).append(data[:size])
        log = open_log(disk)
        whole = max(end for end in ends if end <= size)
        assert log.size_bytes == disk.size_bytes(LOG) == whole
        assert not log.has_lost_batches
        assert append(log, b"z") == log.log_end_offset - 1
        assert base_offsets(read_all(log)) == [*[0, 1, 3, 4][: ends.index(whole)], log.log_end_offset - 1]


@pytest.mark.parametrize("position", [8, 10, 16, 17, 30, 64])
def test_damage_behind_the_recovery_point_cuts_the_log(position):
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for _ in range(30):
        append(log, b"x" * 60)
    place = log.segments.all[1].batch_at(log.segments.all[1].base_offset + 2)
    path, base = log.segments.all[1].path, place.base_offset
    disk.kill()
    disk.flip_bit(path, place.position + position)
    log = open_log(disk, config=SMALL)
    assert log.log_end_offset == base
    assert log.has_lost_batches
    assert base_offsets(read_all(log)) == list(range(base))
    assert append(log, b"new") == base


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_damaged_batch_at_the_very_end_is_no_torn_tail(is_clean):
    disk = SimulatedDisk()
    log = open_log(disk)
    for _ in range(3):
        append(log, b"x" * 60)
    place = log.segments.all[0].batch_at(2)
    disk.kill()
    disk.flip_bit(LOG, place.position + (LENGTH_POSITION if is_clean else place.size_bytes - 1))
    log = open_log(disk, was_stopped_cleanly=is_clean)
    assert (log.log_end_offset, log.has_lost_batches) == (2, True)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "zeros", "garbage", "emptied"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_indexes_are_made_anew(suffix, damage, is_clean):
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for number in range(60):
        append(log, b"x" * 60, timestamp_ms=NOW_MS + number)
    before = read_all(log)
    log.close()
    disk.kill()
    for name in disk.list_dir(DIRECTORY):
        if name.endswith(suffix):
            file = disk.open_append(f"{DIRECTORY}/{name}")
            match damage:
                case "missing":
                    disk.remove(f"{DIRECTORY}/{name}")
                case "torn":
                    file.truncate(max(file.size_bytes - 3, 0))
                case "zeros":
                    file.append(bytes(24))
                case "garbage":
                    file.truncate(0)
                    file.append(Random(1).randbytes(48))
                case "emptied":
                    file.truncate(0)
    log = open_log(disk, config=SMALL, was_stopped_cleanly=is_clean, recovery_point=30)
    assert read_all(log) == before
    for number in range(60):
        assert log.offset_for_timestamp(NOW_MS + number) == (number, NOW_MS + number)
        assert base_offsets(log.read(number, max_bytes=1, up_to_offset=60).read()) == [number]


def check_epochs(log, epochs):
    """What the log says of its epochs is what its batches say."""
    starts = {}
    for offset, epoch in enumerate(epochs):
        starts.setdefault(epoch, offset)
    for epoch, start in starts.items():
        later = [other for known, other in starts.items() if known > epoch]
        assert log.end_offset_for_epoch(epoch) == (epoch, min(later, default=len(epochs)))
        assert log.epoch_at(start) == epoch


@pytest.mark.parametrize("seed", range(400))
def test_power_loss_keeps_what_was_flushed(seed):
    """After any crash the log is a prefix of what was appended, at least up to the recovery point, and goes on from
    there. An epoch that began before records were flushed stays known, even if it has none itself."""
    rng = Random(seed)
    disk = SimulatedDisk()
    expected: list[tuple[int, bytes]] = []  # (epoch, value) by offset
    recovery_point = 0  # as it was checkpointed
    epoch = 0
    flushed_epoch = -1
    written = [0]

    def lower(end_offset):
        written[0] = min(written[0], end_offset)

    log = open_log(disk, config=SMALL, before_truncation=lower)
    for _ in range(5):
        for _ in range(rng.randint(1, 25)):
            action = rng.random()
            if action < 0.75:
                value = rng.randbytes(rng.randint(1, 120))
                assert append(log, value, epoch=epoch) == len(expected)
                expected.append((epoch, value))
            elif action < 0.85:
                if log.recovery_point < log.log_end_offset:
                    flushed_epoch = log.latest_epoch
                log.flush()
                written[0] = log.recovery_point
                if rng.random() < 0.5:
                    log.tail.save(log.recovery_point)
            elif action < 0.95 and expected:
                cut = rng.randint(max(0, len(expected) - 20), len(expected))
                log.truncate_to(cut)
                del expected[cut:]
                flushed_epoch = min(flushed_epoch, log.latest_epoch)
                epoch += 1
            else:
                epoch += 1
                log.assign_epoch_start(epoch, log.log_end_offset)
        recovery_point = written[0]
        if rng.random() < 0.6:
            disk.power_loss(rng)
            at_least = recovery_point
        else:
            disk.kill()
            at_least = len(expected)
        log = open_log(disk, config=SMALL, recovery_point=recovery_point, before_truncation=lower)
        assert at_least <= log.log_end_offset <= len(expected), seed
        assert log.latest_epoch >= flushed_epoch
        del expected[log.log_end_offset :]
        assert base_offsets(read_all(log)) == list(range(len(expected)))
        check_epochs(log, [found for found, _ in expected])


@pytest.mark.parametrize("is_clean", [True, False])
def test_idempotence_survives_a_restart(is_clean):
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)

    def send(sequence):
        producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=sequence)
        return log.append_as_leader(batch_of(b"v" * 200, producer=producer), leader_epoch=0, now_ms=NOW_MS)

    for sequence in range(20):
        send(sequence)
    if is_clean:
        log.close()
    disk.kill()
    log = open_log(disk, config=SMALL, was_stopped_cleanly=is_clean)
    for sequence in range(15, 20):
        assert send(sequence).first_offset == sequence
    with pytest.raises(OutOfOrderSequenceError):
        send(21)
    assert send(20).first_offset == 20


def test_damaged_epoch_checkpoint_is_made_anew():
    disk = SimulatedDisk()
    log = open_log(disk)
    for epoch in (1, 4, 6):
        append(log, b"x", epoch=epoch)
    log.close()
    disk.write_atomically(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n7\nrubbish\n")
    log = open_log(disk, was_stopped_cleanly=True, recovery_point=3)
    assert log.end_offset_for_epoch(4) == (4, 2)
    assert log.latest_epoch == 6


def test_a_clean_start_scans_nothing():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for _ in range(50):
        append(log, b"x" * 60)
    log.close()
    disk.flip_bit(LOG, 70)  # would be found by a scan
    assert open_log(disk, config=SMALL, was_stopped_cleanly=True).log_end_offset == 50


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_after_a_clean_stop_takes_no_record_and_no_index_entry(seed):
    """The next start believes the marker of the clean stop, and scans nothing. Other files have checksums."""
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for number in range(20):
        append(log, b"x" * 60, timestamp_ms=NOW_MS + number)
    log.close()
    disk.sync_dir(DIRECTORY)
    before = contents(disk)
    assert len(before) >= 6 and all(before.values())
    disk.power_loss(Random(seed))
    assert contents(disk) == before


def contents(disk):
    """Of the segments and their indexes."""
    names = [name for name in disk.list_dir(DIRECTORY) if name.endswith((".log", ".index", ".timeindex"))]
    return {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in names}


def test_an_index_is_made_anew_once_and_not_at_every_start():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for _ in range(20):
        append(log, b"x" * 60)
    log.close()
    before = contents(disk)
    for name in before:
        if name.endswith("index"):
            disk.remove(f"{DIRECTORY}/{name}")
    log = open_log(disk, config=SMALL, was_stopped_cleanly=True)
    read_all(log)
    last = f"{log.segments.active.base_offset:020d}"
    now, sealed = contents(disk), [name for name in before if last not in name]
    assert len(sealed) >= 6 and {name: now.get(name) for name in sealed} == {name: before[name] for name in sealed}


def test_a_log_start_that_a_crash_took_back_leaves_no_records_without_epochs():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for number in range(6):
        append(log, b"x" * 60, epoch=1 + number // 2)
    log.set_high_watermark(5)
    log.delete_records_before(5)
    log.flush()  # saves the epochs, of which there is one
    disk.power_loss(Random(0))

    again = open_log(disk, config=SMALL, log_start_offset=0, recovery_point=6)

    check_epochs(again, [1, 1, 2, 2, 3, 3])
    again.truncate_to(3)
    assert again.latest_epoch == 2


def test_a_log_start_that_a_crash_took_back_leaves_no_log_without_epochs():
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for _ in range(6):
        append(log, b"x" * 60, epoch=3)
    log.flush()
    log.tail.roll(NOW_MS, log.config)
    for _ in range(4):
        append(log, b"y", epoch=3)
    log.set_high_watermark(10)
    log.delete_records_before(10)  # nobody writes the log start to its checkpoint
    log.flush()  # saves the epochs
    disk.kill()
    disk.open_append(f"{DIRECTORY}/{6:020d}.log").truncate(0)
    again = open_log(disk, config=SMALL, recovery_point=6)  # what lies before it is not scanned
    assert (again.log_start_offset, again.log_end_offset, again.latest_epoch) == (0, 6, 3)


def _of_producer(producer_id, sequence):
    producer = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return batch_of(b"x" * 20, producer=producer)


@pytest.mark.parametrize("cuts_by", ["truncation", "recovery"])
def test_a_snapshot_of_what_was_cut_off_does_not_come_back(cuts_by):
    """It was removed, and nothing made that durable: after a loss of power the log remembered batches that are not in it."""
    for seed in range(40):
        _cut_and_lose_power(Random(seed), cuts_by)


def _cut_and_lose_power(rng, cuts_by):
    disk = SimulatedDisk()
    log = open_log(disk)
    for sequence in range(3):
        log.append_as_leader(_of_producer(7, sequence), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    for sequence in range(3, 6):
        log.append_as_leader(_of_producer(7, sequence), leader_epoch=1, now_ms=NOW_MS)
    log.flush()
    log.tail.save(log.recovery_point)
    snapshot = f"{DIRECTORY}/{6:020d}.snapshot"
    disk.sync_dir(DIRECTORY)
    disk.open_append(snapshot).flush()  # as the kernel does within half a minute
    if cuts_by == "truncation":
        log.truncate_to(3)
    else:
        disk.open_append(LOG).truncate(disk.size_bytes(LOG) - 1)
        disk.kill()
        log = open_log(disk)
        assert log.log_end_offset == 5
    for sequence in range(5):
        log.append_as_leader(_of_producer(9, sequence), leader_epoch=log.latest_epoch, now_ms=NOW_MS)
    log.flush()
    disk.power_loss(rng)
    again = open_log(disk, recovery_point=log.recovery_point)
    check_producers(again)


@pytest.mark.parametrize("how", ["truncation", "lost snapshots"])
def test_producers_of_old_segments_are_not_forgotten(how):
    """Only two snapshots were kept, and without one the two newest segments were replayed: a retry was written twice."""
    disk = SimulatedDisk()
    log = open_log(disk, config=SMALL)
    for number in range(60):
        producer_id, sequence = (7, number) if number < 3 else (9, number - 3)
        log.append_as_leader(_of_producer(producer_id, sequence), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    assert len(log.segments.all) > 5
    if how == "truncation":
        log.truncate_to(log.segments.all[3].base_offset + 1)
    else:
        for name in disk.list_dir(DIRECTORY):
            if name.endswith(".snapshot"):
                disk.remove(f"{DIRECTORY}/{name}")
        disk.kill()
        log = open_log(disk, config=SMALL)
    check_producers(log)
    assert log.append_as_leader(_of_producer(7, 2), leader_epoch=0, now_ms=NOW_MS).duplicate


def test_a_snapshot_goes_with_its_segment():
    disk = SimulatedDisk()
    log = open_log(disk, config=replace(SMALL, retention_bytes=2_000, file_delete_delay_ms=0))
    for number in range(60):
        log.append_as_leader(_of_producer(7, number), leader_epoch=0, now_ms=NOW_MS)
        log.set_high_watermark(log.log_end_offset)
        log.delete_old_segments(NOW_MS)
    names = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".snapshot")]
    assert len(names) <= len(log.segments.all) + 2
