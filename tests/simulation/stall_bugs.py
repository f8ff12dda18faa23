"""Bugs of brokers whose disks are slow or hang, found by `stall_history` and `flush_history`."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from barnabas.log.replication.guarded_log import GuardedLog
from barnabas.net.logs.log_service import LogService
from barnabas.net.metadata.loop_watch import LoopWatch

from .flush_history import run_flush_history
from .planted import passed, planted
from .stall_history import run_stall_history


@contextlib.contextmanager
def _a_silent_loop_is_not_noticed() -> Iterator[None]:
    """The watchdog is gone."""
    with patch.object(LoopWatch, "is_silent", property(lambda self: False)):
        yield


@contextlib.contextmanager
def _high_watermarks_are_written_on_the_loop() -> Iterator[None]:
    """The checkpoint waits for the disk where clients wait."""

    def checkpoint(self: Any) -> None:
        for folder in self._logs.folders:
            self._logs.checkpoints.note_high_watermarks(folder)
            self._logs.checkpoints.write_high_watermarks(folder)

    with patch.object(LogService, "_checkpoint_high_watermarks", checkpoint):
        yield


@contextlib.contextmanager
def _acknowledges_before_the_flush() -> Iterator[None]:
    """What is in the page cache counts, and the flush follows."""
    with patch.object(GuardedLog, "durable_end_offset", property(lambda self: self.log.log_end_offset)):
        yield


BUGS = [
    *planted(
        "stalls",
        lambda seed: passed(run_stall_history(seed)),
        {"a silent loop is not noticed": _a_silent_loop_is_not_noticed},
        told="takes no records",
    ),
    *planted(
        "stalls",
        lambda seed: passed(run_stall_history(seed)),
        {"high watermarks are written on the loop": _high_watermarks_are_written_on_the_loop},
        told="waits for its disk",
    ),
    *planted(
        "flushes",
        lambda seed: passed(run_flush_history(seed)),
        {"an acknowledgement before the flush": _acknowledges_before_the_flush},
    ),
]
