"""`read_yaml`: a YAML text as plain values, and the place of each key. Pure.

Only what a short file of settings needs is taken: mappings, lists, strings, integers and true or false, as in the core schema of
YAML 1.2, so that `on`, `no` and a date are strings. Aliases are refused: a few lines of them can stand for millions of values.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from .toml_lines import KeyPath, Place

MAX_DEPTH: Final = 20  # a pipeline has five levels; PyYAML needs a stack frame of Python's for each
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_BOOLEANS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS: Final = ("", "~", "null", "Null", "NULL")


class YamlError(Exception):
    """What is wrong with the text, and where."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place


@dataclass(slots=True)
class YamlDocument:
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)


def read_yaml(text: str) -> YamlDocument:
    """An empty text is an empty document. Raises YamlError."""
    try:
        _refuse_what_is_costly(text)
        root = yaml.compose(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise YamlError(_place_of(mark), f"not valid YAML: {reason}") from None
    document = YamlDocument()
    if root is None:
        return document
    if not isinstance(root, yaml.MappingNode):
        raise YamlError(_place(root), "the file must have keys, such as name: my-pipeline")
    document.values = _mapping(root, (), document.places)
    return document


def _refuse_what_is_costly(text: str) -> None:
    """Events come one by one, before anything is built of them."""
    depth = 0
    for event in yaml.parse(text, yaml.BaseLoader):
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(_place(event), f"*{event.anchor} is an alias: write the value instead")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise YamlError(_place(event), f"has more than {MAX_DEPTH} levels: this is no pipeline's file")


def _value(node: yaml.Node, path: KeyPath, places: dict[KeyPath, Place]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, places)
    if isinstance(node, yaml.SequenceNode):
        return [_item(item, (*path, index), places) for index, item in enumerate(node.value)]
    assert isinstance(node, yaml.ScalarNode)  # there is no other kind
    return _scalar(node, path)


def _item(node: yaml.Node, path: KeyPath, places: dict[KeyPath, Place]) -> Any:
    places[path] = _place(node)
    return _value(node, path, places)


def _mapping(node: yaml.MappingNode, path: KeyPath, places: dict[KeyPath, Place]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlError(_place(key), "a key must be a string")
        name = key.value
        if name in values:
            raise YamlError(_place(key), f"the key {name} stands here for the second time: remove one of them")
        places[(*path, name)] = _place(key)
        values[name] = _value(value, (*path, name), places)
    return values


def _scalar(node: yaml.ScalarNode, path: KeyPath) -> Any:
    text: str = node.value
    if node.style is not None:  # quoted, or a block of lines
        return text
    if text in _NULLS:
        raise YamlError(_place(node), f"{path[-1] if path else 'the file'} has no value: write one, or remove the key")
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    return int(text) if _INTEGER.fullmatch(text) else text


def _place(found: yaml.Node | yaml.Event) -> Place:
    return _place_of(found.start_mark)


def _place_of(mark: Any) -> Place:
    """Stubs and library have types of their own for a mark."""
    return Place(1, 1) if mark is None else Place(mark.line + 1, mark.column + 1)
