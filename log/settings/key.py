"""One row of the table of configuration keys, and the declaration of a row as a field of the dataclass with its value. Pure.

`num_partitions: int = key(1, COUNT, "...")` declares the key `num.partitions`. The field has the type of the value, so that type
checkers check its use; everything else about the key is in the row.
"""

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from ..vocabulary.errors import InvalidConfigError
from .kinds import Kind, optional

V = TypeVar("V")


class Change(Enum):
    """How a broker key can be changed."""

    AT_START = "restart"  # set by the file, the environment and flags
    WHILE_RUNNING = "dynamic"  # for one broker or for all of them, while they run (KIP-226)
    FOR_THE_CLUSTER = (
        "cluster"  # one value for all brokers; files give only the first value (kraft/metadata/cluster_settings)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key. `default` None: not set."""

    name: str
    kind: Kind[Any]
    default: Any
    documentation: str
    change: Change = Change.AT_START  # for a topic key: how `broker_key` changes
    cluster_reason: str = ""  # why one value must hold for the whole cluster
    no_effect: str = ""  # why the key has no effect
    refused: tuple[Any, str] | None = None  # a value that Kafka accepts and Barnabas does not, and why
    # For a broker key: the topic key whose default it sets, and the number of that key's units in one of its own.
    topic_key: str | None = None
    topic_units: int = 1
    # For a topic or group key: the broker key that sets the default, and whether that key is unset by default.
    broker_key: str = ""
    unset_on_brokers: bool = False

    @property
    def field_name(self) -> str:
        return self.name.replace(".", "_")

    @property
    def is_topic_default(self) -> bool:
        """Is it a broker key that was declared as a topic key, with the same values?"""
        return self.topic_key is not None and self.topic_units == 1

    @property
    def default_text(self) -> str | None:
        return self.show(self.default)

    def parse(self, text: str) -> Any:
        """The value. Raises InvalidConfigError."""
        try:
            return self.kind.read(text.strip())
        except ValueError as error:
            raise self.refusal(text, str(error)) from None

    def check(self, text: str) -> Any:
        """`parse` for a value that is to be set: values that are not available are refused, too."""
        value = self.parse(text)
        if self.refused is not None and value == self.refused[0]:
            raise InvalidConfigError(f"{self.name} cannot be {text!r}: {self.refused[1]}")
        return value

    def refusal(self, text: str, reason: str = "") -> InvalidConfigError:
        because = f": {reason}" if reason else ""
        return InvalidConfigError(f"{self.name} must be {self.kind.allowed}, not {text!r}{because}")

    def show(self, value: Any) -> str | None:
        """The value as a user would write it; None: not set."""
        return None if value is None or value == () else self.kind.show(value)

    def of_brokers(self) -> "ConfigKey":
        """The broker key that sets the default of this topic key."""
        return ConfigKey(
            name=self.broker_key,
            kind=optional(self.kind) if self.unset_on_brokers else self.kind,
            default=None if self.unset_on_brokers else self.default,
            documentation=self.documentation,
            change=self.change,
            cluster_reason=self.cluster_reason,
            no_effect=self.no_effect,
            refused=self.refused,
            topic_key=self.name,
        )


def key(default: V, kind: Kind[V], documentation: str, **rest: Any) -> V:
    """Declare a field of a dataclass as a broker key."""
    if "cluster_reason" in rest:
        rest["change"] = Change.FOR_THE_CLUSTER
    row = ConfigKey(name="", kind=kind, default=default, documentation=documentation, **rest)
    return dataclasses.field(default=default, metadata={"row": row})


def topic_key(default: V, kind: Kind[V], documentation: str, *, broker_key: str = "", **rest: Any) -> V:
    """Declare a field of a dataclass as a topic key; its broker key is `log.` and the name, unless it is given."""
    return key(default, kind, documentation, broker_key=broker_key, **{"change": Change.WHILE_RUNNING, **rest})


def rows_of(table: type) -> tuple[ConfigKey, ...]:
    """The rows that the fields of a dataclass declare."""
    return tuple(
        dataclasses.replace(item.metadata["row"], name=item.name.replace("_", "."))
        for item in dataclasses.fields(table)
        if "row" in item.metadata
    )
