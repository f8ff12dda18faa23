"""Term, vote and commit index of a voter (etcd's HardState), and whether it is blank, as the quorum changes them."""

from .fail_stop import FailStop
from .meta import MetaStore


class DurableHardState:
    """Invariant: term, vote and the blank flag are on disk. The commit index goes along with the next write of these."""

    def __init__(self, store: MetaStore, stop: FailStop) -> None:
        self._store = store
        self._stop = stop
        self._commit_index = store.current.commit_index

    @property
    def exists(self) -> bool:
        """Whether this voter has ever stored anything."""
        return self._store.found

    @property
    def term(self) -> int:
        return self._store.current.raft_term

    @property
    def voted_for(self) -> int | None:
        return self._store.current.voted_for

    @property
    def commit_index(self) -> int:
        """It was true once; the journal may have lost its end since."""
        return self._commit_index

    @property
    def blank(self) -> bool:
        """This voter may have forgotten what it knew."""
        return self._store.current.blank

    def begin(self) -> None:
        """The state of a voter that has never taken part. Durable on return."""
        self._write(self.term, self.voted_for, blank=True)

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Durable on return. Raises StorageError."""
        self._stop.guarded(lambda: self._write(term, voted_for, blank=self.blank))

    def clear_blank(self) -> None:
        """Durable on return: from now on this voter's silence means nothing was forgotten."""
        self._write(self.term, self.voted_for, blank=False)

    def note_commit(self, index: int) -> None:
        self._commit_index = index

    def close(self) -> None:
        """The commit index, too."""
        if self._commit_index != self._store.current.commit_index:
            self._write(self.term, self.voted_for, blank=self.blank)

    def _write(self, term: int, voted_for: int | None, *, blank: bool) -> None:
        self._store.store(raft_term=term, voted_for=voted_for, commit_index=self._commit_index, blank=blank)
