"""Brokers of an older version, and the step of a rolling upgrade.

An older version is the last release, or a commit of the past. It runs as it was then, with the packages of today.
"""

import asyncio
import io
import signal
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest
from integration.cluster import Cluster, full_isr
from tidy.source_tree import ROOT

from barnabas.net.base.local.local_cluster import LAUNCHER

STOP_S: Final = 45
_FOLDERS: Final = ("consumer_groups", "kraft", "log", "net")


def last_release() -> str | None:
    """The tag of the release before this commit; None: there is none, or the history was not cloned."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    return done.stdout.strip() or None


def older_launcher(commit: str, tree: Path) -> tuple[str, ...]:
    """Starts a broker of this commit; its package is put together in `tree` as setuptools would. Skips the test where the history
    was not cloned."""
    done = subprocess.run(
        ["git", "archive", commit, "scripts/barnabas", *_FOLDERS], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"this clone has no commit {commit}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(tree)
    package = tree / "package" / "barnabas"
    package.parent.mkdir()
    (tree / "scripts/barnabas").rename(package)
    for name in _FOLDERS:
        (tree / name).rename(package / name)
    return ("env", f"PYTHONPATH={package.parent}", *LAUNCHER)


async def roll(cluster: Cluster, node_id: int, launcher: tuple[str, ...], topics: tuple[str, ...] = ("t",)) -> None:
    """As docs/upgrade.md says: stop one broker, start it with the other version, wait until nothing is missing."""
    node = cluster.nodes[node_id]
    node.signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.process.wait, STOP_S) == 0
    node.launcher = launcher
    node.launch()
    await cluster.ready()
    async with cluster.admin() as admin:
        await full_isr(admin, list(topics))
