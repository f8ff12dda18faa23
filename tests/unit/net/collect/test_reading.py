"""Reading real files that are renamed, removed and rewritten between a look and a read."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from barnabas.net.programs.collect.folders import look
from barnabas.net.programs.collect.following import Followed, Following
from barnabas.net.programs.collect.line_patterns import first_lines
from barnabas.net.programs.collect.lines import RecordSplitter
from barnabas.net.programs.collect.positions import MAX_HEAD_BYTES
from barnabas.net.programs.collect.reading import CHUNK_BYTES, QUIET_S, ROUND_BYTES, FileReading

HEAD = b"#Fields: " + b"x" * MAX_HEAD_BYTES + b"\n"


class Folder:
    """What a collector does, without a cluster: looks, reads, takes the positions over."""

    def __init__(self, path: Path, *, first_line: str | None = None) -> None:
        is_first = None if first_line is None else first_lines(first_line)
        self.path = path
        self.reading = FileReading(lambda: RecordSplitter(is_first))
        self.following = Following()
        self.now_s = 0.0
        self.is_over = False

    def look(self) -> None:
        known = {file_id: file.path for file_id, file in self.following.files.items()}
        self.following.look(look([f"{self.path}/*.log"], known).seen)
        for file in self.following.restarted:
            self.reading.restart(file)
        self.reading.open(self.following.files.values())

    def read(self) -> list[bytes]:
        files = self.following.in_order()
        pieces, self.is_busy = self.reading.read(files, now_s=self.now_s, is_over=lambda _: self.is_over)
        for piece in pieces:
            piece.file.offset, piece.file.tail = piece.offset, piece.tail
        return [record for piece in pieces for record in piece.records]

    def look_and_read(self) -> list[bytes]:
        self.look()
        return self.read()

    def restart(self) -> None:
        """As after kill -9: only the positions are left."""
        self.reading.close()
        self.reading = FileReading(RecordSplitter)
        self.following = Following([file.position_at(file.offset, file.tail) for file in self.files])

    @property
    def files(self) -> Sequence[Followed]:
        return list(self.following.files.values())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path)
    with closing(found.reading):
        yield found
    found.reading.close()


@pytest.fixture
def log(folder: Folder) -> Path:
    return folder.path / "a.log"


def test_lines_that_were_written_between_the_last_look_and_the_removal(folder: Folder, log: Path) -> None:
    log.write_bytes(b"1\n")
    assert folder.look_and_read() == [b"1"]
    with log.open("ab", buffering=0) as writer:
        writer.write(b"2\n")
        log.unlink()
        writer.write(b"3\n")
        log.write_bytes(b"4\n")
        assert folder.look_and_read() == [b"2", b"3"]
        assert folder.look_and_read() == [b"4"]
        writer.write(b"5\n")
        assert folder.look_and_read() == [b"5"]


def test_a_file_is_open_before_its_turn_comes(folder: Folder, log: Path) -> None:
    (folder.path / "a.log.1").write_bytes(b"1\n")
    (folder.path / "a.log.1").rename(log)
    folder.look()
    log.rename(folder.path / "a.log.1")
    log.write_bytes(b"2\n")
    folder.look()
    log.unlink()
    assert [folder.look_and_read(), folder.look_and_read()] == [[b"1"], [b"2"]]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("rest", [b"3\n4\n5\n", b"3\n4\n", b"3\n", b""])
def test_a_file_that_was_rewritten_and_begins_as_before(
    folder: Folder, log: Path, rest: bytes, *, is_restarted: bool
) -> None:
    log.write_bytes(HEAD + b"1\n2\n")
    assert folder.look_and_read() == [HEAD[:-1], b"1", b"2"]
    log.write_bytes(HEAD + rest)
    if is_restarted:
        folder.restart()
    folder.look()
    assert folder.read() + folder.read() == [HEAD[:-1], *rest.split()]
    assert folder.look_and_read() == []


def test_a_truncation_between_a_look_and_a_read(folder: Folder, log: Path) -> None:
    log.write_bytes(b"1\n2\n3\n")
    assert folder.look_and_read() == [b"1", b"2", b"3"]
    folder.look()
    log.write_bytes(b"a\nb\nc\nd\n")
    assert folder.read() == [] and folder.is_busy
    assert folder.look_and_read() == [b"a", b"b", b"c", b"d"]
    assert folder.look_and_read() == []


def test_what_a_neighbour_with_the_inode_holds_is_not_read(folder: Folder, log: Path) -> None:
    for content in (b"other\n", HEAD + b"2\n3\n4\n"):
        log.write_bytes(HEAD + b"1\n")
        assert folder.look_and_read() == [HEAD[:-1], b"1"]
        folder.restart()
        other = log.rename(folder.path / "of-somebody-else")
        other.write_bytes(content)
        assert folder.look_and_read() == []
        assert [file.is_other for file in folder.files] == [True]
        folder.following.forget(folder.files[0].file_id)
        other.unlink()


def test_a_line_that_is_not_whole_is_known_when_it_was_rewritten(folder: Folder, log: Path) -> None:
    log.write_bytes(HEAD + b"half of a li")
    assert folder.look_and_read() == [HEAD[:-1]]
    log.write_bytes(HEAD + b"another one\n")
    folder.look()
    assert folder.read() + folder.read() == [HEAD[:-1], b"another one"]


def test_what_was_read_and_is_no_record_yet_is_busy(folder: Folder, log: Path) -> None:
    log.write_bytes(b"half")
    assert folder.look_and_read() == [] and folder.is_busy
    assert folder.read() == [] and not folder.is_busy
    folder.is_over = True
    assert folder.read() == [b"half"] and folder.is_busy
    assert folder.read() == [] and not folder.is_busy


def test_a_record_of_several_lines_is_whole_when_nothing_follows(tmp_path: Path) -> None:
    folder = Folder(tmp_path, first_line="^#")
    with closing(folder.reading):
        (tmp_path / "a.log").write_bytes(b"#1\nmore\n")
        assert folder.look_and_read() == []
        folder.now_s = QUIET_S / 2
        assert folder.read() == []
        folder.now_s = QUIET_S
        assert folder.read() == [b"#1\nmore"]


def test_large_files_do_not_hold_up_others(folder: Folder) -> None:
    count = ROUND_BYTES // CHUNK_BYTES
    for number in range(count):
        with (folder.path / f"{number}.log").open("wb") as file:
            file.truncate(3 * CHUNK_BYTES)
    (folder.path / "small.log").write_bytes(b"small\n")
    folder.look()
    assert b"small" in folder.read() + folder.read()


def test_a_file_that_cannot_be_read_is_told_and_stays(folder: Folder, log: Path) -> None:
    log.write_bytes(b"1\n")
    assert folder.look_and_read() == [b"1"]
    folder.restart()
    link = folder.path / "b.log"
    known = {folder.files[0].file_id: str(link)}
    link.symlink_to(link)  # to itself
    log.rename(folder.path.parent / "gone")
    found = look([str(link)], known)
    assert [(seen.file_id, seen.head) for seen in found.seen] == [(folder.files[0].file_id, None)]
    folder.following.look(found.seen)
    assert [(file.is_present, file.offset) for file in folder.files] == [(True, 2)]
    os.unlink(folder.path.parent / "gone")


def test_a_file_has_a_successor_only_if_another_has_its_name(folder: Folder, log: Path) -> None:
    (folder.path / "b.log").mkdir()
    dated = folder.path / "a.log.2026-01-31"
    dated.write_bytes(b"1\n")
    folder.following.look(look([f"{folder.path}/*.log*"], {}).seen)
    (file,) = folder.files
    assert not file.has_the_name and not folder.following.has_successor(file)
    log.write_bytes(b"2\n")
    folder.following.look(look([f"{folder.path}/*.log*"], {}).seen)
    assert [folder.following.has_successor(file) for file in folder.files] == [True, False]


def test_patterns_that_match_nothing_and_names_with_brackets(tmp_path: Path) -> None:
    (tmp_path / "a[1].log").write_bytes(b"1\n")
    found = look([f"{tmp_path}/a[1].log", f"{tmp_path}/b*"], {})
    assert [Path(seen.path).name for seen in found.seen] == ["a[1].log"]
    assert found.unmatched == [f"{tmp_path}/b*"]


def test_a_removed_file_is_not_opened_by_its_name(folder: Folder, log: Path) -> None:
    """The name may be there again, with the inode, before the next look."""
    log.write_bytes(b"1\n")
    assert folder.look_and_read() == [b"1"]
    folder.restart()
    away = log.rename(folder.path.parent / "away")
    folder.look()
    away.rename(log)
    log.write_bytes(b"other\n")
    folder.reading.open(folder.files)
    assert not folder.reading.is_open(folder.files[0])
    assert folder.look_and_read() == [b"other"]


def test_a_file_that_was_empty_is_known_by_what_it_has_got(folder: Folder, log: Path) -> None:
    log.write_bytes(b"")
    assert folder.look_and_read() == []
    log.write_bytes(b"1\n")
    assert folder.look_and_read() == [b"1"]
    folder.look()
    log.write_bytes(b"a\nb\n")
    folder.look()
    assert [(file.path, file.offset) for file in folder.following.restarted] == [(str(log), 0)]
    assert folder.read() == [b"a", b"b"]
