"""Modules of Python steps on their way to workers, which do not have the pipeline's folder."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from barnabas.spark_connector.pipeline.steps import module_of

STEP = """
import step_factors
from step_more.deep import add


def double(number):
    return add(number * step_factors.FACTOR, 1)
"""
WORKER = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(20))"


def test_a_step_and_the_modules_that_it_imports_reach_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step_doubling.py").write_text(STEP)
    (tmp_path / "step_factors.py").write_text("FACTOR = 2\n")
    (tmp_path / "step_more").mkdir()
    (tmp_path / "step_more/__init__.py").write_text("")
    (tmp_path / "step_more/deep.py").write_text("def add(a, b):\n    return a + b\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    function = module_of("step_doubling", tmp_path.resolve()).double
    sent = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    worker = [sys.executable, "-c", WORKER]
    done = subprocess.run(worker, input=sent, capture_output=True, check=False, timeout=60, cwd="/")
    assert done.stdout.strip() == b"41", done.stderr.decode()
