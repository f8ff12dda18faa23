"""Rings are bounded in number and bytes, keep the newest, and count what has left; rates admit a burst, then a trickle."""

from hypothesis import given
from hypothesis import strategies as st

from barnabas.net.metadata.events.event_ring import EventRate, EventRing, size_of
from barnabas.net.wire.protocol.event_messages import ClusterEvent


def event(number: int, text: str = "") -> ClusterEvent:
    return ClusterEvent(number=number, at_ms=number * 10, kind="isr", name="isr", fields={"a": text})


@given(
    sizes=st.lists(st.integers(0, 400), max_size=60), max_events=st.integers(1, 12), max_bytes=st.integers(100, 2_000)
)
def test_a_ring_keeps_the_newest_within_its_bounds(sizes: list[int], max_events: int, max_bytes: int) -> None:
    ring = EventRing(max_events=max_events, max_bytes=max_bytes)
    events = [event(number, "x" * size) for number, size in enumerate(sizes, 1)]
    for item in events:
        ring.add(item)
        kept = list(ring.after(0))[::-1]
        known = events[: item.number]
        assert kept == known[len(known) - len(kept) :] and kept[-1] == item
        assert len(kept) <= max_events and ring.size_bytes == sum(map(size_of, kept))
        assert ring.size_bytes <= max_bytes or len(kept) == 1
        assert ring.forgotten == len(known) - len(kept)
        assert ring.forgotten_until_ms == (known[ring.forgotten - 1].at_ms if ring.forgotten else -1)
        if ring.forgotten:  # not one too many: with the one before, a bound is broken
            one_more = [known[ring.forgotten - 1], *kept]
            assert len(one_more) > max_events or sum(map(size_of, one_more)) > max_bytes


@given(count=st.integers(0, 30), after=st.integers(-1, 40))
def test_a_reader_gets_what_is_behind_its_number(count: int, after: int) -> None:
    ring = EventRing()
    for number in range(1, count + 1):
        ring.add(event(number))
    assert [item.number for item in ring.after(after)] == list(range(count, max(after, 0), -1))


@given(steps=st.lists(st.integers(0, 3_000), max_size=200))
def test_a_rate_admits_a_burst_and_then_so_many_a_second(steps: list[int]) -> None:
    rate = EventRate(burst=5, per_s=2, now_ms=0)
    now_ms = admitted = 0
    for step in steps:
        now_ms += step
        admitted += rate.admits(now_ms)
    assert admitted <= 5 + now_ms * 2 / 1000
    assert admitted + rate.take_suppressed() == len(steps)
    assert rate.take_suppressed() == 0


def test_a_rate_recovers() -> None:
    rate = EventRate(burst=2, per_s=1, now_ms=0)
    assert [rate.admits(0) for _ in range(3)] == [True, True, False]
    assert [rate.admits(999), rate.admits(1_000), rate.admits(1_001)] == [False, True, False]
    assert [rate.admits(1_000_000) for _ in range(3)] == [True, True, False]
