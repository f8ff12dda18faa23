"""The metadata feed: committed commands for observers (brokers without a vote), or a snapshot if they are too far behind.

The newest commands are kept in a ring of a limited size; an observer that asks for older ones starts from a snapshot.
"""

from collections import deque
from dataclasses import dataclass

from barnabas.log.vocabulary.quorum import CommittedCommand

# Half a minute of a busy cluster; after a longer absence, a snapshot is equally fast. Every voter keeps the ring in memory.
MAX_RING_BYTES = 8 * 1024 * 1024
MAX_RING_COMMANDS = 20_000  # small commands cost more than their bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFeed:
    """One answer to an observer: a snapshot and the index that it covers, or commands; neither when there is nothing new."""

    commands: tuple[CommittedCommand, ...] = ()
    snapshot_index: int | None = None
    snapshot: tuple[bytes, ...] = ()


class FeedRing:
    """Committed commands after `floor`, without gaps."""

    def __init__(self, *, max_bytes: int = MAX_RING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._commands: deque[CommittedCommand] = deque()
        self._size_bytes = 0
        self._floor = 0  # the ring holds every command with a larger index

    def append(self, command: CommittedCommand) -> None:
        assert not self._commands or command.index > self._commands[-1].index
        self._commands.append(command)
        self._size_bytes += len(command.command)
        while self._size_bytes > self._max_bytes or len(self._commands) > MAX_RING_COMMANDS:
            dropped = self._commands.popleft()
            self._size_bytes -= len(dropped.command)
            self._floor = dropped.index

    def restart(self, index: int) -> None:
        """A snapshot replaced everything up to `index`."""
        self._commands.clear()
        self._size_bytes = 0
        self._floor = index

    def after(self, offset: int, max_bytes: int) -> tuple[CommittedCommand, ...] | None:
        """Commands after `offset`, at least one if there is one; None if some of them are not in the ring any more."""
        if offset < self._floor:
            return None
        found: deque[CommittedCommand] = deque()
        for command in reversed(self._commands):  # an observer is usually a few commands behind
            if command.index <= offset:
                break
            found.appendleft(command)
        taken: list[CommittedCommand] = []
        size_bytes = 0
        for command in found:
            size_bytes += len(command.command)
            if taken and size_bytes > max_bytes:
                break
            taken.append(command)
        return tuple(taken)
