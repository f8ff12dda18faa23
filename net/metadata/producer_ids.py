"""Ids for idempotent producers, from blocks that the quorum allocates to this broker (KIP-98; blocks: KIP-730).

At most one request for a block is in flight. The next block is fetched before the current one is used up, so that a producer
rarely waits for the quorum. The unused ids of a block are lost when the broker stops; there are enough ids.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from barnabas.kraft.metadata.requests import ProducerIdBlock
from barnabas.log.vocabulary.errors import BarnabasError, CoordinatorLoadInProgressError

logger = logging.getLogger("barnabas.producer_ids")

PREFETCH_SHARE = 0.1  # the unused fraction of a block at which the next one is requested, as in Kafka
MAX_WAITERS = 10_000  # producers that wait for a block; others must try again

FetchBlock = Callable[[], Awaitable[ProducerIdBlock]]


class ProducerIds:
    """`fetch` asks the controller for a block; it raises BarnabasError if it gets none in time."""

    def __init__(self, fetch: FetchBlock) -> None:
        self._fetch = fetch
        self._next = 0
        self._end = 0  # exclusive
        self._low = 0  # at this id, the next block is requested
        self._following: ProducerIdBlock | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._waiters: deque[asyncio.Future[int]] = deque()

    async def next_id(self) -> int:
        """Return an id that was never used. Raises COORDINATOR_LOAD_IN_PROGRESS, or the controller's refusal."""
        found = self._take()
        if found is not None:
            return found
        if len(self._waiters) >= MAX_WAITERS:
            raise CoordinatorLoadInProgressError("too many producers wait for an id; try again")
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._fetch_if_needed()
        return await waiter

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()

    def _take(self) -> int | None:
        if self._next == self._end and self._following is not None:
            block, self._following = self._following, None
            self._next, self._end = block.first, block.first + block.count
            self._low = block.first + int(block.count * (1 - PREFETCH_SHARE))
        if self._next == self._end:
            return None
        found = self._next
        self._next += 1
        if self._next >= self._low:
            self._fetch_if_needed()
        return found

    def _fetch_if_needed(self) -> None:
        if self._fetching is None and self._following is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_block(), name="barnabas-producer-ids")

    async def _fetch_block(self) -> None:
        try:
            self._following = await self._fetch()
        except BarnabasError as error:
            self._refuse_waiters(error)
            return
        finally:
            self._fetching = None
        logger.info("got producer ids first=%d count=%d", self._following.first, self._following.count)
        self._serve_waiters()

    def _serve_waiters(self) -> None:
        while self._waiters:
            if self._waiters[0].done():  # its client has disconnected
                self._waiters.popleft()
                continue
            found = self._take()
            if found is None:
                self._fetch_if_needed()
                return
            self._waiters.popleft().set_result(found)

    def _refuse_waiters(self, error: BarnabasError) -> None:
        """Refuse all waiting producers. The next retry of a producer requests a block again; without retries, none is needed."""
        if not self._waiters:
            logger.info("cannot get producer ids reason=%s", error.message)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(CoordinatorLoadInProgressError(f"no producer ids at the moment: {error.message}"))
