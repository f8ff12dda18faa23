"""The leader epochs of a partition and the file that stores them, `leader-epoch-checkpoint`.

The file is written when the log is flushed and when it is truncated, not with each new epoch: epochs that it lacks are in the
batches after the recovery point, which recovery reads.
"""

import threading
from typing import Protocol

from ..disk.files import Files
from . import checkpoint
from .leader_epoch_cache import EpochStart, LeaderEpochCache


class Folder(Protocol):
    path: str
    is_gone: bool  # it has another name, and a new log may have the former one


class SavedEpochs:
    """`cache` has the content of the file. If that is damaged, it is empty, `is_sound` is False, and the log must be scanned."""

    def __init__(self, files: Files, folder: Folder) -> None:
        self._files = files
        self._folder = folder
        self._path = f"{folder.path}/{checkpoint.LEADER_EPOCHS}"
        self._lock = threading.Lock()  # a flush in another thread saves as well
        self._saved: tuple[EpochStart, ...] | None = None
        self._is_cut = False  # the file may contain epochs that were truncated
        self.is_sound = True
        self.cache = LeaderEpochCache()
        try:
            self.cache = LeaderEpochCache(checkpoint.read_epochs(files, self._path))
            self._saved = self.cache.entries
        except checkpoint.DamagedCheckpointError:
            # Every batch carries its epoch, so a scan of the whole log rebuilds the file.
            self.is_sound = False

    def save(self) -> None:
        """Write the file if its content has changed."""
        with self._lock:
            if self._folder.is_gone:
                return
            entries = self.cache.entries
            if entries != self._saved:
                checkpoint.write_epochs(self._files, self._path, entries)
                self._saved = entries
            self._is_cut = False

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that began at or after `end_offset`, durably. Raises StorageError; the caller may then repeat it."""
        self._is_cut |= self.cache.truncate_from_end(end_offset)
        if self._is_cut:
            self.save()
