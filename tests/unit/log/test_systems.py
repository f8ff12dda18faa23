"""Disks on systems without fdatasync, posix_fallocate and posix_fadvise: these are taken away, and what remains must do."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from barnabas.log.disk import systems
from barnabas.log.disk.files import RealFiles
from barnabas.log.vocabulary.errors import StorageError

MISSING = ("fdatasync", "posix_fallocate", "posix_fadvise")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This system lacks what Linux has."""
    for name in MISSING:
        monkeypatch.delattr(os, name)
    return monkeypatch


def test_flushes_reach_the_disk_by_what_the_system_has(elsewhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flushed: list[object] = []
    elsewhere.setattr(os, "fsync", flushed.append)
    file = RealFiles().open_append(str(tmp_path / "f"))
    file.append(b"x")
    file.flush()
    assert flushed == [file.fileno()]
    elsewhere.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    elsewhere.setattr(fcntl, "fcntl", lambda *arguments: flushed.append(arguments))
    file.flush()
    assert flushed[1:] == [(file.fileno(), 51)]


@pytest.mark.parametrize("before", [b"", b"data", b"d" * 4_000_000])
def test_reserved_space_has_blocks_and_data_stays(elsewhere: pytest.MonkeyPatch, tmp_path: Path, before: bytes) -> None:
    path = tmp_path / "ballast"
    path.write_bytes(before)
    RealFiles().reserve(str(path), 3_000_000)
    assert path.stat().st_size == max(3_000_000, len(before)) and path.read_bytes().startswith(before)
    assert path.stat().st_blocks * 512 >= 3_000_000


def test_a_full_disk_leaves_no_half_of_a_reservation(elsewhere: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    elsewhere.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageError):
        RealFiles().reserve(str(tmp_path / "ballast"), 10)
    assert not (tmp_path / "ballast").exists()


def test_the_boot_of_a_mac_has_an_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(systems, "LINUX_BOOT_ID", tmp_path / "none")
    sysctl = tmp_path / "sysctl"
    sysctl.write_text('#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo 6F-1\n')
    sysctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert RealFiles().boot_id() == "6F-1"
    sysctl.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(StorageError, match="does not tell when it was booted"):
        RealFiles().boot_id()
