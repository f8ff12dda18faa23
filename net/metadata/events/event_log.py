"""`EventLog`: the events that this broker keeps: a ring for each kind, a rate for those that clients cause, readers that wait.

A stranger who fails to log in a thousand times a second fills the ring of failed logins, slowly, and no other one. What the rate
leaves out is counted, and an event `suppressed` says how many that were. It belongs to the broker's loop, does no I/O, and calls
`kept` with every event (`event_file`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import merge, nlargest, nsmallest
from typing import Final

from barnabas.net.base.clock import Clock
from barnabas.net.base.printable import printable
from barnabas.net.wire.protocol.event_messages import (
    MAX_PAGE,
    MAX_WAIT_MS,
    NEWEST,
    NOT_COMMITTED,
    ClusterEvent,
    EventKind,
    EventsRequest,
    EventsResponse,
    ForgottenEvents,
)

from .event_ring import EventRate, EventRing

MAX_VALUE_LENGTH: Final = 300  # characters of one value: clients choose some of them
MAX_READERS: Final = 100  # that wait for an event; further ones are answered at once
BURST: Final = 200  # events of a kind that clients cause: the start of a large application
PER_S: Final = 1.0  # afterwards: a ring lasts for half an hour at least
SUPPRESSED_EVERY_MS: Final = 10_000  # of a kind: one event `suppressed`, which must not fill the ring either
SUPPRESSED: Final = "suppressed"
CAUSED_BY_CLIENTS: Final = (
    EventKind.REBALANCE,
    EventKind.LOGIN,
    EventKind.FAILED_LOGIN,
    EventKind.DENIED,
    EventKind.CHANGE,
    EventKind.FAILED_CHANGE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedAt:
    """The place of an event in the committed metadata."""

    recovery_epoch: int
    offset: int
    index: int
    is_late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What a request asks for. It is compared with each event that is kept, and with each new one while the reader waits."""

    since_ms: int
    kinds: frozenset[str]  # or names; none: all
    topic: str
    broker: int

    @classmethod
    def of(cls, request: EventsRequest) -> "_Wanted":
        return cls(
            since_ms=request.since_ms, kinds=frozenset(request.kinds), topic=request.topic, broker=request.broker
        )

    def fits(self, event: ClusterEvent) -> bool:
        return (
            event.at_ms >= self.since_ms
            and (not self.kinds or event.kind in self.kinds or event.name in self.kinds)
            and (not self.topic or event.topic == self.topic)
            and (self.broker < 0 or self.broker in event.brokers)
        )


class EventLog:
    def __init__(self, node_id: int, clock: Clock, kept: Callable[[ClusterEvent], None] = lambda event: None) -> None:
        self.node_id = node_id
        self._clock = clock
        self._kept = kept
        self._rings = {kind.value: EventRing() for kind in EventKind}
        now_ms = clock.now_ms()
        self._rates = {kind.value: EventRate(burst=BURST, per_s=PER_S, now_ms=now_ms) for kind in CAUSED_BY_CLIENTS}
        self._suppressed_told_ms: dict[str, int] = {}
        # Microseconds of the process's start: a number is not used twice, even if the last events before a kill were not written.
        self._last = clock.wall_ms() * 1000
        self._readers: dict[asyncio.Future[None], _Wanted] = {}  # and what they wait for

    # --- events -------------------------------------------------------------------------------------------------------

    def restore(self, events: Iterable[ClusterEvent]) -> None:
        """Events of earlier processes, the oldest first, before any other."""
        last = 0
        for event in events:
            ring = self._rings.get(event.kind)
            if ring is not None and event.number > last:  # a newer version may have had other kinds
                ring.add(event)
                last = event.number
        self._last = max(self._last, last)

    def record(
        self,
        kind: EventKind,
        name: str,
        fields: Mapping[str, str],
        *,
        topic: str = "",
        brokers: tuple[int, ...] = (),
        at: CommittedAt | None = None,
    ) -> bool:
        """False: it is only counted, because clients cause too many of this kind."""
        rate = self._rates.get(kind)
        if rate is not None and not rate.admits(self._clock.now_ms()):
            self._tell_suppressed(kind, rate)
            return False
        if rate is not None:
            self._tell_suppressed(kind, rate)
        self._add(
            ClusterEvent(
                number=self._last + 1,
                at_ms=self._clock.wall_ms(),
                kind=kind.value,
                name=name,
                fields={key: shown(value) for key, value in fields.items()},
                topic=topic,
                brokers=brokers,
                offset=NOT_COMMITTED if at is None else at.offset,
                index=0 if at is None else at.index,
                recovery_epoch=0 if at is None else at.recovery_epoch,
                is_late=at is not None and at.is_late,
            )
        )
        return True

    def _tell_suppressed(self, kind: EventKind, rate: EventRate) -> None:
        now_ms = self._clock.now_ms()
        if (
            not rate.suppressed
            or now_ms - self._suppressed_told_ms.get(kind, -SUPPRESSED_EVERY_MS) < SUPPRESSED_EVERY_MS
        ):
            return
        self._suppressed_told_ms[kind] = now_ms
        fields = {"count": str(rate.take_suppressed()), "admitted_per_s": f"{PER_S:g}"}
        event = ClusterEvent(
            number=self._last + 1, at_ms=self._clock.wall_ms(), kind=kind.value, name=SUPPRESSED, fields=fields
        )
        self._add(event)

    def _add(self, event: ClusterEvent) -> None:
        self._last = event.number
        self._rings[event.kind].add(event)
        self._kept(event)
        for reader, wanted in self._readers.items():
            if not reader.done() and wanted.fits(event):
                reader.set_result(None)

    # --- readers ------------------------------------------------------------------------------------------------------

    def all(self) -> list[ClusterEvent]:
        """The oldest first."""
        return list(merge(*(reversed(list(ring.after(0))) for ring in self._rings.values()), key=_number))

    def newest_place(self) -> tuple[int, int]:
        """Recovery epoch and offset of the newest committed event that is kept; NOT_COMMITTED: there is none."""
        kept = (event for ring in self._rings.values() for event in ring.after(0))
        return max(((event.recovery_epoch, event.offset) for event in kept), default=(0, NOT_COMMITTED))

    def select(self, request: EventsRequest, unconfirmed_ms: int = 0) -> EventsResponse:
        for kind, rate in self._rates.items():
            self._tell_suppressed(EventKind(kind), rate)  # the attack may be over: no other event would say so
        limit = max(1, min(request.limit, MAX_PAGE))
        wanted = _Wanted.of(request)
        rings = self._rings_of(wanted)
        found = (event for ring in rings.values() for event in ring.after(request.after) if wanted.fits(event))
        if request.after == NEWEST:
            events = nlargest(limit + 1, found, key=_number)[::-1]
            has_more, events = len(events) > limit, events[-limit:]
            last = self._last
        else:
            events = nsmallest(limit + 1, found, key=_number)
            has_more, events = len(events) > limit, events[:limit]
            last = events[-1].number if has_more else max(self._last, request.after)
        return EventsResponse(
            node_id=self.node_id,
            events=tuple(events),
            last=last,
            has_more=has_more,
            forgotten=tuple(
                ForgottenEvents(kind=kind, count=ring.forgotten, until_ms=ring.forgotten_until_ms)
                for kind, ring in rings.items()
                if ring.forgotten
            ),
            unconfirmed_ms=unconfirmed_ms,
        )

    def _rings_of(self, wanted: _Wanted) -> dict[str, EventRing]:
        """Those of the kinds that are asked for. A name may be of any kind."""
        if not wanted.kinds or not self._rings.keys() >= wanted.kinds:
            return self._rings
        return {kind: ring for kind, ring in self._rings.items() if kind in wanted.kinds}

    async def wait_and_select(
        self, request: EventsRequest, unconfirmed_ms: Callable[[], int] = lambda: 0
    ) -> EventsResponse:
        """A long poll: answered at the first event that fits, or after `max_wait_ms`."""
        end_ms = self._clock.now_ms() + min(request.max_wait_ms, MAX_WAIT_MS)
        answer = self.select(request, unconfirmed_ms())
        while not answer.events:
            left_ms = end_ms - self._clock.now_ms()
            if left_ms <= 0 or len(self._readers) >= MAX_READERS:
                break
            await self._next(left_ms, request)
            # What did not fit is not looked at again.
            again = EventsRequest(
                after=answer.last,
                since_ms=request.since_ms,
                kinds=request.kinds,
                topic=request.topic,
                broker=request.broker,
                limit=request.limit,
            )
            answer = self.select(again, unconfirmed_ms())
        return answer

    async def _next(self, left_ms: int, request: EventsRequest) -> None:
        """Return at the next event that fits, or when the time is over: a hundred readers are not woken by each event."""
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers[reader] = _Wanted.of(request)
        try:
            await asyncio.wait([reader], timeout=left_ms / 1000)
        finally:
            self._readers.pop(reader, None)
            reader.cancel()


def shown(value: str) -> str:
    """Printable, and not too long: clients choose some of the values."""
    text = printable(value[: MAX_VALUE_LENGTH + 1])
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."


def _number(event: ClusterEvent) -> int:
    return event.number
