"""Checks of passwords in a few threads: each costs milliseconds of a processor, and the event loop must not pay them.

A password that was right before needs no check (`known_passwords`). Clients whose address has failed less often go first. Checks
for an address that fails often have a rate: guesses by the thousand must not take the processors from clients that are logged in.
When too many wait, the one with the most failures goes without an answer.
"""

import asyncio
import bisect
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any, Final

from barnabas.log.vocabulary.access.scram import ScramMechanism
from barnabas.net.base.sasl.exchange import PasswordCheck
from barnabas.net.base.sasl.scram import is_password_of

from .failures import DOUBLED_AFTER
from .known_passwords import KnownPasswords

THREADS: Final = 2  # of a broker: logins must not take all processors from its requests
# What the threads yield to the loop and to other processes: a storm of guesses must not slow down who has logged in.
NICENESS: Final = 10
MAX_WAITING: Final = 256  # a second of both threads, with credentials of 16,000 iterations
# From so many failures on, an address shares a rate with others that guess. A thread also competes for the interpreter's lock,
# and may lose its processor while it holds it.
SUSPECT_FROM: Final = DOUBLED_AFTER
SUSPECT_CHECKS_PER_S: Final = 20  # of all these addresses: a tenth of a processor
MAX_SUSPECTS: Final = 64  # that wait, for 3 s at most: less than the time limit of their requests

# None: too many wait. An exception in a future is a reference cycle with the frame that waits for it: storms of logins would keep
# all their connections until a collection, which then takes tens of milliseconds.
_Answer = asyncio.Future[bool | None]
_Waiting = tuple[bool, int, int, int, PasswordCheck, _Answer]
_FIRST_SUSPECT: Final[Any] = (True,)  # before all of them, behind all others


class TooManyLogins(Exception):
    """The check was not made. The client may try again, and should not be told that its password is wrong."""


class PasswordChecks:
    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # made by the first check: most brokers never need it
        self._waiting: list[_Waiting] = []  # in order: the next one first, the one that gives way last
        self._number = count()
        self._running = 0
        self._known = KnownPasswords()
        self._timer: asyncio.TimerHandle | None = None  # until the next check of an address that fails often

    async def is_right(self, check: PasswordCheck, *, failures: int, guesses: int = 0) -> bool:
        """`failures` are those of the client's address, `guesses` those of them for this user. Raises TooManyLogins."""
        if self._known.has(check):
            return True
        answer: _Answer = asyncio.get_running_loop().create_future()
        is_suspect = failures >= SUSPECT_FROM
        waiting = self._waiting
        bisect.insort(waiting, (is_suspect, guesses, failures, next(self._number), check, answer))
        if len(waiting) > MAX_WAITING or len(waiting) - bisect.bisect_left(waiting, _FIRST_SUSPECT) > MAX_SUSPECTS:
            worst = waiting.pop()
            if not worst[-1].done():
                worst[-1].set_result(None)
        self._start()
        is_right = await answer
        if is_right is None:
            raise TooManyLogins
        if is_right and check.is_known:
            self._known.add(check)
        return is_right

    def close(self) -> None:
        for *_, answer in self._waiting:
            answer.cancel()
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while self._waiting and self._running < THREADS:
            if self._waiting[0][-1].done():
                del self._waiting[0]  # its client has gone
                continue
            if self._waiting[0][0] and not self._may_check_suspect():
                return
            *_, check, answer = self._waiting.pop(0)
            self._run(check, answer)

    def _may_check_suspect(self) -> bool:
        """The next one is of an address that fails often. If it must wait, a timer calls `_start`."""
        if self._timer is not None:
            return False
        self._timer = asyncio.get_running_loop().call_later(1 / SUSPECT_CHECKS_PER_S, self._time_has_come)
        return True

    def _time_has_come(self) -> None:
        self._timer = None
        self._start()

    def _run(self, check: PasswordCheck, answer: _Answer) -> None:
        self._running += 1
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="password-check", initializer=_yield_processors)
        claimed = check.claimed
        running = asyncio.get_running_loop().run_in_executor(
            self._pool, is_password_of, ScramMechanism(claimed.mechanism), claimed.credential, check.password
        )
        running.add_done_callback(lambda done: self._ended(done, answer))

    def _ended(self, done: "asyncio.Future[bool]", answer: _Answer) -> None:
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
        with suppress(OSError):  # A sandbox may forbid even this; an error here would end all checks for good.
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
