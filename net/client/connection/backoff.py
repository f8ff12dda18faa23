"""How long to wait before trying again. Pure: the randomness comes in as a function."""

from collections.abc import Callable
from dataclasses import dataclass

JITTER = 0.2  # As in Kafka: a fleet of clients that lost one broker must not come back in step.
_MAX_DOUBLINGS = 30  # Beyond it the cap has long been reached; keeps the power of two small.


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubles from `first_ms` to at most `max_ms`, give or take the jitter."""

    first_ms: float
    max_ms: float

    def delay_ms(self, failures: int, random: Callable[[], float]) -> float:
        """The wait after the given number of failures in a row (1 or more). `random` gives [0, 1)."""
        assert failures >= 1
        plain = min(self.max_ms, self.first_ms * 2 ** min(failures - 1, _MAX_DOUBLINGS))
        return float(plain * (1 - JITTER + 2 * JITTER * random()))
