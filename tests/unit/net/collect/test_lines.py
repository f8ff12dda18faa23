"""Bytes to records: whatever the pieces in which a file is read, the records and their sizes are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.errors import InvalidRegularExpressionError
from barnabas.net.programs.collect.line_patterns import first_lines
from barnabas.net.programs.collect.lines import MAX_LINES_OF_A_RECORD, RecordSplitter

PIECES = st.lists(st.text("ab #\r\n", max_size=12).map(str.encode), max_size=12)


def read(splitter: RecordSplitter, pieces: list[bytes]) -> tuple[list[bytes], int]:
    records, size_bytes, read_bytes = [], 0, 0
    for piece in pieces:
        taken = splitter.feed(piece)
        records += taken.records
        size_bytes += taken.size_bytes
        read_bytes += len(piece)
        assert size_bytes + splitter.kept_bytes == read_bytes
    return records, size_bytes


@given(PIECES)
def test_lines_do_not_depend_on_how_they_are_read(pieces: list[bytes]) -> None:
    splitter = RecordSplitter()
    records, size_bytes = read(splitter, pieces)
    data = b"".join(pieces)
    end = data.rfind(b"\n") + 1
    assert records == [line.removesuffix(b"\r") for line in data[:end].split(b"\n")[:-1]]
    assert size_bytes == end
    rest = splitter.finish()
    assert (rest.records, rest.size_bytes) == ([data[end:].removesuffix(b"\r")] if data[end:] else [], len(data) - end)


@pytest.mark.parametrize("pattern", [None, "^#"])
@given(pieces=PIECES, limit=st.integers(1, 9), stop=st.integers(0, 12))
def test_reading_goes_on_at_any_position(pattern: str | None, pieces: list[bytes], limit: int, stop: int) -> None:
    """As after kill -9, also with records of several lines and with a limit."""

    def splitter() -> RecordSplitter:
        return RecordSplitter(None if pattern is None else first_lines(pattern), max_record_bytes=limit)

    data, whole = b"".join(pieces), splitter()
    expected = [*whole.feed(data).records, *whole.finish().records]
    records, position = read(splitter(), pieces[:stop])
    again = splitter()
    records += [*again.feed(data[position:]).records, *again.finish().records]
    assert records == expected
    assert again.kept_bytes == 0


def test_records_of_several_lines() -> None:
    splitter = RecordSplitter(first_lines(r"^\d{4}-"))
    taken = splitter.feed(b"2026-01 boom\r\nTraceback\n  at x\n2026-02 fine\n2026-03 ha")
    assert taken.records == [b"2026-01 boom\nTraceback\n  at x"]
    assert taken.size_bytes == len(b"2026-01 boom\r\nTraceback\n  at x\n")
    assert splitter.feed(b"lf\n").records == [b"2026-02 fine"]
    assert splitter.finish_lines().records == [b"2026-03 half"]
    assert splitter.kept_bytes == 0


def test_lines_before_the_first_match_are_a_record() -> None:
    splitter = RecordSplitter(first_lines("^#"))
    assert splitter.feed(b"a\nb\n#c\n").records == [b"a\nb"]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    splitter = RecordSplitter(max_record_bytes=4)
    taken = splitter.feed(b"x\nabcdefghij")
    assert taken.records == [b"x", b"abcd", b"efgh"] and taken.size_bytes == 10
    assert splitter.kept_bytes == 2
    assert splitter.feed(b"kl\nm\n").records == [b"ijkl", b"m"]


def test_a_pattern_that_never_matches_gathers_a_bounded_record() -> None:
    splitter = RecordSplitter(first_lines("^never$"))
    count = MAX_LINES_OF_A_RECORD + 5
    taken = splitter.feed(b"x\n" * count)
    assert [record.count(b"\n") + 1 for record in taken.records] == [MAX_LINES_OF_A_RECORD]
    assert splitter.cut_records == 1 and splitter.kept_bytes == 10


def test_a_pattern_of_another_dialect_is_refused() -> None:
    with pytest.raises(InvalidRegularExpressionError, match="look-around"):
        first_lines("(?<=x)y")


def test_lines_need_not_be_utf_8() -> None:
    assert first_lines("^\\xff")(b"\xff\xfe") and not first_lines("^a")(b"\xff")
