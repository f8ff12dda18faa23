"""Offsets as Spark keeps them, their ranges, how a limit is shared and how ranges are cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.spark_connector.read.offsets import (
    OffsetRange,
    StreamOffset,
    limited,
    ranges_between,
    records_behind,
    split,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "1", "b": "2"}


def ranges(*sizes: int, start: int = 100) -> list[OffsetRange]:
    return [
        OffsetRange(partition=TopicPartition("t", number), start=start, end=start + size)
        for number, size in enumerate(sizes)
    ]


def test_the_same_offset_is_always_the_same_text() -> None:
    """Spark compares texts: another order of keys would be a batch without records, for ever."""
    many = {TopicPartition("t", number): number for number in range(12)}
    one = StreamOffset(offsets={**many, B0: 1}, topic_ids={"t": "x", "b": "y"}, initial=many)
    other = StreamOffset(
        offsets=dict(reversed([*many.items(), (B0, 1)])),
        topic_ids={"b": "y", "t": "x"},
        initial=dict(reversed(many.items())),
    )
    text = json.dumps(one.to_json())
    assert text == json.dumps(other.to_json())
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text
    assert StreamOffset.from_json(json.loads(text)) == one == other
    assert list(one.to_json()["offsets"]["t"]) == [str(number) for number in range(12)]


def test_an_offset_of_somebody_else_is_refused() -> None:
    with pytest.raises(ValueError, match="new checkpointLocation"):
        StreamOffset.from_json({"a": {"0": 5}})


def test_batch_0_begins_where_the_stream_did_when_it_was_planned() -> None:
    """Spark asks for the start anew when batch 0 was not committed, and `latest` has moved by then."""
    asked_again = StreamOffset(offsets={A0: 200}, topic_ids={"a": "1"})
    end = StreamOffset(offsets={A0: 150}, topic_ids={"a": "1"}, initial={A0: 100})
    assert ranges_between(asked_again, end) == [OffsetRange(partition=A0, start=100, end=150)]


def test_later_batches_begin_where_the_one_before_ended() -> None:
    start = StreamOffset(offsets={A0: 150, B0: 7}, topic_ids=IDS, initial={A0: 100, B0: 7})
    end = StreamOffset(offsets={A0: 160, A1: 3, B0: 7}, topic_ids=IDS, initial={A0: 100, B0: 7})
    assert ranges_between(start, end) == [
        OffsetRange(partition=A0, start=150, end=160),
        OffsetRange(partition=A1, start=0, end=3),  # It is new: from its first record on.
    ]


def test_a_topic_that_was_made_anew_is_read_from_its_start() -> None:
    start = StreamOffset(offsets={A0: 150}, topic_ids={"a": "old"}, initial={A0: 0})
    end = StreamOffset(offsets={A0: 4}, topic_ids={"a": "new"}, initial={A0: 0})
    assert ranges_between(start, end) == [OffsetRange(partition=A0, start=0, end=4)]


def test_a_limit_is_shared_in_proportion_and_nobody_starves() -> None:
    ends = limited(ranges(900, 90, 10, 1, 0), 100)
    assert {item.partition: item.end - 100 for item in ranges(89, 8, 1, 1, 0)} | {} == {
        partition: end - 100 for partition, end in ends.items()
    }


def test_below_the_limit_all_is_read() -> None:
    assert limited(ranges(3, 4), 7) == {item.partition: item.end for item in ranges(3, 4)}


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(1, 500))
def test_a_limit_always_makes_progress_and_is_kept(sizes: list[int], limit: int) -> None:
    found = [end - 100 for end in limited(ranges(*sizes), limit).values()]
    assert all(0 <= taken <= size for taken, size in zip(found, sizes, strict=True))
    assert all(taken > 0 for taken, size in zip(found, sizes, strict=True) if size)
    assert sum(found) <= limit + len(sizes)
    assert sum(found) >= min(sum(sizes), limit) - len(sizes)


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 100),
)
def test_pieces_cover_the_ranges_within_the_limits(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = ranges(*sizes)
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert [(piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)] == [
        (item.partition, offset) for item in whole for offset in range(item.start, item.end)
    ]
    assert all(piece.size > 0 and piece.size <= (max_records or 300) for piece in pieces)
    assert len(pieces) >= min(min_partitions or 0, sum(sizes))


def test_the_largest_range_is_cut_first() -> None:
    pieces = split(ranges(1000, 10), min_partitions=5, max_records=None)
    assert [piece.size for piece in pieces] == [250, 250, 250, 250, 10]


def test_lag_of_a_query_from_its_progress() -> None:
    end = StreamOffset(offsets={A0: 5, B0: 9}, topic_ids=IDS, initial={A0: 0})
    newest = StreamOffset(offsets={A0: 8, A1: 4, B0: 9}, topic_ids=IDS)
    told = records_behind(json.dumps(end.to_json()), json.dumps(newest.to_json()))
    assert told == {A0: 3, A1: 4, B0: 0}
    assert records_behind(None, None) == records_behind("null", json.dumps(newest.to_json())) == {}
