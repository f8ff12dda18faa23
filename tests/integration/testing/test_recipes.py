"""The recipes of docs/testing.md, as they stand there: pytest in a process of its own, in an empty folder."""

import re
from pathlib import Path
from typing import Final

import pytest

from .plugin_runs import run_pytest

PAGE: Final = Path(__file__).resolve().parents[3] / "docs/testing.md"
TIMEOUT_S: Final = 300
# Of librdkafka's binding and of kafka-python; a user's run does not turn warnings into errors.
WARNINGS: Final = ("-W", "ignore::DeprecationWarning")


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_each_recipe_passes(tmp_path: Path) -> None:
    recipes = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(recipes) > 10
    for number, recipe in enumerate(recipes[1:], start=1):
        (tmp_path / f"test_recipe_{number}.py").write_text(recipe, encoding="utf-8")
    ended = run_pytest(tmp_path, recipes[0], *WARNINGS, "--timeout=90", ".", timeout_s=TIMEOUT_S)
    tests = sum(recipe.count("def test_") for recipe in recipes)
    assert f" {tests} passed in" in ended.stdout.replace("\n", " "), ended.stdout + ended.stderr
