import struct
from random import Random

import pytest

from barnabas.log.segment.offset_index import OffsetIndex
from barnabas.log.segment.time_index import TimeIndex
from barnabas.log.segment.transaction_index import AbortedTransaction, TransactionIndex
from barnabas.net.testing.simulation.disk import SimulatedDisk


@pytest.fixture
def disk():
    disk = SimulatedDisk()
    disk.make_dirs("/d")
    return disk


def offset_index(disk, **arguments):
    return OffsetIndex(disk, "/d/0.index", base_offset=100, max_size_bytes=arguments.get("max_size_bytes", 1 << 20))


def test_offset_index_in_kafkas_format(disk):
    index = offset_index(disk)
    for number in range(1, 5):
        index.append(100 + 10 * number, 1000 * number)
    index.append(120, 9000)  # does not rise: left out
    assert [index.position_for(offset) for offset in (100, 109, 110, 119, 139, 140, 999)] == [
        0, 0, 1000, 1000, 3000, 4000, 4000,
    ]  # fmt: skip
    assert index.offset_before(999) == (100, 0)
    assert index.offset_before(2500) == (120, 2000)
    index.save()
    assert disk.read_bytes("/d/0.index") == struct.pack(">8I", 10, 1000, 20, 2000, 30, 3000, 40, 4000)
    for writable in (True, False):
        again = offset_index(disk)
        assert again.load(writable=writable)
        assert again.position_for(130) == 3000
    index.truncate_to(130)
    assert index.position_for(999) == 2000
    index.append(150, 5000)
    index.save()
    assert disk.size_bytes("/d/0.index") == 24
    assert index.fits(5001)
    assert not index.fits(5000)


def test_an_index_that_has_not_grown_is_neither_written_nor_flushed_again(disk):
    index = offset_index(disk)
    index.append(110, 1000)
    index.save()
    index.flush()
    index.save()
    assert index.file_to_flush() is None
    index.append(120, 2000)
    index.save()
    assert index.file_to_flush() is not None


def test_a_full_index(disk):
    index = offset_index(disk, max_size_bytes=16)
    index.append(101, 1)
    assert not index.is_full
    index.append(102, 2)
    assert index.is_full


@pytest.mark.parametrize("data", [b"x", struct.pack(">4I", 5, 5, 5, 6), struct.pack(">4I", 5, 5, 6, 5), bytes(16)])
def test_an_unsound_file_is_empty(disk, data):
    disk.write_atomically("/d/0.index", data)
    index = offset_index(disk)
    assert not index.load(writable=True)
    assert len(index) == 0
    index.append(110, 10)
    index.save()
    assert disk.read_bytes("/d/0.index") == struct.pack(">2I", 10, 10)


def test_time_index(disk):
    index = TimeIndex(disk, "/d/0.timeindex", base_offset=100, max_size_bytes=1 << 20)
    index.append(-1, 105)
    assert index.largest == (-1, 100)
    for stamp, offset in ((10, 110), (10, 115), (20, 120), (25, 120), (15, 125), (30, 130)):
        index.append(stamp, offset)
    assert len(index) == 3, "timestamps and offsets both rise"
    assert [index.offset_for(stamp) for stamp in (0, 10, 11, 20, 21, 31)] == [100, 100, 110, 110, 120, 130]
    index.truncate_to(130)
    assert index.largest == (20, 120)
    index.save()
    assert disk.read_bytes("/d/0.timeindex") == struct.pack(">qIqI", 10, 10, 20, 20)


def test_transaction_index(disk):
    index = TransactionIndex(disk, "/d/0.txnindex")
    first, second = (
        AbortedTransaction(producer_id=1, first_offset=start, last_offset=start + 9, last_stable_offset=start + 10)
        for start in (0, 20)
    )
    assert index.entries == []
    index.append(first)
    index.append(second)
    assert index.aborted_between(5, 20) == [first]
    assert index.aborted_between(9, 21) == [first, second]
    assert TransactionIndex(disk, "/d/0.txnindex").entries == [first, second]
    index.truncate_to(29)
    assert TransactionIndex(disk, "/d/0.txnindex").entries == [first]
    index.clear()
    assert TransactionIndex(disk, "/d/0.txnindex").entries == []


def test_the_entries_of_an_offset_index_rise_in_both_columns_and_are_found_as_in_a_list():
    for seed in range(20):
        disk, rng = SimulatedDisk(), Random(seed)
        disk.make_dirs("/d")
        index, model = offset_index(disk), list[tuple[int, int]]()
        for _ in range(60):
            last_offset, position = 100 + rng.randint(1, 40), rng.randint(1, 40)
            index.append(last_offset, position)
            if not model or (last_offset > model[-1][0] and position > model[-1][1]):
                model.append((last_offset, position))
            if rng.random() < 0.05:
                end = 100 + rng.randint(0, 42)
                index.truncate_to(end)
                model = [entry for entry in model if entry[0] < end]
            for place in range(42):
                before = [entry for entry in model if entry[0] <= 100 + place]
                assert index.position_for(100 + place) == (before[-1][1] if before else 0)
                earlier = [entry for entry in model if entry[1] <= place]
                assert index.offset_before(place) == (earlier[-1] if earlier else (100, 0))
                assert index.fits(place) is (not model or model[-1][1] < place)
