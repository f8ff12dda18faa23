"""Requests with many items: each item is executed separately and has its own outcome; the number of items is bounded.

An item that is refused or times out does not affect the others.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InvalidRequestError
from barnabas.net.base.slices import SharedSlice

MAX_CHANGES_AT_A_TIME = (
    32  # of one request at the controller: it commits waiting changes together, and others get a turn
)

T = TypeVar("T")
NameT = TypeVar("NameT", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`message` is None on success: clients print any other value."""

    error: int = ErrorCode.NONE
    message: str | None = None

    @staticmethod
    def of(error: BarnabasError) -> "Outcome":
        return Outcome(error=error.code, message=error.message)


DONE = Outcome()


def check_named_once(what: str, times: int) -> None:
    """Raises InvalidRequestError."""
    if times > 1:
        raise InvalidRequestError(f"{what} appears {times} times in one request; give it once")


def once(names: Iterable[NameT]) -> Iterator[NameT]:
    """Each name once, in the order of the request. No client repeats one, and some bytes of a request that do would cause a whole
    description in the answer each time: of a large group, of a partition with thousands of producers."""
    return iter(dict.fromkeys(names))


def check_all_once(kind: str, names: Iterable[str]) -> None:
    """Of names with something to each that a second one would contradict. Raises InvalidRequestError."""
    for name, times in Counter(names).items():
        check_named_once(f"{kind} {name!r}", times)


async def each(work: Iterable[Awaitable[T]]) -> list[T | Outcome]:
    """Return the results in order; the outcome of an item that raised a BarnabasError takes the place of its result. A lazy
    iterable of awaitables is consumed only as fast as they are executed."""
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
