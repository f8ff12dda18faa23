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


def test_what_an_environment_in_the_folder_has_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have packages themselves; some of them cannot be pickled."""
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/step_package.py").write_text("def three():\n    return 3\n")
    (tmp_path / "step_calling.py").write_text("import step_package\n\n\ndef call():\n    return step_package.three()\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "environment"), *sys.path])
    monkeypatch.setattr(sys, "prefix", str(tmp_path.resolve() / "environment"))
    sent = cloudpickle.dumps(module_of("step_calling", tmp_path.resolve()).call)  # type: ignore[no-untyped-call]
    done = subprocess.run(
        [sys.executable, "-c", WORKER.replace("(20)", "()")], input=sent, capture_output=True, timeout=60, cwd="/"
    )
    assert b"No module named 'step_package'" in done.stderr
