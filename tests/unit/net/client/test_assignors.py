"""Assignors of the members' side, and what the leader of a cooperative group must hold back."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import InvalidAssignmentError, InvalidConfigError
from barnabas.net.client.group.assignors import (
    BUILT_IN,
    MemberSubscription,
    checked,
    chosen,
    is_cooperative,
    user_data,
    withhold_moving,
)

KEYS = [("t", number) for number in range(6)]
names = st.sampled_from(["a", "b", "c"])
claims_strategy = st.dictionaries(
    names, st.tuples(st.frozensets(st.sampled_from(KEYS)), st.integers(min_value=0, max_value=3))
)
assigned_strategy = st.dictionaries(st.sampled_from(KEYS), names).map(
    lambda owner: {name: frozenset(key for key in owner if owner[key] == name) for name in ("a", "b", "c")}
)


@given(assigned_strategy, claims_strategy)
def test_nobody_is_given_what_another_member_may_still_read(
    assigned: dict[str, frozenset[tuple[str, int]]], claims: dict[str, tuple[frozenset[tuple[str, int]], int]]
) -> None:
    given_now = withhold_moving(assigned, claims)
    for member_id, keys in given_now.items():
        assert keys <= assigned[member_id]
        for key in assigned[member_id]:
            others = [item for name, item in claims.items() if name != member_id and key in item[0]]
            own_generation = claims[member_id][1] if key in claims.get(member_id, (frozenset(), 0))[0] else -1
            rightful = [generation for _, generation in others if generation >= own_generation]
            assert (key in keys) == (not rightful)


@given(assigned_strategy)
def test_what_is_held_back_comes_with_the_next_rebalance(assigned: dict[str, frozenset[tuple[str, int]]]) -> None:
    """Whatever they owned before: after one more round everybody has all of its own."""
    before = {"a": (frozenset(KEYS[:4]), 1), "b": (frozenset(KEYS[4:]), 1), "c": (frozenset(), 1)}
    first = withhold_moving(assigned, before)
    second = withhold_moving(assigned, {name: (keys, 2) for name, keys in first.items()})
    assert second == assigned


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_built_in_ones_give_everything_to_somebody(name: str) -> None:
    members = {f"m{number}": MemberSubscription(topics=("t", "u")) for number in range(3)}
    partitions = {"t": 6, "u": 3}
    found = checked(name, BUILT_IN[name].assign(members, partitions), members, partitions)
    assert sorted(map(len, found.values())) == [3, 3, 3]
    assert len(frozenset().union(*found.values())) == 9


def test_what_is_no_assignment_is_refused_by_name() -> None:
    members = {"a": MemberSubscription(topics=("t",)), "b": MemberSubscription(topics=("u",))}
    partitions = {"t": 1, "u": 1}
    t, u = TopicPartition("t", 0), TopicPartition("u", 0)
    assert checked("x", {"a": [t, t]}, members, partitions) == {"a": frozenset({t}), "b": frozenset()}
    for assigned, why in (
        ({"c": [t]}, "no member"),
        ({"a": [u]}, "did not ask"),
        ({"a": [TopicPartition("t", 1)]}, "does not exist"),
        ({"a": [TopicPartition("t", -1)]}, "does not exist"),
    ):
        with pytest.raises(InvalidAssignmentError, match=why):
            checked("x", assigned, members, partitions)
    both = {name: MemberSubscription(topics=("t",)) for name in ("a", "b")}
    with pytest.raises(InvalidAssignmentError, match="both"):
        checked("x", {"a": [t], "b": [t]}, both, partitions)


def test_which_assignors_a_member_offers() -> None:
    assert [item.name for item in chosen(None)] == ["cooperative-sticky"]
    own: Any = SimpleNamespace(
        name="own", assign=lambda members, partitions: {}, user_data=lambda topics: topics[0].encode()
    )
    assert chosen([own, "range"]) == (own, BUILT_IN["range"])
    assert user_data(own, ("t",)) == b"t" and not is_cooperative(own)
    for wrong in ("nobody", [], ["range", "range"], ["range", "cooperative-sticky"]):
        with pytest.raises(InvalidConfigError):
            chosen(wrong)
