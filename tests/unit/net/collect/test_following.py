"""What becomes of files between two looks."""

import pytest

from barnabas.net.programs.collect.following import MAX_FILES, Following, Seen, TooManyFilesToFollowError, stream_of
from barnabas.net.programs.collect.positions import FileId, Head, Position

LOG, OLD = "/logs/a.log", "/logs/a.log.1"


def seen(path: str, inode: int, size_bytes: int, head: bytes = b"first", *, is_wanted: bool = True) -> Seen:
    return Seen(path, FileId(1, inode), size_bytes, head, is_wanted)


def following(*looks: list[Seen]) -> Following:
    found = Following()
    for look in looks:
        found.look(look)
    return found


def order(found: Following) -> list[tuple[str, int]]:
    return [(file.path, file.file_id.inode) for file in found.in_order()]


def test_a_renamed_file_is_read_to_its_end_before_the_next_of_its_name() -> None:
    found = following([seen(LOG, 1, 100)], [seen(OLD, 1, 120, is_wanted=False), seen(LOG, 2, 50, b"next")])
    old, new = found.files[FileId(1, 1)], found.files[FileId(1, 2)]
    assert (old.stream, old.path, new.stream) == (LOG, OLD, LOG)
    assert order(found) == [(OLD, 1)]
    old.offset = 120
    assert order(found) == [(LOG, 2)]


def test_three_generations_are_read_in_the_order_in_which_they_were_found() -> None:
    found = following(
        [seen(LOG, 1, 10)],
        [seen(OLD, 1, 10, is_wanted=False), seen(LOG, 2, 10)],
        [seen("/logs/a.log.2", 1, 10, is_wanted=False), seen(OLD, 2, 10, is_wanted=False), seen(LOG, 3, 10)],
    )
    read = []
    for _ in range(3):
        (file,) = found.in_order()
        read.append(file.file_id.inode)
        file.offset = file.size_bytes
    assert read == [1, 2, 3]


def test_a_truncated_file_is_read_from_its_start() -> None:
    found = following([seen(LOG, 1, 100, b"long enough")])
    found.files[FileId(1, 1)].offset = 100
    found.look([seen(LOG, 1, 20, b"long enough")])
    assert [(file.offset, file.size_bytes) for file in found.restarted] == [(0, 20)]


def test_a_file_that_was_truncated_and_has_grown_beyond_its_position_is_known_by_its_first_bytes() -> None:
    found = following([seen(LOG, 1, 100, b"monday")])
    found.files[FileId(1, 1)].offset = 100
    found.look([seen(LOG, 1, 300, b"tuesday")])
    assert [file.offset for file in found.restarted] == [0]
    found.look([seen(LOG, 1, 400, b"tuesday, later")])
    assert not found.restarted, "it has only grown"


def test_the_inode_of_a_removed_file_may_be_that_of_another_one() -> None:
    found = following([seen(LOG, 1, 100)], [], [seen("/logs/b.log", 1, 30, b"other")])
    (file,) = found.files.values()
    assert (file.offset, file.stream, file.is_present) == (0, "/logs/b.log", True)


def test_a_removed_file_stays_until_it_is_forgotten() -> None:
    found = following([seen(LOG, 1, 100)], [])
    (file,) = found.in_order()
    assert not file.is_present and file.unread_bytes == 100
    found.forget(file.file_id)
    assert found.in_order() == []


def test_files_that_nobody_asked_for_are_not_followed() -> None:
    assert following([seen(OLD, 7, 100, is_wanted=False)]).in_order() == []


def test_from_the_end_only_at_the_first_look_of_the_first_start() -> None:
    found = Following(from_end=True)
    found.look([seen(LOG, 1, 100)])
    found.look([seen(LOG, 1, 100), seen("/logs/b.log", 2, 50)])
    assert {file.path: file.offset for file in found.files.values()} == {LOG: 100, "/logs/b.log": 0}
    position = Position(stream=LOG, path=LOG, device=1, inode=1, offset=3, head=Head.of(b"first"))
    again = Following([position], from_end=True)
    again.look([seen(LOG, 1, 100), seen("/logs/c.log", 3, 50)])
    assert {file.path: file.offset for file in again.files.values()} == {LOG: 3, "/logs/c.log": 0}


def test_positions_of_renamed_files_come_before_those_that_have_their_names_now() -> None:
    new = Position(stream=LOG, path=LOG, device=1, inode=2, offset=0, head=Head.of(b"n"))
    old = Position(stream=LOG, path=OLD, device=1, inode=1, offset=0, head=Head.of(b"o"))
    found = Following([new, old])
    found.look([seen(LOG, 2, 5, b"n"), seen(OLD, 1, 5, b"o", is_wanted=False)])
    assert order(found) == [(OLD, 1)]


def test_files_that_were_rotated_before_they_were_seen_belong_to_the_stream() -> None:
    first = Seen("/logs/a.log.2", FileId(1, 1), 10, b"1", True, modified_ns=1)
    second = Seen("/logs/a.log.1", FileId(1, 2), 10, b"2", True, modified_ns=2)
    found = following([seen(LOG, 3, 10, b"3"), second, first])
    assert {file.stream for file in found.files.values()} == {LOG}
    read = []
    for _ in range(3):
        (file,) = found.in_order()
        read.append(file.file_id.inode)
        file.offset = file.size_bytes
    assert read == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("/l/a.log.12", "/l/a.log"),
        ("/l/a.log-20260131", "/l/a.log"),
        ("/l/a.log.2026-01-31", "/l/a.log"),
        ("/l/a-2026-01-31_10.log", "/l/a-2026-01-31_10.log"),
        ("/l/a.log", "/l/a.log"),
        ("/l/.1", "/l/.1"),
        ("/l/8080", "/l/8080"),
    ],
)
def test_the_name_before_the_rotation(path: str, stream: str) -> None:
    assert stream_of(path) == stream


def test_there_is_a_limit() -> None:
    with pytest.raises(TooManyFilesToFollowError, match="narrower"):
        following([seen(f"/logs/{number}", number, 1) for number in range(MAX_FILES + 1)])
    of_a_former_process = [
        item.position_at(0) for item in following([seen(f"/l/{n}", n, 1) for n in range(3)]).files.values()
    ]
    for positions, files in (((), 3), (of_a_former_process, 0)):
        few = Following(positions, max_files=2)
        with pytest.raises(TooManyFilesToFollowError, match=r"more than 2 files match; .*ulimit -Hn"):
            few.look([seen(f"/l/{number}", number, 1) for number in range(files)])
