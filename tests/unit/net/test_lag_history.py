"""The lag of groups in the last hour, and the copies that brokers keep for each other."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.log.vocabulary.errors import InvalidRequestError, NetworkError
from barnabas.net.broker.monitoring import lag_copies
from barnabas.net.broker.monitoring.lag_copies import LagCopies
from barnabas.net.broker.monitoring.lag_history import (
    HOUR_MS,
    LAG_POINTS,
    MAX_COPIES,
    MAX_GROUPS,
    MAX_TOPICS,
    GroupLags,
    GroupReading,
)
from barnabas.net.wire.protocol.group_responses import LAG_STEP_MS
from barnabas.net.wire.protocol.lag import GroupLagHistory, GroupLagsRequest, GroupLagsResponse


def lag(records: int) -> GroupReading:
    return GroupReading(unread=records, lag_ms=10 * records, topics=("t",))


def test_the_lag_of_a_group_is_kept_for_an_hour() -> None:
    lags = GroupLags()
    for number in range(LAG_POINTS + 5):
        lags.note(30_000 * number, {"g": lag(number)})
    points, topics = lags.of("g")
    assert [point.at_ms for point in points] == [30_000 * number for number in range(5, LAG_POINTS + 5)]
    assert (points[0].unread, points[0].lag_ms, topics) == (5, 50, ("t",))
    assert lags.of("other") == ((), ())


def test_a_topic_counts_as_long_as_a_point_is_about_it() -> None:
    """Who may not describe it must not see those points."""
    lags = GroupLags()
    lags.note(0, {"g": GroupReading(unread=1, lag_ms=1, topics=("secret", "t"))})
    for number in range(1, LAG_POINTS):
        lags.note(number, {"g": lag(number)})
    assert set(lags.of("g")[1]) == {"secret", "t"}
    lags.note(LAG_POINTS, {"g": lag(1)})
    assert lags.of("g")[1] == ("t",)


def test_known_groups_keep_their_place_and_groups_that_moved_become_copies() -> None:
    lags = GroupLags()
    names = [f"g{number:04d}" for number in range(MAX_GROUPS + 1)]
    lags.note(1, {"g0500": lag(1), "gone": lag(1)})
    chosen = lags.chosen(names)
    assert len(chosen) == MAX_GROUPS and chosen[0] == "g0500" and names[-2] not in chosen[1:]
    assert len(lags) == 1 and lags.newest_of_own() == {"g0500": 1}
    assert [point.at_ms for point in lags.of("gone")[0]] == [1], "its new coordinator may ask for it"
    lags.note(2, {name: lag(2) for name in chosen})
    assert set(lags.chosen(names)) == set(chosen), "a group beyond the limit takes no place"


def history(group_id: str, *times_ms: int, topics: tuple[str, ...] = ("t",)) -> GroupLagHistory:
    return GroupLagHistory(
        group_id=group_id, times_ms=times_ms, unread_counts=times_ms, lags_ms=tuple(-1 for _ in times_ms), topics=topics
    )


def times_of(lags: GroupLags, group_id: str) -> list[int]:
    return [point.at_ms for point in lags.of(group_id)[0]]


def test_points_of_two_brokers_are_sorted_by_time_and_none_is_older_than_an_hour() -> None:
    lags = GroupLags()
    lags.note(HOUR_MS + 20, {"g": lag(7)})
    lags.keep(history("g", 5, 20, 30, HOUR_MS + 20, topics=("u",)), now_ms=HOUR_MS)
    points, topics = lags.of("g")
    assert [(point.at_ms, point.unread) for point in points] == [(30, 30), (HOUR_MS + 20, 7)], "what is here stays"
    assert set(topics) == {"t", "u"}
    lags.note(HOUR_MS, {"g": lag(8)})  # The clock of the other broker was ahead.
    assert times_of(lags, "g") == [30, HOUR_MS, HOUR_MS + 20]


def test_copies_have_a_limit_and_end_after_an_hour() -> None:
    lags = GroupLags()
    for number in range(MAX_COPIES + 2):
        lags.keep(history(f"g{number}", number + 1), now_ms=number)
    assert times_of(lags, "g1") == [] and times_of(lags, "g2") == [3]
    lags.keep(history("g2", 9_000), now_ms=9_000)
    lags.forget_old(HOUR_MS + 8_000)
    assert times_of(lags, "g2") == [3, 9_000] and times_of(lags, "g3") == []


@pytest.mark.parametrize("column", ["times_ms", "unread_counts", "lags_ms"])
def test_columns_of_different_length_are_refused(column: str) -> None:
    fields: dict[str, Any] = {"times_ms": (1,), "unread_counts": (1,), "lags_ms": (1,), column: ()}
    copies = LagCopies(cast(Any, None), GroupLags(), lambda: 0)
    with pytest.raises(InvalidRequestError, match="history of group 'g' is not valid"):
        copies.answer(GroupLagsRequest(kept=(GroupLagHistory(group_id="g", topics=(), **fields),)))


@pytest.mark.parametrize("column", ["times_ms", "unread_counts", "lags_ms"])
@pytest.mark.parametrize("number", [2**63, -2])
def test_numbers_that_have_no_room_are_refused_and_nothing_of_them_stays(column: str, number: int) -> None:
    """Columns of different length would never be read again."""
    lags = GroupLags()
    lags.note(1, {"g": lag(1)})
    fields: dict[str, Any] = {"times_ms": (2,), "unread_counts": (2,), "lags_ms": (2,), column: (number,)}
    copies = LagCopies(cast(Any, None), lags, lambda: 2)
    with pytest.raises(InvalidRequestError, match="a number is not from -1 to"):
        copies.answer(GroupLagsRequest(kept=(GroupLagHistory(group_id="g", topics=(), **fields),)))
    assert times_of(lags, "g") == [1]


def test_what_strangers_send_takes_a_bounded_room() -> None:
    """Without an authorizer, any client may send copies."""
    lags = GroupLags()
    for number in range(3):
        some = tuple(f"t{number}-{place}" for place in range(MAX_TOPICS // 2))
        lags.keep(history("g", number + 1, topics=some), now_ms=HOUR_MS)
        assert len(lags.of("g")[1]) <= MAX_TOPICS
    lags.note(9, {"own": lag(1)})
    lags.keep(history("own", 5, topics=tuple(f"t{number}" for number in range(MAX_TOPICS + 1))), now_ms=HOUR_MS)
    assert times_of(lags, "own") == [9] and lags.of("own")[1] == ("t",)
    for name, topic in (("g" * 40_000, "t"), ("g", "t" * 250)):
        with pytest.raises(ValueError, match="more than 32767 characters, or that of a topic more than 249"):
            lags.keep(history(name, 9, topics=(topic,)), now_ms=HOUR_MS)


def test_a_clock_that_was_hours_ahead_does_not_keep_the_next_points_away() -> None:
    lags = GroupLags()
    now_ms = 3 * HOUR_MS
    lags.note(now_ms, {"g": lag(1)})
    lags.note(now_ms + 2 * HOUR_MS, {"g": GroupReading(unread=1, lag_ms=1, topics=("t", "u"))})
    for step in (1, 2):
        lags.note(now_ms + step * LAG_STEP_MS, {"g": lag(step)})
    assert times_of(lags, "g") == [now_ms + LAG_STEP_MS, now_ms + 2 * LAG_STEP_MS]
    assert lags.of("g")[1] == ("t",)


def test_points_of_a_clock_that_is_hours_ahead_are_not_taken() -> None:
    lags = GroupLags()
    now_ms = 3 * HOUR_MS
    lags.note(now_ms, {"g": lag(1)})
    for name in ("g", "other"):
        lags.keep(history(name, now_ms - 10, now_ms + 2 * HOUR_MS), now_ms=now_ms)
    assert times_of(lags, "g") == [now_ms - 10, now_ms]
    assert times_of(lags, "other") == [now_ms - 10]


def test_a_copy_of_the_future_is_forgotten_when_the_clock_is_right_again() -> None:
    lags = GroupLags()
    lags.keep(history("g", 3 * HOUR_MS), now_ms=3 * HOUR_MS)
    lags.forget_old(HOUR_MS)
    assert times_of(lags, "g") == []


async def test_the_keeper_gets_points_again_after_the_clock_was_ahead() -> None:
    cluster = Cluster(2)
    for now_ms in (HOUR_MS, 4 * HOUR_MS, HOUR_MS + LAG_STEP_MS, HOUR_MS + 2 * LAG_STEP_MS):
        cluster.now_ms = now_ms
        await cluster.look(0, now_ms, "g")
    assert times_of(cluster.lags[1], "g") == times_of(cluster.lags[0], "g")
    assert times_of(cluster.lags[1], "g")[-2:] == [HOUR_MS + LAG_STEP_MS, HOUR_MS + 2 * LAG_STEP_MS]


def test_a_group_of_very_many_topics_is_not_copied() -> None:
    """A copy without some of them would show a sum to users who may not describe those."""
    lags = GroupLags()
    lags.note(
        1, {"g": GroupReading(unread=1, lag_ms=1, topics=tuple(f"t{number}" for number in range(MAX_TOPICS + 1)))}
    )
    assert lags.after("g", -1) is None and lags.of("g")[0]


class Cluster:
    """Brokers that ask each other within the process. `node_id` in `down`: it does not answer."""

    def __init__(self, count: int) -> None:
        self.images = {
            node_id: SimpleNamespace(node_id=node_id, broker_epoch=1, fenced=False, in_controlled_shutdown=False)
            for node_id in range(count)
        }
        self.now_ms = HOUR_MS
        self.strange: GroupLagsResponse | None = None  # the answer of all brokers to those who ask
        self.down: set[int] = set()
        self.asked: list[tuple[int, GroupLagsRequest]] = []
        self.lags = {node_id: GroupLags() for node_id in range(count)}
        self.copies = {node_id: self._start(node_id) for node_id in range(count)}

    def _start(self, node_id: int) -> LagCopies:
        metadata = SimpleNamespace(image=SimpleNamespace(brokers=self.images))
        parts = SimpleNamespace(node_id=node_id, controller=self, metadata=metadata)
        return LagCopies(cast(Any, parts), self.lags[node_id], lambda: self.now_ms)

    async def ask_broker(self, node_id: int, request: GroupLagsRequest, *, timeout_ms: int) -> GroupLagsResponse:
        self.asked.append((node_id, request))
        if node_id in self.down:
            raise NetworkError("refused")
        if request.wanted and self.strange is not None:
            assert len(self.asked) < 10, "without end"
            return self.strange
        return self.copies[node_id].answer(request)

    def kill(self, node_id: int) -> None:
        self.down.add(node_id)
        self.images[node_id].fenced = True

    def restart(self, node_id: int) -> None:
        self.down.discard(node_id)
        self.images[node_id].fenced = False
        self.images[node_id].broker_epoch += 1
        self.lags[node_id] = GroupLags()
        self.copies[node_id] = self._start(node_id)

    async def look(self, node_id: int, at_ms: int, *groups: str) -> None:
        self.asked = []
        names = self.lags[node_id].chosen(groups)
        self.copies[node_id].coordinates(groups)
        await self.copies[node_id].adopt(names)
        self.lags[node_id].note(at_ms, dict.fromkeys(names, lag(1)))
        await self.copies[node_id].hand_on()


async def test_the_hour_survives_a_rolling_restart() -> None:
    cluster = Cluster(3)
    for at_ms in (10, 20):
        await cluster.look(1, at_ms, "g")
    cluster.kill(1)
    await cluster.look(0, 30, "g")
    assert times_of(cluster.lags[0], "g") == [10, 20, 30]
    cluster.restart(1)
    await cluster.look(0, 40, "g")
    assert times_of(cluster.lags[1], "g") == [10, 20, 30, 40], "a keeper that was restarted gets everything"
    await cluster.look(0, 50, "g")
    ((keeper, request),) = cluster.asked
    assert (keeper, request.kept[0].times_ms) == (1, (50,)), "the usual look sends what is new, and asks nothing"
    cluster.kill(0)
    await cluster.look(2, 60, "g")
    cluster.restart(0)
    await cluster.look(2, 70, "g")
    cluster.kill(2)
    await cluster.look(1, 80, "g")
    assert times_of(cluster.lags[1], "g") == [10, 20, 30, 40, 50, 60, 70, 80]


async def test_a_broker_that_does_not_answer_is_asked_three_times() -> None:
    cluster = Cluster(3)
    cluster.down.add(2)
    for at_ms in range(5):
        await cluster.look(0, at_ms, "g")
    await cluster.look(0, 6, "g")
    assert [node_id for node_id, request in cluster.asked if request.wanted] == []
    cluster.down.discard(2)
    await cluster.look(0, 7, "h")  # It has moved away ...
    await cluster.look(0, 8, "g", "h")  # ... and comes back.
    assert [request.wanted for _, request in cluster.asked if request.wanted] == [("g",), ("g",)]


async def test_a_point_that_the_keeper_did_not_get_is_sent_again() -> None:
    cluster = Cluster(2)
    cluster.down.add(1)
    await cluster.look(0, 10, "g")
    cluster.down.discard(1)
    await cluster.look(0, 20, "g")
    assert times_of(cluster.lags[1], "g") == [10, 20]


async def test_a_keeper_that_was_restarted_between_two_looks_gets_everything() -> None:
    cluster = Cluster(2)
    await cluster.look(0, 10, "g")
    cluster.restart(1)
    await cluster.look(0, 20, "g")
    assert times_of(cluster.lags[1], "g") == [10, 20]


async def test_a_keeper_gets_points_that_are_older_than_what_it_has() -> None:
    """A coordinator that is new learns them from a third broker, after its keeper has had the first point."""
    cluster = Cluster(3)
    cluster.lags[2].keep(history("g", 10), now_ms=HOUR_MS)
    cluster.down.add(2)
    await cluster.look(0, 20, "g")
    cluster.down.discard(2)
    await cluster.look(0, 30, "g")
    assert times_of(cluster.lags[1], "g") == [10, 20, 30]


async def test_each_broker_has_another_keeper_and_those_that_are_fenced_are_not_asked() -> None:
    cluster = Cluster(4)
    cluster.kill(3)
    keepers = []
    for node_id in range(3):
        await cluster.look(node_id, 10, f"g{node_id}")
        keepers += [asked for asked, request in cluster.asked if request.kept]
        assert 3 not in [asked for asked, _ in cluster.asked], "each would cost a timeout"
    assert keepers == [1, 2, 0]


def test_a_copy_that_is_not_sorted_is_sorted() -> None:
    lags = GroupLags()
    lags.keep(history("g", 30, 10, 20), now_ms=HOUR_MS)
    assert times_of(lags, "g") == [10, 20, 30]


def test_an_older_copy_does_not_make_the_topic_of_a_newer_point_forgotten() -> None:
    """Who may not describe it must not see the point."""
    lags = GroupLags()
    lags.note(100, {"g": GroupReading(unread=1, lag_ms=1, topics=("secret",))})
    lags.keep(history("g", 10, 20, topics=("secret",)), now_ms=100)
    for number in range(101, 101 + LAG_POINTS - 1):
        lags.note(number, {"g": lag(1)})
    assert times_of(lags, "g")[0] == 100 and set(lags.of("g")[1]) == {"secret", "t"}


@pytest.mark.parametrize(
    "answer",
    [
        GroupLagsResponse(groups=(), looked_at=0),
        GroupLagsResponse(groups=(), looked_at=-1),
        GroupLagsResponse(
            groups=(GroupLagHistory(group_id="g", times_ms=(1,), unread_counts=(), lags_ms=(), topics=()),), looked_at=1
        ),
    ],
    ids=["nothing", "less than nothing", "columns"],
)
async def test_a_broker_with_an_answer_of_no_use_counts_as_one_without(answer: GroupLagsResponse) -> None:
    """It must neither keep this one busy nor fail the description of a group."""
    cluster = Cluster(2)
    cluster.strange = answer
    for at_ms in range(4):
        await cluster.look(0, at_ms, "g")
    assert [request.wanted for _, request in cluster.asked if request.wanted] == [], "it was asked three times"
    assert times_of(cluster.lags[0], "g") == [0, 1, 2, 3]


def test_the_future_in_the_hour_of_a_coordinator_ends_also_with_a_copy() -> None:
    lags = GroupLags()
    lags.note(5 * HOUR_MS, {"g": GroupReading(unread=1, lag_ms=1, topics=("secret", "t"))})
    lags.keep(history("g", HOUR_MS - 10), now_ms=HOUR_MS)
    assert times_of(lags, "g") == [HOUR_MS - 10] and lags.of("g")[1] == ("t",)


async def test_a_broker_that_is_about_to_stop_keeps_nothing() -> None:
    cluster = Cluster(3)
    cluster.images[1].in_controlled_shutdown = True
    await cluster.look(0, 10, "g")
    assert times_of(cluster.lags[1], "g") == [] and times_of(cluster.lags[2], "g") == [10]


async def test_a_full_hour_of_all_groups_goes_in_small_messages() -> None:
    cluster = Cluster(2)
    names = [f"g{number}" for number in range(MAX_GROUPS)]
    for number in range(LAG_POINTS):
        cluster.lags[0].note(LAG_STEP_MS * (number + 1), dict.fromkeys(names, lag(1)))
    await cluster.copies[0].hand_on()
    assert max(
        sum(1 + 3 * len(item.times_ms) + len(item.topics) for item in request.kept) for _, request in cluster.asked
    ) <= (lag_copies.MAX_ITEMS)
    assert all(len(times_of(cluster.lags[1], name)) == LAG_POINTS for name in names)
    cluster.restart(0)
    await cluster.copies[0].adopt(names)
    assert all(len(times_of(cluster.lags[0], name)) == LAG_POINTS for name in names)
