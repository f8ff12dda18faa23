"""Telling an application which partitions come and go."""

import inspect
from collections.abc import Awaitable, Callable

from barnabas.log.topic_partition import TopicPartition

Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]  # A function or a coroutine function.


async def tell(listener: Listener | None, partitions: list[TopicPartition]) -> None:
    if listener is not None:
        outcome = listener(partitions)
        if inspect.isawaitable(outcome):
            await outcome
