"""`SyncedFileIO`: files of an Iceberg table that are on disk when they are closed. pyiceberg loads it by its name."""

from pathlib import Path
from typing import Any, Final

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from .files import sync

NAME: Final = f"{__name__}.SyncedFileIO"


class SyncedFileIO(PyArrowFileIO):
    """A commit names the files of metadata that it has written: a power failure must not take them away behind it."""

    def new_output(self, location: str) -> PyArrowFile:
        found = super().new_output(location)
        found.__class__ = _SyncedFile
        return found


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        return _SyncedStream(super().create(overwrite), self._path)


class _SyncedStream:
    """What pyiceberg asks of a stream."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        path = Path(self._path)
        sync(path)
        sync(path.parent)

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def __enter__(self) -> "_SyncedStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
