"""Requests that name many things: each is done for itself and has an outcome of its own, and there are not too many of them.

One thing that is refused or times out keeps no other from being done.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidRequestError
from barnabas.net.base.limits import MAX_DATA_ITEMS
from barnabas.net.base.slices import SharedSlice

MAX_CHANGES_AT_A_TIME = (
    32  # of one request, at the controller: it commits those that wait together, others come between
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`message` is None where all went well: clients print what is not."""

    error: int = ErrorCode.NONE
    message: str | None = None

    @staticmethod
    def of(error: BarnabasError) -> "Outcome":
        return Outcome(error=error.code, message=error.message)


DONE = Outcome()


def check_named_once(what: str, times: int) -> None:
    """Raises InvalidRequestError."""
    if times > 1:
        raise InvalidRequestError(f"{what} is named {times} times in one request; name it once")


def check_count(partitions: Sequence[object]) -> None:
    """Raises InvalidRequestError for more than a client may name in one request."""
    if len(partitions) > MAX_DATA_ITEMS:
        raise InvalidRequestError(
            f"{len(partitions)} partitions are named in one request; name {MAX_DATA_ITEMS} at most"
        )


async def each(work: Iterable[Awaitable[T]]) -> list[T | Outcome]:
    """Return what each gave, in order; in place of a result, the outcome of one that raised a BarnabasError. An iterable that
    makes them one by one has no more than are worked on."""
    results: dict[int, T | Outcome] = {}
    numbered = enumerate(work)
    loop = asyncio.get_running_loop()
    part = SharedSlice(lambda: int(loop.time() * 1000))

    async def take_turns() -> None:
        for number, item in numbered:
            try:
                results[number] = await item
            except BarnabasError as error:
                results[number] = Outcome.of(error)
            await part.step()

    await asyncio.gather(*(take_turns() for _ in range(MAX_CHANGES_AT_A_TIME)))
    return [results[number] for number in range(len(results))]
