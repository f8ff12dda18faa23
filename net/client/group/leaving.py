"""`see_through`: a member that closes leaves its group, also if the close is cancelled."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

CANCELLED_S: Final = 3.0  # Enough for a coordinator that answers; a caller that is cancelled waits for no other one.


async def see_through(leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `leave`, which has a time limit, and which may be run again: it does what was not done.

    A caller that is cancelled waits for it, too, once, for at most `CANCELLED_S`: without it, the partitions of the member have
    no reader until its session ends. The end of a loop cancels each task once: then it is run again, by the caller."""
    leaving = asyncio.create_task(leave(), name="barnabas-leave")
    try:
        await asyncio.shield(leaving)
    except asyncio.CancelledError:
        await asyncio.wait([leaving], timeout=CANCELLED_S)
        if leaving.cancelled():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCELLED_S):
                    await leave()
        raise
    finally:
        leaving.cancel()
