"""The ports of consensus to the shell: time, randomness, messages, the next step, event reports, and a disk."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from ...quorum.config import RaftTiming
from ...quorum.journal_format import Entry
from ...quorum.snapshot_format import Snapshot
from ...quorum.voters import VoterSet
from ..protocol.messages import Message


class Severity(IntEnum):
    """The numbers of the logging module."""

    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


@dataclass(frozen=True, slots=True)
class RaftEvent:
    """`text` is one line, `what key=value`. `error` has the traceback of an internal error."""

    severity: Severity
    text: str
    error: Exception | None = None


Report = Callable[[RaftEvent], None]


def info(text: str) -> RaftEvent:
    return RaftEvent(Severity.INFO, text)


def warning(text: str) -> RaftEvent:
    return RaftEvent(Severity.WARNING, text)


def error(text: str) -> RaftEvent:
    return RaftEvent(Severity.ERROR, text)


class Journal(Protocol):
    """The entries. Invariant: `durable_index` <= `last_index`, and every entry up to it is on disk. Writing may raise."""

    on_durable: Callable[[], None] | None  # called when `durable_index` may have moved

    @property
    def first_index(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def last_term(self) -> int: ...

    @property
    def durable_index(self) -> int: ...

    def term_at(self, index: int) -> int: ...

    def entries_from(self, index: int, limit: int) -> list[Entry]: ...

    def at_position(self, position: int) -> Entry:
        """As in a list: 0 is the first entry that is left, -1 the last one."""

    def __len__(self) -> int: ...

    def add(self, command: bytes, index: int, term: int) -> None: ...

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on."""

    def trim_to(self, index: int) -> None:
        """Remove the entries before `index`. Durable on return."""

    def reconcile(self, last_index: int, last_term: int, prev: Entry, last: Entry) -> None:
        """Fit the entries to a snapshot that ends with `last`. Durable on return."""

    def sync_soon(self) -> None: ...

    def mark_durable(self) -> None:
        """Now and then: mark on the disk what is durable."""

    def halt(self) -> None:
        """Write nothing more, term and vote neither."""


class HardState(Protocol):
    """Term, vote, and whether this voter may have forgotten what it knew. Writing may raise."""

    @property
    def term(self) -> int: ...

    @property
    def voted_for(self) -> int | None: ...

    @property
    def commit_index(self) -> int:
        """A past commit index; the journal may have lost its tail since then."""

    @property
    def blank(self) -> bool: ...

    def set_term(self, term: int, voted_for: int | None) -> None:
        """Durable on return."""

    def clear_blank(self) -> None:
        """Durable on return."""

    def note_commit(self, index: int) -> None:
        """It is stored with the next write."""


class Snapshots(Protocol):
    """The newest snapshot, and at most one that is being packed."""

    def read(self) -> bytes | None: ...

    def install(self, snapshot: Snapshot) -> None:
        """Durable on return."""

    @property
    def size_bytes(self) -> int:
        """Of the newest snapshot; 0 if there is none."""

    @property
    def may_begin(self) -> bool: ...

    def begin(self, last: Entry, prev: Entry, pack: Callable[[], Iterable[bytes]], voters: VoterSet | None) -> None:
        """Store what `pack` yields, a view of the state after `last`, without blocking the caller."""

    def take_finished(self) -> int | None:
        """Once after each success: the index up to which (exclusive) the journal is no longer needed."""


class MessageTransport(Protocol):
    def set_peers(self, peers: dict[int, tuple[str, int]]) -> None:
        """Keep links to these, at these addresses, and to no other node."""

    def send(self, peer_id: int, message: Message) -> bool: ...

    def flush(self) -> None:
        """Send now what `send` has taken: others wait for it, and it need not wait for a pass of the loop."""

    def backlog_bytes(self, peer_id: int) -> int: ...


def send_to_all(transport: MessageTransport, peer_ids: Iterable[int], message: Message) -> None:
    """Send one message to each of these peers; a peer without a link does not get it."""
    for peer_id in peer_ids:
        transport.send(peer_id, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """`wake` asks for a step soon, `wake_later` for one after a delay in seconds."""

    transport: MessageTransport
    clock: Callable[[], float]
    rng: random.Random
    timing: RaftTiming
    wake: Callable[[], None]
    wake_later: Callable[[float], None]
    report: Report
