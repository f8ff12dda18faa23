"""Which topics the patterns of a slot's groups match: each pattern is tried on each name once, in portions. Pure.

A pattern that is incomplete has not been tried on all names yet; until it has, the topics count that it is presumed to match:
those which its members' targets have already. So a new coordinator takes nothing from anybody before it knows.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from barnabas.log.vocabulary.errors import InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS

from .match_budget import MatchBudget

# Compiled patterns are not kept here: one may hold 256 KiB, and there may be thousands. So each turn may compile it again.
_COMPILE_NS: Final = 100_000
_COMPILE_NS_PER_INSTRUCTION: Final = 1_000
NO_TOPICS: Final = frozenset[str]()


@dataclass(slots=True)
class Pattern:
    untried: list[str]
    matched: set[str]
    program_size: int = 0  # not known before it was compiled
    has_changed: bool = False  # what it matches, since it was complete


@dataclass(slots=True)
class Outcome:
    """Of one portion: patterns that match other topics than before, and those that RE2 refuses. All of them are complete."""

    changed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


class PatternMatches:
    """`incomplete` has exactly the patterns with untried names."""

    def __init__(self, topics: Collection[str], budget: MatchBudget) -> None:
        self._topics = topics  # never walked over where no group has a pattern
        self._budget = budget
        self._patterns: dict[str, Pattern] = {}
        self._incomplete: dict[str, Pattern] = {}
        self._refusals: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, text: str, presumed: Iterable[str] = ()) -> None:
        """Know this pattern from now on. `presumed`: it matches these, unless it turns out that it does not."""
        known = self._patterns.get(text)
        if known is None:
            names = [name for name in self._topics if name not in INTERNAL_TOPICS]
            known = self._patterns[text] = Pattern(untried=names, matched=set())
            if known.untried:
                self._incomplete[text] = known
        if text in self._incomplete:
            known.matched.update(presumed)

    def keep_only(self, texts: Collection[str]) -> None:
        for text in [text for text in self._patterns if text not in texts]:
            del self._patterns[text]
            self._incomplete.pop(text, None)
            self._refusals.pop(text, None)

    def matched(self, text: str) -> AbstractSet[str]:
        known = self._patterns.get(text)
        return NO_TOPICS if known is None else known.matched

    def is_complete(self, text: str) -> bool:
        return text not in self._incomplete

    def refusal(self, text: str) -> str:
        """Why RE2 refuses it, as it refuses some that older versions took; "": it does not, as far as known."""
        return self._refusals.get(text, "")

    def topics_changed(
        self, topics: Collection[str], gone: AbstractSet[str], new: AbstractSet[str]
    ) -> Mapping[str, AbstractSet[str]]:
        """Return what each pattern does not match any more, where there is some."""
        self._topics = topics
        if not gone and not new:
            return {}
        lost: dict[str, AbstractSet[str]] = {}
        fresh = sorted(new - INTERNAL_TOPICS)
        for text, known in self._patterns.items():
            if here := known.matched & gone:
                lost[text] = here
                known.matched -= here
            if gone and known.untried:
                known.untried = [name for name in known.untried if name not in gone]
            if fresh and text not in self._refusals:
                known.untried.extend(fresh)
            if known.untried:
                self._incomplete[text] = known
        return lost

    def match(self, now_ms: int) -> Outcome:
        """Try patterns on names for as long as the budget lasts, those with the smallest programs first."""
        outcome = Outcome()
        if not self._incomplete:
            return outcome
        self._budget.refill(now_ms)
        if not self._budget.is_left:
            return outcome  # before the patterns are sorted: each heartbeat comes by here
        for text, known in sorted(self._incomplete.items(), key=lambda item: item[1].program_size):
            if not self._budget.is_left:
                break
            self._try(text, known)
            if known.untried:
                continue
            del self._incomplete[text]
            if text in self._refusals:
                outcome.refused.add(text)
            if known.has_changed:
                known.has_changed = False
                outcome.changed.add(text)
        return outcome

    def next_deadline_ms(self) -> int | None:
        return self._budget.next_ms() if self._incomplete else None

    def _try(self, text: str, known: Pattern) -> None:
        try:
            pattern = name_pattern(text)
        except InvalidRegularExpressionError as error:
            self._budget.spend(_COMPILE_NS)
            self._refusals[text] = error.message
            known.has_changed = bool(known.matched)
            known.matched.clear()
            known.untried.clear()
            return
        known.program_size = pattern.program_size
        self._budget.spend(_COMPILE_NS + _COMPILE_NS_PER_INSTRUCTION * pattern.program_size)
        while known.untried:
            name = known.untried.pop()
            self._budget.spend(pattern.worst_ns(name))
            if pattern.matches(name) != (name in known.matched):
                known.matched ^= {name}
                known.has_changed = True
            if not self._budget.is_left:
                break  # after one name at least, or a pattern that is long to compile would never come to an end
