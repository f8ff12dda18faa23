"""Daemons that end with the test process, even if that is killed with -9: `held` runs a command whose daemons stay until then.

Between the two stands this file as a program. The kernel gives it the orphans below it as its own children (a subreaper), and its
standard input ends when the test process is gone. Then it kills all of them.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

END_TIMEOUT_S: Final = 30.0
_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h


@contextmanager
def held(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Run a command that leaves daemons; gives its output and its errors when it has ended. At the end its daemons are killed."""
    with (folder / "errors.txt").open("w+", encoding="utf-8") as errors:
        holder = subprocess.Popen(
            [sys.executable, "-P", __file__, *command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert holder.stdin is not None and holder.stdout is not None
        try:
            output = holder.stdout.read()  # the daemons must not hold it, as those of `barnabas up` do not
            errors.seek(0)
            yield output, errors.read()
        finally:
            holder.stdin.close()
            holder.stdout.close()
            holder.wait(END_TIMEOUT_S)


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()]


def main() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")
    subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    with open(os.devnull, "wb") as nothing:
        for descriptor in (1, 2):
            os.dup2(nothing.fileno(), descriptor)  # the output ends with the command
    sys.stdin.read()
    while (
        found := children()
    ):  # A process that dies leaves us its own children, so this ends when no descendant is left.
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
