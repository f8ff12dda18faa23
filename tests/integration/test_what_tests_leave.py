"""The means of tests leave nothing open: another test would fail for it, the one in which the garbage collector runs."""

import subprocess
import sys
from pathlib import Path
from typing import cast

from integration.cluster import Cluster
from integration.test_spark_pipeline_kills import Command


def test_a_pipeline_that_is_killed_leaves_no_pipe_open(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    Command(cast(Cluster, None), tmp_path, "").kill(process)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.close()
    assert process.stdout.closed and process.stderr.closed
