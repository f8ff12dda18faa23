"""Descriptors that are held for the moment in which the process has no other left.

Opening a file fails with EMFILE while clients or many partitions use all descriptors. A journal that cannot be opened ends
a voter, and a segment that cannot be opened refuses appends: so each opening that fails takes a spare descriptor and tries
again. The spares come back as soon as there is room. Used by several threads: `list.pop` and `list.append` are atomic.
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
        """The result of `open_file`, which is tried again after each spare that is given up. Raises OSError."""
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
                return  # There is no room yet: the next opening tries again.
