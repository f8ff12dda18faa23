"""How far a backup is restored, and where the offsets of groups are now."""

from collections.abc import Sequence

from barnabas.log.vocabulary.group_messages import PartitionOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.programs.backup.contents import Contents, GroupContents
from barnabas.net.programs.backup.places import Place, Places

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def contents(*offsets: tuple[str, TopicPartition, int]) -> Contents:
    groups = tuple(
        GroupContents(
            group_id=group, offsets=(PartitionOffset(topic=place.topic, partition=place.partition, offset=at),)
        )
        for group, place, at in offsets
    )
    return Contents(backup_id="b", run=1, cluster_id="c", taken_at_ms=0, groups=groups)


def kept(*places: Place) -> Sequence[tuple[bytes | None, bytes | None]]:
    return [(place.key, place.value) for place in places]


def test_places_come_back_from_their_records() -> None:
    of = contents(("g", T0, 5))
    writer = Places("b.1", of, ())
    records = kept(
        writer.intent("t"), writer.made("t", "id"), writer.at(T0, 4), writer.at(T0, 7), writer.translated(T0, 5, 3)
    )
    found = Places("b.1", of, records)
    assert found.intended == {"t"} and found.topic_ids == {"t": "id"}
    assert found.restored == {T0: 7} and found.translation == {(T0, 5): 3} and not found.is_done
    assert Places("b.1", of, [*records, *kept(writer.done())]).is_done


def test_places_of_another_backup_and_of_the_owner_are_passed_over() -> None:
    of = contents(("g", T0, 5))
    other = Places("b.2", of, ())
    records = [
        *kept(other.intent("t"), other.at(T0, 9), other.done()),
        (b"b.1/owner", b"x"),
        (b"b.1/at/t/0", None),
        (None, b""),
    ]
    found = Places("b.1", of, records)
    assert (found.intended, found.restored, found.is_done) == (set(), {}, False)


def test_each_offset_of_a_group_is_wanted_until_it_has_a_place() -> None:
    found = Places("b.1", contents(("g", T0, 9), ("h", T0, 5), ("i", T0, 5), ("j", T1, 0)), ())
    assert list(found.wanted_from(T0, None)) == [5, 9] and list(found.wanted_from(T1, None)) == [0]
    assert list(found.wanted_from(T0, 6)) == [9]  # the open transaction has translated the first
    assert list(found.wanted_from(T0, 9)) == [9]  # the first record of the next batch is the one that the group wants
    assert list(found.wanted_from(T0, 10)) == []
    found.take(found.translated(T0, 5, 2))
    assert list(found.wanted_from(T0, None)) == [9]


def test_an_offset_before_the_start_is_wanted_by_the_first_record() -> None:
    """Also after an interruption: what is restored lies behind it, and it has its place."""
    found = Places("b.1", contents(("g", T0, 3)), ())
    assert list(found.wanted_from(T0, None)) == [3]
    found.take(found.translated(T0, 3, 0))
    found.take(found.at(T0, 40))
    assert list(found.wanted_from(T0, None)) == []
