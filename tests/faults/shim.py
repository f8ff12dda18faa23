"""Orders to the library that is preloaded into a broker: failing, torn and slow writes, and a wall clock that jumps."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("diskfault.c")


def why_not() -> str:
    return "" if shutil.which("gcc") else "faults of single writes need gcc"


def build(folder: Path) -> Path:
    library = folder / "diskfault.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class Shim:
    """The library in one broker."""

    def __init__(self, library: Path, orders: Path, data: Path) -> None:
        self._orders = orders
        self.order()
        self.environment = {
            "LD_PRELOAD": str(library),
            "DISKFAULT_ORDERS": str(orders),
            "DISKFAULT_PATH": str(data),
        }

    def order(self, **orders: float) -> None:
        """From now on this, and nothing else."""
        new = self._orders.with_suffix(".new")
        new.write_text(" ".join(f"{name}={value}" for name, value in orders.items()), encoding="ascii")
        os.replace(new, self._orders)
