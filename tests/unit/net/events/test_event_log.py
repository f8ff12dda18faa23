"""What a broker keeps: no kind displaces another, what clients cause is limited and counted, pages have no gaps, no doubles."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.net.metadata.events.event_log import (
    BURST,
    CAUSED_BY_CLIENTS,
    MAX_READERS,
    MAX_VALUE_LENGTH,
    SUPPRESSED,
    SUPPRESSED_EVERY_MS,
    CommittedAt,
    EventLog,
)
from barnabas.net.metadata.events.event_ring import MAX_EVENTS
from barnabas.net.wire.protocol.event_messages import NEWEST, ClusterEvent, EventKind, EventsRequest, EventsResponse


class Time:
    ms = 5_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


def log_of(time: Time | None = None) -> EventLog:
    return EventLog(3, time or Time())


def names(answer: EventsResponse) -> list[str]:
    return [event.name for event in answer.events]


def ask(log: EventLog, **request: Any) -> EventsResponse:
    return log.select(EventsRequest(**request))


def test_a_stranger_who_fails_to_log_in_hides_nothing_else() -> None:
    time = Time()
    log = log_of(time)
    log.record(EventKind.ELECTION, "elected", {"partition": "t-0"}, topic="t")
    log.record(EventKind.DENIED, "denied", {"principal": "User:bob"})
    for _ in range(36_000):  # an hour, ten a second
        time.ms += 100
        log.record(EventKind.FAILED_LOGIN, "login_failed", {"reason": "x"})
    assert names(ask(log, kinds=("election",))) == ["elected"]
    assert names(ask(log, kinds=("denied",))) == ["denied"]
    kept = ask(log, kinds=("failed_login",), after=0)
    assert 0 < len(kept.events) <= 1_000 and len(log.all()) <= MAX_EVENTS + 2
    forgotten = sum(item.count for item in kept.forgotten)
    told = [event for event in log.all() if event.kind == "failed_login"]
    assert forgotten + len(told) < BURST + 3_600 * 1.2


def test_what_was_left_out_is_counted() -> None:
    time = Time()
    log = log_of(time)
    caused = BURST + 50
    for _ in range(caused):
        log.record(EventKind.DENIED, "denied", {})
    time.ms += SUPPRESSED_EVERY_MS
    events = ask(log, after=0).events  # nothing else happens: the reader is told nevertheless
    counted = sum(int(event.fields["count"]) for event in events if event.name == SUPPRESSED)
    assert counted + sum(event.name == "denied" for event in events) == caused
    assert ask(log, after=events[-1].number).events == ()


def test_what_the_cluster_does_is_never_limited_by_a_rate() -> None:
    log = log_of()
    for kind in EventKind:
        accepted = [log.record(kind, "x", {}) for _ in range(BURST + 1)]
        assert all(accepted) == (kind not in CAUSED_BY_CLIENTS), kind


def test_values_of_clients_are_cut_and_printable() -> None:
    log = log_of()
    log.record(EventKind.LOGIN, "login", {"user": "x" * 10_000, "host": "h", "a": "1\n2", "b": "\U000e0001" * 10_000})
    fields = log.all()[0].fields
    assert fields["user"] == "x" * MAX_VALUE_LENGTH + "..." and fields["host"] == "h" and fields["a"] == "1\\n2"
    assert fields["b"].isprintable() and len(fields["b"]) == MAX_VALUE_LENGTH + 3


@pytest.mark.parametrize(
    ("request_fields", "numbers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"kinds": ("isr", "topic")}, [1, 2]),
        ({"kinds": ("elected",)}, [0]),
        ({"kinds": ("isr", "fenced")}, [1, 3]),
        ({"topic": "t"}, [0, 1]),
        ({"broker": 2}, [1, 3]),
        ({"since_ms": 5_002}, [2, 3]),
        ({"topic": "t", "broker": 1}, [0]),
        ({"kinds": ("nonsense",)}, []),
        ({"limit": 2}, [2, 3]),
        ({"limit": 2, "after": 0}, [0, 1]),
        ({"limit": -1}, [3]),
    ],
)
def test_events_by_what_they_are_about(request_fields: dict[str, Any], numbers: list[int]) -> None:
    time = Time()
    log = log_of(time)
    log.record(EventKind.ELECTION, "elected", {}, topic="t", brokers=(0, 1))
    time.ms += 1
    log.record(EventKind.ISR, "isr", {}, topic="t", brokers=(2,))
    time.ms += 1
    log.record(EventKind.TOPIC, "created", {}, topic="u")
    time.ms += 1
    log.record(EventKind.BROKER, "fenced", {}, brokers=(2,))
    first = log.all()[0].number
    assert [event.number - first for event in ask(log, **request_fields).events] == numbers


@given(
    kinds=st.lists(st.sampled_from([EventKind.ISR, EventKind.TOPIC, EventKind.BROKER]), max_size=40),
    limit=st.integers(1, 9),
    wanted=st.sampled_from([(), ("isr",), ("isr", "topic")]),
)
def test_pages_have_no_gaps_and_no_doubles(kinds: list[EventKind], limit: int, wanted: tuple[str, ...]) -> None:
    log = log_of()
    for kind in kinds:
        log.record(kind, "x", {})
    after, seen, has_more = 0, list[ClusterEvent](), True
    while has_more:
        page = ask(log, after=after, limit=limit, kinds=wanted)
        assert len(page.events) <= limit
        seen += page.events
        after, has_more = page.last, page.has_more
    assert seen == [event for event in log.all() if not wanted or event.kind in wanted]
    newest = ask(log, limit=limit, kinds=wanted)
    assert list(newest.events) == seen[-limit:] and newest.has_more == (len(seen) > limit)
    log.record(EventKind.ISR, "new", {})
    assert names(ask(log, after=after, kinds=wanted)) == ["new"]


def test_numbers_go_on_behind_those_of_earlier_processes() -> None:
    first = log_of()
    first.record(EventKind.TOPIC, "created", {}, at=CommittedAt(recovery_epoch=0, offset=7, index=0, is_late=False))
    second = log_of()  # its clock was set back to the start of the first
    second.restore([*first.all(), *first.all()])
    second.record(EventKind.TOPIC, "deleted", {})
    assert [event.name for event in second.all()] == ["created", "deleted"]
    assert second.newest_place() == (0, 7)
    third = log_of()
    third.restore([ClusterEvent(number=1, at_ms=1, kind="of_a_newer_version", name="x")])
    assert third.all() == [] and third.newest_place() == (0, -1)


async def test_a_reader_that_waits_gets_the_first_event_that_fits() -> None:
    log = log_of()
    asked = EventsRequest(after=0, kinds=("isr",), max_wait_ms=30_000)
    reading = asyncio.ensure_future(log.wait_and_select(asked))
    await asyncio.sleep(0)
    log.record(EventKind.TOPIC, "created", {})
    await asyncio.sleep(0)
    log.record(EventKind.ISR, "isr", {})
    answer = await reading
    assert names(answer) == ["isr"] and answer.last == log.all()[-1].number
    at_once = await log.wait_and_select(EventsRequest(after=NEWEST, max_wait_ms=30_000))
    assert names(at_once) == ["created", "isr"]


@pytest.mark.parametrize("wanted", [{"topic": "t"}, {"broker": 2}, {"kinds": ("elected",)}, {"since_ms": 5_001}])
async def test_a_reader_that_waits_gets_no_other_events(wanted: dict[str, Any]) -> None:
    time = Time()
    log = log_of(time)
    reading = asyncio.ensure_future(log.wait_and_select(EventsRequest(after=0, max_wait_ms=30_000, **wanted)))
    for name in ("leaderless", "elected"):
        await asyncio.sleep(0)
        last = name == "elected"
        log.record(EventKind.ELECTION, name, {}, topic="t" if last else "u", brokers=(2,) if last else (1,))
        time.ms += 1
    assert names(await reading) == ["elected"]


async def test_readers_that_wait_are_limited_and_leave_nothing() -> None:
    log = log_of()
    asked = EventsRequest(after=0, max_wait_ms=30_000)
    readers = [asyncio.ensure_future(log.wait_and_select(asked)) for _ in range(MAX_READERS)]
    await asyncio.sleep(0)
    assert names(await log.wait_and_select(asked)) == []  # one too many: at once
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    waiting = asyncio.ensure_future(log.wait_and_select(asked))
    await asyncio.sleep(0)
    log.record(EventKind.ISR, "isr", {})
    assert names(await waiting) == ["isr"]


class CountingLog(EventLog):
    looks = 0

    def select(self, request: EventsRequest, unconfirmed_ms: int = 0) -> EventsResponse:
        self.looks += 1
        return super().select(request, unconfirmed_ms)


async def test_a_reader_looks_only_when_there_is_something_for_it() -> None:
    """A hundred readers that looked at each event took 1.6 ms of the loop for it."""
    log = CountingLog(0, Time())
    reading = asyncio.ensure_future(log.wait_and_select(EventsRequest(after=0, topic="mine", max_wait_ms=30_000)))
    await asyncio.sleep(0)
    for _ in range(20):
        log.record(EventKind.ISR, "isr", {}, topic="other")
        await asyncio.sleep(0)
    assert log.looks == 1
    log.record(EventKind.ISR, "isr", {}, topic="mine")
    answer = await reading
    assert [event.topic for event in answer.events] == ["mine"] and log.looks == 2
