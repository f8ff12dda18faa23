"""Settings of transactions, and limits with their reasons."""

from dataclasses import dataclass
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys

_KEYS: Final = BrokerKeys()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    max_timeout_ms: int = (
        _KEYS.transaction_max_timeout_ms
    )  # readers of committed records wait as long for a dead producer
    id_expiration_ms: int = _KEYS.transactional_id_expiration_ms
    is_two_phase_enabled: bool = _KEYS.transaction_two_phase_commit_enable
    max_id_length: int = 1_000  # in every record of a transaction, and every voter keeps it
    # An idle transactional id takes about 600 bytes on every voter, so 50 full slots take 120 MB.
    max_transactions_per_slot: int = 4_000
    # A change of a transaction writes it whole: with this many partitions about 100 kB of the quorum's log.
    max_partitions: int = 10_000
    max_groups: int = 100  # whose offsets one transaction commits; more than one is unusual
