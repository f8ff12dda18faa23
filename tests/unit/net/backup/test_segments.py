"""Files of batches: what a run that was killed leaves, what is left out, what damage looks like."""

import os
import resource
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barnabas.log.format.record_batch import patch
from barnabas.log.format.record_codec import ProducerFields, encode_marker
from barnabas.log.records.codec import encode
from barnabas.net.client.consumer.range_reader import Chunk
from barnabas.net.programs.backup import segments
from barnabas.net.programs.backup.contents import (
    BACKUP_NAME,
    PROGRESS_NAME,
    BackupError,
    Contents,
    PartitionContents,
    Segment,
    TopicContents,
    check_segment,
    partition_folder,
    read_contents,
    read_sealed,
    write_sealed,
)
from barnabas.net.programs.backup.restoring import Restoring, RestoringConfig
from barnabas.net.programs.backup.segments import PartitionWriter, read_batches

NOTHING = PartitionContents()


def batch(first: int, count: int = 3) -> bytes:
    data = bytearray(encode([b"%d" % (first + number) for number in range(count)], timestamps_ms=1))
    patch(data, 0, base_offset=first, leader_epoch=0)
    return bytes(data)


def chunk(*firsts: int, start: int | None = None) -> Chunk:
    return Chunk(firsts[0] if start is None else start, b"".join(map(batch, firsts)))


def offsets_in(folder: Path, contents: PartitionContents) -> list[int]:
    """As `restore` reads them: each from behind the last one."""
    found: list[int] = []
    at = contents.start_offset
    for segment in contents.segments:
        check_segment(folder, segment)
        for records in read_batches(folder, segment, at):
            found += [record.offset for record in records]
            at = max(at, *(record.offset + 1 for record in records), at)
    return found


def written(folder: Path, known: PartitionContents, chunks: Sequence[tuple[Chunk, int]]) -> PartitionContents:
    writer = PartitionWriter(folder, known)
    writer.begin(chunks[0][0].start)
    for one, next_offset in chunks:
        writer.add(one, next_offset)
    writer.finish()
    return writer.contents


def test_each_run_adds_a_file_and_changes_none(tmp_path: Path) -> None:
    first = written(tmp_path, PartitionContents(), [(chunk(0, 3), 6), (chunk(6), 9)])
    assert [(item.first_offset, item.next_offset) for item in first.segments] == [(0, 9)]
    second = written(tmp_path, first, [(chunk(9), 12)])
    assert second.segments[0] == first.segments[0] and second.segments[1].name == "00000000000000000009.batches"
    assert offsets_in(tmp_path, second) == list(range(12))
    assert written(tmp_path, second, [(Chunk(12, b""), 12)]) == second
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_run_that_was_killed_goes_on_behind_its_last_complete_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1)  # each chunk is a file
    writer = PartitionWriter(tmp_path, PartitionContents())
    writer.begin(0)
    writer.add(chunk(0), 3)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 20)
    writer.add(chunk(3), 6)
    writer.close()  # as kill -9: neither durable nor named
    assert len(list(tmp_path.glob("*.batches"))) == 2
    again = PartitionWriter(tmp_path, PartitionContents())
    assert again.contents.next_offset == 3 and len(list(tmp_path.glob("*.batches"))) == 1
    again.add(chunk(3, 6), 9)
    again.finish()
    assert offsets_in(tmp_path, again.contents) == list(range(9))


def test_progress_of_another_history_is_given_up(tmp_path: Path) -> None:
    """An older copy of backup.json was put back, or the backup is newer than the progress."""
    known = written(tmp_path, PartitionContents(), [(chunk(0), 3)])
    newer = written(tmp_path, known, [(chunk(3), 6)])
    assert PartitionWriter(tmp_path, known).contents == newer  # what is there is used
    segment = Segment(first_offset=0, next_offset=3, size_bytes=1, sha256="00")
    other = PartitionContents(start_offset=0, next_offset=3, segments=(segment,))
    assert PartitionWriter(tmp_path, other).contents == other


def test_markers_and_aborted_records_are_left_out(tmp_path: Path) -> None:
    def of_producer(first: int, producer_id: int) -> bytes:
        data = bytearray(
            encode(
                [b"x", b"y"], timestamps_ms=1, producer=ProducerFields(producer_id=producer_id, is_transactional=True)
            )
        )
        patch(data, 0, base_offset=first, leader_epoch=0)
        return bytes(data)

    def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
        data = bytearray(
            encode_marker(
                producer_id=producer_id, producer_epoch=0, is_commit=commit, coordinator_epoch=0, timestamp_ms=1
            )
        )
        patch(data, 0, base_offset=offset, leader_epoch=0)
        return bytes(data)

    data = of_producer(0, 7) + of_producer(2, 8) + marker(4, 7, commit=False) + marker(5, 8, commit=True)
    contents = written(tmp_path, PartitionContents(), [(Chunk(0, data, ((7, 0),)), 6)])
    assert offsets_in(tmp_path, contents) == [2, 3] and contents.next_offset == 6


def test_records_that_the_cluster_had_deleted_are_counted_and_those_before_the_start_left_out(tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path, PartitionContents())
    writer.begin(2)
    writer.add(chunk(0, 3, start=2), 6)  # the first batch begins before the start
    writer.skip(9)
    writer.add(chunk(9), 12)
    writer.finish()
    assert (writer.contents.start_offset, writer.contents.lost) == (2, 3)
    assert offsets_in(tmp_path, writer.contents) == [2, 3, 4, 5, 9, 10, 11]


def test_batches_that_overlap_are_read_once(tmp_path: Path) -> None:
    """Compaction may have joined batches between two runs."""
    first = written(tmp_path, PartitionContents(), [(chunk(0), 3)])
    second = PartitionWriter(tmp_path, first)
    second.add(Chunk(3, batch(0, count=6)), 6)
    second.finish()
    assert offsets_in(tmp_path, second.contents) == list(range(6))


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "gone"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    (segment,) = written(tmp_path, PartitionContents(), [(chunk(0, 3), 6)]).segments
    path = tmp_path / segment.name
    data = path.read_bytes()
    changed = {"flip": data[:80] + bytes([data[80] ^ 1]) + data[81:], "cut": data[:-1], "longer": data + b"\0"}
    path.unlink() if damage == "gone" else path.write_bytes(changed[damage])
    with pytest.raises(BackupError, match=segment.name):
        check_segment(tmp_path, segment)
    with pytest.raises(BackupError, match=segment.name):
        list(read_batches(tmp_path, segment, 0))


@pytest.mark.parametrize("position", [3, 60, -3])
def test_a_damaged_description_is_refused(tmp_path: Path, position: int) -> None:
    path = tmp_path / PROGRESS_NAME
    write_sealed(path, PartitionContents(start_offset=1, next_offset=5))
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(BackupError, match="damaged"):
        read_sealed(path, PartitionContents)


def test_partitions_that_end_at_the_same_time_have_folders_that_their_owner_can_enter(tmp_path: Path) -> None:
    """Each is written in a thread: none may change what holds for the whole process, as umask does."""
    before = os.umask(0o022)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda name: written(tmp_path / f"{name}", NOTHING, [(chunk(0), 3)]), range(100)))
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    for folder in tmp_path.iterdir():
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_full_disk_is_named_and_what_was_there_stays(tmp_path: Path) -> None:
    known = written(tmp_path, NOTHING, [(chunk(0), 3)])
    writer = PartitionWriter(tmp_path, known)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(BackupError, match=r"cannot be written: File too large; make room"):
            writer.add(chunk(3), 6)
        writer.close()
        with pytest.raises(BackupError, match=r"b\.json cannot be written: File too large"):
            write_sealed(tmp_path / "b.json", known)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    again = PartitionWriter(tmp_path, known)
    assert again.contents == known
    again.add(chunk(3), 6)
    again.finish()
    assert offsets_in(tmp_path, again.contents) == list(range(6))


@pytest.mark.parametrize("topic_id", ["../../etc", "..", "", "a/b", "/etc", "x" * 65, "a\n"])
def test_an_id_of_a_topic_leads_to_no_other_folder(tmp_path: Path, topic_id: str) -> None:
    with pytest.raises(BackupError, match="is no id of a topic"):
        partition_folder(tmp_path, topic_id, 0)


@pytest.mark.parametrize("offsets", [((0, 5), (3, 8)), ((5, 8), (0, 5)), ((-3, 5),), ((5, 3),), ((0, 11),)])
def test_files_that_overlap_or_are_out_of_order_are_refused(tmp_path: Path, offsets: Sequence[tuple[int, int]]) -> None:
    """Somebody has changed backup.json, and its checksum: records would come twice."""
    files = tuple(Segment(first_offset=first, next_offset=behind, size_bytes=1, sha256="") for first, behind in offsets)
    partition = PartitionContents(start_offset=0, next_offset=10, segments=files)
    topic = TopicContents(
        name="t", topic_id="i", replication_factor=1, configs={}, partitions=(partition,), has_records=True
    )
    write_sealed(tmp_path / BACKUP_NAME, Contents(backup_id="b", run=1, cluster_id="c", taken_at_ms=0, topics=(topic,)))
    with pytest.raises(BackupError, match="the files of t-0 overlap or are not in order"):
        read_contents(tmp_path)


def test_batches_that_were_taken_already_are_left_out(tmp_path: Path) -> None:
    """An answer may begin with batches from before the offset that was asked for."""
    contents = written(tmp_path, NOTHING, [(Chunk(3, batch(0) + batch(3)), 6)])
    assert [item.size_bytes for item in contents.segments] == [len(batch(3))]
    assert [(item.first_offset, item.next_offset) for item in contents.segments] == [(3, 6)]


async def test_a_restore_from_a_mistyped_folder_makes_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "backpu"
    with pytest.raises(BackupError, match="cannot be used: No such file or directory"):
        await Restoring(RestoringConfig(bootstrap="127.0.0.1:1", folder=folder)).run()
    assert not folder.exists()
