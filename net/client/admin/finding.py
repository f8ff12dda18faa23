"""What is wrong with a cluster, or may go wrong: one statement with its weight."""

from dataclasses import dataclass
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

    @property
    def identity(self) -> str:
        return self.key or self.what
