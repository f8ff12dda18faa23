"""Brokers whose clock and second data folder do what a test says, and what `barnabas doctor` says of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults.shim import Shim, build
from integration.cluster import Cluster, Node, clean_environment
from integration.prometheus import LIMIT_S, until

from barnabas.net.base.local.local_cluster import LAUNCHER

# Each broker's folder holds its orders; the configuration is the last argument.
_SCRIPT = (
    'for last; do :; done; d=${last%/*}; export DISKFAULT_ORDERS="$d/orders" DISKFAULT_PATH="$d/second"; exec "$@"'
)


def launcher(folder: Path) -> tuple[str, ...]:
    """Of brokers with the library of tests/faults/shim.py. `folder`: where it is built."""
    return ("/usr/bin/env", f"LD_PRELOAD={build(folder)}", "/bin/sh", "-c", _SCRIPT, "sh", *LAUNCHER)


def order(node: Node, **orders: float) -> None:
    Shim(Path(), node.folder / "orders", node.folder / "second").order(**orders)


def two_folders(broker: Path) -> str:
    """`log.dirs` of the broker in this folder: the usual one, and the one whose writes obey `order`."""
    return f"{broker / 'data'},{broker / 'second'}"


@contextmanager
def limited_memory(pid: int, name: str, limit_bytes: Callable[[], int]) -> Iterator[None]:
    """The process in a control group of its own, of either version. Raises OSError where none can be made."""
    root = Path("/sys/fs/cgroup")
    is_new = (root / "cgroup.controllers").exists()
    group = (root if is_new else root / "memory") / name
    group.mkdir()
    try:
        (group / ("memory.max" if is_new else "memory.limit_in_bytes")).write_text(str(limit_bytes()))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def findings(bootstrap: str, *options: str) -> list[str]:
    """Weight and words of each, the gravest first. Without `bootstrap`, `options` name the cluster."""
    words = [sys.executable, "-m", "barnabas", "doctor", "-f", "json", "--timeout", "20"]
    words += ["--bootstrap", bootstrap] if bootstrap else []
    told = subprocess.run(
        [*words, *options], capture_output=True, text=True, timeout=LIMIT_S, env=clean_environment(), check=False
    )
    assert "Traceback" not in told.stderr and told.stdout, told.stderr
    return [f"{item['weight']}: {item['what']}" for item in json.loads(told.stdout)["findings"]]


def wait_for_finding(bootstrap: str, *wanted: str, options: tuple[str, ...] = ()) -> None:
    """Beginnings of findings."""
    seen: list[Any] = []

    def is_told() -> bool:
        seen[:] = findings(bootstrap, *options)
        return all(any(what.startswith(text) for what in seen) for text in wanted)

    until(is_told, lambda: f"wanted {wanted}, told {seen}")


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def admins(cluster: Cluster) -> list[str]:
    """What Prometheus scrapes."""
    return [node.property("admin.listener").rpartition("/")[2] for node in cluster.nodes]
