"""Work in a forked child: what this process has imported already costs the child nothing, and what the child does ends with it.

The parent imports other people's packages only (`warm`): the modules of the tree must be imported by the child, because they
differ from mutant to mutant.
"""

import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

WARM = (
    "pytest", "_pytest.assertion.rewrite", "pytest_asyncio.plugin", "pytest_timeout", "hypothesis", "hypothesis.stateful",
    "hypothesis.internal.conjecture.engine", "coverage", "aiohttp", "aiohttp.web", "aiokafka", "aiokafka.record.default_records",
    "cramjam", "crc32c", "lz4.frame", "zstandard", "msgpack", "re2", "pysyncobj", "kafka", "asyncio", "concurrent.futures",
)  # fmt: skip
# A mutant may grow without end: no child gets more memory than this. The largest test needs a tenth of it.
MEMORY_LIMIT_BYTES = 4 << 30
VERBOSE = "MUTANTS_VERBOSE"  # set in the environment: children keep their output


def warm() -> None:
    for name in WARM:
        importlib.import_module(name)


def run_forked(work: Callable[[], object], folder: Path, limit_s: float) -> object:
    """What `work` returns, as JSON brings it over; None where it took longer than `limit_s` or the child died.

    The child and its children are killed afterwards: a mutant may leave processes behind.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_child(work, folder, writing)
    os.close(writing)
    received = _read_all(reading, limit_s)
    os.close(reading)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it had no time to become the leader of its group, or is gone
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return json.loads(received) if received else None


def _read_all(reading: int, limit_s: float) -> bytes:
    deadline, received = time.monotonic() + limit_s, b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        piece = os.read(reading, 1 << 16)
        if not piece:
            return received
        received += piece


def _be_child(work: Callable[[], object], folder: Path, writing: int) -> None:
    try:
        os.setsid()
        if VERBOSE not in os.environ:
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
        os.chdir(folder)
        places = [str(folder / "path"), str(folder / "tests")]
        sys.path[:0] = places
        os.environ["PYTHONPATH"] = ":".join(places)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        answer = json.dumps(work()).encode()
        with open(writing, "wb") as pipe:
            pipe.write(answer)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
