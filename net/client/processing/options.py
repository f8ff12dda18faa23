"""What the application decides about `process_each`. Pure."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final

from ...base.retries import Backoff
from ..connection.errors import InvalidConfigError
from ..connection.records import ConsumerRecord

MAX_IN_FLIGHT: Final = 100_000  # records that are read and not done; the largest value of `max_in_flight`
MAX_CONCURRENCY: Final = 10_000
FIRST_BACKOFF_MS: Final = 100.0
MAX_BACKOFF_MS: Final = 30_000.0

RecordHandler = Callable[[ConsumerRecord], Awaitable[None] | None]  # a coroutine function, or a function: in a thread
FailureHandler = Callable[[ConsumerRecord, Exception], Awaitable[None] | None]
Delay = float | Callable[[ConsumerRecord], float]


class Order(StrEnum):
    """Which records are handled one after the other. All others may run at the same time."""

    PARTITION = "partition"
    KEY = "key"
    NONE = "none"

    def lane_of(self, record: ConsumerRecord) -> object:
        """Records of equal lanes are handled in the order of the log."""
        if self is Order.PARTITION:
            return record.topic, record.partition
        key = record.raw.key if self is Order.KEY else None
        if key is None:  # Kafka promises no order either for records without a key
            return record.topic, record.partition, record.offset
        return record.topic, record.partition, bytes(key)


class Policy(StrEnum):
    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See `process_each`."""

    order: Order
    concurrency: int
    max_in_flight: int
    attempts: int
    backoff: Backoff
    timeout_ms: float | None
    on_failure: Policy | FailureHandler
    commit_interval_ms: float
    delay: Delay

    def wait_ms(self, record: ConsumerRecord, now_ms: float) -> float:
        """How long the record is too young to be handled. A timestamp of the future waits no longer than one of now."""
        delay_ms = self.delay(record) if callable(self.delay) else self.delay
        return min(record.timestamp_ms + delay_ms - now_ms, delay_ms)


def options_of(
    *,
    order: str,
    concurrency: int,
    max_in_flight: int | None,
    attempts: int,
    backoff_ms: tuple[float, float],
    timeout_ms: float | None,
    on_failure: str | FailureHandler,
    commit_interval_ms: float,
    delay_ms: Delay,
    is_blocking: bool,
) -> Options:
    """Raises InvalidConfigError, which names the argument and what it may be."""
    _within("concurrency", concurrency, 1, MAX_CONCURRENCY)
    in_flight = max(10 * concurrency, 100) if max_in_flight is None else max_in_flight
    _within("max_in_flight", in_flight, concurrency, MAX_IN_FLIGHT)
    _within("attempts", attempts, 1, 1_000_000)
    first, largest = backoff_ms
    if not 0 <= first <= largest:
        raise InvalidConfigError(
            f"backoff_ms is {backoff_ms}; it must be the first and the largest wait, in milliseconds"
        )
    if timeout_ms is not None and timeout_ms <= 0:
        raise InvalidConfigError(f"timeout_ms is {timeout_ms}; it must be above 0, or None")
    if timeout_ms is not None and is_blocking:
        raise InvalidConfigError(
            "timeout_ms needs a coroutine function: a function in a thread cannot be stopped; give its own calls a time limit"
        )
    if commit_interval_ms < 0:
        raise InvalidConfigError(f"commit_interval_ms is {commit_interval_ms}; it must be 0 or more")
    if not callable(delay_ms) and not (isinstance(delay_ms, int | float) and 0 <= delay_ms < inf):
        raise InvalidConfigError(
            f"delay_ms is {delay_ms!r}; it must be a number of 0 or more, or a function of the record"
        )
    return Options(
        order=_one_of(Order, "order", order),
        concurrency=concurrency,
        max_in_flight=in_flight,
        attempts=attempts,
        backoff=Backoff(first_ms=first, max_ms=largest),
        timeout_ms=timeout_ms,
        on_failure=on_failure if callable(on_failure) else _one_of(Policy, "on_failure", on_failure),
        commit_interval_ms=commit_interval_ms,
        delay=delay_ms,
    )


def is_coroutine_function(handler: RecordHandler) -> bool:
    """Also an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfigError(f"{name} is {value}; it must be a whole number from {least} to {most}")


def _one_of(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(f'"{item}"' for item in kind)
        more = ", or a function of the record and its error" if kind is Policy else ""
        raise InvalidConfigError(f"{name} is {value!r}; it must be {choices}{more}") from None
