"""Where broker processes are started that end with this process: in its main thread, or in one that lives as long.

The kernel takes the thread that starts a process for its parent (prctl, PR_SET_PDEATHSIG). Those of `asyncio.to_thread` end with
their event loop, and would end the brokers that they have started.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
_THREADS: Final[dict[int, ThreadPoolExecutor]] = {}  # by process id: a forked child has no thread of its parent
_LOCK: Final = threading.Lock()


def in_lasting_thread(work: Callable[[], T]) -> T:
    """Returns or raises what `work` does."""
    if threading.current_thread() is threading.main_thread():
        return work()
    with _LOCK:
        if (process_id := os.getpid()) not in _THREADS:
            _THREADS[process_id] = ThreadPoolExecutor(1, thread_name_prefix="barnabas-starter")
    return _THREADS[process_id].submit(work).result()
