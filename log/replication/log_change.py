"""A change of a replica's log that waits for the disk: a truncation, starting over, or setting damage aside.

It flushes, renames and reads, so a thread of its folder performs it (`net/base/folder_writers`) and not the broker's loop. From
the decision until `Partition.log_changed` gets the result, only that thread uses the log: the replica does not fetch, append or
serve reads, and defers the newest assignment of a role. This is equivalent to a change that took no time, with everything else
later, which the rules of KIP-101, KIP-279 and KIP-595 allow. A change that is dropped (the broker stops) is equivalent to one
that was never decided: the leader's next response is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..vocabulary.errors import BarnabasError


@dataclass(slots=True, kw_only=True, eq=False)
class LogChange:
    """One change of one log. `perform` is called at most once, in any thread."""

    what: str  # for the broker's log messages
    work: Callable[[], object]
    error: BarnabasError | None = None

    def perform(self) -> None:
        """Never raises a BarnabasError: it is stored in `error`."""
        try:
            self.work()
        except BarnabasError as error:
            self.error = error
