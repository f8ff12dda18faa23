"""Answers of several brokers become one page: each committed event once, in order; pages behind a cursor have no gaps."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.client.admin.events import Cursor, EventPage, cursor_of, merged
from barnabas.net.wire.protocol.event_messages import ClusterEvent, EventsResponse


def committed(number: int, offset: int, at_ms: int, *, index: int = 0, is_late: bool = False) -> ClusterEvent:
    return ClusterEvent(
        number=number, at_ms=at_ms, kind="isr", name=f"{offset}.{index}", offset=offset, index=index, is_late=is_late
    )


def local(number: int, name: str, at_ms: int) -> ClusterEvent:
    return ClusterEvent(number=number, at_ms=at_ms, kind="login", name=name)


def answer(node_id: int, *events: ClusterEvent, has_more: bool = False) -> EventsResponse:
    return EventsResponse(node_id=node_id, events=events, last=events[-1].number if events else 0, has_more=has_more)


def page(*answers: EventsResponse, cursor: Cursor | None = None, limit: int = 100) -> EventPage:
    return merged(answers, cursor, limit, 1_000, {})


def shown(found: EventPage) -> list[tuple[str, int]]:
    return [(item.event.name, item.node_id) for item in found.events]


def test_an_event_of_the_metadata_is_shown_once_with_the_earliest_time() -> None:
    found = page(
        answer(0, committed(1, 5, 103), committed(2, 6, 106)),
        answer(1, committed(7, 5, 101), committed(8, 6, 107)),
    )
    assert shown(found) == [("5.0", 1), ("6.0", 0)]


def test_a_broker_that_was_behind_does_not_say_when() -> None:
    found = page(answer(0, committed(1, 5, 90, is_late=True)), answer(1, committed(7, 5, 101)))
    assert shown(found) == [("5.0", 1)]
    assert shown(page(answer(0, committed(1, 5, 90, is_late=True)))) == [("5.0", 0)]


def test_clocks_that_differ_do_not_change_the_order_of_the_metadata() -> None:
    found = page(
        answer(0, committed(1, 5, 500), local(2, "a", 501)), answer(1, committed(1, 6, 100), local(2, "b", 101))
    )
    assert [name for name, _ in shown(found) if "." in name] == ["5.0", "6.0"]
    assert {name for name, _ in shown(found)} == {"5.0", "6.0", "a", "b"}


def test_the_newest_of_all_brokers() -> None:
    found = page(answer(0, local(1, "a", 1), local(2, "c", 3)), answer(1, local(1, "b", 2)), limit=2)
    assert shown(found) == [("b", 1), ("c", 0)] and found.has_more


def test_what_another_page_has_shown_is_not_shown_again() -> None:
    first = page(answer(0, committed(1, 5, 100)))
    cursor = cursor_of(first.cursor)
    second = page(answer(1, committed(9, 5, 104), committed(10, 6, 108)), cursor=cursor)
    assert shown(second) == [("6.0", 1)]
    assert cursor_of(second.cursor).numbers == {0: 1, 1: 10}
    assert cursor_of(page(cursor=cursor).cursor) == cursor  # no broker has answered: it goes on where it was


def test_cursors_are_text() -> None:
    cursor = Cursor(at_ms=17, place=(2, 30, 4), numbers={3: 9, 1: 8})
    assert cursor_of(str(cursor)) == cursor
    assert cursor_of(str(Cursor(at_ms=0))) == Cursor(at_ms=0)
    for text in ("", "x", "1~2", f"{cursor}x", "1~0.1.2~a:b", "9" * 5_000, "1~0.1.2~1:" + "9" * 30):
        with pytest.raises(InvalidRequestError):
            cursor_of(text)


@given(of_brokers=st.lists(st.lists(st.integers(0, 30), max_size=15), min_size=1, max_size=3), limit=st.integers(1, 4))
def test_pages_have_every_event_once(of_brokers: list[list[int]], limit: int) -> None:
    """Events of logins, with any times, also times that go back."""
    kept = [
        [local(number, f"{node}/{number}", at_ms) for number, at_ms in enumerate(times, 1)]
        for node, times in enumerate(of_brokers)
    ]
    cursor, seen, has_more = Cursor(at_ms=0), list[str](), True
    while has_more:
        answers = []
        for node, events in enumerate(kept):
            left = [event for event in events if event.number > cursor.numbers.get(node, 0)]
            last = left[:limit][-1].number if left else cursor.numbers.get(node, 0)
            answers.append(
                EventsResponse(node_id=node, events=tuple(left[:limit]), last=last, has_more=len(left) > limit)
            )
        found = page(*answers, cursor=cursor, limit=limit)
        assert found.events or not found.has_more
        seen += [item.event.name for item in found.events]
        cursor, has_more = cursor_of(found.cursor), found.has_more
    assert sorted(seen) == sorted(event.name for events in kept for event in events)
    for node in range(len(kept)):
        mine = [int(name.partition("/")[2]) for name in seen if name.startswith(f"{node}/")]
        assert mine == sorted(mine)


def test_a_cursor_that_does_not_match_is_refused_at_once() -> None:
    """A pattern that can split the digits in several ways takes eight times as long for each further pair."""
    began_s = time.process_time()
    with pytest.raises(InvalidRequestError):
        cursor_of("1~1.1.1~" + "11:1111111111" * 7 + "x")
    assert time.process_time() - began_s < 0.1
    assert str(cursor_of("1~1.1.1~0:7,12:8")) == "1~1.1.1~0:7,12:8"
