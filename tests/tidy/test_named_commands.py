"""Commands that documents, alerts, findings and messages tell people to type exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.net.cli.main import NOUNS, PLAIN_VERBS, build_parser

ROOT = Path(__file__).resolve().parents[2]
# In backticks, after `$ ` in a document, or as the cure of an alert: prose may say "barnabas does".
_NAMED = re.compile(r"(?:`|\$ |cure: '|; |: )barnabas ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?(?=[ `'\n:)|,.]|$)")


def named() -> Iterator[tuple[str, str, str]]:
    files = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("docs/**/*.yml"),
        ROOT / "README.md",
        *ROOT.glob("net/**/*.py"),
        *ROOT.glob("net/**/*.js"),
    ]
    for path in files:
        for found in _NAMED.finditer(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), found[1], found[2] or ""


def exists(noun: str, verb: str) -> bool:
    if noun in PLAIN_VERBS:
        return True
    parser = build_parser([noun])
    verbs = next(action.choices[noun] for action in parser._actions if action.choices and noun in action.choices)  # type: ignore[index]
    return not verb or any(verb in (action.choices or ()) for action in verbs._actions)


def test_commands_that_people_are_told_to_type_exist() -> None:
    told = list(named())
    assert len(told) > 150, "the pattern still finds them"
    wrong = [item for item in told if item[1] not in {**NOUNS, **PLAIN_VERBS} or not exists(*item[1:])]
    assert wrong == []


@pytest.mark.parametrize(("noun", "verb", "is_there"), [("topic", "list", True), ("topic", "lst", False)])
def test_the_check_can_fail(noun: str, verb: str, is_there: bool) -> None:
    assert exists(noun, verb) is is_there
