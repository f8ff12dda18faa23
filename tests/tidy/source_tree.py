"""The tree as the tidy tests see it: our source files, parsed once."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("consumer_groups", "kraft", "log", "net", "spark_connector")
FACE: Final = "scripts/barnabas"
# Top-level packages of their own: Spark finds sources by this prefix, one in each.
SPARK_FACES: Final = ("pyspark_barnabas", "pyspark_barnabas_postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One Python file; `name` is its path from the root."""

    name: str
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@contextmanager
def _kept_to_the_end() -> Iterator[None]:
    """What is made here is never walked by the garbage collector: that takes seconds for the trees of all files, each time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


@cache
def production_files() -> tuple[SourceFile, ...]:
    """All that is installed."""
    with _kept_to_the_end():
        return tuple(
            _read(path) for folder in (*PACKAGES, FACE, *SPARK_FACES) for path in sorted((ROOT / folder).rglob("*.py"))
        )


@cache
def files_of_tests() -> tuple[SourceFile, ...]:
    """The tests themselves: the same rules of size hold for them."""
    with _kept_to_the_end():
        return tuple(_read(path) for path in sorted((ROOT / "tests").rglob("*.py")))


def functions(file: SourceFile) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file, nested ones too."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(file: SourceFile) -> Iterator[tuple[str, int]]:
    """Absolute names of the modules that a file imports, wherever the import stands, with its line.

    `from a import b` gives both `a` and `a.b`, since b may be a module.
    """
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = absolute(file, node)
            yield base, node.lineno
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def module_of(file: SourceFile) -> str:
    """Its name when it is installed."""
    name = file.name.removesuffix(".py").removesuffix("/__init__").replace(f"{FACE}/", "")
    return f"barnabas.{name.replace('/', '.')}"


def absolute(file: SourceFile, node: ast.ImportFrom) -> str:
    """The module that an import names, also where it is written with dots."""
    if node.level == 0:
        return node.module or ""
    package = "barnabas" if file.folder == FACE else "barnabas." + file.folder.replace("/", ".")
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _read(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    return SourceFile(name=path.relative_to(ROOT).as_posix(), text=text, tree=ast.parse(text, filename=str(path)))
