"""Ranges of keys that were read at different positions of the log: no gap, no overlap, whatever the order of reading."""

from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.net.programs.connect.postgres.changes.coverage import Coverage, KeyOrder, Range

INTEGERS = KeyOrder(type_names=("int4",))
PAIRS = KeyOrder(type_names=("text", "int8"))


def test_nothing_is_read_at_first() -> None:
    coverage = Coverage(INTEGERS)
    assert coverage.gaps() == (Range(lower=None, upper=None),)
    assert not coverage.is_complete


def test_neighbours_of_one_snapshot_become_one_range() -> None:
    coverage = Coverage(INTEGERS).add(Range(lower=None, upper=("9",), lsn=5))
    coverage.add(Range(lower=("20",), upper=None, lsn=5))
    assert coverage.gaps() == (Range(lower=("9",), upper=("20",)),)
    coverage.add(Range(lower=("9",), upper=("20",), lsn=5))
    assert coverage.ranges == (Range(lower=None, upper=None, lsn=5),)
    assert coverage.is_complete


def test_integers_are_compared_as_numbers_and_texts_as_bytes() -> None:
    assert INTEGERS.sortable(("10",)) > INTEGERS.sortable(("-9",)) < INTEGERS.sortable(("9",)) < (10,)
    assert PAIRS.sortable(("Z", "10")) < PAIRS.sortable(("a", "9")) < PAIRS.sortable(("ä", "1"))
    assert INTEGERS.has_index and not PAIRS.has_index


def test_an_upper_bound_belongs_to_its_range_and_a_lower_one_does_not() -> None:
    coverage = Coverage(INTEGERS).add(Range(lower=None, upper=("9",), lsn=5))
    coverage.add(Range(lower=("9",), upper=None, lsn=8))
    assert [coverage.lsn_of((key,)) for key in ("-1", "9", "10")] == [5, 5, 8]


@settings(max_examples=300)
@given(st.data())
def test_reading_that_is_broken_off_again_and_again_covers_each_key_once(data: st.DataObject) -> None:
    """Against a plain list of who read which key when."""
    keys = range(12)
    read_at: dict[int, int] = {}
    coverage, lsn = Coverage(INTEGERS), 1
    while not coverage.is_complete:
        gaps = list(coverage.gaps())
        for gap in data.draw(st.permutations(gaps)):
            inside = [
                key
                for key in keys
                if (gap.lower is None or key > int(gap.lower[0])) and (gap.upper is None or key <= int(gap.upper[0]))
            ]
            cut = data.draw(st.sampled_from([*inside, None]))
            upper = gap.upper if cut is None else (str(cut),)
            for key in inside:
                if upper is None or key <= int(upper[0]):
                    assert key not in read_at, "read twice"
                    read_at[key] = lsn
            if upper != gap.lower or upper is None:
                coverage = Coverage(INTEGERS, coverage.ranges).add(Range(lower=gap.lower, upper=upper, lsn=lsn))
            if data.draw(st.booleans()):
                break
        lsn += data.draw(st.integers(0, 1))
    assert read_at.keys() == set(keys)
    assert {key: coverage.lsn_of((str(key),)) for key in keys} == read_at
    assert all(left.lsn != right.lsn for left, right in zip(coverage.ranges, coverage.ranges[1:], strict=False))
