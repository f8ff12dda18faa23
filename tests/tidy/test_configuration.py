"""A key that a broker takes is a key that it reads: whatever has no effect is refused, or reported at the start."""

import ast
import re
from collections.abc import Iterable
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys
from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.log.settings.key import rows_of

from .source_tree import ROOT, SourceFile, production_files

CONFIG: Final = "net/base/settings/config.py"
TOPIC_CONFIG: Final = "log/settings/config.py"
CLIENTS: Final = ("net/client", "net/cli", "net/admin", "scripts/barnabas", "spark_connector")
# Read from the cluster's metadata by the key itself, see kraft/metadata/topic_settings.py.
READ_BY_KEY: Final = {"min.insync.replicas", "unclean.leader.election.enable"}


def of_the_broker() -> tuple[SourceFile, ...]:
    return tuple(file for file in production_files() if not file.folder.startswith(CLIENTS))


def attributes_read(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def own_attributes_read(method: ast.FunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def read_outside(config_file: str, readers: Iterable[SourceFile]) -> set[str]:
    """The attributes that are read outside `config_file`, and what its own methods read on behalf of those."""
    readers = tuple(readers)
    (config,) = (file for file in of_the_broker() if file.name == config_file)
    methods = {
        method.name: own_attributes_read(method)
        for node in config.tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef)
    }
    read = {name for file in readers if file.name != config_file for name in attributes_read(file.tree)}
    while more := {name for method in methods.keys() & read for name in methods[method]} - read:
        read |= more
    return read


def test_every_key_of_a_broker_is_read_somewhere() -> None:
    read = read_outside(CONFIG, (file for file in of_the_broker() if file.folder.startswith("net")))
    # Settings of topics travel as a whole, by `topic_defaults`; whether they are read there is the next test's question.
    unread = [row.name for row in rows_of(BrokerKeys) if row.topic_key is None and row.field_name not in read]
    assert not unread, "give these an effect, or move them to without_effect.py with the reason"


def test_every_key_of_a_topic_is_read_somewhere_or_has_one_value_only() -> None:
    read = read_outside(TOPIC_CONFIG, (file for file in of_the_broker() if file.name != CONFIG))
    unread = {key for key, row in TOPIC_KEYS.items() if row.field_name not in read and row.refused is None}
    assert not unread - READ_BY_KEY


def test_what_is_read_by_key_stands_in_the_source() -> None:
    text = (ROOT / "kraft/metadata/topic_settings.py").read_text(encoding="utf-8")
    assert {key for key in READ_BY_KEY if re.search(rf"[\"']{re.escape(key)}[\"']", text)} == READ_BY_KEY
