"""Properties of the assignors, under all names by which a coordinator knows them."""

import random
from collections.abc import Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.consumer_groups.model.assignors import ASSIGNORS
from barnabas.log.vocabulary.group_assignors import (
    Assignment,
    Subscriber,
    assign_range,
    assign_round_robin,
    assign_sticky,
)

NAMES = ("t", "u", "v", "w")
topics_strategy = st.dictionaries(st.sampled_from(NAMES), st.integers(min_value=1, max_value=9))
members_strategy = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.frozensets(st.sampled_from(NAMES)), max_size=7
)


def subscribers(members: dict[str, frozenset[str]], before: Assignment | None = None) -> list[Subscriber]:
    return [
        Subscriber(member_id=member_id, topics=topics, owned=(before or {}).get(member_id, frozenset()))
        for member_id, topics in members.items()
    ]


@given(members_strategy, topics_strategy)
def test_every_partition_of_subscribed_topics_is_owned_exactly_once(
    members: dict[str, frozenset[str]], topics: dict[str, int]
) -> None:
    subscribed = frozenset[str]().union(*members.values())
    expected = sorted((topic, partition) for topic in subscribed for partition in range(topics.get(topic, 0)))
    for assign in ASSIGNORS.values():
        assignment = assign(subscribers(members), topics)
        assert sorted(key for keys in assignment.values() for key in keys) == expected
        assert assignment.keys() == members.keys()
        assert all(key[0] in members[member_id] for member_id, keys in assignment.items() for key in keys)


@given(members_strategy, topics_strategy, st.randoms(use_true_random=False))
def test_the_order_of_members_and_topics_does_not_matter(
    members: dict[str, frozenset[str]], topics: dict[str, int], rng: random.Random
) -> None:
    shuffled = list(members.items())
    rng.shuffle(shuffled)
    for assign in ASSIGNORS.values():
        assert assign(subscribers(members), topics) == assign(
            subscribers(dict(shuffled)), dict(reversed(topics.items()))
        )


@given(members_strategy, topics_strategy)
def test_range_gives_each_subscriber_consecutive_partitions_the_first_ones_one_more(
    members: dict[str, frozenset[str]], topics: dict[str, int]
) -> None:
    assignment = assign_range(subscribers(members), topics)
    for topic, count in topics.items():
        shares = [
            sorted(partition for name, partition in assignment[member_id] if name == topic)
            for member_id in sorted(members)
            if topic in members[member_id]
        ]
        if shares:
            assert [partition for share in shares for partition in share] == list(range(count))
            sizes = [len(share) for share in shares]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1


@given(members_strategy, topics_strategy)
def test_sticky_leaves_nobody_who_could_take_from_one_with_two_more(
    members: dict[str, frozenset[str]], topics: dict[str, int]
) -> None:
    assignment = assign_sticky(subscribers(members), topics)
    for keys in assignment.values():
        for topic, _ in keys:
            takers = [member_id for member_id, wanted in members.items() if topic in wanted]
            assert len(keys) - min(len(assignment[member_id]) for member_id in takers) <= 1


@given(members_strategy, topics_strategy)
def test_sticky_moves_nothing_when_nothing_has_changed(
    members: dict[str, frozenset[str]], topics: dict[str, int]
) -> None:
    before = assign_sticky(subscribers(members), topics)
    assert assign_sticky(subscribers(members, before), topics) == before


@given(st.integers(min_value=1, max_value=8), st.integers(min_value=0, max_value=30))
def test_sticky_moves_no_more_than_a_newcomer_s_share(count: int, partitions: int) -> None:
    members = {f"m{number}": frozenset({"t"}) for number in range(count)}
    before = assign_sticky(subscribers(members), {"t": partitions})
    after = assign_sticky(subscribers({**members, "new": frozenset({"t"})}, before), {"t": partitions})
    assert all(after[member_id] <= before[member_id] for member_id in members)
    assert len(after["new"]) == partitions // (count + 1)


def test_a_static_member_keeps_its_place_under_another_member_id() -> None:
    def of(member_id: str) -> list[Subscriber]:
        static = Subscriber(member_id=member_id, topics=frozenset({"t"}), instance_id="i")
        return [static, Subscriber(member_id="k", topics=frozenset({"t"}))]

    assert assign_range(of("a"), {"t": 3})["a"] == assign_range(of("z"), {"t": 3})["z"]


@given(members_strategy, topics_strategy)
def test_round_robin_deals_evenly_where_everybody_wants_the_same(
    members: dict[str, frozenset[str]], topics: dict[str, int]
) -> None:
    alike = {member_id: frozenset(NAMES) for member_id in members}
    loads = [len(keys) for keys in assign_round_robin(subscribers(alike), topics).values()]
    assert not loads or max(loads) - min(loads) <= 1
    for keys in assign_round_robin(subscribers(alike), topics).values():
        for topic, count in topics.items():  # and so is each topic by itself
            assert sum(name == topic for name, _ in keys) in (count // len(alike), -(-count // len(alike)))


@given(members_strategy, topics_strategy)
def test_round_robin_goes_round_from_the_first_member_on(
    members: dict[str, frozenset[str]], topics: dict[str, int]
) -> None:
    """As Kafka's assignor deals: one turn over all topics, which passes over members that do not want the topic."""
    turns, dealt = cycle(sorted(members)), {member_id: frozenset[tuple[str, int]]() for member_id in members}
    for topic in sorted(topics):
        if any(topic in wanted for wanted in members.values()):
            for partition in range(topics[topic]):
                taker = next(member_id for member_id in turns if topic in members[member_id])
                dealt[taker] |= {(topic, partition)}
    assert assign_round_robin(subscribers(members), topics) == dealt


def fewest_moves(before: Assignment, alive: set[str], newcomers: int) -> int:
    """The least number of partitions that must change hands so that loads differ by one at most: what the dead had, and
    what the others have over their shares, the larger shares being left where they help most."""
    total = sum(map(len, before.values()))
    share, larger = divmod(total, len(alive) + newcomers)
    loads = sorted((len(before[member_id]) for member_id in alive), reverse=True)
    kept = sum(min(load, share + (position < larger)) for position, load in enumerate(loads))
    return total - kept


@given(
    st.integers(min_value=1, max_value=9),
    st.integers(min_value=0, max_value=8),
    st.integers(min_value=0, max_value=4),
    st.dictionaries(st.sampled_from(NAMES), st.integers(min_value=0, max_value=20)),
    st.randoms(use_true_random=False),
)
def test_sticky_moves_as_little_as_balance_allows_when_members_come_and_go(
    count: int, leaving: int, newcomers: int, topics: dict[str, int], rng: random.Random
) -> None:
    members = {f"m{number}": frozenset(NAMES) for number in range(count)}
    before = assign_sticky(subscribers(members), topics)
    alive = set(rng.sample(sorted(members), max(0 if newcomers else 1, count - leaving)))
    now = {name: members[name] for name in alive} | {f"n{number}": frozenset(NAMES) for number in range(newcomers)}
    after = assign_sticky(subscribers(now, before), topics)
    owner_before = {key: member_id for member_id, keys in before.items() for key in keys}
    moves = sum(owner_before[key] != member_id for member_id, keys in after.items() for key in keys)
    assert moves == fewest_moves(before, alive, newcomers)
    loads = [len(keys) for keys in after.values()]
    assert max(loads) - min(loads) <= 1


class CountedTopics(frozenset[str]):
    """Topics that count how often somebody walks over them."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        CountedTopics.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_members_with_one_subscription_cost_one_walk_over_its_topics(name: str) -> None:
    """Else every join of a large group costs members times topics, on the coordinator's event loop."""
    topics = {f"topic-{number}": 1 for number in range(50)}
    shared = CountedTopics(topics)
    CountedTopics.walks = 0
    assigned = ASSIGNORS[name]([Subscriber(member_id=f"m{number}", topics=shared) for number in range(40)], topics)
    assert sum(map(len, assigned.values())) == 50
    assert CountedTopics.walks <= 2
