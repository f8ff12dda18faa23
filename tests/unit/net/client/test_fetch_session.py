"""Fetch sessions of consumers: what a poll of many idle partitions sends, and that no record is skipped or comes twice."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from unit.net.client.consumer_world import consumer, fill
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.positions import fetch_session
from barnabas.net.client.positions.fetch_session import ClientFetchSession
from barnabas.net.client.positions.partition_state import PartitionState
from barnabas.net.wire.protocol.requests import LAST_EPOCH, SESSION_ERRORS, FetchRequest

MANY = 200
IDLE_MS = 3_000  # several fetches


def fetches(cluster: FakeCluster) -> list[FetchRequest]:
    found = [request for _, request in cluster.requests if isinstance(request, FetchRequest)]
    cluster.requests.clear()
    return found


def idle(
    work: Callable[[FakeCluster, Consumer], Coroutine[Any, Any, None]], *, brokers: int = 1, **options: Any
) -> None:
    """With a consumer of many partitions without records, whose session has begun."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": MANY}, brokers=brokers)
        for name, value in options.items():
            setattr(cluster, name, value)
        async with consumer(cluster, "t") as reader:
            assert await reader.poll(timeout_ms=IDLE_MS) == {}
            fetches(cluster)
            await work(cluster, reader)

    run(main())


async def offsets(reader: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        batch = await reader.poll(timeout_ms=IDLE_MS)
        assert batch, f"{len(found)} of {count} records came"
        found += [(partition.partition, item.offset) for partition, items in batch.items() for item in items]
    return sorted(found)


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_a_poll_of_many_idle_partitions_names_none() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        sent = fetches(cluster)
        assert 3 <= len(sent) <= 8
        assert {len(request.partitions) for request in sent} == {0}

    idle(work)


def test_a_record_costs_a_request_that_names_its_partition() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        for number in range(5):
            fill(cluster, TopicPartition("t", number), 2)
            assert await offsets(reader, 2) == [(number, 0), (number, 1)]
        assert await reader.poll(timeout_ms=10) == {}
        sent = fetches(cluster)
        assert [[item.partition for item in request.partitions] for request in sent if request.partitions] == [
            [number] for number in range(5)
        ]
        assert len(sent) <= 8 and not any(request.forgotten for request in sent)

    idle(work)


def test_few_partitions_get_no_session() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": fetch_session.MIN_PARTITIONS - 1})
        async with consumer(cluster, "t") as reader:
            assert await reader.poll(timeout_ms=IDLE_MS) == {}
        assert {request.session_epoch for request in fetches(cluster)} == {-1}

    run(main())


def test_a_broker_that_gives_no_sessions_is_asked_for_all() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        fill(cluster, TopicPartition("t", 3), 2)
        assert await offsets(reader, 2) == [(3, 0), (3, 1)]
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        assert {request.session_id for request in fetches(cluster)} == {0}

    idle(work, gives_sessions=False)


# --- joining and leaving ----------------------------------------------------------------------------------------------


def test_a_partition_that_is_busy_leaves_and_comes_back() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        busy = TopicPartition("t", 7)
        fill(cluster, busy, 1000, per_batch=1000)
        assert len(await offsets(reader, 1000)) == 1000
        assert await reader.poll(timeout_ms=10) == {}
        sent = fetches(cluster)
        assert any(topic.partitions == (7,) for request in sent for topic in request.forgotten)
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        assert any(len(request.partitions) == 1 and request.session_id for request in fetches(cluster))
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        assert {len(request.partitions) for request in fetches(cluster)} == {0}

    idle(work)


def test_a_paused_partition_leaves() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        paused = TopicPartition("t", 7)
        reader.pause(paused)
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        assert [topic.partitions for request in fetches(cluster) for topic in request.forgotten] == [(7,)]
        fill(cluster, paused, 2)
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        reader.resume(paused)
        assert await offsets(reader, 2) == [(7, 0), (7, 1)]

    idle(work)


def test_a_seek_is_asked_for_at_once() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        fill(cluster, TopicPartition("t", 7), 2)
        assert await offsets(reader, 2) == [(7, 0), (7, 1)]
        reader.seek(TopicPartition("t", 7), 1)
        assert await offsets(reader, 1) == [(7, 1)]
        assert await reader.poll(timeout_ms=IDLE_MS) == {}

    idle(work)


def test_a_partition_whose_leader_changes_is_asked_for_there() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        moved = TopicPartition("t", 7)
        cluster.logs[moved].leader, cluster.logs[moved].leader_epoch = 1, 1
        fill(cluster, moved, 2)
        assert await offsets(reader, 2) == [(7, 0), (7, 1)]
        assert [topic.partitions for request in fetches(cluster) for topic in request.forgotten] == [(7,)]

    idle(work, brokers=2)


# --- sessions that end ------------------------------------------------------------------------------------------------


def test_a_session_that_the_broker_forgot_begins_anew() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        for number in range(3):
            cluster.sessions.clear()
            fill(cluster, TopicPartition("t", number), 2)
            assert await offsets(reader, 2) == [(number, 0), (number, 1)]
            assert await reader.poll(timeout_ms=IDLE_MS) == {}
            sent = fetches(cluster)
            assert sum(request.session_epoch == 0 for request in sent) == 1
            assert not sent[-1].partitions

    idle(work)


def test_a_request_that_cannot_be_sent_leaves_the_one_ahead_of_it_as_it_is() -> None:
    async def work(cluster: FakeCluster, reader: Consumer) -> None:
        resumed = TopicPartition("t", 9)
        reader.pause(resumed)
        assert await reader.poll(timeout_ms=IDLE_MS) == {}  # it has left the session
        assert await reader.poll(timeout_ms=10) == {}  # all others wait at the broker
        cluster.refuses_to_send = [FetchRequest]
        reader.resume(resumed)
        assert await reader.poll(timeout_ms=IDLE_MS) == {}
        assert not cluster.refuses_to_send
        for number in range(20):
            fill(cluster, TopicPartition("t", number), 1)
        assert await offsets(reader, 20) == [(number, 0) for number in range(20)]

    idle(work)


def test_an_answer_of_another_session_ends_it() -> None:
    session = ClientFetchSession(None, "")
    assert session.is_kept(7) and session.is_kept(7) and not session.is_kept(8) and not session.is_kept(0)
    assert not ClientFetchSession(None, "").is_kept(0)


def test_a_partition_with_another_leader_epoch_or_topic_is_named_again() -> None:
    session, state = ClientFetchSession(object(), ""), PartitionState(TopicPartition("t", 0), max_bytes=9)
    state.topic_id = "old"

    def named(epoch: int) -> list[tuple[int, str]]:
        found, _ = session.ask([state], lambda _: epoch)
        assert session.waiting is not None and session.answered(session.waiting)
        return [(item.current_leader_epoch, item.topic_id) for item in found]

    assert named(1) == [(1, "old")]
    assert named(1) == []
    assert named(2) == [(2, "old")]
    state.topic_id = "new"
    assert named(2) == [(2, "new")]
    assert named(2) == []


def test_the_epoch_starts_over_at_one() -> None:
    session = ClientFetchSession(None, "")
    assert [session.next_epoch()[1] for _ in range(3)] == [0, 1, 2]
    session.epoch = LAST_EPOCH
    assert [session.next_epoch()[1] for _ in range(2)] == [LAST_EPOCH, 1]


def test_an_overtaken_request_does_not_free_what_the_later_one_asks_for() -> None:
    def state(number: int) -> PartitionState:
        found = PartitionState(TopicPartition("t", number), max_bytes=100)
        found.seek(0, topic_id="00")
        return found

    session = ClientFetchSession(None, "")
    first, second = state(0), state(1)
    session.ask([first], lambda _: 1)
    early = session.waiting
    assert early is not None and not session.may_ask
    assert session.is_kept(7) and session.may_ask
    changed, forgotten = session.ask([second], lambda _: 1)
    late = session.waiting
    assert late is not None and set(late) == {first.partition, second.partition}
    assert [item.partition for item in changed] == [1] and forgotten == ()
    assert not session.answered(early) and session.answered(late)


@pytest.mark.parametrize("seed", range(20))
def test_no_record_is_skipped_or_repeated(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records come, sessions are lost, connections break, leaders change, partitions pause."""
    monkeypatch.setattr(fetch_session, "MIN_PARTITIONS", 2)
    rng = Random(seed)
    partitions = [TopicPartition("t", number) for number in range(12)]

    def disturb(cluster: FakeCluster, reader: Consumer) -> None:
        one = rng.choice(partitions)
        troubles: list[Callable[[], object]] = [
            cluster.sessions.clear,
            rng.choice(cluster.connections).lose if cluster.connections else cluster.sessions.clear,
            lambda: cluster.move_leader(one, rng.randrange(2)),
            lambda: reader.pause(one),
            lambda: reader.resume(*partitions),
            lambda: setattr(cluster, "gives_sessions", not cluster.gives_sessions),
            lambda: fill(cluster, one, rng.choice((1, 3, 500))),
            lambda: fill(cluster, one, 2),
        ]
        rng.choice(troubles)()

    async def main() -> None:
        cluster = FakeCluster(topics={"t": len(partitions)}, brokers=2)
        found: dict[TopicPartition, list[int]] = {one: [] for one in partitions}
        async with consumer(cluster, "t") as reader:
            for step in range(150):
                if step < 120:
                    disturb(cluster, reader)
                else:
                    reader.resume(*partitions)
                for partition, records in (await reader.poll(timeout_ms=rng.choice((0, 5, 700)))).items():
                    found[partition] += [item.offset for item in records]
                await asyncio.sleep(0.001)
        assert found == {one: list(range(cluster.logs[one].end_offset)) for one in partitions}
        assert any(request.session_epoch > 0 for request in fetches(cluster))

    run(main())


def test_the_codes_of_a_lost_session_are_known() -> None:
    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND in SESSION_ERRORS
