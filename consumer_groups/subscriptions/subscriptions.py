"""The topics that the members of a slot's groups subscribe to: names and patterns, resolved to existing topics. Pure.

Equal subscriptions are resolved once, and a group's subscriptions are resolved again only when a member has joined, left or
changed: a group of thousands of members with one subscription costs as much as a single member.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from barnabas.kraft.group_state.group_slots import GroupState
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import MemberRecord

from .match_budget import MatchBudget
from .pattern_matches import NO_TOPICS, PatternMatches

TopicsView = Mapping[str, int]  # topic -> number of partitions; never changed once it has been handed to a coordinator

PATTERNS_FORGOTTEN_AT: Final = (
    64  # unused patterns are dropped when there are more patterns than twice the number last in use, plus this
)


def topics_view(image: MetadataImage) -> TopicsView:
    return {name: len(topic.partitions) for name, topic in image.topics.items()}


@dataclass(frozen=True, slots=True)
class Subscription:
    names: frozenset[str]
    pattern: str  # "": none


@dataclass(slots=True, kw_only=True)
class GroupSubscriptions:
    """Of one group. Members with equal subscriptions share one object."""

    group: GroupState
    members_version: int  # of the group, when this was made
    members: dict[str, tuple[MemberRecord, Subscription]]
    distinct: tuple[Subscription, ...]
    names: frozenset[str]
    patterns: frozenset[str]


class Subscriptions:
    def __init__(self, topics: TopicsView, budget: MatchBudget) -> None:
        self.topics = topics
        self._matches = PatternMatches(topics, budget)
        self._groups: dict[str, GroupSubscriptions] = {}
        self._most_patterns = PATTERNS_FORGOTTEN_AT

    def presume(self, group: GroupState) -> None:
        """The topics in the targets of members with a pattern were matched by the pattern before: presume that they match."""
        for member_id, (_, subscription) in self.of(group).members.items():
            target = group.targets.get(member_id)
            if subscription.pattern and target is not None:
                topics = {item.topic for item in target.partitions} & self.topics.keys()
                self._matches.add(subscription.pattern, topics - subscription.names)

    def of(self, group: GroupState) -> GroupSubscriptions:
        group_id = group.group.group_id
        known = self._groups.get(group_id)
        if known is None or known.group is not group or known.members_version != group.members_version:
            before = known.members if known is not None else {}
            known = self._groups[group_id] = _resolved(group, before)
            for pattern in known.patterns:
                self._matches.add(pattern)
        return known

    def expect(self, pattern: str) -> None:
        """Start matching the pattern of a new member; the next assignment resolves its group as a whole."""
        self._matches.add(pattern)

    def forget(self, group_id: str) -> None:
        self._groups.pop(group_id, None)

    def wanted(self, group: GroupState) -> frozenset[str]:
        """Existing topics that a member subscribes to, as far as patterns have been matched."""
        found = self.of(group)
        named = found.names.intersection(self.topics)
        return named.union(*(self._matches.matched(pattern) for pattern in found.patterns))

    def wanted_by_member(self, group: GroupState) -> dict[str, frozenset[str]]:
        """Members with equal subscriptions share one set."""
        found = self.of(group)
        resolved = {
            id(one): one.names.intersection(self.topics).union(self._matches.matched(one.pattern))
            for one in found.distinct
        }
        return {member_id: resolved[id(one)] for member_id, (_, one) in found.members.items()}

    def may_want(self, group: GroupState, topic: str) -> bool:
        """Whether a member may subscribe to the topic; True while a pattern is incomplete."""
        found = self.of(group)
        return topic in found.names or any(
            topic in self._matches.matched(pattern) or not self._matches.is_complete(pattern)
            for pattern in found.patterns
        )

    def refusals(self, group: GroupState) -> list[tuple[MemberRecord, str]]:
        """Members whose pattern RE2 refuses, and why."""
        found = self.of(group)
        if not any(self._matches.refusal(pattern) for pattern in found.patterns):
            return []
        return [
            (record, reason)
            for record, one in found.members.values()
            if one.pattern and (reason := self._matches.refusal(one.pattern))
        ]

    def take_topics(self, topics: TopicsView) -> None:
        """As `topics_changed`, if there is no subscription and no pattern."""
        self.topics = topics
        self._matches.take_topics(topics)

    def topics_changed(self, topics: TopicsView, changed: AbstractSet[str]) -> "Touched":
        before, self.topics = self.topics, topics
        gone = frozenset(name for name in changed if name in before and name not in topics)
        new = frozenset(name for name in changed if name in topics and name not in before)
        return Touched(changed, self._matches.topics_changed(topics, gone, new), self)

    @property
    def has_patterns(self) -> bool:
        return len(self._matches) > 0

    def match(self, now_ms: int) -> tuple[list[GroupSubscriptions], list[GroupSubscriptions]]:
        """Continue matching. Return the groups whose matched topics changed, and the groups with a refused pattern."""
        outcome = self._matches.match(now_ms)
        if len(self._matches) > self._most_patterns:
            self._forget_unused()
        if not (outcome.changed or outcome.refused):
            return [], []
        return self._with(outcome.changed), self._with(outcome.refused)

    def next_deadline_ms(self) -> int | None:
        return self._matches.next_deadline_ms()

    def matched(self, pattern: str) -> AbstractSet[str]:
        return self._matches.matched(pattern)

    def _with(self, patterns: AbstractSet[str]) -> list[GroupSubscriptions]:
        return [found for found in self._groups.values() if not found.patterns.isdisjoint(patterns)] if patterns else []

    def _forget_unused(self) -> None:
        used = frozenset[str]().union(*(found.patterns for found in self._groups.values()))
        self._matches.keep_only(used)
        self._most_patterns = 2 * len(used) + PATTERNS_FORGOTTEN_AT


@dataclass(frozen=True, slots=True)
class Touched:
    """The changed topics that concern a group."""

    changed: AbstractSet[str]
    lost: Mapping[str, AbstractSet[str]]  # by pattern: topics that are gone
    subscriptions: Subscriptions

    def of(self, group: GroupState) -> frozenset[str]:
        found = self.subscriptions.of(group)
        touched = found.names & self.changed
        for pattern in found.patterns:
            touched |= self.lost.get(pattern, NO_TOPICS) | (self.subscriptions.matched(pattern) & self.changed)
        return touched


def _resolved(group: GroupState, before: Mapping[str, tuple[MemberRecord, Subscription]]) -> GroupSubscriptions:
    shared: dict[Subscription, Subscription] = {}
    members: dict[str, tuple[MemberRecord, Subscription]] = {}
    for member_id, record in group.members.items():
        known = before.get(member_id)
        if known is None or known[0] is not record:
            made = Subscription(names=frozenset(record.subscribed_topics), pattern=record.subscribed_pattern or "")
            known = (record, made)
        members[member_id] = (record, shared.setdefault(known[1], known[1]))
    distinct = tuple(shared)
    return GroupSubscriptions(
        group=group,
        members_version=group.members_version,
        members=members,
        distinct=distinct,
        names=_union(one.names for one in distinct),
        patterns=frozenset(one.pattern for one in distinct if one.pattern),
    )


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
