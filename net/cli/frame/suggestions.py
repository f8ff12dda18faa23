"""The nearest name, for an error about a topic or a group that does not exist."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError, GroupIdNotFoundError, UnknownTopicOrPartitionError

from ...base.near_words import did_you_mean
from .command import Context

WAIT_S: Final = 2.0  # for the names; the error is printed without them
Unknown = UnknownTopicOrPartitionError | GroupIdNotFoundError


async def nearest(context: Context, error: Unknown) -> str:
    """The end of the error's message; empty if no name is near, or the cluster does not give them in time."""
    words = [word for word in _words(vars(context.arguments).values()) if _is_quoted(word, error.message)]
    if not words:
        return ""
    try:
        async with asyncio.timeout(WAIT_S):
            known = await _names(context, error)
    except (BarnabasError, OSError, TimeoutError):
        return ""
    return next((near for word in words if word not in known and (near := did_you_mean(word, known))), "")


async def _names(context: Context, error: Unknown) -> Sequence[str]:
    async with context.connector.admin(context.bootstrap) as admin:
        if isinstance(error, GroupIdNotFoundError):
            return [group.group_id for group in await admin.list_groups()]
        return await admin.list_topics(include_internal=True)


def _words(values: Iterable[object]) -> Iterable[str]:
    """What the user has typed."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def _is_quoted(word: str, message: str) -> bool:
    return bool(word) and (f"'{word}'" in message or f" {word} " in message)
