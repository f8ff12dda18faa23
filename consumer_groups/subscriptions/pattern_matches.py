"""Which topics the patterns of a slot's groups match: each pattern is tried on each name once, in portions. Pure.

An incomplete pattern has not been tried on all names yet. Until then it is presumed to match the topics that its members'
targets contain. So a new coordinator revokes no partitions before it has matched all names.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from barnabas.log.vocabulary.errors import InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.log.vocabulary.topic_partition import INTERNAL_TOPICS

from .match_budget import MatchBudget

# Compiled patterns are not kept here: one may take 256 KiB, and there may be thousands. So each turn may compile it again.
_COMPILE_NS: Final = 100_000
_COMPILE_NS_PER_INSTRUCTION: Final = 1_000
NO_TOPICS: Final = frozenset[str]()


@dataclass(slots=True)
class Pattern:
    untried: list[str]
    matched: set[str]
    program_size: int = 0  # unknown until the pattern has been compiled
    has_changed: bool = False  # whether its matches have changed since it was complete


@dataclass(slots=True)
class Outcome:
    """The result of one portion: patterns whose matches changed, and patterns that RE2 refuses. All of them are complete."""

    changed: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


class PatternMatches:
    """`_incomplete` holds exactly the patterns with untried names."""

    def __init__(self, topics: Collection[str], budget: MatchBudget) -> None:
        self._topics = topics  # not iterated if no group has a pattern
        self._budget = budget
        self._patterns: dict[str, Pattern] = {}
        self._incomplete: dict[str, Pattern] = {}
        self._refusals: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, text: str, presumed: Iterable[str] = ()) -> None:
        """Add this pattern. `presumed`: topics that it is presumed to match until they have been tried."""
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
        """Why RE2 refuses the pattern, which an older version may have accepted; "": no refusal is known."""
        return self._refusals.get(text, "")

    def take_topics(self, topics: Collection[str]) -> None:
        """As `topics_changed`, if there is no pattern."""
        assert not self._patterns
        self._topics = topics

    def topics_changed(
        self, topics: Collection[str], gone: AbstractSet[str], new: AbstractSet[str]
    ) -> Mapping[str, AbstractSet[str]]:
        """Return, for each affected pattern, the topics that it no longer matches."""
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
            return outcome  # before the patterns are sorted: each heartbeat calls this
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
                break  # after at least one name; otherwise a pattern that compiles slowly would never become complete
