"""How large a class is for its reader: its own methods and lines, and those of all classes of the project that it extends."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidy.source_tree import SourceFile, absolute, module_of, production_files

_Key = tuple[str, str]  # module, name of the class


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShape:
    """`methods`: different names, double underscores included; an overload or an override counts once."""

    name: str  # `path of the file:class`
    methods: int
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    file: SourceFile
    node: ast.ClassDef
    imported: dict[str, _Key]  # what a name of this file means


def class_shapes() -> list[ClassShape]:
    """Of every class that is installed."""
    classes = {(module_of(file), node.name): found for file in production_files() for node, found in _classes(file)}
    return [_shape(key, classes) for key in classes]


def _classes(file: SourceFile) -> Iterator[tuple[ast.ClassDef, _Class]]:
    imported = {
        alias.asname or alias.name: (absolute(file, node), alias.name)
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ClassDef):
            yield node, _Class(file=file, node=node, imported=imported)


def _shape(key: _Key, classes: dict[_Key, _Class]) -> ClassShape:
    line = [classes[ancestor].node for ancestor in _line_of(key, classes)]
    methods = {item.name for node in line for item in node.body if isinstance(item, _FUNCTIONS)}
    lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in line)
    return ClassShape(name=f"{classes[key].file.name}:{key[1]}", methods=len(methods), lines=lines)


def _line_of(key: _Key, classes: dict[_Key, _Class]) -> list[_Key]:
    """The class and its ancestors within the project, each once."""
    line: list[_Key] = []
    waiting = [key]
    while waiting:
        current = waiting.pop()
        if current not in line and current in classes:
            line.append(current)
            waiting += [_meant(base, current[0], classes[current]) for base in classes[current].node.bases]
    return line


def _meant(base: ast.expr, module: str, child: _Class) -> _Key:
    while isinstance(base, ast.Subscript):
        base = base.value
    name = base.id if isinstance(base, ast.Name) else ""
    return child.imported.get(name, (module, name))


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
