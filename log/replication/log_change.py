"""A change of a replica's log that waits for its disk: a truncation, a start over, damage that is set aside.

It flushes, renames and reads, so a thread of its folder performs it (`net/base/folder_writers`) and not the broker's loop. From
the moment in which it is decided until `Partition.log_changed` takes its outcome the log belongs to that thread: the replica
asks for nothing, appends nothing, is read by nobody, and puts off the newest assignment of a role. That is the same as if the
change had taken no time and everything else had come later, which the rules of KIP-101, KIP-279 and KIP-595 allow. A change that
is dropped (the broker stops) is as good as one that was never decided: the leader answers alike the next time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..vocabulary.errors import BarnabasError


@dataclass(slots=True, kw_only=True, eq=False)
class LogChange:
    """One change of one log. `perform` is called at most once, in any thread."""

    what: str  # for the broker's own log
    work: Callable[[], object]
    error: BarnabasError | None = None

    def perform(self) -> None:
        """Never raises a BarnabasError: a refusal is kept in `error`."""
        try:
            self.work()
        except BarnabasError as error:
            self.error = error
