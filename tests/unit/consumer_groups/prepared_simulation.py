"""Transactions that are prepared, and decided by others: as `transaction_simulation`, where some transactions are prepared and
wait for a driver, longer than their timeout, through failovers of their coordinator, and while other producers
try to take their id over. The driver repeats its decision.

Invariants, beside those of all transactions: a transaction whose prepare was acknowledged has no outcome anywhere before its
driver has decided, and then the outcome of the decision alone.
"""

from collections.abc import Generator
from typing import Any

from barnabas.log.vocabulary.errors import TransactionAbortableError
from barnabas.log.vocabulary.transaction_messages import PrepareTransactionRequest, ProducerIdentity

from .transaction_log_model import Done, Token, Violation
from .transaction_simulation import FATAL, TIMEOUT_MS, Call, TransactionSimulation

LONGEST_WAIT_MS = 3 * TIMEOUT_MS  # of a driver before its decision


class PreparedSimulation(TransactionSimulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.undecided: list[Token] = []
        self.decided_late = 0  # after the timeout

    def draw_version(self) -> bool:
        return True

    def transaction(self, name: str, who: ProducerIdentity) -> Generator[Call, Any, ProducerIdentity]:
        if self.rng.random() < 0.4:
            return (yield from super().transaction(name, who))
        token = Token(number=len(self.tokens), transactional_id=name, wants_commit=self.rng.random() < 0.6)
        self.tokens.append(token)
        began_ms = self.now_ms
        yield from self.parts(name, who, token)
        yield from self.retried(lambda: self.prepare(name, who))
        self.undecided.append(token)
        yield self.pause(self.rng.randrange(LONGEST_WAIT_MS if self.is_faulty else 100))
        self.check_undecided()
        self.undecided.remove(token)
        self.decided_late += self.now_ms - began_ms > TIMEOUT_MS
        token.told = token.wants_commit
        for _ in range(self.rng.randrange(1, 4)):
            yield from self.carry_out(name, who, token)
        self.acknowledge_offset(token)
        following: ProducerIdentity = yield from self.retried(lambda: self.initialize(name))
        return following

    def carry_out(self, name: str, who: ProducerIdentity, token: Token) -> Generator[Call, Any, None]:
        try:
            yield from self.retried(lambda: self.end(name, who, token.wants_commit))
        except TransactionAbortableError as error:
            raise Violation(f"transaction {token} was aborted before its decision") from error
        except FATAL:  # another producer has the id by now, so the transaction has ended
            pass

    def prepare(self, name: str, who: ProducerIdentity) -> Call:
        request = PrepareTransactionRequest(
            transactional_id=name, producer_id=who.producer_id, producer_epoch=who.producer_epoch
        )

        def ask(done: Done) -> None:
            self.host_of(name).decide(
                lambda machine: machine.transactions.prepare(request, now_ms=self.now_ms),
                lambda answer: self.prepared(answer, done),
            )

        return ask

    def prepared(self, answer: Any, done: Done) -> None:
        """The coordinator's answer, when the quorum has it."""
        done(answer)

    def check_open(self) -> None:
        super().check_open()
        self.check_undecided()

    def check_undecided(self) -> None:
        for token in self.undecided:
            if token.outcomes:
                raise Violation(f"transaction {token} has ended before its decision: {token.outcomes}")
