"""`to_its_end`: a member leaves its group, also if its caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def to_its_end(leaving: Coroutine[Any, Any, None]) -> None:
    """Leave a group. A caller that is cancelled waits for that, too, once: without it, what this member has is not read until its
    session ends. Cancelled a second time, it does not wait, and the leaving is cancelled."""
    task = asyncio.create_task(leaving, name="barnabas-leave")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    finally:
        task.cancel()
