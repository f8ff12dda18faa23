"""What the mutants are made of."""

import pytest
from mutants.mutations import mutations_of

SOURCE = '''
"""A docstring."""
def advance(self, end: int, limit: int = 0) -> bool:
    assert end < 7
    logger.info("event=%d", end > 3)
    self.first(end)
    self.second(end)
    if end < limit and self.ready:
        self.end += 1
        return True
    raise ValueError(f"{end + 1} is not {limit > 1}")
'''
ACCENTS = 'x = ("é", a < b)\n'


def made(source: str) -> dict[str, list[str]]:
    """By kind, the changed lines."""
    found: dict[str, list[str]] = {}
    for item in mutations_of(source):
        before, after = source.splitlines(), item.applied(source).splitlines()
        assert len(before) == len(after) and before != after
        changed = [line.strip() for old, line in zip(before, after, strict=True) if old != line]
        found.setdefault(item.kind, []).append("; ".join(changed))
    return found


def test_every_kind_is_made_where_a_test_could_notice() -> None:
    assert made(SOURCE) == {
        "constant": ["def advance(self, end: int, limit: int = 1) -> bool:", "self.end += 0", "return False"],
        "dropped call": ["pass", "pass"],
        "swapped effects": ["self.second(end); self.first(end)"],
        "negated condition": ["if not (end < limit and self.ready):"],
        "dropped condition": ["if (end < limit):", "if (self.ready):"],
        "comparison": ["if end <= limit and self.ready:"],
        "dropped assignment": ["pass"],
    }


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        (ACCENTS, "comparison", 'x = ("é", a <= b)'),
        ("x = f(a) + 1\n", "off by one", "x = (f(a))"),
        ("x = min(a, b)\n", "swapped function", "x = max(a, b)"),
        ("x = a is not None\n", "comparison", "x = a is None"),
        ("x = a or b\n", "dropped condition", "x = (b)"),
    ],
)
def test_a_change_is_made_in_the_text(source: str, kind: str, line: str) -> None:
    assert line in made(source)[kind]


def test_the_order_of_two_checks_is_left_out() -> None:
    assert set(made("check_size(x)\nself._check_names(x)\n")) == {"dropped call"}
    assert set(made("check_size(x)\nself.send(x)\n")) == {"dropped call", "swapped effects"}


@pytest.mark.parametrize(
    "source",
    [
        "def f(file: File) -> None:\n    file.close()\n",
        "def f() -> None:\n    file = g()\n    file.close()\n    file.remove()\n",
        "def f() -> None:\n    peer = g()\n    peer.close()\n",
    ],
)
def test_the_close_of_what_is_held_or_used_afterwards_is_dropped(source: str) -> None:
    assert any("close()" not in item.applied(source) for item in mutations_of(source))


def test_a_body_is_never_left_empty_and_the_rest_of_a_line_stays() -> None:
    source = "def f() -> None:\n    g()  # why\n"
    (mutation,) = mutations_of(source)
    assert mutation.applied(source) == "def f() -> None:\n    pass  # why\n"


@pytest.mark.parametrize(
    "source",
    [
        "while x:\n    g()\n",
        "try:\n    g()\nfinally:\n    y = 2\n",
        "match x:\n    case y:\n        g()\n",
        "with x:\n    g()\n",
    ],
)
def test_bodies_of_all_statements_are_changed(source: str) -> None:
    assert [item.kind for item in mutations_of(source)] == ["dropped call"]


@pytest.mark.parametrize(
    "source",
    [
        "@dataclass(frozen=True, slots=True)\nclass A:\n    x: int\n",
        "y = zip(a, b, strict=True)\n",
        "logger.warning('x', exc_info=True)\n",
        "class A:\n    def __repr__(self) -> str:\n        return show(self.a < 1)\n",
        "if TYPE_CHECKING:\n    f()\n",
        "def f() -> None:\n    file = g()\n    file.close()\n",
    ],
)
def test_what_no_test_can_notice_is_left_out(source: str) -> None:
    assert mutations_of(source) == []
