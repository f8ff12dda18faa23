"""Sessions of a program that copies into topics: each has a producer of its own and begins at the committed positions.

Whatever goes wrong is repaired in one way, which is also that of a start after kill -9: a new producer takes over the
transactional id (which ends the transaction of the one before), and the positions are read again.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidProducerEpochError,
    ProducerFencedError,
    RetriableError,
)
from barnabas.net.base.retries import Backoff
from barnabas.net.client.connection.errors import TransactionAbortedError, TransactionOutcomeUnknownError

STOP_S: Final = 10.0  # for the end of a transaction, after `stopping`
_BACKOFF: Final = Backoff(first_ms=100, max_ms=10_000)


async def run_sessions(
    session: Callable[[], Awaitable[None]],
    *,
    stopping: asyncio.Event,
    records_done: Callable[[], int],
    replaced: Callable[[], BarnabasError],
    is_told: Callable[[BarnabasError], bool] = lambda error: False,
    logger: logging.Logger,
) -> None:
    """Return when a session ends by itself, or after `stopping`. `records_done`: progress ends the backoff. Raises BarnabasError
    for what does not pass by itself, and `replaced()` if another process took over. `is_told`: the program has a line of its own
    for such an error."""
    failures = 0
    while not stopping.is_set():
        before = records_done()
        try:
            await _until_stopped(session, stopping, logger)
            return
        except BarnabasError as error:
            if _is_fenced(error):
                raise replaced() from error
            if not _passes(error):
                raise
            failures = 1 if records_done() > before else failures + 1
            delay_ms = _BACKOFF.delay_ms(failures, random.random)
            level = logging.DEBUG if is_told(error) else logging.WARNING
            logger.log(level, "event=again in_ms=%d reason=%s", delay_ms, error)
            await pause(stopping, delay_ms / 1_000)


async def _until_stopped(
    session: Callable[[], Awaitable[None]], stopping: asyncio.Event, logger: logging.Logger
) -> None:
    """A session that waits for the cluster does not see `stopping`. What it leaves is repaired by the next start."""
    running = asyncio.ensure_future(session())
    waiting = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait({running}, timeout=STOP_S)
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.wait({running})
    if running.cancelled():
        logger.warning("event=stopped reason=the cluster did not answer within %g s", STOP_S)
    else:
        running.result()


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return


def _is_fenced(error: BaseException | None) -> bool:
    """Also where a record of a transaction was refused, which is then the cause of its end."""
    if isinstance(error, TransactionAbortedError):
        return _is_fenced(error.__cause__)
    return isinstance(error, ProducerFencedError)


def _passes(error: BarnabasError) -> bool:
    """Whether a new session may succeed: the cluster was away for a while. An epoch that is over may be that of a transaction
    that was open for too long, or another process has taken over: the owner of the positions tells the new session."""
    if isinstance(error, TransactionOutcomeUnknownError | RetriableError | InvalidProducerEpochError):
        return True
    cause = error.__cause__
    return isinstance(error, TransactionAbortedError) and (not isinstance(cause, BarnabasError) or _passes(cause))
