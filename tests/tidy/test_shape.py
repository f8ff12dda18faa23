"""What can be counted in a file: its length, that of its functions and classes, its docstring, its name, its words."""

import ast
import re
from typing import Final

from tidy.class_shapes import class_shapes
from tidy.large_classes import LARGE_CLASSES, MAX_LINES, MAX_METHODS, Allowed
from tidy.source_tree import SourceFile, files_of_tests, functions, production_files

MAX_FILE_LINES: Final = 600
MAX_FUNCTION_LINES: Final = 70
NAMES_THAT_SAY_NOTHING: Final = ("utils", "util", "helpers", "helper", "common", "types", "misc")
# Put together here, so that this file does not find itself.
UNFINISHED: Final = re.compile("|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "X" * 3)))


def all_files() -> tuple[SourceFile, ...]:
    return production_files() + files_of_tests()


def test_no_file_is_longer_than_600_lines() -> None:
    long = {file.name: lines for file in all_files() if (lines := file.text.count("\n")) > MAX_FILE_LINES}
    assert not long, "split these by what they do"


def test_no_function_is_longer_than_70_lines() -> None:
    long = [
        f"{file.name}:{node.lineno} {node.name} has {length} lines"
        for file in all_files()
        for node in functions(file)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long, "name the steps"


def test_no_class_has_more_than_30_methods_or_400_lines() -> None:
    """With those that it inherits, so that a class that is cut into a line of ancestors is as large as before."""
    ordinary = Allowed(methods=MAX_METHODS, lines=MAX_LINES, reason="")
    large = [
        f"{shape.name} has {shape.methods} methods and {shape.lines} lines"
        for shape in class_shapes()
        if (limit := LARGE_CLASSES.get(shape.name, ordinary))
        if shape.methods > limit.methods or shape.lines > limit.lines
    ]
    assert not large, "hand a part of its work to a class of its own, and hold that"


def test_the_classes_that_may_be_large_are_large() -> None:
    large = {shape.name for shape in class_shapes() if shape.methods > MAX_METHODS or shape.lines > MAX_LINES}
    assert LARGE_CLASSES.keys() <= large, "take these out of the list of exceptions"
    assert all(allowed.reason for allowed in LARGE_CLASSES.values())


def test_every_module_says_what_it_is() -> None:
    silent = [file.name for file in production_files() if not ast.get_docstring(file.tree)]
    assert not silent, "a docstring says what lives here and what it never does"


def test_no_file_has_a_name_that_says_nothing() -> None:
    found = [file.name for file in all_files() if file.name.rpartition("/")[2][:-3] in NAMES_THAT_SAY_NOTHING]
    assert not found, "name the noun that it is about"


def test_nothing_is_left_unfinished_in_the_source() -> None:
    found = [
        f"{file.name}:{number}"
        for file in all_files()
        for number, line in enumerate(file.text.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not found, "open an issue instead"


def test_no_bare_except() -> None:
    found = [
        f"{file.name}:{node.lineno}"
        for file in all_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not found, "a bare except swallows cancellation"


def test_an_init_is_a_docstring_and_names() -> None:
    """Lazy loading (`__getattr__`) is the one piece of code that may stand there."""
    found = [
        f"{file.name}:{node.lineno}"
        for file in production_files()
        if file.name.endswith("__init__.py")
        for node in file.tree.body
        if not _belongs_in_init(node)
    ]
    assert not found


def _belongs_in_init(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__getattr__", "__dir__")
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
