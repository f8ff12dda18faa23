"""`Admin.events`: what has happened in the cluster, from all brokers that answer, merged.

Brokers derive the events of the committed metadata alike, so each is shown once, with the earliest time; logins, refusals
and rebalances come from the broker that saw them. It works without a quorum, and says who did not answer.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.node_address import NodeAddress
from barnabas.net.wire.protocol.doubt import doubt_of
from barnabas.net.wire.protocol.event_messages import (
    MAX_PAGE,
    NEWEST,
    ClusterEvent,
    EventsRequest,
    EventsResponse,
    ForgottenEvents,
)
from barnabas.net.wire.protocol.requests import DescribeClusterRequest, DescribeQuorumRequest
from barnabas.net.wire.protocol.responses import ClusterBroker, DescribeClusterResponse

from ...base.printable import key_values
from ..connection.client import Client
from ..connection.errors import BarnabasError, BrokerNotAvailableError
from .asking import Ask

PATIENCE_MS: Final = 3_000  # for one broker: those that are frozen must not hide what the others say
# One long poll of every broker. An event that only one of them saw waits for the others' polls, so it is shown within this time.
POLL_MS: Final = 500
AT_ONCE: Final = 32  # brokers that are asked at the same time
# Clients send cursors over HTTP, and brokers match them on their loops: each text must have one way to match only.
_PAIR: Final = "[0-9]{1,10}:[0-9]{1,18}"
_CURSOR: Final = re.compile(
    rf"([0-9]{{1,18}})~([0-9]{{1,18}})\.(-?[0-9]{{1,18}})\.([0-9]{{1,9}})~((?:{_PAIR}(?:,{_PAIR})*)?)"
)

Place = tuple[int, int, int]
_NO_PLACE: Final = (0, -1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEvent:
    """An event, and a broker that has kept it."""

    node_id: int
    event: ClusterEvent

    @property
    def line(self) -> str:
        """`time kind event=... key=value ...`"""
        event = self.event
        more = {"seen_by": str(self.node_id)} | ({"late": "yes"} if event.is_late else {})
        at = time_text(event.at_ms)
        return f"{at} {event.kind} {key_values({'event': event.name, **event.fields, **more})}"

    @property
    def row(self) -> dict[str, object]:
        """For programs."""
        event = self.event
        return {
            "at": time_text(event.at_ms),
            "at_ms": event.at_ms,
            "kind": event.kind,
            "event": event.name,
            "fields": event.fields,
            "topic": event.topic or None,
            "brokers": list(event.brokers),
            "seen_by": self.node_id,
            "metadata_offset": event.offset if event.place is not None else None,
            "late": event.is_late,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """`cursor` is for the next question. `unanswered`: brokers of the cluster, and why. `doubt`: without a quorum."""

    events: tuple[SeenEvent, ...]
    cursor: str
    unanswered: Mapping[int, str]
    doubt: Mapping[str, Any] | None = None
    has_more: bool = False
    forgotten: Sequence[tuple[int, ForgottenEvents]] = ()  # by brokers whose rings were full


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the next question goes on: a number for each broker that has answered, and the newest place that was shown."""

    at_ms: int  # wall clock of the asker; brokers that answer for the first time tell what is newer
    place: Place = _NO_PLACE
    numbers: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        numbers = ",".join(f"{node}:{number}" for node, number in sorted(self.numbers.items()))
        return f"{self.at_ms}~{'.'.join(map(str, self.place))}~{numbers}"


def cursor_of(text: str) -> Cursor:
    """Raises InvalidRequestError."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidRequestError(f"{text[:80]!r} is no cursor of events; use that of the last answer, or none")
    at_ms, epoch, offset, index = (int(found[number]) for number in range(1, 5))
    pairs = (pair.split(":") for pair in found[5].split(",") if pair)
    return Cursor(at_ms=at_ms, place=(epoch, offset, index), numbers={int(node): int(last) for node, last in pairs})


class EventAdmin:
    def __init__(self, client: Client, ask: Ask) -> None:
        self._client = client
        self._ask = ask

    async def __call__(
        self,
        *,
        after: str = "",
        since_ms: int = -1,
        kinds: Iterable[str] = (),
        topic: str = "",
        broker: int = -1,
        limit: int = MAX_PAGE,
        wait_ms: int = 0,
    ) -> EventPage:
        """What has happened, the oldest first: the newest `limit` events, or those after a cursor.

        `since_ms`: wall clock. `kinds`: of events, or their names. `topic`, `broker`: what they are about. `wait_ms`: for the
        first event, if there is none. Raises InvalidRequestError (not a cursor), ClusterAuthorizationError.
        """
        request = EventsRequest(
            since_ms=since_ms, kinds=tuple(kinds), topic=topic, broker=broker, limit=max(1, min(limit, MAX_PAGE))
        )
        cursor = cursor_of(after) if after else None
        cluster, quorum = await asyncio.gather(
            self._ask.anywhere(DescribeClusterRequest()), self._ask.anywhere(DescribeQuorumRequest())
        )
        end_ms = self._client.clock.now_ms() + wait_ms
        while True:
            left_ms = max(0, end_ms - self._client.clock.now_ms())
            began_ms = self._client.clock.wall_ms()
            answers, unanswered = await self._asked(cluster, request, cursor, min(left_ms, POLL_MS))
            page = merged(answers, cursor, request.limit, began_ms, unanswered)
            if page.events or left_ms <= POLL_MS:
                break
            cursor = cursor_of(page.cursor)
            early_ms = began_ms + POLL_MS - self._client.clock.wall_ms()
            await asyncio.sleep(min(max(0, early_ms), POLL_MS) / 1000)  # a broker with many readers answers at once
        return EventPage(
            events=page.events,
            cursor=page.cursor,
            unanswered=unanswered,
            doubt=doubt_of(quorum),
            has_more=page.has_more,
            forgotten=page.forgotten,
        )

    async def _asked(
        self, cluster: DescribeClusterResponse, request: EventsRequest, cursor: Cursor | None, wait_ms: int
    ) -> tuple[list[EventsResponse], dict[int, str]]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(broker: ClusterBroker) -> EventsResponse | BarnabasError | OSError:
            async with gate:
                return await self._answer(broker, _for_broker(request, cursor, broker.node_id, wait_ms))

        answers = await asyncio.gather(*map(one, cluster.brokers))
        found: list[EventsResponse] = []
        unanswered: dict[int, str] = {}
        for broker, answer in zip(cluster.brokers, answers, strict=True):
            if isinstance(answer, EventsResponse):
                found.append(answer)
            elif isinstance(answer, BarnabasError) and not answer.retriable:
                raise answer
            else:
                unanswered[broker.node_id] = str(answer) or "no answer in time"
        return found, unanswered

    async def _answer(self, broker: ClusterBroker, request: EventsRequest) -> EventsResponse | BarnabasError | OSError:
        """Fenced brokers are asked, too: the metadata of clients does not have them."""
        timeout_ms = PATIENCE_MS + request.max_wait_ms
        client = self._client
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                try:
                    connection = await client.connect(broker.node_id)
                except BrokerNotAvailableError:
                    address = NodeAddress(node_id=broker.node_id, host=broker.host, port=broker.port)
                    connection = await client.connect_to(address)
                answer = await connection.call(request, timeout_ms=timeout_ms)
        except (BarnabasError, OSError) as error:  # a TimeoutError is an OSError
            return error
        assert isinstance(answer, EventsResponse)
        return answer


def _for_broker(request: EventsRequest, cursor: Cursor | None, node_id: int, wait_ms: int) -> EventsRequest:
    after, since_ms = NEWEST, request.since_ms
    if cursor is not None:
        after = cursor.numbers.get(node_id, 0)
        if node_id not in cursor.numbers:
            since_ms = max(since_ms, cursor.at_ms)
    return EventsRequest(
        after=after,
        since_ms=since_ms,
        kinds=request.kinds,
        topic=request.topic,
        broker=request.broker,
        limit=request.limit,
        max_wait_ms=wait_ms,
    )


# --- merging; pure ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """`at_ms` never falls in the order of its broker, whose clock may have been set back."""

    at_ms: int
    seen: SeenEvent


def merged(
    answers: Sequence[EventsResponse],
    cursor: Cursor | None,
    limit: int,
    now_ms: int,
    unanswered: Mapping[int, str],
) -> EventPage:
    """One page. Behind a cursor, a broker that has more events than fit ends the page for all: what is newer comes later."""
    streams = {answer.node_id: _timed(answer) for answer in answers}
    numbers = dict(cursor.numbers) if cursor else {}
    numbers |= {answer.node_id: answer.last for answer in answers}
    if cursor is not None:
        ends_ms = [streams[answer.node_id][-1].at_ms for answer in answers if answer.has_more and answer.events]
        for node_id, stream in streams.items():
            kept = [item for item in stream if not ends_ms or item.at_ms <= min(ends_ms)]
            if len(kept) < len(stream):
                numbers[node_id] = stream[len(kept)].seen.event.number - 1
            streams[node_id] = kept
    place = cursor.place if cursor else _NO_PLACE
    shown = _ordered(streams.values(), place)
    has_more = any(answer.has_more for answer in answers)
    if cursor is None and len(shown) > limit:
        shown, has_more = shown[-limit:], True
    newest = max((item.event.place for item in shown if item.event.place is not None), default=place)
    at_ms = cursor.at_ms if cursor else now_ms
    return EventPage(
        events=tuple(shown),
        cursor=str(Cursor(at_ms=at_ms, place=max(place, newest), numbers=numbers)),
        unanswered=unanswered,
        has_more=has_more,
        forgotten=[(answer.node_id, item) for answer in answers for item in answer.forgotten],
    )


def _timed(answer: EventsResponse) -> list[_Timed]:
    timed: list[_Timed] = []
    at_ms = 0
    for event in answer.events:
        at_ms = max(at_ms, event.at_ms)
        timed.append(_Timed(at_ms=at_ms, seen=SeenEvent(node_id=answer.node_id, event=event)))
    return timed


def _ordered(streams: Iterable[Sequence[_Timed]], shown_place: Place) -> list[SeenEvent]:
    """Each committed event once, in the order of the metadata; others by their time."""
    committed: dict[Place, _Timed] = {}
    others: list[_Timed] = []
    for item in (item for stream in streams for item in stream):
        place = item.seen.event.place
        if place is None:
            others.append(item)
        elif place > shown_place and (place not in committed or _is_better(item, committed[place])):
            committed[place] = item
    at_ms = 0
    keyed: list[tuple[int, int, SeenEvent]] = []
    for _, item in sorted(committed.items(), key=lambda pair: pair[0]):
        at_ms = max(at_ms, item.seen.event.at_ms)
        keyed.append((at_ms, len(keyed), item.seen))
    keyed += [(item.at_ms, len(keyed) + number, item.seen) for number, item in enumerate(others)]
    return [seen for _, _, seen in sorted(keyed, key=lambda item: item[:2])]


def _is_better(item: _Timed, known: _Timed) -> bool:
    """The time of a broker that was not behind, and of these the earliest."""
    one, other = item.seen.event, known.seen.event
    return (one.is_late, one.at_ms) < (other.is_late, other.at_ms)


def time_text(at_ms: int) -> str:
    """With the zone: that of this machine."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().isoformat(timespec="milliseconds")
