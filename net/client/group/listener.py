"""Notifies an application of assigned, revoked and lost partitions."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from barnabas.log.vocabulary.topic_partition import TopicPartition

Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]  # A function or a coroutine function.


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The callbacks of an application. `lost`: partitions that other members may own already."""

    assigned: Listener | None = None
    revoked: Listener | None = None
    lost: Listener | None = None


async def tell(listener: Listener | None, partitions: list[TopicPartition]) -> None:
    if listener is not None:
        outcome = listener(partitions)
        if inspect.isawaitable(outcome):
            await outcome
