"""Patterns of subscriptions: the dialect of RE2, refusals, and what a match costs at most."""

import subprocess
import sys

import pytest

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRegularExpressionError
from barnabas.log.vocabulary.name_pattern import (
    MAX_PATTERN_LENGTH,
    MAX_PROGRAM_SIZE,
    MAX_UNICODE_CLASSES,
    NamePattern,
    name_pattern,
)

# Patterns on which a backtracking engine does not come to an end, and the names that bring it out.
BACKTRACKING = (
    ("(a+)+b", "a" * 60),
    (r"(\w+-?)+\.orders", "payments-transaction-completed-events"),
    (r"([a-z]+-?)+-v\d", "customer-address-change-events-dlq"),
    (r"([a-z]+-?)+\.v1", "customer-orders-enriched-with-addresses-and-loyalty-points"),
    (r"(.*-)*orders", "payments-transaction-completed-events-v2-dead-letter" * 4),
    ("(x+x+)+y" * 30, "x" * 249),
)


@pytest.mark.parametrize(
    ("text", "name", "is_match"),
    [
        (r"\pL+", "orders", True),
        (r"\Qa.b\E.*", "a.b-c", True),
        (r"\Qa.b\E.*", "a-b-c", False),
        (r"logs-\d+\z", "logs-17", True),
        (r"[[:alpha:]]+", "orders", True),
        (r"[[:alpha:]]+", "orders1", False),
        ("order", "orders", False),
        ("a|ab", "ab", True),
    ],
)
def test_the_dialect_is_re2s_and_the_whole_name_must_match(text: str, name: str, is_match: bool) -> None:
    assert name_pattern(text).matches(name) is is_match


@pytest.mark.parametrize(
    "text",
    [
        "(",
        r"(a)\1",
        "(?=a)b",
        "(?<=a)b",
        "\udcff",
        "x" * (MAX_PATTERN_LENGTH + 1),
        r"\PL" * (MAX_UNICODE_CLASSES + 1),
        r"\pL{100}",
        ".{400}",
        "((a{100}){100}){100}",
    ],
)
def test_what_re2_refuses_or_what_is_too_large_is_an_error_with_kafkas_code(text: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match="RE2") as caught:
        NamePattern(text)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION == 128
    assert len(caught.value.message) < 400


def test_a_pattern_may_be_as_long_as_the_limit_says() -> None:
    assert NamePattern("x" * MAX_PATTERN_LENGTH).matches("x" * MAX_PATTERN_LENGTH)


def test_a_match_has_a_bound_that_is_known_before() -> None:
    """2.5 ms for the largest program and the longest name; a usual pattern takes microseconds."""
    assert MAX_PROGRAM_SIZE * 4 * 249 <= 2_500_000
    assert name_pattern("topic-1.*").worst_ns("topic-1234") < 8_000
    assert name_pattern(".{249}").worst_ns("a" * 249) < 2_500_000


def test_no_pattern_backtracks() -> None:
    """In a process of its own: a backtracking engine holds the interpreter's lock, so that no time limit of ours would end it."""
    code = (
        "from barnabas.log.vocabulary.name_pattern import name_pattern\n"
        f"for text, name in {BACKTRACKING!r}: assert not name_pattern(text).matches(name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
