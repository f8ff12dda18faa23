"""The valid transitions of a transaction (KIP-98; PREPARED after KIP-939)."""

from typing import Final

from barnabas.log.vocabulary.transaction_messages import TransactionState

_S = TransactionState

# A record may repeat the state: partitions are added, an epoch is raised. An abort may follow a complete transaction without a
# new one, because a producer of the second version aborts without knowing whether any of its records has arrived.
TRANSACTION_TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    _S.DEAD: frozenset({_S.EMPTY}),
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARED, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARED: frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
}
