"""Requests of a slot's groups that wait for other members: joins, syncs and heartbeats. Bounded, with a share for each group."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from barnabas.consumer_groups.model.classic_messages import Answer, Ticket
from barnabas.log.settings.broker_keys import MAX_GROUP_SIZE
from barnabas.log.vocabulary.errors import BarnabasError

# The limit of one slot, in groups of the largest size (group.max.size). A group may use at most as many places as it leaves free:
# three such groups can rebalance at the same time, and a group that floods the slot gets half of it and never locks the others
# out. A parked request takes about 6 kB, so a flood of one group takes 24 MB.
FULL_GROUPS_PER_SLOT: Final = 4


class ParkedRequests:
    """`_counts` has the number of entries of `_waiting` for each group."""

    def __init__(self, limit: int = FULL_GROUPS_PER_SLOT * MAX_GROUP_SIZE) -> None:
        self._limit = limit
        self._waiting: dict[Ticket, tuple[str, asyncio.Future[object]]] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, group_id: str) -> bool:
        """Dynamic threshold: a group may use as many places as are free, so that another group always finds a free one."""
        return self._counts[group_id] < self._limit - len(self._waiting)

    def add(self, group_id: str, ticket: Ticket) -> "asyncio.Future[object]":
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = (group_id, answer)
        self._counts[group_id] += 1
        return answer

    def remove(self, ticket: Ticket) -> None:
        group_id, _ = self._waiting.pop(ticket)
        self._counts[group_id] -= 1
        if not self._counts[group_id]:
            del self._counts[group_id]

    def deliver(self, answers: Iterable[Answer]) -> None:
        """Called when the decisions behind these answers are committed."""
        for item in answers:
            _, waiting = self._waiting.get(item.ticket, ("", None))
            if waiting is None or waiting.done():
                continue  # the client has disconnected
            if isinstance(item.value, BarnabasError):
                waiting.set_exception(item.value)
            else:
                waiting.set_result(item.value)

    def refuse_all(self, error: BarnabasError) -> None:
        for _, waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
