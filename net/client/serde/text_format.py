"""`Text`: strings."""

from .serdes import Part


class Text:
    """`str` in `encoding`, by default UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # Raises LookupError for an unknown encoding here rather than at the first record.
        self._encoding = encoding

    def serialize(self, data: object, topic: str, part: Part) -> bytes:
        """The bytes of `data` as the text. `topic`: of the record; `part`: its key or its value."""
        if not isinstance(data, str):
            raise TypeError(f"Text needs a str, not {type(data).__name__}")
        return data.encode(self._encoding)

    def deserialize(self, data: bytes, topic: str, part: Part) -> str:
        """What the bytes `data` say. `topic`: of the record; `part`: its key or its value."""
        return data.decode(self._encoding)
