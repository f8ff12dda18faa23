"""What is wrong with a cluster, or may go wrong: one statement with its weight."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum


class Weight(IntEnum):
    RISK = 1  # nothing is lost or refused now; the next failure does more harm than it should
    PROBLEM = 2  # something does not work as it should
    CRITICAL = 3  # records are refused or cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`costs`: whom it hurts, and how. `cure`: what to do. Both may be empty, where `what` says it all.

    `key` is given where `what` has ages or sizes that change: findings of two looks with the same `identity` are the same.
    """

    weight: Weight
    what: str
    costs: str = ""
    cure: str = ""
    key: str = ""
    since_ms: int = -1  # wall clock: since when, as far as the cluster knows; -1: it does not

    @property
    def row(self) -> dict[str, object]:
        """For programs."""
        return {
            "weight": self.weight.name.lower(),
            "what": self.what,
            "since_ms": self.since_ms if self.since_ms >= 0 else None,
            "costs": self.costs,
            "cure": self.cure,
        }

    @property
    def identity(self) -> str:
        return self.key or self.what


def utc_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
