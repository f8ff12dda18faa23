"""States of a transaction and their transitions (KIP-98). Kafka's names, which are also those of the stored records."""

from enum import StrEnum
from typing import Final


class TransactionState(StrEnum):
    """A Prepare state is the decision: only the same outcome can follow. A Complete state means that every marker is written."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"  # the transactional id is not known

    @property
    def is_prepared(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_S = TransactionState

# A record may repeat the state: partitions are added, an epoch is raised. An abort may follow a complete transaction without a
# new one, because a producer of the second version aborts without knowing whether any of its records has arrived.
TRANSACTION_TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    _S.DEAD: frozenset({_S.EMPTY}),
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
}
