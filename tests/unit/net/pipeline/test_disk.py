"""A full disk is told with the folders that may be on it, and with what to do."""

import errno
import os
from pathlib import Path

import pytest

from barnabas.net.programs.pipeline.disk import CURE, full_disk, says_full


@pytest.mark.parametrize(
    "text",
    [
        "IOException: No space left on device",
        f"cannot write /x: {os.strerror(errno.EDQUOT)}",
        "OperationalError: database or disk is full",
        'DiskFull: could not extend file "base/5/16384": No space left on device',
    ],
)
def test_errors_of_full_disks_are_known(text: str) -> None:
    assert says_full(text)
    assert not says_full(text.replace("space", "file").replace("quota", "limit").replace("is full", "is gone"))


def test_the_fullest_folder_comes_first_and_one_that_is_missing_is_that_of_its_parent(tmp_path: Path) -> None:
    told = full_disk(
        "IOException: No space left on device", [tmp_path, Path("/proc"), tmp_path / "later" / "more", tmp_path]
    )
    assert told.startswith("a disk is full (IOException: No space left on device): /proc has 0 KiB free, ")
    assert (
        told.count("0 KiB free") == 1
        and told.count(str(tmp_path)) == 2
        and "MiB free; " in told
        and told.endswith(CURE)
    )


def test_the_disk_of_a_database_is_not_one_of_these() -> None:
    told = full_disk("DiskFull: could not extend file: No space left on device", [Path("/proc")])
    assert "/proc" not in told and "free space on the disk of the database's server" in told
