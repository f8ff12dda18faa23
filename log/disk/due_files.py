"""Files and folders that are removed after a delay (`file.delete.delay.ms`), because a reader may still use them."""

from collections.abc import Callable, Iterable

from ..vocabulary.errors import StorageError


class DueFiles:
    """Paths and the times from which they may be removed. `add` and `forget_below` may run while `remove_due` runs in another
    thread."""

    def __init__(self, remove: Callable[[str], None]) -> None:
        self._remove = remove
        self._due: dict[str, int] = {}

    def add(self, due_ms: int, *paths: str) -> None:
        self._due.update(dict.fromkeys(paths, due_ms))

    def forget_below(self, folder: str) -> None:
        for path in self._paths():
            if path.startswith(f"{folder}/"):
                self._due.pop(path, None)

    def remove_due(self, now_ms: int, *, below: str = "") -> None:
        """Remove what is due in that folder ("": in all); what cannot be removed stays for the next call. Raises the first
        StorageError, after the others are removed."""
        refused: StorageError | None = None
        for path in self._paths():
            if self._due.get(path, now_ms + 1) <= now_ms and (not below or path.startswith(f"{below}/")):
                try:
                    self._remove(path)
                    self._due.pop(path, None)
                except StorageError as error:
                    refused = refused or error
        if refused is not None:
            raise refused

    def _paths(self) -> Iterable[str]:
        return list(self._due)
