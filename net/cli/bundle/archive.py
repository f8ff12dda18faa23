"""The archive of a bundle: parts of limited size, in a file that only its owner can read."""

import gzip
import io
import os
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from barnabas.log.vocabulary.errors import InvalidConfigError

from .secrets import clean_text, without_secrets

MAX_PART_BYTES: Final = 4 << 20
MAX_BYTES: Final = 64 << 20  # of all parts, before they are compressed
_CUT: Final = "\n... cut: the part has more than the limit of a bundle\n"
_FOLDER: Final = "barnabas-doctor"


def _plain(value: Any) -> Any:
    """Messages as objects: on the wire they are arrays, which a reader could not understand."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class Archive:
    """Parts by name. What does not fit is cut or left out, and named in `omitted`."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}
        self._size_bytes = 0
        self.omitted: dict[str, str] = {}  # name of a part, and why it is not there

    def add(self, name: str, value: Any) -> None:
        """A value of messages and JSON's types."""
        text = msgspec.json.format(msgspec.json.encode(without_secrets(_plain(value))), indent=1)
        self._keep(name, text)

    def add_text(self, name: str, text: str) -> None:
        self._keep(name, clean_text(text[: MAX_PART_BYTES + 1]).encode(errors="replace"))

    def _keep(self, name: str, data: bytes) -> None:
        if len(data) > MAX_PART_BYTES:
            data = data[:MAX_PART_BYTES] + _CUT.encode()
        if self._size_bytes + len(data) > MAX_BYTES:
            self.omitted[name] = f"the bundle has its limit of {MAX_BYTES >> 20} MiB"
            return
        self._size_bytes += len(data)
        self._parts[name] = data

    def write(self, path: Path) -> int:
        """Compress and write it, and return the bytes of the file. Raises InvalidConfigError: the file cannot be written."""
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
            for name, data in sorted(self._parts.items()):
                entry = tarfile.TarInfo(f"{_FOLDER}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                tar.addfile(entry, io.BytesIO(data))
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed.getbuffer())
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):  # On a read-only file system this fails, too.
                temporary.unlink(missing_ok=True)
            raise InvalidConfigError(
                f"--bundle {path} cannot be written: {error.strerror}; name another file"
            ) from error
        return packed.tell()
