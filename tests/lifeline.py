"""Processes that tests start end with the test process, even if that is killed with -9.

A variable of the environment marks them. All that they start inherit it, also daemons in a session of their own, below another
parent or on another host of a test network (Jenkins finds the processes of a build in the same way). This file is also the
program that kills them, when the test process is gone or writes to it.
A process that is started with an environment of its own must take the variables over.
"""

import atexit
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

END_TIMEOUT_S: Final = 30.0  # a process that was killed waits for its disk, at most
# A process that has just begun has no environment yet: for 7 ms, measured on a busy machine.
SETTLE_S: Final = 0.5
POLL_S: Final = 0.05
PREFIX: Final = "TESTS_END_"


@contextmanager
def held() -> Iterator[dict[str, str]]:
    """Variables for the environment of processes that end with this block, or with this process."""
    if sys.platform != "linux":  # without /proc
        yield {}
        return
    mark = {f"{PREFIX}{secrets.token_hex(8)}": "1"}
    # Its session and its folder are its own: Ctrl-C does not reach it, and it keeps no disk of a test busy.
    process_id = os.getpid()
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(process_id), *mark]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", start_new_session=True)
    try:
        yield mark
    finally:
        if os.getpid() == process_id:  # not in a fork
            holder.communicate(b"end", timeout=2 * END_TIMEOUT_S)


@cache
def hold_all() -> None:
    """All that this process starts from now on ends with it. Again, this does nothing."""
    stack = ExitStack()
    os.environ.update(stack.enter_context(held()))
    atexit.register(stack.close)


def _is_marked(process: Path, entry: bytes) -> bool:
    try:
        return entry in (process / "environ").read_bytes().split(b"\0")
    except (ProcessLookupError, FileNotFoundError, PermissionError):  # it has ended, or is another user's
        return False


def _open_marked(entry: bytes) -> Iterator[int]:
    """Descriptors of the processes with this entry in their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        if _is_marked(process, entry):
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(int(process.name))
                if _is_marked(process, entry):  # still, so the descriptor is not that of a later one with this id
                    yield descriptor
                else:
                    os.close(descriptor)


def end_marked(entry: bytes, deadline_s: float) -> bool:
    """Kill until none was found for a while, since one may start another in the meantime. Returns whether none is left."""
    settled_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        found = list(_open_marked(entry))
        for descriptor in found:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in found:
            select.select([descriptor], [], [], max(0.0, deadline_s - time.monotonic()))
            os.close(descriptor)
        if found:
            settled_s = time.monotonic() + SETTLE_S
        elif time.monotonic() > settled_s:
            return True
        time.sleep(POLL_S)
    return False


def await_end(process_id: int) -> None:
    """Return when this process, our parent, has ended or has written. Its pipe alone would not tell: its forks hold that, too."""
    descriptor = os.pidfd_open(process_id)
    if os.getppid() == process_id:  # still, so the descriptor is not that of a later process with this id
        select.select([descriptor, sys.stdin], [], [])


def main() -> int:
    process_id, mark = sys.argv[1:]
    with suppress(ProcessLookupError):
        await_end(int(process_id))
    if end_marked(f"{mark}=1".encode(), time.monotonic() + END_TIMEOUT_S):
        return 0
    print(f"processes with {mark} in /proc/*/environ do not end; look what they wait for", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
