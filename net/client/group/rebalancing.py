"""`Rebalancing`: carries out assignment changes of a consumer, when the application asks for records.

In this order (KIP-429): lost partitions, then those to be given up, then the new ones. Lost means that others may have them
already: a commit would be refused. Those to be given up are still ours while `on_revoked` runs: auto-commit has come before it,
and it may commit as well. New ones have no position yet while `on_assigned` runs, so it may seek. A listener that raises holds
up no other change: the partitions are revoked anyway, and the call that asked for records raises its error.

The commit before a revocation may take long, if the coordinator is away. The call that asked for records does not wait for it
beyond its own time; the next one goes on waiting. No records are handed out meanwhile, so that the commit is the last word.
"""

import asyncio
from collections.abc import Callable

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..positions.reading import Reading
from .commits import Commits
from .listener import Listener, Listeners, tell
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
        self._others: list[Listeners] = []
        self._on_adopted = on_adopted
        self._find_positions = find_positions
        self._leaving: list[TopicPartition] = []  # Those that `_committing` is about.
        self._committing: asyncio.Future[None] | None = None

    def add_listeners(self, listeners: Listeners) -> Callable[[], None]:
        """Tell these, too, before the application's own. Returns a function that stops it."""
        self._others.append(listeners)
        return lambda: self._others.remove(listeners)

    def _all_listeners(self) -> list[Listeners]:
        return [*self._others, self._listeners]

    @staticmethod
    async def _tell(listeners: list[Listener | None], partitions: list[TopicPartition]) -> None:
        """Tell all of them; then raise the first error."""
        errors: list[Exception] = []
        for listener in listeners:
            try:
                await tell(listener, partitions)
            except Exception as error:  # noqa: BLE001 - whatever the application raises
                errors.append(error)
        if errors:
            raise errors[0]

    async def reconcile(self, session: Session, *, patience_ms: float) -> bool:
        """False: partitions are to be given up, and the commit before that is still under way."""
        ownership = session.ownership
        if not ownership.has_change:
            self._committing = None  # They stay after all: when they leave one day, more of them is done.
            return True
        lost = sorted(ownership.take_lost())
        if lost:
            self._reading.drop(lost)
            await self._tell([item.lost for item in self._all_listeners()], lost)
        change = ownership.change()
        if change.revoke:
            leaving = sorted(change.revoke)
            if self._auto_commit and not await self._is_committed(leaving, patience_ms):
                return False
            await self._revoke(session, leaving)
        else:
            self._committing = None
        adopt = sorted(change.adopt & ownership.change().adopt)  # It may have changed while we waited.
        if adopt:
            self._reading.add(adopt)
            told = ownership.take_told(adopt)
            # A listener may commit other offsets, or wait for a commit: they are asked for when it is through.
            if not any(item.assigned for item in self._all_listeners()):
                self._reading.tell(told)
            ownership.adopted(adopt)
            session.wake()
            self._on_adopted(adopt)
            try:
                await self._tell([item.assigned for item in self._all_listeners()], adopt)
            finally:
                self._find_positions()
        return True

    async def _is_committed(self, partitions: list[TopicPartition], patience_ms: float) -> bool:
        """Whether what is done of them is committed, or has failed for good; waits that long for it."""
        if self._committing is None or self._leaving != partitions:
            self._leaving, self._committing = partitions, self._commits.begin_done(partitions)
        await asyncio.wait([self._committing], timeout=max(patience_ms, 0) / 1000)
        if not self._committing.done():
            return False
        self._committing = None
        return True

    async def _revoke(self, session: Session, partitions: list[TopicPartition]) -> None:
        """Tell the application, then let go: only then may another member begin."""
        try:
            await self._tell([item.revoked for item in self._all_listeners()], partitions)
        finally:
            self._reading.drop(partitions)
            session.ownership.revoked(partitions)
            session.wake()

    async def give_up_all(self) -> None:
        """Before leaving: the application may commit, as before any other revocation."""
        partitions = sorted(self._reading.states)
        if partitions:
            await self._tell([item.revoked for item in self._all_listeners()], partitions)
