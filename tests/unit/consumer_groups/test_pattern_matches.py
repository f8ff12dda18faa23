"""Patterns against a model, after any sequence of changes: what is complete is right, and what is not has a deadline."""

import re
from random import Random

import pytest

from barnabas.consumer_groups.subscriptions.match_budget import MatchBudget
from barnabas.consumer_groups.subscriptions.pattern_matches import NO_TOPICS, PatternMatches
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC

TEXTS = ["a.*", "b|a1", ".*", "c[0-9]", "(", "x"]
NAMES = [f"{letter}{number}" for letter in "abc" for number in range(3)] + [CONSUMER_OFFSETS_TOPIC]
REFUSED = "("


class Model:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_ms = 1_000
        self.topics = set(self.rng.sample(NAMES, 4))
        self.texts = set[str]()
        self.matches = PatternMatches(self.topics, MatchBudget(self.now_ms, burst_ns=1, ns_per_ms=20_000))

    def step(self) -> None:
        match self.rng.randrange(5):
            case 0:
                text = self.rng.choice(TEXTS)
                self.texts.add(text)
                self.matches.add(text)
            case 1:
                self.texts = {text for text in self.texts if self.rng.random() < 0.6}
                self.matches.keep_only(self.texts)
            case 2:
                self.change_topics()
            case _:
                self.now_ms += self.rng.randint(0, 400)
                outcome = self.matches.match(self.now_ms)
                assert outcome.changed | outcome.refused <= self.texts
                assert outcome.refused <= {REFUSED}
                assert all(self.matches.is_complete(text) for text in outcome.changed | outcome.refused)
        self.check()

    def change_topics(self) -> None:
        after = set(self.rng.sample(NAMES, self.rng.randint(0, 8)))
        gone, new = self.topics - after, after - self.topics
        before = {text: frozenset(self.matches.matched(text)) for text in self.texts}
        lost = self.matches.topics_changed(after, gone, new)
        self.topics = after
        assert lost == {text: names & gone for text, names in before.items() if names & gone}

    def check(self) -> None:
        assert len(self.matches) == len(self.texts)
        for text in TEXTS:
            matched = self.matches.matched(text)
            if text not in self.texts:
                assert matched is NO_TOPICS and self.matches.is_complete(text) and not self.matches.refusal(text)
                continue
            right = set() if text == REFUSED else {
                name for name in self.topics - {CONSUMER_OFFSETS_TOPIC} if re.fullmatch(text, name)
            }  # fmt: skip
            assert matched <= right
            if self.matches.is_complete(text):
                assert matched == right
        is_waiting = not all(self.matches.is_complete(text) for text in self.texts)
        assert (self.matches.next_deadline_ms() is not None) == is_waiting


@pytest.mark.parametrize("seed", range(60))
def test_what_is_complete_is_what_the_pattern_matches(seed: int) -> None:
    model = Model(seed)
    for _ in range(60):
        model.step()
    while (at_ms := model.matches.next_deadline_ms()) is not None:
        model.now_ms = max(at_ms, model.now_ms)
        model.matches.match(model.now_ms)
        model.check()
    if REFUSED in model.texts and model.topics - {CONSUMER_OFFSETS_TOPIC}:
        assert model.matches.refusal(REFUSED)


def test_a_budget_that_is_spent_exactly_is_spent() -> None:
    budget = MatchBudget(1_000, burst_ns=5, ns_per_ms=10)
    budget.spend(4)
    assert budget.is_left
    budget.spend(1)
    assert not budget.is_left
    at_ms = budget.next_ms()
    assert at_ms > 1_000
    budget.refill(at_ms)
    assert budget.left_ns == 5 and budget.is_left
