"""What the formats with a registry have in common: the subject of a topic's schema, and the references of a schema. Pure."""

from collections.abc import Callable, Iterator
from typing import Final

from ..connection.errors import InvalidConfigError
from .registry import Reference, Schema, SchemaRegistry
from .serdes import Part

Subject = Callable[[str, Part, str], str]  # (topic, part, name of the record) -> subject
MAX_PARSED: Final = 1_000  # schemas that a format keeps in the form that its library made of them
MAX_DEPENDENCIES: Final = 1_000  # schemas that one refers to, directly and indirectly


def topic_name(topic: str, part: Part, record_name: str) -> str:
    return f"{topic}-{part}"


def record_name(topic: str, part: Part, record_name: str) -> str:
    return record_name


def topic_record_name(topic: str, part: Part, record_name: str) -> str:
    return f"{topic}-{record_name}"


_STRATEGIES: Final[dict[str, Subject]] = {
    "topic": topic_name,
    "record": record_name,
    "topic-record": topic_record_name,
}


def subject_of(given: str | Subject) -> Subject:
    """Raises InvalidConfigError."""
    if callable(given):
        return given
    if given not in _STRATEGIES:
        raise InvalidConfigError(f"subject is {given!r}; it must be one of {', '.join(_STRATEGIES)}, or a function")
    return _STRATEGIES[given]


def with_references(registry: SchemaRegistry, schema: Schema) -> Iterator[tuple[Reference, Schema]]:
    """The schemas that this one refers to, also indirectly, each after those that it needs. Raises SchemaNotLoaded,
    ValueError."""
    done: dict[tuple[str, int], tuple[Reference, Schema]] = {}
    _visit(registry, schema, done, ())
    return iter(done.values())


def _visit(
    registry: SchemaRegistry,
    schema: Schema,
    done: dict[tuple[str, int], tuple[Reference, Schema]],
    path: tuple[tuple[str, int], ...],
) -> None:
    for reference in schema.references:
        place = (reference.subject, reference.version)
        if place in path:
            raise ValueError(f"the schema {reference.subject} version {reference.version} refers to itself")
        if place in done:
            continue
        if len(done) >= MAX_DEPENDENCIES or len(path) >= MAX_DEPENDENCIES // 10:
            raise ValueError(f"a schema refers to more than {MAX_DEPENDENCIES} others")
        found = registry.referenced(reference)
        _visit(registry, found, done, (*path, place))
        done[place] = (reference, found)
