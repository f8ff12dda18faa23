"""A follower's side of a fetch session: what a request names, what an answer counts for, and how a session ends."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from unit.net.test_replica_fetcher import LEADER, World, assignment, data, replica

from barnabas.log.replication.follower import FetchPosition
from barnabas.log.replication.partition import Partition
from barnabas.log.vocabulary.errors import ErrorCode, NetworkError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.following.follower_session import LOOK_AGAIN_S, MAX_LOOKS_AGAIN, FollowerSession
from barnabas.net.logs.following.replica_fetcher import PARTITION_BACKOFF_MS, FetchSettings
from barnabas.net.wire.protocol.requests import LAST_EPOCH, FetchPartition, FetchRequest
from barnabas.net.wire.protocol.responses import ErrorResponse, FetchPartitionResponse, FetchResponse, Response

SESSION = 70


def nothing(number: int = 0, *, high_watermark: int = 0) -> FetchPartitionResponse:
    return FetchPartitionResponse(topic="t", partition=number, high_watermark=high_watermark, log_start_offset=0)


def news(*partitions: FetchPartitionResponse, session_id: int = SESSION) -> FetchResponse:
    return FetchResponse(partitions=partitions, session_id=session_id)


def named(request: FetchRequest) -> list[tuple[int, int]]:
    return sorted((item.partition, item.fetch_offset) for item in request.partitions)


def forgotten(request: FetchRequest) -> list[int]:
    return [number for topic in request.forgotten for number in topic.partitions]


class Following:
    """A fetcher in a session, with replicas of t."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replicas: dict[int, Partition] = {}

    def add(self, number: int) -> None:
        self.replicas[number] = replica(number)
        self.world.fetcher.add(TopicPartition("t", number), self.replicas[number].following)

    async def begin(self, count: int) -> tuple[FetchRequest, "asyncio.Future[Response]"]:
        """All are told to the leader; return the request after that."""
        for number in range(count):
            self.add(number)
        request, reply = await self.world.leader.next_call()
        assert (request.session_id, request.session_epoch) == (0, 0) and len(request.partitions) == count
        reply.set_result(news(*[nothing(number) for number in range(count)]))
        return await self.world.leader.next_call()


async def test_only_what_has_changed_is_named() -> None:
    async with World() as world:
        request, reply = await Following(world).begin(3)
        assert (named(request), request.session_id, request.session_epoch) == ([], SESSION, 1)
        reply.set_result(news(data(1)))
        request, reply = await world.leader.next_call()
        assert (named(request), request.session_epoch) == ([(1, 1)], 2)
        reply.set_result(news(nothing(1, high_watermark=1)))
        request, reply = await world.leader.next_call()
        assert (named(request), forgotten(request), request.session_epoch) == ([], [], 3)
        reply.set_result(news(data(1, 1, high_watermark=1)))
        request, _ = await world.leader.next_call()
        assert named(request) == [(1, 2)]


async def test_a_partition_that_comes_overtakes_the_request_that_waits_and_loses_nothing_of_its_answer() -> None:
    async with World() as world:
        following = Following(world)
        request, waiting = await following.begin(2)
        following.add(2)
        request, reply = await world.leader.next_call()
        assert (named(request), request.session_epoch) == ([(2, 0)], 2)
        waiting.set_result(news(data(0)))
        reply.set_result(news(nothing(2)))
        request, _ = await world.leader.next_call()
        assert named(request) == [(0, 1)] and following.replicas[0].log_end_offset == 1


async def test_an_overtaken_answer_does_not_count_for_a_position_that_is_newer_than_its_request() -> None:
    """The same replica follows again, for example in another leader epoch."""
    async with World() as world:
        following = Following(world)
        _, waiting = await following.begin(2)
        world.fetcher.add(TopicPartition("t", 0), following.replicas[0].following)
        request, reply = await world.leader.next_call()
        assert named(request) == [(0, 0)], "its answer is told again"
        waiting.set_result(news(data(0)))
        await asyncio.sleep(0)
        reply.set_result(news(nothing(0)))
        await world.leader.next_call()
        assert following.replicas[0].log_end_offset == 0


async def test_what_two_answers_have_is_named_again_as_the_second_one_is_dropped() -> None:
    """The leader has told the high watermark in the second one, and would not tell it again by itself."""
    async with World() as world:
        following = Following(world)
        _, reply = await following.begin(2)
        reply.set_result(news(data(0)))
        _, first = await world.leader.next_call()
        following.add(2)
        _, second = await world.leader.next_call()
        first.set_result(news(nothing(0, high_watermark=0)))
        await asyncio.sleep(0)
        second.set_result(news(nothing(2), nothing(0, high_watermark=1)))
        request, reply = await world.leader.next_call()
        assert following.replicas[0].high_watermark == 0 and named(request) == [(0, 1)]
        reply.set_result(news(nothing(0, high_watermark=1)))
        request, _ = await world.leader.next_call()
        assert following.replicas[0].high_watermark == 1 and named(request) == []


async def test_two_partitions_that_come_one_after_the_other_overtake_twice() -> None:
    async with World() as world:
        following = Following(world)
        _, first = await following.begin(1)
        following.add(1)
        request, second = await world.leader.next_call()
        following.add(2)
        first.set_result(news())
        request, third = await world.leader.next_call()
        assert (named(request), request.session_epoch) == ([(2, 0)], 3)
        second.set_result(news(nothing(1)))
        third.set_result(news(nothing(2)))
        request, _ = await world.leader.next_call()
        assert (named(request), request.session_epoch) == ([], 4)


async def test_a_replica_that_leaves_the_isr_while_its_disk_hangs_is_forgotten() -> None:
    """Its leader must not take it for one that fetches, and bring it back."""
    async with World() as world:
        following = Following(world)
        _, reply = await following.begin(2)
        following.replicas[1].following.disk_hung(True)
        world.fetcher.resume(TopicPartition("t", 1))
        reply.set_result(news())
        request, reply = await world.leader.next_call()
        assert (named(request), forgotten(request)) == ([], []), "in sync, it goes on"
        following.replicas[1].role.isr = (LEADER,)
        world.fetcher.resume(TopicPartition("t", 1))
        reply.set_result(news())
        request, _ = await world.leader.next_call()
        assert (named(request), forgotten(request)) == ([], [1])


async def test_a_replica_that_follows_the_same_leader_in_another_epoch_is_named_with_the_same_offset() -> None:
    async with World() as world:
        following = Following(world)
        _, reply = await following.begin(2)
        newer = replace(assignment(1), leader_epoch=6, partition_epoch=2)
        following.replicas[1].make_follower(newer, 0)
        world.fetcher.add(TopicPartition("t", 1), following.replicas[1].following)
        request, second = await world.leader.next_call()
        assert [(item.partition, item.fetch_offset, item.current_leader_epoch) for item in request.partitions] == [
            (1, 0, 6)
        ]
        reply.set_result(news(nothing(1)))
        second.set_result(news(nothing(1)))
        request, _ = await world.leader.next_call()
        assert named(request) == []


async def test_a_partition_that_leaves_is_forgotten() -> None:
    async with World() as world:
        _, reply = await Following(world).begin(3)
        world.fetcher.remove(TopicPartition("t", 1))
        reply.set_result(news(data(1)))
        request, _ = await world.leader.next_call()
        assert (named(request), forgotten(request)) == ([], [1])


async def test_a_refused_partition_leaves_the_session_until_its_time_comes() -> None:
    async with World() as world:
        world.fetcher._rng = Random(1)
        _, reply = await Following(world).begin(2)
        reply.set_result(news(FetchPartitionResponse(topic="t", partition=1, error=ErrorCode.UNKNOWN_LEADER_EPOCH)))
        request, reply = await world.leader.next_call()
        assert (named(request), forgotten(request)) == ([], [1]) and request.max_wait_ms <= PARTITION_BACKOFF_MS
        while not request.partitions:  # it waits as long as the leader was told
            reply.set_result(news())
            request, reply = await world.leader.next_call()
        assert (named(request), forgotten(request)) == ([(1, 0)], [])


async def test_a_lost_answer_or_session_begins_another_one_with_everything() -> None:
    for failure in (
        NetworkError("reset"),
        ErrorResponse(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, message="no"),
        ErrorResponse(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH, message="no"),
    ):
        async with World() as world:
            _, reply = await Following(world).begin(3)
            if isinstance(failure, NetworkError):
                reply.set_exception(failure)
            else:
                reply.set_result(failure)
            request, reply = await world.leader.next_call()
            assert named(request) == [(0, 0), (1, 0), (2, 0)]
            assert (request.session_id, request.session_epoch) == (0, 0)
            assert world.fetcher._failures == isinstance(failure, NetworkError)
            reply.set_result(news(session_id=SESSION + 1))
            request, _ = await world.leader.next_call()
            assert (request.session_id, request.session_epoch) == (SESSION + 1, 1)


async def test_a_leader_without_sessions_is_asked_for_everything_each_time() -> None:
    """Its version is older, or it has too many."""
    async with World() as world:
        following = Following(world)
        for number in range(2):
            following.add(number)
        for _ in range(3):
            request, reply = await world.leader.next_call()
            assert len(named(request)) == 2 and (request.session_id, request.session_epoch) == (0, 0)
            reply.set_result(FetchResponse(partitions=(nothing(0), nothing(1))))


async def test_the_answers_of_an_overtaken_request_that_failed_are_all_dropped() -> None:
    async with World() as world:
        following = Following(world)
        _, first = await following.begin(2)
        following.add(2)
        _, second = await world.leader.next_call()
        first.set_exception(NetworkError("reset"))
        request, _ = await world.leader.next_call()
        assert second.cancelled() and len(named(request)) == 3 and request.session_epoch == 0


async def test_before_there_is_a_session_a_new_partition_replaces_the_request() -> None:
    """There is nothing to overtake: the next request has everything."""
    async with World() as world:
        following = Following(world)
        following.add(0)
        _, first = await world.leader.next_call()
        following.add(1)
        request, _ = await world.leader.next_call()
        assert named(request) == [(0, 0), (1, 0)] and request.session_epoch == 0
        assert first.cancelled()


async def test_refusals_of_an_answer_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.replication")
    async with World() as world:
        _, reply = await Following(world).begin(2)
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        reply.set_result(news(FetchPartitionResponse(topic="t", partition=1, error=error, message="not yet")))
        await world.leader.next_call()
    assert [record.getMessage() for record in caplog.records] == [
        f"fetch_refused leader={LEADER} partition=t-1 error={error} not yet"
    ]


@pytest.mark.parametrize("has_lost_its_connection", [False, True])
async def test_a_fetcher_that_ends_leaves_no_request_behind(has_lost_its_connection: bool) -> None:
    """Otherwise asyncio logs an error of the connection's loss, which nothing looks at."""
    requests = []
    async with World() as world:
        following = Following(world)
        requests.append((await following.begin(2))[1])
        following.add(2)
        requests.append((await world.leader.next_call())[1])
        if has_lost_its_connection:
            world.fetcher._rng = Random(1)  # it backs off for some time
            for request in requests:
                request.set_exception(NetworkError("reset"))
            for _ in range(3):  # passes of the loop, until the fetcher has seen the first
                await asyncio.sleep(0)
            assert world.fetcher._failures == 1
    for request in requests:
        assert request.done() and not request._log_traceback


async def test_the_waits_do_not_grow_while_a_high_watermark_is_not_known() -> None:
    """The leader says nothing of a partition before it has news, so an empty answer does not show that all is known."""
    async with World() as world:
        request, reply = await Following(world).begin(2)
        reply.set_result(news(data(1)))
        request, reply = await world.leader.next_call()
        reply.set_result(news(nothing(1, high_watermark=0)))
        for _ in range(3):
            request, reply = await world.leader.next_call()
            assert request.max_wait_ms == FetchSettings().max_wait_ms
            reply.set_result(news())
        request, reply = await world.leader.next_call()
        reply.set_result(news(nothing(1, high_watermark=1)))
        request, reply = await world.leader.next_call()
        assert request.max_wait_ms > FetchSettings().max_wait_ms


async def test_the_waits_are_short_until_a_partition_that_comes_is_answered() -> None:
    """Its high watermark is not known yet, however long the other partitions have been quiet."""
    async with World(FetchSettings(max_wait_ms=100, max_idle_wait_ms=800)) as world:
        following = Following(world)
        request, waiting = await following.begin(1)
        assert request.max_wait_ms == 200
        following.add(1)
        request, reply = await world.leader.next_call()
        assert (named(request), request.max_wait_ms) == ([(1, 0)], 100)
        waiting.set_result(news())
        reply.set_result(news(nothing(1)))
        request, _ = await world.leader.next_call()
        assert (named(request), request.max_wait_ms) == ([], 200)


async def test_the_waits_are_short_until_a_refused_partition_is_answered() -> None:
    async with World(FetchSettings(max_wait_ms=100, max_idle_wait_ms=800)) as world:
        world.fetcher._rng = Random(1)  # otherwise, refused partitions are not delayed
        _, reply = await Following(world).begin(2)
        reply.set_result(news(FetchPartitionResponse(topic="t", partition=1, error=ErrorCode.UNKNOWN_LEADER_EPOCH)))
        request, reply = await world.leader.next_call()
        while not request.partitions:  # its time has not come
            reply.set_result(news())
            request, reply = await world.leader.next_call()
        assert (named(request), request.max_wait_ms) == ([(1, 0)], 100)


async def test_a_partition_that_leaves_does_not_keep_the_waits_short() -> None:
    async with World() as world:
        _, reply = await Following(world).begin(2)
        reply.set_result(news(data(1)))
        _, reply = await world.leader.next_call()
        world.fetcher.remove(TopicPartition("t", 1))
        reply.set_result(news())
        _, reply = await world.leader.next_call()
        reply.set_result(news())
        request, _ = await world.leader.next_call()
        assert request.max_wait_ms > FetchSettings().max_wait_ms


# --- what is told to the leader ----------------------------------------------------------------------------------------


def item(number: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(topic="t", partition=number, fetch_offset=offset, max_bytes=1)


def keep(
    session: FollowerSession, number: int, offset: int = 0, *, now_s: float = 0.0, is_restless: bool = False
) -> bool:
    position = FetchPosition(1, 5, offset, -1, 0, 0)
    return session.keep(
        TopicPartition("t", number), item(number, offset), position, now_s, names=False, is_restless=is_restless
    )


def opened(count: int) -> FollowerSession:
    session = FollowerSession(is_wanted=True)
    everything = [TopicPartition("t", number) for number in range(count)]
    assert session.to_look_at(everything, 0.0, overtakes=False) == everything
    assert all([keep(session, number) for number in range(count)])
    assert session.sent() == (0, 0)
    session.answered(SESSION)
    return session


def numbers(found: list[TopicPartition]) -> list[int]:
    return [topic_partition.partition for topic_partition in found]


def test_partitions_that_nothing_happens_to_are_looked_at_now_and_then_in_parts() -> None:
    count = MAX_LOOKS_AGAIN + 1
    session = opened(count)
    assert session.to_look_at((), LOOK_AGAIN_S - 0.1, overtakes=False) == []
    assert session.to_look_at((), LOOK_AGAIN_S, overtakes=True) == []
    first = numbers(session.to_look_at((), LOOK_AGAIN_S, overtakes=False))
    assert first == list(range(MAX_LOOKS_AGAIN))
    assert not any([keep(session, number, now_s=LOOK_AGAIN_S) for number in first])
    assert numbers(session.to_look_at((), LOOK_AGAIN_S, overtakes=False)) == [MAX_LOOKS_AGAIN]


def test_a_replica_that_is_not_in_sync_is_named_each_time() -> None:
    session = opened(2)
    session.happened[TopicPartition("t", 1)] = None
    session.to_look_at((), 0.0, overtakes=False)
    assert keep(session, 1, is_restless=True)
    assert numbers(session.to_look_at((), 0.0, overtakes=False)) == [1]
    assert keep(session, 1, is_restless=True)
    assert numbers(session.to_look_at((), 0.0, overtakes=False)) == [1]
    assert not keep(session, 1)
    assert session.to_look_at((), 0.0, overtakes=False) == []


def test_epochs_go_on_with_one_after_the_last() -> None:
    session = opened(1)
    session._next_epoch = LAST_EPOCH
    assert [session.sent()[1], session.sent()[1], session.sent()[1]] == [LAST_EPOCH, 1, 2]


def test_an_answer_of_another_session_closes_it() -> None:
    session = opened(1)
    session.answered(SESSION + 1)
    assert not session.session_id and session.sent() == (0, 0)


def test_no_session_is_asked_for_where_none_is_wanted() -> None:
    session = FollowerSession(is_wanted=False)
    assert session.sent() == (0, -1)
    session.answered(SESSION)
    assert not session.session_id


def test_a_replica_that_cannot_be_fetched_now_is_looked_at_again_before_each_request() -> None:
    session = opened(1)
    session.happened[TopicPartition("t", 0)] = None
    session.to_look_at((), 0.0, overtakes=False)
    assert session.leave(TopicPartition("t", 0), is_restless=True) == item(0)
    assert not session.named and session.position(TopicPartition("t", 0), 9) is None
    assert numbers(session.to_look_at((), 0.0, overtakes=False)) == [0]
    assert session.leave(TopicPartition("t", 0), is_restless=False) is None
    assert session.to_look_at((), 0.0, overtakes=False) == []
