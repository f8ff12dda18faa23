"""The classes of Kafka's messages: `bodies.FetchResponse`, and its structs as attributes (`bodies.FetchResponse.PartitionData`).

A class is made when it is first named: all of them would cost a quarter of a second at every start. `bodies.pyi` in this folder
has the fields for type checkers; `scripts/kafka_stubs.py` writes it from the same schemas. Modules that name these classes in
annotations have `from __future__ import annotations`, so that an import makes none.
"""

from typing import Any

from .message_classes import class_of
from .schema import messages


def __getattr__(name: str) -> type[Any]:
    if name.startswith("_") or name not in messages():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: Kafka has no message of this name")
    made = globals()[name] = class_of(name)
    return made
