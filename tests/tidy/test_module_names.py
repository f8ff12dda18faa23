"""Comments, docstrings and the guides for developers name modules that exist, also after a module has moved."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys
from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.log.settings.key import rows_of

from .source_tree import PACKAGES, ROOT, SourceFile, production_files

# A package and names below it, in backquotes or not: `log.disk.files.Files`, barnabas.net.wire.rpc.
ABSOLUTE: Final = re.compile(rf"(?<![\w./])(?:barnabas\.)?((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w*/])")
GUIDES: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md")
PATH: Final = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w/]+)(?:\.pyx?|\.pxi)?(?:\.\w+)?`")


@cache
def keys() -> set[str]:
    """Configuration keys, which look like modules: `log.dirs`."""
    return {row.name for row in rows_of(BrokerKeys)} | set(TOPIC_KEYS)


def texts(file: SourceFile) -> Iterator[str]:
    if not module_names(file.text):
        return  # Most files; reading tokens takes time.
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def module_names(text: str) -> set[str]:
    """Names that begin with a package. Shorter ones (`quorum.voters`) could as well be attributes (`partition.leader`)."""
    return set(ABSOLUTE.findall(text)) - keys()


def exists(name: str, base: Path) -> bool:
    """Whether it is a package, a module, or a name in a module: from the root, or from a folder above the module."""
    return any(_is_below(folder, name.split(".")) for folder in (base, *base.parents) if folder.is_relative_to(ROOT))


def _is_below(folder: Path, parts: list[str]) -> bool:
    for depth, part in enumerate(parts, 1):
        module = folder / f"{part}.py"
        if module.is_file():
            text = module.read_text(encoding="utf-8")
            return all(re.search(rf"\b{name}\b", text) for name in parts[depth:])
        folder /= part
        if not folder.is_dir():
            return False
    return True


def test_modules_that_comments_and_docstrings_name_exist() -> None:
    missing = {
        f"{file.name}: {name}"
        for file in production_files()
        for text in texts(file)
        for name in module_names(text)
        if not exists(name, (ROOT / file.name).parent)
    }
    assert not missing, "these modules have moved or never existed:\n" + "\n".join(sorted(missing))


def test_modules_that_the_guides_name_exist() -> None:
    missing = {
        f"{guide}: {path}"
        for guide in GUIDES
        for path in PATH.findall((ROOT / guide).read_text(encoding="utf-8"))
        if not any((ROOT / f"{path}{suffix}").exists() for suffix in ("", ".py", ".pyx"))
    }
    assert not missing, "these modules have moved or never existed:\n" + "\n".join(sorted(missing))


def test_a_moved_module_is_found() -> None:
    here = ROOT / "kraft/raft/protocol"
    assert module_names("see `log.disk.files.Files`, `log.dirs` and net.wire.rpc") == {
        "log.disk.files.Files",
        "net.wire.rpc",
    }
    assert exists("log.disk.files.Files", here)
    assert exists("net.message_codec", here)  # Relative to a folder above, kraft/raft.
    assert not exists("log.files.Files", here)
    assert not exists("log.disk.files.NoSuchName", here)
