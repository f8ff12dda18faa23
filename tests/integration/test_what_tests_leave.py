"""The means of tests leave nothing open: another test would fail for it, the one in which the garbage collector runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

from integration.cluster import Cluster
from integration.test_spark_pipeline_kills import Command

TESTS = Path(__file__).resolve().parents[1]
LEAVES = """
class Held:
    def __init__(self):
        self.itself, self.file = self, open(__file__)

def test_that_leaves_a_file_open():
    Held()

def test_that_comes_later():
    import gc
    gc.collect()
"""


def test_the_test_that_left_something_is_named(tmp_path: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_inner.py").write_text(LEAVES)
    words = [sys.executable, "-P", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_inner.py"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "BARNABAS_COLLECT_AFTER_EACH_TEST": "1"}
    told = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100).stdout
    assert "ERROR test_inner.py::test_that_leaves_a_file_open" in told and "2 passed, 1 error" in told, told


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
