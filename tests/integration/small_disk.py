"""A disk that is really small and really full: a tmpfs, which needs root (as CI has)."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, path: Path, mib: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", path], check=True, capture_output=True)
        self.path = path

    @property
    def _filler(self) -> Path:
        return self.path / "somebody-else's-file"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass
                size //= 2

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disks() -> Iterator[Callable[[Path, int], SmallDisk]]:
    """What mounts a disk of so many MiB until the end of the block. Skips the test if this machine cannot."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    made: list[SmallDisk] = []

    def mount(path: Path, mib: int) -> SmallDisk:
        try:
            disk = SmallDisk(path, mib)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine cannot mount a tmpfs: {error.stderr.decode(errors='replace').strip()}")
        made.append(disk)
        return disk

    try:
        yield mount
    finally:
        for disk in reversed(made):
            subprocess.run(["umount", "-l", disk.path], check=False, capture_output=True)
