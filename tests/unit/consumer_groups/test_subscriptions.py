"""Patterns in groups: what is matched when, at which cost, and what becomes of patterns that RE2 refuses."""

import random
from collections.abc import Mapping

from msgspec.structs import replace

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.explain.watch import AlertKind
from barnabas.consumer_groups.model.rebalance_causes import RebalanceCause
from barnabas.consumer_groups.subscriptions.match_budget import BURST_NS, NS_PER_MS, MatchBudget
from barnabas.consumer_groups.subscriptions.pattern_matches import PatternMatches
from barnabas.consumer_groups.subscriptions.subscriptions import Subscriptions
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC

from .coordinator_bench import GROUP, SLOT, Bench, Client, settle

MOST_NS_OVER_BURST = 6_000_000  # one compilation and one match
MANY_TOPICS = 10_000


def by_pattern(bench: Bench, member: str, pattern: str) -> Client:
    return bench.join(member, subscribed_topics=None, subscribed_pattern=pattern)


class SharedBudget:
    """A coordinator and the budget of its event loop, with a clock."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.now_ms = 1_000
        self.budget = MatchBudget(self.now_ms)
        self.coordinator = GroupCoordinator(
            slot=SLOT,
            coordinator_epoch=1,
            records=[],
            rng=random.Random(1),
            topics=topics,
            now_ms=self.now_ms,
            match_budget=self.budget,
        )

    def join(self, member: str, pattern: str) -> int:
        """Return how many topics the member has with its join."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=member, member_epoch=0, subscribed_pattern=pattern
        )
        told = self.coordinator.heartbeat(request, self.now_ms).response.assignment
        self.check()
        return len(told or ())

    def check(self) -> None:
        assert self.budget.left_ns > -MOST_NS_OVER_BURST, "one decision has matched for too long"

    def run_until_matched(self) -> int:
        """Return after how many ms of ticks every pattern has been tried on every topic."""
        began_ms = self.now_ms
        while (at_ms := self.coordinator._targets.subscriptions.next_deadline_ms()) is not None:
            assert at_ms > self.now_ms
            self.now_ms = at_ms
            self.coordinator.tick(self.now_ms)
            self.check()
        return self.now_ms - began_ms

    def targeted(self, member: str) -> int:
        (found,) = (
            item.target
            for item in self.coordinator.describe_group(group_id=GROUP).response.members
            if item.member_id == member
        )
        return len(found)


def test_a_pattern_is_matched_with_the_join_where_the_topics_are_few() -> None:
    world = SharedBudget({f"topic-{number}": 1 for number in range(500)})
    assert world.join("a", "topic-1.*") == 111
    assert world.run_until_matched() == 0


def test_no_decision_matches_for_longer_than_the_budget_however_many_topics_and_patterns() -> None:
    world = SharedBudget({f"{'a' * 200}{number}": 1 for number in range(MANY_TOPICS)})
    for number in range(20):
        world.join(f"m{number}", f"(.*[ab].{{{80 + number}}}|(a+)+b)")
    assert world.coordinator._targets.subscriptions.next_deadline_ms() is not None
    world.now_ms += 1
    world.coordinator.topics_changed({"a" * 249: 1}, world.now_ms)
    world.check()
    world.run_until_matched()


def test_an_honest_pattern_does_not_wait_for_those_that_cost_much() -> None:
    world = SharedBudget({f"topic-{number}": 1 for number in range(MANY_TOPICS)})
    for number in range(5):
        world.join(f"hostile-{number}", f".*[ab].{{{150 + number}}}")
    world.join("honest", "topic-1.*")
    began_ms = world.now_ms
    while world.targeted("honest") < 1_111:
        at_ms = world.coordinator.next_deadline_ms()
        assert at_ms is not None
        world.now_ms = at_ms
        world.coordinator.tick(world.now_ms)
    assert world.now_ms - began_ms < 2_000
    assert world.coordinator._targets.subscriptions.next_deadline_ms() is not None, "the others are still being matched"


def test_the_budget_grows_with_time_up_to_a_burst() -> None:
    budget = MatchBudget(0)
    budget.spend(BURST_NS + 3 * NS_PER_MS)
    assert not budget.is_left and budget.next_ms() == 4
    budget.refill(4)
    assert budget.is_left
    budget.refill(1_000_000)
    budget.refill(5)  # time does not go back
    assert budget.left_ns == BURST_NS and budget.next_ms() == 1_000_001


def test_a_new_coordinator_takes_nothing_away_before_it_has_matched() -> None:
    bench = Bench(topics={"events": 2, "orders": 2})
    first = by_pattern(bench, "a", "o.*")
    assert first.owned == {("orders", 0), ("orders", 1)}
    bench.make_budget = lambda now_ms: MatchBudget(now_ms, burst_ns=0)
    bench.fail_over()
    bench.tick()
    second = bench.join("b", subscribed_topics=("events",))
    settle(first, second)
    assert first.owned == {("orders", 0), ("orders", 1)}


def test_topics_that_come_and_go_are_followed() -> None:
    bench = Bench(topics={"events": 1, CONSUMER_OFFSETS_TOPIC: 50})
    client = by_pattern(bench, "a", ".*")
    assert client.owned == {("events", 0)}
    bench.change_topics({"events": 1, "orders": 1})
    client.beat()
    assert client.owned == {("events", 0), ("orders", 0)}
    bench.change_topics({"orders": 2})
    settle(client)
    assert client.owned == {("orders", 0), ("orders", 1)}
    assert RebalanceCause.TOPIC_DELETED in bench.causes() and RebalanceCause.PATTERN_MATCHED in bench.causes()


def test_a_pattern_is_reported_once_for_a_change_of_its_matches() -> None:
    """Each report computes the targets of its groups anew."""
    matches = PatternMatches({"orders"}, MatchBudget(0))
    matches.add("o.*")
    assert matches.match(0).changed == {"o.*"}
    matches.topics_changed({"orders", "events"}, gone=frozenset(), new=frozenset({"events"}))
    assert matches.match(1).changed == set() and matches.is_complete("o.*")
    matches.topics_changed({"orders", "events", "o"}, gone=frozenset(), new=frozenset({"o"}))
    assert matches.match(2).changed == {"o.*"} and matches.matched("o.*") == {"orders", "o"}


def refused_member(bench: Bench) -> Client:
    """A member whose pattern an older version has stored, which took Python's dialect."""
    client = by_pattern(bench, "a", "o.*")
    (record,) = bench.slots.slot(SLOT).groups[GROUP].members.values()
    old = replace(record, subscribed_pattern=r"(o)(?=r).*", coordinator_epoch=bench.epoch)
    bench.commit((old,))
    return client


def test_a_stored_pattern_that_re2_refuses_matches_nothing_and_is_told() -> None:
    bench = Bench(topics={"events": 1, "orders": 1})
    client = refused_member(bench)
    bench.fail_over()
    bench.tick()
    settle(client)
    assert client.owned == frozenset()
    assert RebalanceCause.PATTERN_REFUSED in bench.causes()
    (told,) = (
        cause
        for rebalance in bench.coordinator.describe_group(group_id=GROUP).response.rebalances
        for cause in rebalance.reasons
        if cause.cause is RebalanceCause.PATTERN_REFUSED
    )
    assert told.member_id == "a" and "look-around" in told.detail
    bench.change_topics({"events": 1, "orders": 1, "oranges": 1})
    bench.now_ms += 2_000
    alerts = bench.coordinator.tick(bench.now_ms).response
    assert [alert.kind for alert in alerts] == [AlertKind.PATTERN_REFUSED]
    assert "the pattern of member a is invalid" in alerts[0].text
    client.beat(subscribed_pattern="o.*")
    settle(client)
    assert {topic for topic, _ in client.owned} == {"orders", "oranges"}


def test_a_refused_pattern_that_matched_no_topic_is_told_too() -> None:
    """Nothing changes for its group, so nothing but the refusal says why it owns no partition."""
    bench = Bench(topics={"events": 1})
    refused_member(bench)
    bench.fail_over()
    bench.tick()
    assert RebalanceCause.PATTERN_REFUSED in bench.causes()


def test_a_refused_pattern_leaves_names_and_other_members_alone() -> None:
    bench = Bench(topics={"events": 2, "orders": 2})
    client = refused_member(bench)
    other = bench.join("b", subscribed_topics=("events",))
    bench.fail_over()
    bench.tick()
    client.beat(subscribed_topics=("orders",))
    settle(client, other)
    assert {topic for topic, _ in client.owned} == {"orders"} and {topic for topic, _ in other.owned} == {"events"}


def test_unused_patterns_are_forgotten() -> None:
    bench = Bench(topics={"t": 1})
    client = by_pattern(bench, "a", "t")
    for number in range(200):
        client.beat(subscribed_pattern=f"t|{number}")
    assert len(bench.coordinator._targets.subscriptions._matches) < 150


def test_equal_subscriptions_are_resolved_once() -> None:
    bench = Bench(topics={"t": 4, "u": 4})
    for number in range(20):
        bench.join(f"m{number}", subscribed_topics=("t",))
    bench.join("other", subscribed_topics=("t", "u"))
    subscriptions = Subscriptions(bench.topics, MatchBudget(0))
    group = bench.slots.slot(SLOT).groups[GROUP]
    wanted = subscriptions.wanted_by_member(group)
    assert len({id(topics) for topics in wanted.values()}) == 2
    assert subscriptions.wanted(group) == {"t", "u"}
    before = subscriptions.of(group)
    assert subscriptions.of(group) is before, "nobody has changed"
    bench.join("new", subscribed_topics=("t",))
    assert subscriptions.of(group).members["m0"] == before.members["m0"]


def test_an_empty_slot_takes_the_topics_without_a_decision() -> None:
    bench = Bench(topics={"t1": 1})
    assert not bench.coordinator.follows_topics
    bench.topics = {"t1": 2, "t2": 1}
    bench.coordinator.take_topics(bench.topics)
    client = by_pattern(bench, "a", "t.*")
    assert client.owned == frozenset({("t1", 0), ("t1", 1), ("t2", 0)})
    assert bench.coordinator.follows_topics


def test_a_slot_follows_topics_until_its_patterns_are_gone() -> None:
    """`take_topics` is for a coordinator that has none: a pattern would keep the names of an old view."""
    bench = Bench()
    member = by_pattern(bench, "a", "t")
    assert bench.coordinator.follows_topics
    bench.heartbeat(member.request(member_epoch=-1))
    bench.commit(bench.coordinator.delete_group(group_id=GROUP, now_ms=bench.now_ms).records)
    if not bench.coordinator.follows_topics:
        bench.coordinator.take_topics({"u": 1})
    assert not bench.slots.records_of(SLOT)
