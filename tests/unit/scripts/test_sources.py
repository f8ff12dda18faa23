"""BARNABAS_PURE=1 for modules that are installed compiled."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from barnabas._sources import SourceFinder  # type: ignore[import-not-found]  # not in the tree that mypy sees


def test_a_compiled_module_runs_from_the_source_beside_it(tmp_path: Path) -> None:
    for name in (f"both{EXTENSION_SUFFIXES[0]}", "both.py", f"compiled{EXTENSION_SUFFIXES[0]}", "plain.py"):
        (tmp_path / name).touch()
    finder, places = SourceFinder(), [str(tmp_path)]
    found = finder.find_spec("barnabas.both", places)
    assert found is not None and found.origin == str(tmp_path / "both.py")
    for name in ("barnabas.compiled", "barnabas.plain", "barnabas.missing", "other.both"):
        assert finder.find_spec(name, places) is None
