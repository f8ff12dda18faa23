"""A model of a partition for `transaction_simulation`: a leader with its replicas, and the records of transactions in it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from barnabas.log.vocabulary.errors import (
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
)
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED, ProducerIdentity

Done = Callable[[Any], None]  # takes the answer or an error
LOST = CoordinatorNotAvailableError("no answer")


class Violation(AssertionError):
    pass


@dataclass(eq=False)
class Token:
    """One transaction as its producer sees it."""

    number: int
    transactional_id: str
    wants_commit: bool
    told: bool | None = None  # the outcome that was acknowledged
    written: set[int] = field(default_factory=set)  # partitions with an acknowledged record
    has_offset: bool = False  # acknowledged
    outcomes: set[bool] = field(default_factory=set)  # of the markers that ended it anywhere


@dataclass
class _Producer:
    epoch: int
    token: Token | None = None  # of the open transaction
    started_ms: int = NOT_STARTED  # of the open transaction, if it began at this leader


class Log:
    """A model of a partition leader with its replicas: what lies below `high_watermark` survives an election."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, Token | None, bool | None]] = []  # producer id, epoch, token, or outcome
        self.high_watermark = 0
        self.producers: dict[int, _Producer] = {}
        self.waiting: list[tuple[int, Done]] = []
        self.permits: dict[int, int] = {}  # producer id -> first valid one
        self.last_permit = 0
        self.leader_epoch = 0

    def open_token(self, producer_id: int, epoch: int) -> Token | None:
        known = self.producers.get(producer_id)
        return known.token if known is not None and known.epoch == epoch else None

    def take_permit(self, producer_id: int) -> int:
        self.last_permit += 1
        self.permits.setdefault(producer_id, self.last_permit)
        return self.last_permit

    def write(self, who: ProducerIdentity, token: Token, done: Done, started_ms: int = NOT_STARTED) -> None:
        """`started_ms` comes from the coordinator with the first record of a transaction."""
        known = self.producers.get(who.producer_id)
        if known is not None and who.producer_epoch < known.epoch:
            done(InvalidProducerEpochError("fenced"))
            return
        if known is not None and known.token is not None and who.producer_epoch > known.epoch:
            done(InvalidTxnStateError("the last transaction is open"))
            return
        self._append((who.producer_id, who.producer_epoch, token, None), done)
        if started_ms != NOT_STARTED:
            self.producers[who.producer_id].started_ms = started_ms

    def is_late(self, producer_id: int, *, leader_epoch: int, started_ms: int) -> bool:
        """Whether a marker is of a former leadership, or ends another transaction than the open one."""
        known = self.producers.get(producer_id)
        open_since = NOT_STARTED if known is None else known.started_ms
        return leader_epoch != self.leader_epoch or open_since not in (NOT_STARTED, started_ms)

    def mark(self, producer_id: int, epoch: int, outcome: bool, uses_v2: bool, done: Done) -> None:
        known = self.producers.get(producer_id)
        if known is not None and (
            epoch < known.epoch or (uses_v2 and epoch == known.epoch and known.token is not None)
        ):
            done(None)  # superseded
            return
        self.permits.pop(producer_id, None)
        if known is not None and uses_v2 and epoch == known.epoch:
            self.wait(done)
            return
        self._append((producer_id, epoch, None, outcome), done)

    def _append(self, entry: tuple[int, int, Token | None, bool | None], done: Done) -> None:
        self.entries.append(entry)
        self._note(entry, judge=True)
        self.wait(done)

    def wait(self, done: Done) -> None:
        self.waiting.append((len(self.entries), done))

    def _note(self, entry: tuple[int, int, Token | None, bool | None], *, judge: bool) -> None:
        producer_id, epoch, token, outcome = entry
        known = self.producers.setdefault(producer_id, _Producer(epoch))
        if outcome is None:
            if known.token is not None and known.token is not token:
                raise Violation(f"records of transaction {token} behind those of the open one {known.token}")
            started_ms = known.started_ms if known.token is token else NOT_STARTED
            self.producers[producer_id] = _Producer(epoch, token, started_ms)
            return
        if known.token is not None and judge:
            known.token.outcomes.add(outcome)
            if len(known.token.outcomes) > 1:
                raise Violation(f"transaction {known.token} has both outcomes")
        self.producers[producer_id] = _Producer(epoch)

    def replicate(self) -> None:
        self.high_watermark = len(self.entries)
        ready, self.waiting = self.waiting, []
        for _, done in ready:
            done(None)

    def elect(self) -> None:
        """A new leader has what was replicated."""
        self.leader_epoch += 1
        del self.entries[self.high_watermark :]
        self.producers, self.permits = {}, {}
        for entry in self.entries:
            self._note(entry, judge=False)
        lost, self.waiting = self.waiting, []
        for _, done in lost:
            done(LOST)

    def outcomes(self) -> dict[Token, bool]:
        """Of the transactions that have ended here."""
        opened: dict[int, Token] = {}
        found: dict[Token, bool] = {}
        for producer_id, _, token, outcome in self.entries:
            if token is not None:
                opened[producer_id] = token
            elif outcome is not None and producer_id in opened:
                found[opened.pop(producer_id)] = outcome
        return found
