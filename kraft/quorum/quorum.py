"""The quorum as the rest of `kraft` sees it: an ordered log of opaque commands that a majority has on disk.

`raft.quorum` implements this port with pysyncobj; `InMemoryQuorum` (memory_quorum) is its twin for tests. All calls into
and out of a quorum happen in one thread (its own loop in a broker, the only loop in simulation), never reentrantly:
`append` never calls the listener before it returns.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from barnabas.log.vocabulary.quorum import CommittedCommand

# Called once with the reason why this process must stop: data that it acknowledged may not be durable. It may return.
FatalHandler = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The leadership as this node knows it. It never authorizes a decision: only a committed record does."""

    leader_id: int | None
    term: int
    is_self: bool


class AppendOutcome(Enum):
    COMMITTED = "committed"
    NOT_APPENDED = "not appended"  # definite: this node does not lead in that term
    DISCARDED = "discarded"  # definite: another leader overwrote it
    UNKNOWN = "unknown"  # it may or may not be committed later


class QuorumListener(Protocol):
    """The state machine above the quorum. None of these may raise: a command that cannot be applied stops the process."""

    def committed(self, commands: list[CommittedCommand]) -> None:
        """Commands in order, each exactly once since the last `restore`. Called before the outcomes of their appends."""

    def restore(self, index: int, chunks: Iterable[bytes]) -> None:
        """Replace all state by a snapshot that covers everything up to `index` (inclusive)."""

    def snapshot(self) -> Callable[[], Iterable[bytes]]:
        """Take a consistent view of the state now (cheaply); the returned function packs it into chunks later, in another
        thread."""

    def leadership_changed(self, leadership: Leadership) -> None:
        """The leader, the term or both are new. When a node has become leader it should append a record of its term."""


class Quorum(Protocol):
    """An ordered, replicated, durable log of commands."""

    def append(
        self, command: bytes, *, term: int, done: Callable[[AppendOutcome], None], others_wait: bool = True
    ) -> None:
        """Append in `term` only. `done` is called exactly once, later, after `committed` if it was committed.

        `others_wait`: other nodes learn of the commit at once; if not, with the next message, less than half a heartbeat later.

        Raises InvalidRequestError for a command over the size limit.
        """

    @property
    def leadership(self) -> Leadership: ...

    @property
    def committed_index(self) -> int:
        """The highest index that has been handed to the listener."""
