"""Who may import what, beyond what import-linter can say. Direct imports only, wherever they stand in a file."""

import ast
import re
from typing import Final

import pytest
from tidy.source_tree import PACKAGES, SourceFile, files_of_tests, imports, production_files

IMPURE: Final = {"asyncio", "os", "random", "socket", "threading", "time", "logging"}
# The state machines: a message goes in, effects come out, and nothing is asked of the world.
PURE: Final = (
    r"log/(vocabulary|format|settings|segment)/.*\.py",
    r"log/checkpoints/leader_epoch_cache\.py",
    r"log/replication/(replica|isr|leader|follower|effects)\.py",
    r"kraft/(metadata|group_state|quorum)/.*\.py",
    r"kraft/node/snapshot\.py",
    r"kraft/raft/(consensus/.*|protocol/.*|net/(wire|message_codec))\.py",
    r"kraft/controller/(?!topic_control|placement|controller)\w+\.py",
    r"consumer_groups/.*\.py",
    r"net/wire/protocol/.*\.py",
    r"net/logs/purgatory\.py",
    r"net/client/group/(ownership|group_membership|classic_membership|assignors)\.py",
    r"net/client/positions/reading\.py",
    r"spark_connector/common/(options|sink_ledger)\.py",
    r"spark_connector/(read/(read_options|offsets|stream_planner)|write/write_options)\.py",
)
# What other packages may use of log, room by room: words, the format of records, the keys of configuration.
VOCABULARY: Final = {"vocabulary", "format.record_batch", "settings"}
# Of the client, besides: it builds and reads records.
CLIENT_VOCABULARY: Final = VOCABULARY | {
    "format.record_codec",
    "format.compression",
    "records.aborted",
    "records.codec",
    "records.columns",
}


def is_pure(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in PURE)


def names_only_the_class_of_a_generator(file: SourceFile) -> bool:
    """`random.Random` as the type of an argument that somebody else seeds: that is a port, not chance."""
    return all(
        node.attr == "Random"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    ) and not any(isinstance(node, ast.ImportFrom) and node.module == "random" for node in ast.walk(file.tree))


def test_state_machines_ask_nothing_of_the_world() -> None:
    found = [
        f"{file.name}:{line} imports {module}"
        for file in production_files()
        if is_pure(file.name)
        for module, line in imports(file)
        if module in IMPURE and not (module == "random" and names_only_the_class_of_a_generator(file))
    ]
    assert not found, "take it as an argument or as a port"


@pytest.mark.parametrize(
    ("module", "homes"),
    [
        ("asyncio", r"(net|spark_connector|scripts/barnabas)/.*|kraft/raft/.*\.py"),
        ("pysyncobj", r"kraft/raft/.*\.py"),
    ],
)
def test_asyncio_and_the_raft_library_stay_where_they_belong(module: str, homes: str) -> None:
    found = [
        f"{file.name}:{line}"
        for file in production_files()
        if not re.fullmatch(homes, file.name)
        for name, line in imports(file)
        if name.split(".")[0] == module
    ]
    assert not found


def test_our_folders_are_imported_by_their_installed_name_only() -> None:
    """`import log` works from the root of the repository, as a second copy of every class: nothing is equal any more."""
    found = [
        f"{file.name}:{line} imports {module}"
        for file in production_files() + files_of_tests()
        for module, line in imports(file)
        if module.split(".")[0] in PACKAGES
    ]
    assert not found, "write `from barnabas.log...`, or a relative import within the package"


def test_within_a_package_imports_are_relative() -> None:
    """Static tools see the tree twice, by its folder and by its name; relative imports keep one class one class."""
    found = [
        f"{file.name}:{node.lineno}"
        for file in production_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
        if node.module is not None and node.module.startswith(f"barnabas.{file.folder.replace('/', '.')}.")
    ]
    assert not found


def is_spoken(module: str, allowed: set[str]) -> bool:
    """Is it a room or a module that is allowed, something in one, or the room of one?"""
    return any(f"{module}.".startswith(f"{name}.") or f"{name}.".startswith(f"{module}.") for name in allowed)


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("kraft", VOCABULARY),
        ("consumer_groups", VOCABULARY),
        ("spark_connector", VOCABULARY | {"records.columns"}),
        ("net/client", CLIENT_VOCABULARY),
        ("net/wire/protocol", VOCABULARY),
    ],
)
def test_only_the_vocabulary_of_log_is_spoken(folder: str, allowed: set[str]) -> None:
    found = [
        f"{file.name}:{line} imports {module}"
        for file in production_files()
        if file.name.startswith(f"{folder}/")
        for module, line in imports(file)
        if module.startswith("barnabas.log.") and not is_spoken(module.removeprefix("barnabas.log."), allowed)
    ]
    assert not found, "declare a port, and let net/broker/broker.py hand the implementation over"


def test_the_client_never_imports_the_broker() -> None:
    allowed = ("client", "protocol", "wire", "base", "sasl")
    found = [
        f"{file.name}:{line} imports {module}"
        for file in production_files()
        if file.name.startswith("net/client/")
        for module, line in imports(file)
        if module.startswith(("barnabas.net.", "barnabas.kraft", "barnabas.consumer_groups"))
        and not module.startswith(tuple(f"barnabas.net.{room}" for room in allowed))
    ]
    assert not found
