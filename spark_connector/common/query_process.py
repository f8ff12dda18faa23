"""The process in which Spark plans the micro-batches of a stream."""

import signal
import sys
import threading


def stop_on_sigterm() -> None:
    """Spark ends the query's process by SIGTERM; turning that into an exit lets Spark call `stop`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
