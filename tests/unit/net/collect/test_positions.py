"""Positions as records, and looks at real folders."""

import os
from pathlib import Path

import pytest

from barnabas.net.programs.collect.folders import look
from barnabas.net.programs.collect.positions import (
    FileId,
    Head,
    Position,
    UnreadablePositionError,
    key_of,
    positions_of,
    value_of,
)
from barnabas.net.programs.copying.kept_positions import owner_key, owner_of

HEAD = Head.of(b"first bytes")


def position(inode: int, offset: int) -> Position:
    return Position(stream="/a", path="/a.1", device=3, inode=inode, offset=offset, head=HEAD)


def test_the_newest_position_of_each_file_of_one_collector() -> None:
    records = [
        (key_of("web", FileId(3, 1)), value_of(position(1, 10))),
        (key_of("other", FileId(3, 1)), value_of(position(1, 99))),
        (key_of("web", FileId(3, 2)), value_of(position(2, 5))),
        (key_of("web", FileId(3, 1)), value_of(position(1, 20))),
        (key_of("web", FileId(3, 2)), None),
    ]
    assert positions_of("web", records) == {FileId(3, 1): position(1, 20)}
    assert positions_of("we", records) == {}


def test_the_owner_is_the_process_that_has_taken_over_last() -> None:
    records = [(owner_key("web"), b"1"), (owner_key("other"), b"3"), (owner_key("web"), b"2")]
    assert owner_of("web", records) == b"2" and owner_of("none", records) is None
    assert positions_of("web", records) == {}


@pytest.mark.parametrize(
    "record", [(b"web/x", b"{}"), (b"web/1:2", b"{}"), (b"web/1:2", b"\xff"), (b"web/1:\xff", None)]
)
def test_foreign_records_are_named(record: tuple[bytes, bytes | None]) -> None:
    with pytest.raises(UnreadablePositionError, match="another program"):
        positions_of("web", [record])


def test_a_file_is_known_by_its_first_bytes_while_it_grows() -> None:
    assert HEAD.begins(b"first bytes") and HEAD.begins(b"first bytes and more")
    assert not HEAD.begins(b"first") and not HEAD.begins(b"other bytes.")
    assert Head.of(b"").begins(b"anything")


def test_a_look_finds_what_matches_and_what_was_renamed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.log", "b.log", "c.txt", "deep/d.log"):
        (tmp_path / name).write_text(name)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    patterns = [f"{tmp_path}/*.log", f"{tmp_path}/deep/**/*.log", f"{tmp_path}/none.log"]
    first = look(patterns, {}).seen
    assert [Path(item.path).name for item in first] == ["a.log", "b.log", "d.log"]
    known = {item.file_id: item.path for item in first}
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    (tmp_path / "deep" / "d.log").rename(tmp_path / "deep" / "d.log.1")
    again = look(patterns, known).seen
    assert [(Path(item.path).name, item.is_wanted, item.head) for item in again] == [
        ("b.log", True, b"b.log"),
        ("a.log.1", False, b"a.log"),
        ("d.log.1", False, b"deep/d.log"),
    ]
    assert {item.file_id for item in again} == known.keys()


def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    (tmp_path / "a.log").symlink_to(tmp_path / "gone")
    (tmp_path / "a.log.2.gz").write_bytes(b"\x1f\x8b")
    found = look([f"{tmp_path}/*.log*"], {})
    assert found.seen == []
    assert {Path(path).name: reason[:10] for path, reason in found.unreadable.items()} == {
        "a.log.2.gz": "compressed",
        "loop.log": "Too many l",
    }
