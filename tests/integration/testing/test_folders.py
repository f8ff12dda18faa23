"""A program that ends without closing its cluster leaves no data behind."""

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os
from barnabas.testing import Cluster
if __name__ == "__main__":
    cluster = Cluster(brokers=1, backend={backend!r}).start()
    print(cluster._parts.folder)
    if {forks} and os.fork() == 0:
        raise SystemExit  # A child ends as a process does, and the cluster is not its own.
    if {forks}:
        os.wait()
        print(cluster._parts.folder.exists())
"""


@pytest.mark.parametrize(("backend", "forks"), [("in-process", False), ("processes", False), ("in-process", True)])
def test_a_program_that_closes_no_cluster_leaves_no_folder(backend: str, forks: bool) -> None:
    program = _PROGRAM.format(backend=backend, forks=forks)
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.split()
    assert not Path(lines[0]).exists()
    assert lines[1:] == (["True"] if forks else [])
