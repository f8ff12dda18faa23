"""Requests of a slot's groups that wait for other members: joins, syncs and heartbeats. Bounded, and shared out by group."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from barnabas.consumer_groups.classic_messages import Answer, Ticket
from barnabas.log.errors import BarnabasError

# Of one slot. A group may use as many as it leaves free: alone 10,000, five times as many as it may have members
# (group.max.size); of two greedy groups, each a third. So a group that floods the slot never keeps the others out.
MAX_PARKED_PER_SLOT: Final = 20_000


class ParkedRequests:
    """`_counts` has, for each group, how many of `_waiting` are its."""

    def __init__(self, limit: int = MAX_PARKED_PER_SLOT) -> None:
        self._limit = limit
        self._waiting: dict[Ticket, tuple[str, asyncio.Future[object]]] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, group_id: str) -> bool:
        """Dynamic threshold: a group's share is what is free, so there is room for the first request of another one."""
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
        """What these answers stand upon is committed."""
        for item in answers:
            _, waiting = self._waiting.get(item.ticket, ("", None))
            if waiting is None or waiting.done():
                continue  # who asked is gone
            if isinstance(item.value, BarnabasError):
                waiting.set_exception(item.value)
            else:
                waiting.set_result(item.value)

    def refuse_all(self, error: BarnabasError) -> None:
        for _, waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
