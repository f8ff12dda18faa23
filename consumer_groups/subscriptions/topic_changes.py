"""The effect of topic changes on a group: cause codes and their descriptions."""

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from barnabas.kraft.metadata.records import MemberRecord

from ..model.decision import Change
from ..model.rebalance_causes import RebalanceCause
from .subscriptions import TopicsView

NAMES_TOLD: Final = 5  # topic names listed in one detail; further ones are counted


def topic_changes(
    members: Collection[MemberRecord],
    touched: AbstractSet[str],
    before: TopicsView,
    after: TopicsView,
    recreated: AbstractSet[str],
) -> list[Change]:
    """One change per cause, for the changed topics that the group subscribes to."""
    told: dict[RebalanceCause, list[str]] = {}
    for name in sorted(touched):
        cause, text = _judged(members, name, before, after, recreated)
        told.setdefault(cause, []).append(text)
    return [Change(cause=cause, detail=listed_names(texts)) for cause, texts in told.items()]


def listed_names(names: Iterable[str]) -> str:
    found = list(names)
    rest = len(found) - NAMES_TOLD
    return ", ".join(found[:NAMES_TOLD]) + (f" and {rest} more" if rest > 0 else "")


def _judged(
    members: Collection[MemberRecord],
    name: str,
    before: TopicsView,
    after: TopicsView,
    recreated: AbstractSet[str],
) -> tuple[RebalanceCause, str]:
    if name not in after:
        return RebalanceCause.TOPIC_DELETED, f"{name} was deleted"
    if name in recreated:
        return RebalanceCause.TOPIC_DELETED, f"{name} was deleted and created again"
    if before.get(name, 0) > after[name]:
        return RebalanceCause.TOPIC_DELETED, f"{name} was deleted and created again with {after[name]} partitions"
    if before.get(name, 0) > 0:
        return RebalanceCause.PARTITIONS_ADDED, f"{name} has {after[name]} partitions, it had {before[name]}"
    if any(name in member.subscribed_topics for member in members):
        return RebalanceCause.TOPIC_CREATED, f"{name} with {after[name]} partitions"
    patterns = sorted({member.subscribed_pattern for member in members if member.subscribed_pattern})
    return RebalanceCause.PATTERN_MATCHED, f"{name} with {after[name]} partitions matches {listed_names(patterns)}"
