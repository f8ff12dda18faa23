"""Commands that were passed to the quorum and whose outcome is open, with the requests that wait for them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from barnabas.log.vocabulary.errors import BarnabasError, NotControllerError, RequestTimedOutError
from barnabas.log.vocabulary.quorum import CommittedCommand

from ..quorum.quorum import AppendOutcome
from .controller_result import Respond
from .image import MetadataImage
from .records import Record

Answer = Callable[[object], None]
"""Gets a response value or a BarnabasError, exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A request that is answered when the command is committed. `wrote`: the command has records of this request."""

    answer: Answer
    respond: Respond
    wrote: bool

    def committed(self, index: int, image: MetadataImage) -> None:
        try:
            response = self.respond(index, image)
        except BarnabasError as error:
            response = error
        self.answer(response)

    def failed(self, outcome: AppendOutcome, leader_hint: str) -> None:
        # A decision on top of a discarded command was never written: this is definite, so the caller may try again.
        if outcome is AppendOutcome.UNKNOWN and self.wrote:
            self.answer(RequestTimedOutError("the controller lost its leadership; the change may or may not be made"))
        else:
            self.answer(
                NotControllerError(f"the controller lost its leadership before the change was made{leader_hint}")
            )


@dataclass(slots=True, kw_only=True, eq=False)
class PendingAppend:
    """One appended command. Settled exactly once: by its commit or by its outcome."""

    term: int
    claim: int  # how often this node had claimed leadership: only appends after its last claim are in the overlay
    command: bytes
    records: tuple[Record, ...]
    is_claim: bool = False  # the first record of a term, after which this node decides
    waiters: list[Waiter] = field(default_factory=list)
    settled: bool = False


class PendingAppends:
    """By term, in the order of appending: the quorum commits the commands of one term in that order."""

    def __init__(self) -> None:
        self._by_term: dict[int, deque[PendingAppend]] = {}
        self.record_count = 0
        self._last_piece: PendingAppend | None = None

    def note_piece(self, term: int) -> None:
        """The newest append of the term ends a large piece of maintenance."""
        self._last_piece = self.newest(term)

    def has_open_piece(self, term: int, claim: int) -> bool:
        """Each commit replays all that still waits: so there is one large piece of maintenance at a time."""
        piece = self._last_piece
        return piece is not None and not piece.settled and (piece.term, piece.claim) == (term, claim)

    def add(self, pending: PendingAppend) -> None:
        self._by_term.setdefault(pending.term, deque()).append(pending)
        self.record_count += len(pending.records)

    def newest(self, term: int) -> PendingAppend | None:
        queue = self._by_term.get(term)
        return queue[-1] if queue else None

    def since(self, term: int, claim: int) -> tuple[PendingAppend, ...]:
        """The appends of a term since that claim (inclusive)."""
        return tuple(pending for pending in self._by_term.get(term, ()) if pending.claim == claim)

    def match(self, committed: CommittedCommand) -> PendingAppend | None:
        """Remove the append that this commit belongs to; nearly always the oldest of its term."""
        for pending in self._by_term.get(committed.term, ()):
            if pending.command == committed.command:
                self.remove(pending)
                return pending
        return None

    def remove(self, pending: PendingAppend) -> None:
        """Mark it as settled; it must not be settled already."""
        assert not pending.settled
        pending.settled = True
        queue = self._by_term[pending.term]
        queue.remove(pending)
        self.record_count -= len(pending.records)
        if not queue:
            del self._by_term[pending.term]
