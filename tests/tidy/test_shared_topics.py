"""Tests that share a cluster keep to topics of their own: a name belongs to one test, a pattern matches no name of another one.

The names in the text of the tests are compared, so a clash is found whatever the order of a run, and before it comes to a run.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .source_tree import SourceFile, files_of_tests

# The fixtures and their reach: the whole run, or one module.
OF_THE_RUN: Final = "spark_cluster"
OF_A_MODULE: Final = ("shared_cluster", "driver_cluster")
PATTERN: Final = "subscribePattern"
READER: Final = "Reader"  # tests/integration/group_reader.py
CREATE: Final = "create_topic"
HOLE: Final = "0"  # stands for what an f-string inserts


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A function at the top of a file of tests, and the strings in it."""

    place: str
    texts: frozenset[str]
    patterns: frozenset[str]
    created: frozenset[str]


def text_of(node: ast.expr | None) -> str | None:
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or HOLE for part in parts)
    return None


def patterns_in(node: ast.AST) -> Iterator[str]:
    found: list[ast.expr] = []
    match node:
        case ast.Call(func=called, keywords=keywords):
            wanted = (PATTERN, "pattern") if getattr(called, "id", "") == READER else (PATTERN,)
            found += [keyword.value for keyword in keywords if keyword.arg in wanted]
        case ast.Dict(keys=keys, values=values):
            found += [value for key, value in zip(keys, values, strict=True) if text_of(key) == PATTERN]
    for value in found:
        pattern = text_of(value)
        assert pattern is not None, (
            f"line {value.lineno}: write the pattern where it is used, so that it can be checked"
        )
        yield pattern


def created_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=cluster), topic, *_]) if name == CREATE:
            text = text_of(topic) if cluster in (OF_THE_RUN, *OF_A_MODULE) else None
            if text is not None and not isinstance(topic, ast.JoinedStr):
                yield text


def users_of(file: SourceFile) -> Iterator[User]:
    for function in file.tree.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = list(ast.walk(function))
            parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
            texts = (text_of(node) for node in nodes if isinstance(node, ast.expr) and id(node) not in parts)
            yield User(
                place=f"{file.name}::{function.name}",
                texts=frozenset(text for text in texts if text),
                patterns=frozenset(pattern for node in nodes for pattern in patterns_in(node)),
                created=frozenset(name for node in nodes for name in created_in(node)),
            )


def communities(files: tuple[SourceFile, ...]) -> dict[str, list[User]]:
    """Functions of files whose tests share a cluster."""
    found: dict[str, list[User]] = defaultdict(list)
    for file in files:
        if "/test_" not in file.name or file.folder.startswith("tests/tidy"):
            continue
        if OF_THE_RUN in file.text:
            found[OF_THE_RUN] += users_of(file)
        elif any(name in file.text for name in OF_A_MODULE):
            found[file.name] += users_of(file)
    return found


def clashes(users: list[User]) -> Iterator[str]:
    for user in users:
        for other in users:
            if other.place == user.place:
                continue
            for pattern in user.patterns:
                for text in sorted(other.texts):
                    if re.fullmatch(pattern, text):
                        yield f"{user.place} reads {pattern}, which matches {text} of {other.place}"
            if other.place > user.place:
                for text in sorted(user.created & other.created):
                    yield f"{user.place} and {other.place} both create {text}"


def test_no_test_reads_or_creates_topics_of_another_one() -> None:
    shared = communities(files_of_tests())
    assert len(shared[OF_THE_RUN]) > 100 and any(user.patterns for user in shared[OF_THE_RUN])
    found = [line for users in shared.values() for line in clashes(users)]
    assert not found, "these tests share a cluster, choose other names:\n" + "\n".join(found)


def test_the_check_sees_clashes() -> None:
    text = """
def test_one(spark_cluster):
    create_topic(spark_cluster, "grows-a")
    load(subscribePattern="grows-.*")

def test_two(spark_cluster):
    create_topic(spark_cluster, f"grows-{number}")
    Stream(**{"subscribePattern": "own-.*"})

def test_three(spark_cluster):
    create_topic(spark_cluster, "grows-a")
"""
    file = SourceFile(name="tests/integration/test_example.py", text=text, tree=ast.parse(text))
    place = "tests/integration/test_example.py::test_"
    assert list(clashes(list(users_of(file)))) == [
        f"{place}one reads grows-.*, which matches grows-0 of {place}two",
        f"{place}one reads grows-.*, which matches grows-a of {place}three",
        f"{place}one and {place}three both create grows-a",
    ]
