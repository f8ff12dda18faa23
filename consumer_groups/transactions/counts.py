"""How often coordinators have ended transactions that their producers did not end, for metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionCounts:
    """Of all slots that this broker has coordinated since its start."""

    timed_out: int = 0
    fenced: int = 0  # by another producer with the same transactional id, or by an operator
