"""The file map of ARCHITECTURE.md is the tree: every room with the contract of its `__init__` and its modules."""

import ast
import textwrap
from pathlib import Path
from typing import Final

from .source_tree import PACKAGES, ROOT

WIDTH: Final = 130
MAX_MODULES: Final = 15  # of one folder: what a newcomer takes in at a glance


def rooms() -> list[Path]:
    found = [init.parent for package in PACKAGES for init in (ROOT / package).rglob("__init__.py")]
    return sorted(found, key=lambda folder: folder.relative_to(ROOT).parts)


def modules(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def line_of(folder: Path) -> str:
    """What the map says of a room."""
    contract = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    names = ", ".join(f"`{name}`" for name in modules(folder))
    text = f"- **{folder.relative_to(ROOT).as_posix()}/** {' '.join(contract.split())}{f' {names}' if names else ''}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def test_the_file_map_is_the_tree() -> None:
    map_of_files = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## File map\n")[2]
    missing = [line_of(folder) for folder in rooms() if f"\n{line_of(folder)}\n" not in map_of_files]
    assert not missing, "ARCHITECTURE.md, File map: put these in:\n" + "\n".join(missing)


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    wide = {folder.relative_to(ROOT).as_posix(): len(modules(folder)) for folder in rooms()}
    assert not {name: count for name, count in wide.items() if count > MAX_MODULES}
