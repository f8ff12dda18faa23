"""The hand-written package list, and the documents that must stay true."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from tidy.source_tree import FACE, PACKAGES, ROOT, SPARK_FACES

from barnabas.net.cli.main import PLAIN_VERBS, build_parser


def test_the_package_list_is_the_tree() -> None:
    """Editable mode hides a missing sub-package; the wheel would lack it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    found = {"barnabas", *SPARK_FACES} | {
        "barnabas." + path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    inside_face = {
        "barnabas." + path.parent.relative_to(ROOT / FACE).as_posix().replace("/", ".")
        for path in (ROOT / FACE).glob("*/__init__.py")
    }
    assert listed == found | inside_face


def test_the_sdist_has_the_source_of_the_compiled_module_and_nothing_built(tmp_path: Path) -> None:
    """Without it, `pip install` from the sdist could never compile it, and would say nothing."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path, "sdist", "--dist-dir", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=100,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    sources = {"_native.pyx", "_native.pyi", "_writing.pxi", "_intake.pxi", "pure.py"}
    assert {"setup.py", *(f"log/records/{name}" for name in sources)} <= names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def commands_in_documents() -> list[str]:
    """Lines of code blocks that begin with `barnabas` or with a script of this repository."""
    found: set[str] = set()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                words = line.strip().removeprefix("$ ").split("#")[0].strip()
                if re.match(r"(\.venv/bin/)?barnabas |(\./)?scripts/", words):
                    found.add(words)
    return sorted(found)


@pytest.mark.parametrize("command", commands_in_documents() or ["barnabas topic list"])
def test_commands_in_the_documents_exist(command: str) -> None:
    words = command.split()
    if "scripts/" in words[0]:
        assert (ROOT / words[0].removeprefix("./")).exists()
        return
    nouns = [word for word in words[1:3] if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    parser = build_parser(nouns)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args([*nouns[: 1 if nouns[0] in PLAIN_VERBS else 2], "--help"])
    assert stop.value.code == 0


@pytest.mark.parametrize(
    "statement",
    [
        "import barnabas.net.cli.main",
        "import barnabas.net.cli.verbs.brokers, barnabas.net.base.settings.config",
        "import barnabas",
    ],
)
def test_help_and_the_start_of_a_broker_import_nothing_heavy(statement: str) -> None:
    heavy = ("aiohttp", "aiokafka", "pyspark", "pysyncobj", "numpy", "pandas", "hypothesis", "asyncio")
    shown = f"{statement}; import sys; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", shown], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_modules_that_mypyc_compiles_keep_no_generator_expression() -> None:
    """mypyc makes a list of it at once; where that matters, it is kept in a name to be consumed later."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    listed = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BROKER_MODULES"
    )
    names = ast.literal_eval(listed)
    assert names
    kept = [
        f"{name}.py:{node.lineno}"
        for name in names
        for node in ast.walk(ast.parse((ROOT / f"{name}.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and isinstance(node.value, ast.GeneratorExp)
    ]
    assert kept == []
