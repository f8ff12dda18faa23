"""What tests start in the background ends with them, also after kill -9 of pytest."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .lifeline import held

TESTS = Path(__file__).resolve().parents[1]
END_S = 60
# As `barnabas up --detach`: the daemon has a session of its own, and its parent is gone. It holds the fifo open until it ends.
DAEMON = """
import subprocess, sys
with open(sys.argv[1], "w") as fifo:
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"], stdout=fifo, start_new_session=True)
print("started")
"""
INNER = """
import os, sys
from pathlib import Path
from tidy.lifeline import held

def test_that_hangs(tmp_path):
    with held([sys.executable, "-c", {daemon!r}, {fifo!r}], tmp_path, os.environ) as (output, errors):
        assert output == "started\\n", errors
        Path({ready!r}).write_text("ready")
        with open({fifo!r} + "-for-ever") as never:
            never.read()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted with prctl")


def test_daemons_end_with_the_test(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with held([sys.executable, "-c", DAEMON, str(fifo)], tmp_path, os.environ) as (output, errors):
            assert output == "started\n", errors
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)  # it runs
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_daemons_end_with_a_pytest_that_is_killed(tmp_path: Path) -> None:
    fifo, ready = tmp_path / "fifo", tmp_path / "ready"
    for path in (fifo, Path(f"{fifo}-for-ever"), ready):
        os.mkfifo(path)
    text = INNER.format(daemon=DAEMON, fifo=str(fifo), ready=str(ready))
    (tmp_path / "test_inner.py").write_text(text)
    words = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with (tmp_path / "inner.txt").open("w") as output:
        inner = subprocess.Popen([*words, "test_inner.py"], cwd=tmp_path, env=environment, stdout=output, stderr=output)
    try:
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(reader, "rb") as end:
            assert ready.read_text() == "ready"
            inner.send_signal(signal.SIGKILL)
            inner.wait(END_S)
            os.set_blocking(reader, True)
            assert end.read() == b""  # returns when the daemon is gone
    finally:
        inner.kill()
        inner.wait()
