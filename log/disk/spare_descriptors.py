"""Spare descriptors for the moment in which the process has no others left.

Opening a file fails with EMFILE while clients or many partitions use all descriptors. If a journal cannot be opened, a voter
ends; if a segment cannot be opened, appends are refused. Therefore, each failed open releases a spare descriptor and tries again.
The spares are refilled as soon as possible. Several threads use this: `list.pop` and `list.append` are atomic.
"""

import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

SPARE_DESCRIPTORS: Final = 16  # a roll of a segment opens four files, a snapshot of the quorum two
_T = TypeVar("_T")


class SpareDescriptors:
    def __init__(self, count: int = SPARE_DESCRIPTORS) -> None:
        self._count = count
        self._spare: list[int] = []

    @property
    def available(self) -> int:
        return len(self._spare)

    def opened(self, open_file: Callable[[], _T]) -> _T:
        """The result of `open_file`, which is called again after each released spare. Raises OSError."""
        while True:
            try:
                result = open_file()
            except OSError as error:
                if error.errno != errno.EMFILE or not self._spare:
                    raise
                os.close(self._spare.pop())
            else:
                self._refill()
                return result

    def close(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _refill(self) -> None:
        while len(self._spare) < self._count:
            try:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return  # No descriptor is free yet: the next open tries again.
