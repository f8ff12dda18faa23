"""The places of keys in TOML text, in every form that a key and a value can have."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from barnabas.net.programs.pipeline.toml_lines import KeyPath, places_of_keys

TEXT = """\
# a = "comment"
plain = 1
a.b."c.d" = 'x = 2'

[table] # [other]
text = \"\"\"
key = "no key"
\\"\"\" still text
\"\"\"
literal = '''
[no table]
'''
list = [
    1, # ] no end
    { x = 1, y = "}" },
    ["a", 'b]'],
]
[table.inner]
date = 2026-01-31T07:00:00Z
[[array]]
k = true
[[array]]
k = 0x1F
[array.below]
"quoted \\u0041" = ""
"""


def test_every_form() -> None:
    assert tomllib.loads(TEXT)
    lines = {path: place.line for path, place in places_of_keys(TEXT).items()}
    expected: dict[KeyPath, int] = {
        ("plain",): 2,
        ("a", "b", "c.d"): 3,
        ("table",): 5,
        ("table", "text"): 6,
        ("table", "literal"): 10,
        ("table", "list"): 13,
        ("table", "list", 1, "y"): 15,
        ("table", "list", 2, 1): 16,
        ("table", "inner", "date"): 19,
        ("array", 0, "k"): 21,
        ("array", 1, "k"): 23,
        ("array", 1, "below", "quoted A"): 25,
    }
    assert {path: lines[path] for path in expected} == expected
    assert ("key",) not in lines and ("no table",) not in lines


def test_columns_count_from_one() -> None:
    text = "a.b = 1\n  c = { x = 1, 'y' = [2,\n   3] }\n[[ t ]]\nk=1\n"
    assert places_of_keys(text) == {
        ("a",): (1, 1),
        ("a", "b"): (1, 1),
        ("c",): (2, 3),
        ("c", "x"): (2, 9),
        ("c", "y"): (2, 16),
        ("c", "y", 0): (2, 23),
        ("c", "y", 1): (3, 4),
        ("t",): (4, 1),
        ("t", 0): (4, 1),
        ("t", 0, "k"): (5, 1),
    }


def paths_of(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in [(*path, key), *paths_of(inner, (*path, key))]]
    if isinstance(value, list):
        return [item for number, inner in enumerate(value) for item in paths_of(inner, (*path, number))]
    return []


def quoted(text: str) -> str:
    return (
        '"'
        + "".join(f"\\U{ord(letter):08x}" if letter in '"\\' or not letter.isprintable() else letter for letter in text)
        + '"'
    )


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
VALUES = st.one_of(
    st.integers(-5, 5).map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(st.characters(codec="utf-8"), max_size=6).map(quoted),
    st.lists(st.sampled_from(["1", '"]"', "'#'"]), max_size=3).map(lambda items: f"[{', '.join(items)}]"),
)


@given(st.lists(st.tuples(NAMES, VALUES), unique_by=lambda item: item[0], max_size=6), NAMES)
def test_each_key_of_a_document_has_its_line(pairs: list[tuple[str, str]], table: str) -> None:
    text = f"[{quoted(table)}]\n" + "".join(f"{quoted(name)} = {value}\n" for name, value in pairs)
    lines = places_of_keys(text)
    assert set(paths_of(tomllib.loads(text))) <= set(lines)
    assert [lines[table, name] for name, _ in pairs] == [(line, 1) for line in range(2, len(pairs) + 2)]
