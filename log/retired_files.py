"""Files that are no part of a log any more and stay for a while: who opened one late may still read it."""

from collections.abc import Iterable

from .files import Files


class RetiredFiles:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._due: list[tuple[int, str]] = []

    def add(self, paths: Iterable[str], due_ms: int) -> None:
        self._due += [(due_ms, path) for path in paths]

    def remove_due(self, now_ms: int) -> None:
        """May run in another thread than `add`: unlinking a gigabyte takes time."""
        for entry in [entry for entry in self._due if entry[0] <= now_ms]:
            self._files.remove(entry[1])
            self._due.remove(entry)
