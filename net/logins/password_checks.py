"""Checks of passwords in a few threads: each costs milliseconds of a processor, and the event loop must not pay them.

Clients whose address has failed less often go first. When too many wait, the one with the most failures goes without an answer.
"""

import asyncio
import heapq
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

from barnabas.log.vocabulary.access.scram import ScramMechanism

from ..sasl.exchange import PasswordCheck
from ..sasl.scram import is_password_of

THREADS: Final = 2  # of a broker: logins must not take all processors from its requests
# What the threads yield to the loop and to other processes: a storm of guesses must not slow down who has logged in.
NICENESS: Final = 10
MAX_WAITING: Final = 256  # a second of both threads, with credentials of 16,000 iterations

_Waiting = tuple[int, int, PasswordCheck, "asyncio.Future[bool]"]


class TooManyLogins(Exception):
    """The check was not made. The client may try again, and should not be told that its password is wrong."""


class PasswordChecks:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # made by the first check: most brokers never need it
        self._waiting: list[_Waiting] = []
        self._number = count()
        self._running = 0

    async def is_right(self, check: PasswordCheck, *, failures: int) -> bool:
        """Raises TooManyLogins."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (failures, next(self._number), check, answer))
        if len(self._waiting) > MAX_WAITING:
            worst = max(self._waiting, key=lambda item: item[:2])
            self._waiting.remove(worst)
            heapq.heapify(self._waiting)
            if not worst[3].done():
                worst[3].set_exception(TooManyLogins)
        self._start()
        return await answer

    def close(self) -> None:
        for _, _, _, answer in self._waiting:
            answer.cancel()
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while self._waiting and self._running < THREADS:
            _, _, check, answer = heapq.heappop(self._waiting)
            if answer.done():
                continue  # its client has gone
            self._running += 1
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    THREADS, thread_name_prefix="password-check", initializer=_yield_processors
                )
            loop = asyncio.get_running_loop()
            claimed = check.claimed
            mechanism = ScramMechanism(claimed.mechanism)
            running = loop.run_in_executor(self._pool, is_password_of, mechanism, claimed.credential, check.password)
            running.add_done_callback(lambda done, answer=answer: self._ended(done, answer))  # type: ignore[misc]

    def _ended(self, done: "asyncio.Future[bool]", answer: "asyncio.Future[bool]") -> None:
        self._running -= 1
        error = None if done.cancelled() else done.exception()
        if not answer.done() and not done.cancelled():
            if error is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(error)
        self._start()


def _yield_processors() -> None:
    """On Linux, each thread has a priority of its own. To lower it needs no permission."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
