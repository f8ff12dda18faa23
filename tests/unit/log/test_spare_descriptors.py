"""Spare descriptors: given up one by one where there is no other, and taken again later."""

import errno
import os
from collections.abc import Callable

import pytest

from barnabas.log.disk.spare_descriptors import SpareDescriptors


def failing(times: int, number: int = errno.EMFILE) -> Callable[[], str]:
    left = [times]

    def open_file() -> str:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return "opened"

    return open_file


def test_an_opening_without_a_descriptor_takes_a_spare_one() -> None:
    spare = SpareDescriptors(3)
    with pytest.raises(OSError, match="Too many"):
        spare.opened(failing(1))  # There are none yet.
    assert spare.opened(failing(0)) == "opened" and spare.available == 3
    assert spare.opened(failing(2)) == "opened"
    assert spare.available == 3, "they came back"
    with pytest.raises(OSError, match="Too many"):
        spare.opened(failing(4))
    assert spare.available == 0
    assert spare.opened(failing(0)) == "opened" and spare.available == 3
    spare.close()
    assert spare.available == 0


def test_other_errors_are_none_of_its_business() -> None:
    spare = SpareDescriptors(2)
    spare.opened(failing(0))
    with pytest.raises(FileNotFoundError):
        spare.opened(failing(1, errno.ENOENT))
    assert spare.available == 2
    spare.close()
