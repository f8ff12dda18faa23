"""`Rebalancing`: carries out what a group wants of a consumer, when the application asks for records.

In this order (KIP-429): lost partitions, then those to be given up, then the new ones. Lost means that others may have them
already: a commit would be refused. Those to be given up are still ours while `on_revoked` runs: auto-commit has come before it,
and it may commit as well. New ones have no position yet while `on_assigned` runs, so it may seek. A listener that raises holds
up nobody: the partitions go all the same, and its error comes out of the call that asked for records.
"""

from collections.abc import Callable

from barnabas.log.topic_partition import TopicPartition

from .commits import Commits
from .listener import Listeners, tell
from .reading import Reading
from .session import Session


class Rebalancing:
    def __init__(
        self,
        reading: Reading,
        commits: Commits,
        listeners: Listeners,
        *,
        auto_commit: bool,
        on_adopted: Callable[[list[TopicPartition]], None],
        find_positions: Callable[[], None],
    ) -> None:
        self._reading = reading
        self._commits = commits
        self._auto_commit = auto_commit
        self._listeners = listeners
        self._on_adopted = on_adopted
        self._find_positions = find_positions

    async def reconcile(self, session: Session) -> None:
        ownership = session.ownership
        if not ownership.has_change:
            return
        lost = sorted(ownership.take_lost())
        if lost:
            self._reading.drop(lost)
            await tell(self._listeners.lost, lost)
        change = ownership.change()
        if change.revoke:
            await self._revoke(session, sorted(change.revoke))
        adopt = sorted(change.adopt & ownership.change().adopt)  # It may have changed while we waited.
        if adopt:
            self._reading.add(adopt)
            ownership.adopted(adopt)
            session.wake()
            self._on_adopted(adopt)
            try:
                await tell(self._listeners.assigned, adopt)
            finally:
                self._find_positions()

    async def _revoke(self, session: Session, partitions: list[TopicPartition]) -> None:
        """Commit what is done, tell the application, then let go: only then may another member begin."""
        if self._auto_commit:
            await self._commits.commit_done(partitions)
        try:
            await tell(self._listeners.revoked, partitions)
        finally:
            self._reading.drop(partitions)
            session.ownership.revoked(partitions)
            session.wake()

    async def give_up_all(self) -> None:
        """Before leaving: the application may commit, as before any other revocation."""
        partitions = sorted(self._reading.states)
        if partitions:
            await tell(self._listeners.revoked, partitions)
