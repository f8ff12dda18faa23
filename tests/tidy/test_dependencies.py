"""What is installed beside Barnabas: each once, bounded above where users run it, and one tested version of each."""

import ast
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tidy.source_tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS: dict[str, list[Requirement]] = {
    name: [Requirement(item) for item in items]
    for name, items in {"run": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
}


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", line) for line in lines if line and not line.startswith("#")]
    assert all(pinned), "constraints.txt has lines of the form name==version only"
    return {canonicalize_name(found[1]): Version(found[2]) for found in pinned if found}


def test_no_dependency_is_named_twice() -> None:
    for group, items in GROUPS.items():
        names = [canonicalize_name(item.name) for item in items]
        assert len(names) == len(set(names)), f"{group}: {names}"


def test_what_users_run_has_an_upper_bound() -> None:
    bounded = {"<", "<=", "==", "~="}
    for item in (item for name, items in GROUPS.items() if name != "dev" for item in items):
        assert bounded & {spec.operator for spec in item.specifier}, f"{item} is open above"


def test_every_dependency_has_a_tested_version_within_its_range() -> None:
    known = constraints()
    for items in GROUPS.values():
        for item in items:
            version = known.get(canonicalize_name(item.name))
            assert version is not None, f"constraints.txt has no {item.name}"
            assert item.specifier.contains(version), f"{item.name} {version} is not within {item}"


def locked(name: str) -> dict[str, Version]:
    """The packages of a lock file. Each must have hashes, or pip would refuse the file."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    found = [(re.match(r"([a-z0-9._-]+)==(\S+)", entry), entry) for entry in entries if entry.strip()]
    assert all(head and "--hash=sha256:" in entry for head, entry in found)
    return {canonicalize_name(head[1]): Version(head[2]) for head, _ in found if head}


@pytest.mark.parametrize(
    ("name", "groups"), [("image", ("run", "security", "oauth", "mirror")), ("dev", ("run", "dev", "spark"))]
)
def test_lock_files_have_every_dependency_in_the_version_that_tests_run_with(
    name: str, groups: tuple[str, ...]
) -> None:
    versions, tested = locked(name), constraints()
    for item in (item for group in groups for item in GROUPS[group]):
        assert canonicalize_name(item.name) in versions, f"{item.name} is missing: run scripts/lock"
    differing = {package for package in versions.keys() & tested.keys() if versions[package] != tested[package]}
    assert not differing, "run scripts/lock"


def test_what_builds_the_image_is_locked() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = [Requirement(item) for item in tomllib.load(file)["build-system"]["requires"]]
    versions = locked("build")
    assert all(item.specifier.contains(versions[canonicalize_name(item.name)]) for item in needed)


def test_a_build_with_compiled_modules_gets_what_the_compiler_needs() -> None:
    """mypyc refuses the messages unless it sees the types of msgspec: an isolated build (cibuildwheel, Docker) would fail."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (given,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILER"
    )
    needed = {item.name: item for item in map(Requirement, ast.literal_eval(given))}
    assert {"mypy", "msgspec"} <= needed.keys()
    assert needed["msgspec"] in GROUPS["run"]
    found = locked("build")
    assert all(item.specifier.contains(found[name]) for name, item in needed.items())
