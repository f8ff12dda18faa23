"""`bodies`: the classes at run time are what the stub tells type checkers, and an import makes none of them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.schema import messages

STUB = Path(bodies.__file__).with_suffix(".pyi")


def fields(node: ast.ClassDef) -> list[str]:
    return [
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]


def test_classes_have_the_fields_and_structs_of_the_stub() -> None:
    told = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in told} == set(messages())
    for node in told:
        made = getattr(bodies, node.name)
        assert list(made.__struct_fields__) == fields(node)
        assert made() == made(), "all fields have defaults"
        for inner in node.body:
            if isinstance(inner, ast.ClassDef):
                struct = getattr(made, inner.name)
                assert list(struct.__struct_fields__) == fields(inner)
                assert struct.__qualname__ == f"{node.name}.{inner.name}"


def test_a_class_is_made_once() -> None:
    assert bodies.FetchResponse is bodies.FetchResponse
    assert bodies.FetchResponse.PartitionData(partition_index=1) == bodies.FetchResponse.PartitionData(
        partition_index=1
    )


def test_a_message_that_kafka_does_not_have_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="Kafka has no message of this name"):
        _ = bodies.FetchAnswer  # type: ignore[attr-defined]


def test_an_import_of_the_handlers_makes_no_class() -> None:
    """A broker starts without the quarter of a second that all classes would take."""
    code = (
        "import barnabas.net.handlers.registry\n"
        "from barnabas.net.wire.protocol.kafka import bodies, message_classes, schema\n"
        "assert message_classes.types_of.cache_info().currsize == 0\n"
        "assert schema.messages.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
