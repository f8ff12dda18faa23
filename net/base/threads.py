"""Work in a thread that outlives the cancellation of its caller: `to_its_end`."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def to_its_end(work: "asyncio.Future[T]", *, stop: Callable[[], None] = lambda: None) -> T:
    """Wait for the work even if this is cancelled, once or again: the canceller closes next what the thread uses.

    `stop` asks the work to end soon; it is called at a cancellation, which is raised behind the end of the work. Raises what the
    work raises.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop()
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:  # of one more canceller; the first one is told
                continue
        if not work.cancelled():
            work.exception()  # seen: it was to end in any way
        raise
