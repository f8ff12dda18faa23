"""Which tests are asked about a line."""

from pathlib import Path

from mutants.forked import run_forked
from mutants.reach import MOST_OTHER_FILES, ReachMap, importing


def known() -> ReachMap:
    reach = ReachMap()
    reach.add({
        "": {"seconds": 0.0, "lines": {"log/a.py": [1, 2]}},
        "slow": {"seconds": 2.0, "lines": {"log/a.py": [3, 4]}},
        "quick": {"seconds": 0.1, "lines": {"log/a.py": [3], "log/b.py": [7]}},
    })  # fmt: skip
    return reach


def test_quick_tests_come_first_and_a_line_that_none_reaches_has_none() -> None:
    assert known().reaching("log/a.py", 3) == ["quick", "slow"]
    assert known().reaching("log/a.py", 4) == ["slow"]
    assert known().reaching("log/a.py", 5) == []


def test_a_line_that_runs_at_import_belongs_to_every_test_of_its_module() -> None:
    assert known().reaching("log/a.py", 1) == ["quick", "slow"]


def test_a_forked_child_answers_or_is_ended(tmp_path: Path) -> None:
    def hang() -> None:
        while True:
            pass

    assert run_forked(lambda: {"x": [1, 2]}, tmp_path, 60) == {"x": [1, 2]}
    assert run_forked(lambda: 1 // 0, tmp_path, 60) is None
    assert run_forked(hang, tmp_path, 0.2) is None


def test_tests_of_other_packages_are_asked_that_import_the_module() -> None:
    line = "from barnabas.log.vocabulary.access.quotas import QuotaKind\n"
    files = {
        "tests/unit/net/test_long.py": line + "# more",
        "tests/unit/kraft/test_quotas.py": line + "# much more",
        "tests/unit/net/test_other.py": line.replace("quotas", "quotas_of"),
    }
    module = "log/vocabulary/access/quotas.py"
    assert importing([module], files) == {"tests/unit/net/test_long.py", "tests/unit/kraft/test_quotas.py"}
    many = {f"tests/unit/net/test_{number}.py": line for number in range(2 * MOST_OTHER_FILES)} | files
    found = importing([module], many)
    assert len(found) == MOST_OTHER_FILES and "tests/unit/kraft/test_quotas.py" in found
