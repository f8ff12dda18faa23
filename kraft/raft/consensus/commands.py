"""Commands on their way into the log, and the outcomes that their senders get."""

from collections import deque
from collections.abc import Callable

from barnabas.log.vocabulary.errors import InvalidRequestError

from ...quorum.config import (
    MAX_APPENDS_PER_STEP,
    MAX_COMMAND_BYTES,
    MAX_PENDING_BYTES,
    MAX_PENDING_COMMANDS,
)
from ...quorum.journal_format import NO_OP, REGULAR
from ...quorum.quorum import AppendOutcome
from .engine import PysyncobjEngine
from .ports import Journal, Ports

Done = Callable[[AppendOutcome], None]


class Commands:
    """Invariant: every `done` is in exactly one of `queue`, `_waiting` and `outcomes`, or was called."""

    def __init__(self, engine: PysyncobjEngine, journal: Journal, ports: Ports) -> None:
        self._engine = engine
        self._journal = journal
        self._wake = ports.wake
        # command (None: a no-op), term, done, others_wait
        self.queue: deque[tuple[bytes | None, int, Done, bool]] = deque()
        self._queued_bytes = 0
        self._waiting: dict[int, list[tuple[int, Done]]] = {}  # by index: the term it was appended in
        self._waiting_count = 0
        # index -> term: no other node waits for its commit; some of those in `_waiting`
        self._quiet: dict[int, int] = {}
        self.outcomes: deque[tuple[Done, AppendOutcome]] = deque()
        self._is_closed = False

    def submit(self, command: bytes | None, term: int, done: Done, *, others_wait: bool = True) -> None:
        """`None` appends a no-op. `others_wait`: as in `Quorum.append`. Raises InvalidRequestError for too long a command."""
        size_bytes = len(command) if command is not None else 0
        if size_bytes > MAX_COMMAND_BYTES:
            raise InvalidRequestError(
                f"a metadata command has {size_bytes} bytes; at most {MAX_COMMAND_BYTES} are allowed: split it"
            )
        pending = len(self.queue) + self._waiting_count
        if self._is_closed or pending >= MAX_PENDING_COMMANDS or self._queued_bytes + size_bytes > MAX_PENDING_BYTES:
            self.outcomes.append((done, AppendOutcome.NOT_APPENDED))
        else:
            self.queue.append((command, term, done, others_wait))
            self._queued_bytes += size_bytes
        self._wake()

    def append_queued(self) -> None:
        engine = self._engine
        for _ in range(min(len(self.queue), MAX_APPENDS_PER_STEP)):
            command, term, done, others_wait = self.queue.popleft()
            self._queued_bytes -= len(command) if command is not None else 0
            if not engine.is_leader or term != engine.term:
                self.outcomes.append((done, AppendOutcome.NOT_APPENDED))
                continue
            index = self._journal.last_index + 1
            self._journal.add(NO_OP if command is None else REGULAR + command, index, term)
            self._waiting.setdefault(index, []).append((term, done))
            self._waiting_count += 1
            if not others_wait:
                self._quiet[index] = term
        if self.queue:
            self._wake()

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    def do_others_wait(self, first: int, last: int) -> bool:
        """Whether other nodes wait for one of these commits, by this leader. They do for entries that are no commands."""
        quiet, term = self._quiet, self._engine.term
        return any(quiet.get(index) != term for index in range(first, last + 1))

    def settle(self, index: int, committed_term: int | None) -> None:
        """Determine the outcome of the appends at `index`; a term of None: the outcome is unknown."""
        waiting = self._waiting.pop(index, ())
        self._quiet.pop(index, None)
        self._waiting_count -= len(waiting)
        for term, done in waiting:
            if committed_term is None:
                outcome = AppendOutcome.UNKNOWN
            else:
                outcome = AppendOutcome.COMMITTED if term == committed_term else AppendOutcome.DISCARDED
            self.outcomes.append((done, outcome))

    def jumped_to(self, last_index: int) -> None:
        """A snapshot took the place of everything up to `last_index`."""
        for index in sorted(index for index in self._waiting if index <= last_index):
            self.settle(index, None)

    def deliver_outcomes(self) -> None:
        for _ in range(len(self.outcomes)):
            done, outcome = self.outcomes.popleft()
            done(outcome)
        if self.outcomes:
            self._wake()

    def close(self) -> None:
        """From now on nothing is appended any more."""
        self._is_closed = True

    def abandon(self) -> None:
        """The end: settle all open appends now."""
        while self.queue:
            self.outcomes.append((self.queue.popleft()[2], AppendOutcome.NOT_APPENDED))
        for index in sorted(self._waiting):
            self.settle(index, None)
        self.deliver_outcomes()
