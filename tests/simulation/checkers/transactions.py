"""Transactions, as their clients know them: all or nothing, nothing of what is open or aborted, each input has one output.

A transaction writes records that name it, and commits an offset whose metadata names it. What its producer was told decides what
readers may see; where it was told nothing, either outcome is right, and it must be the same everywhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from .violation import Violation

Place = tuple[str, int, int]  # topic, partition, offset


class Outcome(Enum):
    UNKNOWN = "unknown"  # the producer has no answer
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class Transaction:
    number: int
    source: int  # the input that its producer works on
    producer_id: int
    producer_epoch: int
    uses_v2: bool
    first_input: int
    end_input: int  # exclusive: the offset that it commits
    asks_for_commit: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    acknowledged: int = 0  # records
    shown: set[Place] = field(default_factory=set)
    left_out: set[Place] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"transaction {self.number} of input {self.source} (producer {self.producer_id} epoch {self.producer_epoch} "
            f"v{1 + self.uses_v2}, {self.outcome.value}, asks for commit: {self.asks_for_commit})"
        )


class TransactionChecker:
    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.committed_inputs: dict[int, int] = {}  # by input: behind the last one whose commit was acknowledged
        self.shown_inputs: dict[tuple[int, int], Place] = {}  # (input, its number) -> where its output was shown
        self.reads = 0

    def begin(
        self, *, source: int, producer: tuple[int, int], uses_v2: bool, first_input: int, count: int
    ) -> Transaction:
        made = Transaction(
            len(self.transactions), source, *producer, uses_v2, first_input=first_input, end_input=first_input + count
        )
        self.transactions.append(made)
        return made

    def ended(self, transaction: Transaction, outcome: Outcome) -> None:
        """Its producer was told so."""
        if outcome is Outcome.COMMITTED:
            if transaction.left_out:
                raise Violation(f"{transaction}: records at {sorted(transaction.left_out)} were left out")
            known = self.committed_inputs.get(transaction.source, 0)
            self.committed_inputs[transaction.source] = max(known, transaction.end_input)
        elif outcome is Outcome.ABORTED and transaction.shown:
            raise Violation(f"{transaction} is aborted: records at {sorted(transaction.shown)} were shown")
        transaction.outcome = outcome

    # --- readers of committed records ---------------------------------------------------------------------------------

    def read(self, number: int, source: int, input_number: int, place: Place, *, is_left_out: bool) -> None:
        transaction = self.transactions[number]
        self.reads += 1
        if is_left_out:
            if transaction.outcome is Outcome.COMMITTED or transaction.shown:
                raise Violation(f"{transaction}: {place} is left out, and {sorted(transaction.shown)} were shown")
            transaction.left_out.add(place)
            return
        if not transaction.asks_for_commit or transaction.outcome is Outcome.ABORTED or transaction.left_out:
            raise Violation(f"{transaction}: {place} is shown, and {sorted(transaction.left_out)} were left out")
        transaction.shown.add(place)
        known = self.shown_inputs.setdefault((source, input_number), place)
        if known != place:
            raise Violation(f"input {input_number} of {source} has two outputs, at {known} and {place}")

    # --- offsets ------------------------------------------------------------------------------------------------------

    def told_offset(self, source: int, offset: int, number: int | None, *, least: int) -> None:
        """A stable offset of the group; `least`: what was acknowledged when the question was asked."""
        if offset < least:
            raise Violation(f"input {source} is committed up to {offset}, and {least} was acknowledged before")
        if number is None:
            return
        transaction = self.transactions[number]
        if not transaction.asks_for_commit or transaction.outcome is Outcome.ABORTED or transaction.left_out:
            raise Violation(f"{transaction}: its offset {offset} is told, and it was not committed")
        if offset != transaction.end_input:
            raise Violation(f"{transaction} committed {transaction.end_input}, and {offset} is told")

    # --- the end ------------------------------------------------------------------------------------------------------

    def check_log(self, name: str, batches: Iterable[tuple[int, int, int, list[int], bool | None]]) -> None:
        """(offset, producer id, epoch, transactions of its records, or what a marker says) of one whole log."""
        opened: dict[int, Transaction] = {}
        for offset, producer_id, epoch, numbers, is_commit in batches:
            if is_commit is None:
                for number in numbers:
                    known = opened.setdefault(producer_id, self.transactions[number])
                    if known.number != number:
                        raise Violation(f"{name}-{offset}: {self.transactions[number]} is inside of {known}")
                continue
            ended = opened.pop(producer_id, None)
            if ended is None:
                continue
            if is_commit and (ended.outcome is Outcome.ABORTED or not ended.asks_for_commit):
                raise Violation(f"{name}-{offset}: a marker commits {ended}")
            if not is_commit and ended.outcome is Outcome.COMMITTED:
                raise Violation(f"{name}-{offset}: a marker aborts {ended}")
            if epoch < ended.producer_epoch + ended.uses_v2:
                raise Violation(f"{name}-{offset}: a marker of epoch {epoch} ends {ended}")
        if opened:
            raise Violation(f"{name}: nothing has ended {', '.join(map(str, opened.values()))}")

    def check_end(self, committed: dict[int, int]) -> None:
        """Every committed record was read; `committed`: the offset of each input."""
        for transaction in self.transactions:
            visible, expected = len(transaction.shown), transaction.acknowledged
            if transaction.outcome is Outcome.COMMITTED and visible != expected:
                raise Violation(f"{transaction}: {visible} of {expected} records are seen")
            if visible and visible < expected:
                raise Violation(f"{transaction}: {visible} of {expected} records are seen")
            is_over = committed.get(transaction.source, 0) >= transaction.end_input
            if visible and not is_over:
                raise Violation(f"{transaction} is seen, and its input is committed up to {committed}")
        for source, end in committed.items():
            inputs = sorted(number for known, number in self.shown_inputs if known == source)
            if inputs != list(range(end)):
                raise Violation(f"input {source} is committed up to {end}, and these have an output: {inputs}")
            if end < self.committed_inputs.get(source, 0):
                raise Violation(f"input {source} is committed up to {end}, not {self.committed_inputs[source]}")
