"""`Json`: objects as JSON, without a registry."""

from typing import Any

import msgspec

from .models import json_reader, plain_of
from .serdes import Part


class Json:
    """JSON of dicts and lists, or of a class: a dataclass, TypedDict, attrs class, msgspec.Struct or pydantic model.

        Producer(..., value_serializer=Json())
        Consumer(..., value_deserializer=Json(Order))

    Writing accepts any of these. Reading returns instances of `model`, and refuses what does not fit: a missing field, another
    type. Fields that the model does not have are left out. Without a model it returns dicts, lists, strings and numbers.
    """

    def __init__(self, model: Any = None) -> None:
        self._read = json_reader(Any if model is None else model)
        self._write = msgspec.json.Encoder(enc_hook=plain_of).encode

    def serialize(self, data: Any, topic: str, part: Part) -> bytes:
        """The bytes of `data` as JSON. `topic`: of the record; `part`: its key or its value."""
        return self._write(data)

    def deserialize(self, data: bytes, topic: str, part: Part) -> Any:
        """What the bytes `data` say. `topic`: of the record; `part`: its key or its value."""
        return self._read(data)
