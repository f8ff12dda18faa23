"""Files of a disk that takes nothing more."""

import os

from barnabas.log.disk.files import RealFiles
from barnabas.log.format.record_batch import Buffer
from barnabas.log.vocabulary.errors import StorageError


class FailingFiles(RealFiles):
    def __init__(self, code: int) -> None:
        self._code = code

    def write_atomically(self, path: str, data: Buffer) -> None:
        raise StorageError(f"cannot write {path}") from OSError(self._code, os.strerror(self._code))
