"""What each position of a message means, and what a reader takes for a field that an older peer does not send.

The recorded bytes beside this test cannot tell two fields of one type that change places, nor a default that is lost: neither
changes the bytes of a sample. A layout is recorded by where it stands (`request 11.protocols`), so a class may get another name.
"""

import json
import os
import typing
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from barnabas.kraft.metadata.image import BrokerImage, ControllerTerm, MetadataHeader, PartitionImage, SlotImage
from barnabas.kraft.metadata.records import RECORD_TYPES
from barnabas.kraft.metadata.requests import REQUESTS
from barnabas.net.wire.protocol.apis import APIS
from barnabas.net.wire.protocol.msgpack import ClientHello, RequestEnvelope, ResponseEnvelope, ServerHello
from barnabas.net.wire.protocol.responses import ErrorResponse

RECORDING = Path(__file__).with_name("recorded_layouts.json")
STORED_IMAGES: tuple[Any, ...] = (BrokerImage, ControllerTerm, MetadataHeader, PartitionImage, SlotImage)
FRAMES: tuple[Any, ...] = (ClientHello, ServerHello, RequestEnvelope, ResponseEnvelope, ErrorResponse)


def layouts() -> dict[str, list[str]]:
    """The fields in order, each with its default if it has one: of every message, and of every message within one."""
    found: dict[str, list[str]] = {}
    for cls in (*STORED_IMAGES, *FRAMES):
        _add(found, cls.__name__, cls)
    for key, (request, response) in APIS.items():
        _add(found, f"request {int(key)}", request)
        _add(found, f"response {int(key)}", response)
    for kind, (asked, answer) in REQUESTS.items():
        _add(found, f"controller request {kind}", asked)
        _add(found, f"controller answer {kind}", answer)
    for record in RECORD_TYPES:
        _add(found, f"record {record.__struct_config__.tag}", record)
    return found


def _add(found: dict[str, list[str]], place: str, cls: Any) -> None:
    found[place] = [_shown(field) for field in structs.fields(cls)]
    for name, hint in typing.get_type_hints(cls).items():
        for inner in _messages_in(hint):
            _add(found, f"{place}.{name}", inner)


def _shown(field: Any) -> str:
    if field.required:
        return str(field.name)
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"{field.name} = {default!r}"


def _messages_in(hint: Any) -> list[Any]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [inner for argument in typing.get_args(hint) for inner in _messages_in(argument)]


def test_fields_keep_their_places_and_their_defaults() -> None:
    """`RECORD=1 pytest FILE` adds what is new: messages, and fields behind those that are recorded."""
    known: dict[str, list[str]] = json.loads(RECORDING.read_text()) if RECORDING.exists() else {}
    now = layouts()
    if os.environ.get("RECORD"):
        assert {place: now[place][: len(fields)] for place, fields in known.items()} == known
        RECORDING.write_text(json.dumps(now, indent=0) + "\n")
        return
    assert now == known


def test_what_may_be_missing_stands_at_the_end() -> None:
    """A list is only ever cut at its end, so a default before a required field serves no reader."""
    mixed = {
        place
        for place, fields in layouts().items()
        if [" = " in field for field in fields] != sorted(" = " in field for field in fields)
    }
    assert mixed == {"request 11"}  # JoinGroup had two such fields in its first version
