"""A disk that is really small and really full: a tmpfs, which needs root (as CI has)."""

import subprocess
from pathlib import Path


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
