"""The rules for retrying requests, for the SDK and for a broker that asks its controller: how long to wait, and what a refusal
means if an earlier copy of the request may have been executed. Pure: the randomness is passed in as a function."""

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.log.vocabulary.errors import BarnabasError, NetworkError, RequestTimedOutError

JITTER = 0.2  # As in Kafka: many clients that lost one broker must not reconnect at the same moment.
_MAX_DOUBLINGS = 30  # At this count the cap has long been reached; keeps the power of two small.


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubles from `first_ms` to at most `max_ms`, plus or minus the jitter."""

    first_ms: float
    max_ms: float
    jitter: float = JITTER  # the fraction by which a wait may be shorter or longer

    def delay_ms(self, failures: int, random: Callable[[], float]) -> float:
        """The wait after the given number of failures in a row (1 or more). `random` gives [0, 1)."""
        assert failures >= 1
        plain = min(self.max_ms, self.first_ms * 2 ** min(failures - 1, _MAX_DOUBLINGS))
        return float(plain * (1 - self.jitter + 2 * self.jitter * random()))


OUTCOME_UNKNOWN: tuple[type[BarnabasError], ...] = (
    NetworkError,
    RequestTimedOutError,
)  # all other refusals are definite: nothing was done


class Copies:
    """The copies of one change that have been sent so far."""

    def __init__(self, *more_unknown: type[BarnabasError]) -> None:
        """`more_unknown`: further errors after which the outcome of the change is unknown."""
        self._unknown: tuple[type[BarnabasError], ...] = (*OUTCOME_UNKNOWN, *more_unknown)
        self._may_be_done = False

    def failed(self, error: BarnabasError) -> None:
        """A copy ended with this error, and another one will follow."""
        if isinstance(error, self._unknown):
            self._may_be_done = True

    def is_done(self, refusal: BarnabasError, done_already: tuple[type[BarnabasError], ...]) -> bool:
        """Whether a refusal of the last copy ("already done") means that an earlier copy has succeeded."""
        return self._may_be_done and isinstance(refusal, done_already)
