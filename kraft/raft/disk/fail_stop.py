"""The end of all writing after a write or flush that failed.

Nothing is tried again: the kernel has dropped the dirty pages, and a second flush would report success for lost data
("fsyncgate"). So the process must stop.
"""

from collections.abc import Callable

from barnabas.log.vocabulary.errors import StorageError

from ...quorum.quorum import FatalHandler


class FailStop:
    """Invariant: `fatal` is called at most once, and not after `halt`. Callers check `halted` before they write."""

    def __init__(self, fatal: FatalHandler) -> None:
        self._fatal = fatal
        self.halted = False

    def halt(self) -> None:
        """Write and flush nothing more."""
        self.halted = True

    def fail(self, error: BaseException) -> None:
        if not self.halted:
            self.halted = True
            self._fatal(f"the quorum's journal cannot be written: {error}")

    def guarded(self, work: Callable[[], None]) -> None:
        """Run a write; what fails is fatal, and the caller must not go on as if it had happened. Raises StorageError."""
        try:
            work()
        except StorageError as error:
            self.fail(error)
            raise
