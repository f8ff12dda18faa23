"""A flush of one log that is under way: what was taken together when it began, and is written while the log goes on.

`LogFlushes.begin` makes one, in the thread that owns the log; `perform` may run in any thread, since it touches
nothing but descriptors that it holds (a truncation or retention may take a file's name away, never the file);
`LogFlushes.finish` takes the outcome, in the owner's thread again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..disk.files import AppendFile
from ..vocabulary.errors import StorageError


@dataclass(slots=True, kw_only=True)
class PendingFlush:
    """When `perform` has succeeded, everything before `end_offset` is on the disk."""

    end_offset: int  # exclusive
    sealed: int  # segments that grow no more: each has up to four files
    is_whole: bool  # whether everything that was in the log is taken along; else another flush is to follow
    truncations: int  # of the log until then: one that comes in between makes the end offset void
    files: tuple[AppendFile, ...]
    sync_names: Callable[[], None]  # of the folder, and of files that were made or removed since the last flush
    save_epochs: Callable[[], None]
    error: StorageError | None = None
    is_epochs_error: bool = False

    def perform(self) -> None:
        """Never raises: an I/O error is kept in `error`. Then no byte is known to be on the disk."""
        try:
            for file in self.files:
                file.flush()
            self.sync_names()
        except StorageError as error:
            self.error = error
            return
        try:
            self.save_epochs()
        except StorageError as error:  # If the disk is full, the former file is still complete.
            self.error, self.is_epochs_error = error, True
