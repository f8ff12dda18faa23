"""What a copy says about its original, which topics are copied, and where a mirror goes on."""

import pytest

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.programs.copying.kept_positions import owner_key
from barnabas.net.programs.mirror.positions import Position, UnreadablePositionError, key_of, positions_of, value_of
from barnabas.net.programs.mirror.provenance import HEADER, MAX_PLACES, offset_in, places, was_in, with_place
from barnabas.net.programs.mirror.source import client_options, is_wanted

OWN = [("a", b"1"), ("b", None)]


def test_a_copy_names_every_place_where_the_record_was() -> None:
    first = with_place(OWN, "west", 7)
    assert first == [*OWN, (HEADER, b"west/7")]
    second = with_place(first, "east", 12)
    assert second == [*OWN, (HEADER, b"west/7;east/12")]
    assert places(second) == [("west", 7), ("east", 12)]
    assert (offset_in(second, "east"), offset_in(second, "west"), offset_in(OWN, "west")) == (12, None, None)
    assert [was_in(second, cluster) for cluster in ("west", "east", "north")] == [True, True, False]
    assert with_place(None, "west", 0) == [(HEADER, b"west/0")]
    assert offset_in(None, "west") is None and not was_in(None, "west")


def test_a_cluster_id_may_have_any_characters() -> None:
    assert places(with_place(None, "we/st-ü", 3)) == [("we/st-ü", 3)]


@pytest.mark.parametrize("value", [b"", b"west", b"west/", b"/5", b"west/x", b"west/7;", b";west/7", b"west/-1", None])
def test_a_header_of_another_program_is_left_alone(value: bytes | None) -> None:
    headers = [*OWN, (HEADER, value)]
    assert places(headers) == [] and not was_in(headers, "west")
    copy = with_place(headers, "east", 4)
    assert copy == [*headers, (HEADER, b"east/4")] and places(copy) == [("east", 4)]


def test_a_chain_of_clusters_has_an_end() -> None:
    headers = None
    for number in range(MAX_PLACES):
        assert not was_in(headers, "new")
        headers = with_place(headers, f"c{number}", number)
    assert was_in(headers, "new")


@pytest.mark.parametrize(
    "topic, patterns, wanted",
    [
        ("orders", ("orders",), True),
        ("orders.eu", ("orders.*",), True),
        ("orders", ("orders.*",), False),
        ("__consumer_offsets", ("*",), False),
        ("__own", ("__own",), True),
        ("barnabas-mirror-positions", ("*",), False),
        ("mm2-offset-syncs.a.internal", ("*",), False),
        ("Orders", ("orders",), False),
    ],
)
def test_which_topics_are_copied(topic: str, patterns: tuple[str, ...], wanted: bool) -> None:
    assert is_wanted(topic, patterns) is wanted


def test_positions_are_those_of_the_own_name() -> None:
    place, other = TopicPartition("a/b", 3), TopicPartition("c", 0)
    records = [
        (key_of("m", place), value_of(Position(5))),
        (key_of("other", place), value_of(Position(50))),
        (owner_key("m"), b"somebody"),
        (key_of("m", other), value_of(Position(9))),
        (None, b"x"),
        (key_of("m", place), value_of(Position(7, "topic-id"))),
        (key_of("m", other), None),
    ]
    assert positions_of("m", records) == {place: Position(7, "topic-id")}


def test_a_position_without_the_id_of_a_topic_is_read() -> None:
    place = TopicPartition("a", 0)
    assert value_of(Position(7)) == b"7"
    assert positions_of("m", [(key_of("m", place), b"7")]) == {place: Position(7)}


def test_a_header_with_a_number_that_is_no_offset_is_of_another_program() -> None:
    """Python refuses to read numbers of more than 4,300 digits."""
    headers = [(HEADER, b"west/" + b"9" * 5_000)]
    assert places(headers) == [] and not was_in(headers, "west")
    assert with_place(headers, "west", 3) == [*headers, (HEADER, b"west/3")]


@pytest.mark.parametrize("record", [(b"m/t/x", b"1"), (b"m/t/0", b"one"), (b"m/\xff/0", b"1")])
def test_a_record_of_another_program_among_the_positions_is_told(record: tuple[bytes, bytes]) -> None:
    with pytest.raises(UnreadablePositionError, match="delete the record's key"):
        positions_of("m", [record])


def test_options_that_the_mirror_sets_are_refused() -> None:
    assert client_options("h:1", {"sasl.username": "u"})["sasl.username"] == "u"
    with pytest.raises(InvalidConfigError, match="group.id is set by"):
        client_options("h:1", {"group.id": "x"})
