"""`read_pipeline`: a pipeline's file from disk, with what can be checked without Spark: its form, and its Python functions.

Functions are looked up in the source text of their module: importing it would run it, and may need Spark.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.net.base.near_words import did_you_mean

from .document_table import DocumentTable, Problem, parse_document
from .parsing import parse_pipeline
from .spec import PipelineSpec, PythonStep
from .state import StateFolder
from .toml_lines import KeyPath

MAX_FILE_BYTES: Final = 1 << 20  # a pipeline is short; this is a wrong file
YAML_SUFFIXES: Final = (".yaml", ".yml")  # everything else is TOML
STATE_ROOT: Final = "barnabas-pipelines"


class PipelineFileError(Exception):
    """The file cannot be used; `problems` are lines for the user."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFile:
    """A file without problems. Relative paths in it are relative to its folder."""

    path: Path  # as the user wrote it
    text: str
    is_yaml: bool
    base: Path
    spec: PipelineSpec

    def document(self) -> DocumentTable:
        """For problems with what the file names: at the places of its keys."""
        return _document(self.text, is_yaml=self.is_yaml)

    def state_folder(self) -> StateFolder:
        return StateFolder(self.base / (self.spec.state_folder or f"{STATE_ROOT}/{self.spec.name}"))


def read_pipeline(path: Path) -> PipelineFile:
    """Raises PipelineFileError with every problem of the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PipelineFileError([f"{path}: larger than {MAX_FILE_BYTES} bytes: this is no pipeline's file"])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineFileError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise PipelineFileError([f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})"]) from None
    is_yaml = path.suffix in YAML_SUFFIXES
    found = parse_pipeline(text, is_yaml=is_yaml)
    if isinstance(found, PipelineSpec):
        base = path.resolve().parent
        wrong = dict(_wrong_around(found, base))
        if not wrong:
            return PipelineFile(path=path, text=text, is_yaml=is_yaml, base=base, spec=found)
        document = _document(text, is_yaml=is_yaml)
        for place, reason in wrong.items():
            document.refuse_path(place, reason)
        found = document.problems
    raise PipelineFileError([problem.text(str(path)) for problem in found])


def _wrong_around(spec: PipelineSpec, base: Path) -> Iterator[tuple[KeyPath, str]]:
    """What the files beside the pipeline's own do not have, or have there already."""
    for number, step in enumerate(spec.steps):
        if isinstance(step, PythonStep) and (reason := _missing_function(step, base)):
            yield ("steps", number, "python"), reason
    if spec.state_folder and base.is_relative_to((base / spec.state_folder).resolve()):
        words = f'is {spec.state_folder!r}, where the file itself is: write a folder of its own, such as "{STATE_ROOT}"'
        yield ("state",), words


def _document(text: str, *, is_yaml: bool) -> DocumentTable:
    """Of a file without problems, for the places of its keys."""
    document = parse_document(text, is_yaml=is_yaml)
    assert not isinstance(document, Problem), "the file has been read before"
    return document


def _missing_function(step: PythonStep, base: Path) -> str | None:
    file = base / Path(*step.module.split(".")).with_suffix(".py")
    if file.exists():
        return _missing_in(file, step.function)
    if not _is_importable(step.module.split(".")[0]):
        return f"there is no module {step.module}: write {file.name} beside the pipeline, or install the module"
    return None


def _is_importable(package: str) -> bool:
    """Finding a top-level module does not run it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # of modules without a spec, such as __main__
        return False


def _missing_in(file: Path, function: str) -> str | None:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        return f"{file.name} cannot be read as Python: {error}"
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    others = [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    if function in names or function in others or "*" in others:
        return None
    near = did_you_mean(function, names)
    return f"{file.name} has no function {function}{near}: define it with one argument, a DataFrame"
