"""Rebalances of the groups that this broker coordinates, as events and lines of the log: when one begins, and when it has ended.

They are taken from a slot's machine when its decisions are committed, so an event may be a commit later than the decision. They
explain, as `group explain` does, and decide nothing.
"""

import logging
from collections.abc import Iterable

from barnabas.consumer_groups.model.rebalance_log import RebalanceNews
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.kraft.metadata.records import Record
from barnabas.net.base.printable import key_values
from barnabas.net.metadata.events.event_log import EventLog
from barnabas.net.wire.protocol.event_messages import EventKind

from .hosted_slot import HostedSlot

logger = logging.getLogger("barnabas.groups")


class RebalanceEvents:
    """A `SlotObserver`."""

    def __init__(self, events: EventLog) -> None:
        self._events = events

    def started(self, slot: HostedSlot[SlotCoordinator]) -> None:
        self._take(slot)

    def settled(self, slot: HostedSlot[SlotCoordinator], records: Iterable[Record]) -> None:
        self._take(slot)

    def _take(self, slot: HostedSlot[SlotCoordinator]) -> None:
        if slot.machine is None:
            return
        for news in slot.machine.groups.take_rebalances():
            name, fields = _told(news)
            if self._events.record(EventKind.REBALANCE, name, fields):
                logger.info("event=%s %s", name, key_values(fields))


def _told(news: RebalanceNews) -> tuple[str, dict[str, str]]:
    event = news.event
    fields = {"group": news.group_id, "why": event.cause, "member": event.member_id, "client_id": news.client_id}
    if event.is_under_way:
        return "rebalance", {key: value for key, value in {**fields, "detail": news.detail}.items() if value}
    fields |= {
        "epoch": str(event.group_epoch),
        "took_ms": str(event.stable_after_ms),
        "moved": str(event.moved_count),
        "longest_pause_ms": str(event.longest_pause_ms),
    }
    return "rebalanced", {key: value for key, value in fields.items() if value}
