"""The driver of prepared transactions in the simulation: it decides what transactors have prepared, however late.

It repeats each decision until it has an answer, and its ledger is durable. No other client ends a transaction that is known to be
prepared, so what the driver has decided is what readers must find.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.transaction_messages import EndTransactionRequest, PrepareTransactionRequest
from barnabas.net.wire.protocol.requests import FindCoordinatorRequest

from .checkers.transactions import Outcome, Transaction, TransactionChecker
from .checkers.violation import Violation
from .workload import Client

PREPARED_FOR = "a decision of the driver"
HASTE = 0.15  # with this chance the driver gives up what is not known to be prepared yet
COMMITTED = 0.75  # of what is prepared
LAST = 0.2  # of the decisions are the last ones of their transactional id
PATIENCE_S = (0.0, 2.5)  # between the preparation and the decision: also longer than a transaction may be open
IS_OVER = frozenset(
    {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)


@dataclass(eq=False, slots=True)
class Intent:
    """What a transactor has promised to prepare."""

    transaction: Transaction
    transactional_id: str
    producer_id: int
    producer_epoch: int
    ready_s: float  # when the driver may decide
    is_whole: bool = False  # the coordinator has confirmed it
    is_given_up: bool = False  # its transactor has ended its life before it was told so
    is_decided: bool = False

    def prepare_request(self) -> PrepareTransactionRequest:
        return PrepareTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            prepared_for=PREPARED_FOR,
        )

    def end_request(self, *, is_commit: bool, is_last: bool) -> EndTransactionRequest:
        return EndTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            is_commit=is_commit,
            uses_v2=True,
            is_last=is_last,
        )


class Ledger:
    def __init__(self) -> None:
        self.intents: list[Intent] = []
        self.is_calm = False  # from the end of the faults on: what is prepared is committed at once
        self.counts = dict.fromkeys(("prepared", "driven_commits", "driven_aborts", "unsure_decisions"), 0)

    def undecided(self) -> Iterator[Intent]:
        return (item for item in self.intents if not item.is_decided)


class Driver:
    def __init__(self, ledger: Ledger, checker: TransactionChecker, client: Client, rng: Random) -> None:
        self.ledger = ledger
        self.checker = checker
        self.client = client
        self.rng = rng

    async def run(self) -> None:
        while True:
            await self.client.pause(0.01, 0.3)
            for intent in list(self.ledger.undecided()):
                is_ready = self.ledger.is_calm or self.client.loop.time() >= intent.ready_s
                if is_ready and (intent.is_whole or intent.is_given_up or self.rng.random() < HASTE):
                    await self._decide(intent)

    async def _decide(self, intent: Intent) -> None:
        is_commit = intent.is_whole and (self.ledger.is_calm or self.rng.random() < COMMITTED)
        intent.is_decided = True
        intent.transaction.asks_for_commit = is_commit
        request = intent.end_request(is_commit=is_commit, is_last=self.rng.random() < LAST)
        is_sure = True  # no earlier attempt may have had an effect
        while True:
            try:
                found = await self.client.ask_anyone(FindCoordinatorRequest(group_id=intent.transactional_id))
                await self.client.ask(found.node_id, request)
                break
            except TimeoutError:
                is_sure = False
            except BarnabasError as error:
                if error.code == ErrorCode.TRANSACTION_ABORTABLE or (
                    is_sure and intent.is_whole and error.code in IS_OVER
                ):
                    raise Violation(
                        f"{intent.transaction} was prepared, and its decision is refused: {error!r}"
                    ) from error
                if error.code in IS_OVER or (error.code == ErrorCode.INVALID_TXN_STATE and not intent.is_whole):
                    break
                is_sure = is_sure and error.code == ErrorCode.NOT_COORDINATOR
            await self.client.pause(0.02, 0.1)
        self.ledger.counts["unsure_decisions"] += not is_sure
        self.ledger.counts["driven_commits" if is_commit else "driven_aborts"] += 1
        self.checker.ended(intent.transaction, Outcome.COMMITTED if is_commit else Outcome.ABORTED)


async def is_over_for(client: Client, intent: Intent, node_id: int) -> bool:
    """Whether this broker, and no other, says of a transaction that is prepared that its commit has no object any more."""
    try:
        await client.ask(node_id, intent.end_request(is_commit=True, is_last=False))
    except TimeoutError:
        return False
    except BarnabasError as error:
        if error.code in IS_OVER or error.code == ErrorCode.INVALID_TXN_STATE:
            raise Violation(
                f"{intent.transaction} is prepared, and broker {node_id} refuses its commit: {error!r}"
            ) from error
        return False
    return True
