"""For code that serves asyncio clients and blocking ones: the same coroutine awaits what is awaitable, and else never
suspends."""

import inspect
from collections.abc import Coroutine
from typing import Any, TypeVar

from .errors import InvalidRequestError

T = TypeVar("T")


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def run_blocking(coroutine: Coroutine[Any, Any, T], *, otherwise: str) -> T:
    """Run a coroutine that never suspends: it ends at its first step. Raises InvalidRequestError(`otherwise`) if it suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    coroutine.close()
    raise InvalidRequestError(otherwise)
