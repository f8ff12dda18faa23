"""Fetch sessions: what is read and told, when a session is refused, and that clients cannot make many."""

import asyncio
from random import Random

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld, position, values
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.vocabulary.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
    InvalidRequestError,
)
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC, TopicPartition
from barnabas.net.base.limits import MAX_DATA_ITEMS
from barnabas.net.handlers.records import fetch_sessions
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.handlers.records.fetch_sessions import (
    EVICTABLE_AFTER_MS,
    SPARE_NAMES,
    FetchSession,
    FetchSessions,
)
from barnabas.net.logs.purgatory import StandingWatch
from barnabas.net.wire.protocol.requests import LAST_EPOCH, FetchPartition, FetchRequest, ForgottenTopic
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse

PARTITIONS = 5
ALONE = topic("t", *[partition(0, replicas=(0,)) for _ in range(PARTITIONS)])


# --- the machine ------------------------------------------------------------------------------------------------------


class FakeWatching:
    def watch(self, standing: StandingWatch, topic_partition: TopicPartition, fetch_offset: int) -> None:
        standing.places[topic_partition] = (fetch_offset, -1)
        standing.changed[topic_partition] = None

    def unwatch(self, standing: StandingWatch, topic_partition: TopicPartition) -> None:
        del standing.places[topic_partition]
        standing.changed.pop(topic_partition, None)


class Cache(FetchSessions):
    def __init__(self, limit: int = 10) -> None:
        super().__init__(limit, FakeWatching(), Random(1))
        self.overtaken: list[FetchSession] = []

    def ask(
        self,
        *numbers: int,
        epoch: int = 0,
        session_id: int = 0,
        connection: int = 1,
        now_ms: int = 0,
        **options: object,
    ) -> FetchSession | None:
        request = request_of(*numbers, epoch=epoch, session_id=session_id, **options)
        return self.begin(request, connection, now_ms, self.overtaken.append)

    def new(self, *numbers: int, connection: int = 1, now_ms: int = 0) -> FetchSession:
        found = self.ask(*numbers, connection=connection, now_ms=now_ms)
        assert found is not None
        return found


def request_of(
    *numbers: int, epoch: int = 0, session_id: int = 0, offset: int = 0, topic_id: str = "", **options: object
) -> FetchRequest:
    partitions = tuple(
        FetchPartition(topic="t", partition=number, fetch_offset=offset, max_bytes=100, topic_id=topic_id)
        for number in numbers
    )
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=100, partitions=partitions)
    return replace(request, session_epoch=epoch, session_id=session_id, **options)


def read_to(session: FetchSession, end_offset: int, records: bytes = b"", error: int = 0) -> list[int]:
    """Answer what is due as if each log ended there; the partitions of the answer."""
    responses = [
        FetchPartitionResponse(
            topic=item.topic,
            partition=item.partition,
            error=error,
            high_watermark=end_offset,
            last_stable_offset=end_offset,
            log_start_offset=0,
            records=records,
        )
        for item in session.to_read()
    ]
    return [item.partition for item in session.news(responses, 0)]


def test_all_partitions_are_told_once_and_then_only_those_that_changed() -> None:
    session = Cache().new(0, 1, 2)
    assert read_to(session, 0) == [0, 1, 2]
    assert session.to_read() == [] and read_to(session, 0) == []
    session.watch.changed[TopicPartition("t", 1)] = None
    assert read_to(session, 0) == [], "its offsets are the same"
    session.watch.changed[TopicPartition("t", 1)] = None
    assert read_to(session, 1) == [1]


def test_a_partition_is_read_again_until_its_reader_is_at_its_end() -> None:
    cache = Cache()
    session = cache.new(0, 1)
    assert read_to(session, 3, records=b"abc") == [0, 1]
    assert [item.partition for item in session.to_read()] == [0, 1], "the reader may not have taken the records"
    assert cache.ask(0, session_id=session.session_id, epoch=1, offset=3) is session
    assert read_to(session, 3) == []
    assert [item.partition for item in session.to_read()] == [1]


def test_an_error_is_told_in_each_answer_until_it_has_gone() -> None:
    session = Cache().new(0)
    assert read_to(session, 0) == [0]
    session.watch.changed[TopicPartition("t", 0)] = None
    for _ in range(2):
        assert read_to(session, -1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER) == [0]
    assert read_to(session, 0) == [0], "the offsets are told again"
    assert session.to_read() == []


def test_a_partition_that_is_read_elsewhere_is_told_each_time_until_its_reader_takes_it_out() -> None:
    session = Cache().new(0, 1)
    read_to(session, 0)
    for _ in range(2):
        session.watch.changed[TopicPartition("t", 1)] = None
        sent = FetchPartitionResponse(
            topic="t", partition=1, high_watermark=0, last_stable_offset=0, log_start_offset=0, preferred_read_replica=2
        )
        assert session.news([sent], 0) == [sent]
        assert [item.partition for item in session.to_read()] == [1]


def test_a_request_must_continue_the_one_before_it() -> None:
    cache = Cache()
    session = cache.new(0, 1)
    for epoch in (2, 1_000):
        with pytest.raises(InvalidFetchSessionEpochError, match="expects epoch 1"):
            cache.ask(session_id=session.session_id, epoch=epoch)
    with pytest.raises(FetchSessionIdNotFoundError):
        cache.ask(session_id=session.session_id + 1, epoch=1)
    assert cache.ask(session_id=session.session_id, epoch=1) is session
    with pytest.raises(InvalidFetchSessionEpochError):
        cache.ask(session_id=session.session_id, epoch=1)
    session.epoch = LAST_EPOCH
    assert cache.ask(session_id=session.session_id, epoch=LAST_EPOCH) is session
    assert session.epoch == 1


def test_topics_are_named_by_ids_or_by_names_for_the_whole_session() -> None:
    cache = Cache()
    session = cache.new(0)
    with pytest.raises(FetchSessionTopicIdError):
        cache.ask(1, session_id=session.session_id, epoch=1, topic_id="0a" * 16)
    assert cache.ask(session_id=session.session_id, epoch=1) is session, "a request without topics does not say"


def test_forgotten_partitions_leave_and_the_last_one_ends_the_session() -> None:
    cache = Cache()
    session = cache.new(0, 1)
    forgotten = (ForgottenTopic(topic="t", partitions=(0, 7)),)
    assert cache.ask(session_id=session.session_id, epoch=1, forgotten=forgotten) is session
    assert [item.partition for item in session.to_read()] == [1] and cache.partition_count == 1
    forgotten = (ForgottenTopic(topic="t", partitions=(1,)),)
    assert cache.ask(session_id=session.session_id, epoch=2, forgotten=forgotten) is None
    assert (len(cache), cache.partition_count) == (0, 0)


def test_a_topic_that_was_made_again_stays_when_the_old_one_is_forgotten() -> None:
    cache = Cache()
    old, new = "0a" * 16, "0b" * 16
    session = cache.ask(0, topic_id=old)
    assert session is not None
    read_to(session, 0)
    forgotten = (ForgottenTopic(topic="", partitions=(0,), topic_id=old),)
    assert cache.ask(0, session_id=session.session_id, epoch=1, topic_id=new, forgotten=forgotten) is session
    assert read_to(session, 0) == [0], "another topic is told even with equal offsets"
    assert session.topic_ids == {"t": bytes.fromhex(new)}


def test_names_of_topics_that_have_left_are_forgotten_and_those_that_stay_are_known() -> None:
    cache = Cache()
    stays = "0a" * 16
    session = cache.ask(0, topic_id=stays)
    assert session is not None
    for number in range(10 * SPARE_NAMES):
        topic_id = f"{number:032x}"
        new = FetchPartition(topic=f"t{number}", partition=0, fetch_offset=0, max_bytes=1, topic_id=topic_id)
        gone = (ForgottenTopic(topic="", partitions=(0,), topic_id=topic_id),)
        asked = replace(request_of(session_id=session.session_id, epoch=2 * number + 1), partitions=(new,))
        assert cache.begin(asked, 1, 0, cache.overtaken.append) is session
        assert session.name_of(topic_id) == f"t{number}"
        assert cache.ask(session_id=session.session_id, epoch=2 * number + 2, forgotten=gone) is session
        assert len(session.partitions) == 1 and len(session.topic_names) <= SPARE_NAMES + 3
        assert session.name_of(stays) == "t" and session.topic_ids["t"] == bytes.fromhex(stays)
        assert len(session.topic_ids) <= SPARE_NAMES + 3


def test_a_topic_that_is_made_again_and_again_leaves_no_names() -> None:
    cache = Cache()
    session = cache.ask(0, topic_id="0a" * 16)
    assert session is not None
    for number in range(1, 10 * SPARE_NAMES):
        assert cache.ask(0, session_id=session.session_id, epoch=number, topic_id=f"{number:032x}") is session
        assert len(session.topic_names) <= SPARE_NAMES + 3


def test_a_request_that_cannot_be_changes_nothing() -> None:
    cache = Cache()
    session = cache.new(0)
    many = tuple(range(MAX_DATA_ITEMS + 1))
    half = tuple(range(MAX_DATA_ITEMS // 2 + 1))
    for options in (
        {"forgotten": (ForgottenTopic(topic="t", partitions=many),)},
        {"forgotten": (ForgottenTopic(topic="t", partitions=half), ForgottenTopic(topic="u", partitions=half))},
        {"forgotten": tuple(ForgottenTopic(topic="t", partitions=()) for _ in many)},
    ):
        with pytest.raises(InvalidRequestError, match="are named in one request"):
            cache.ask(session_id=session.session_id, epoch=1, **options)
    for topic_id in ("no hexadecimal digits", "0a", "0A" * 16, "\u0660" * 32):
        with pytest.raises(InvalidRequestError, match="use 32 hexadecimal digits"):
            cache.ask(1, topic_id=topic_id, connection=2)
    assert (len(cache), cache.partition_count) == (1, 1)
    assert cache.ask(session_id=session.session_id, epoch=1) is session


def test_the_final_epoch_ends_a_session_and_the_first_one_replaces_it() -> None:
    cache = Cache()
    session = cache.new(0)
    another = cache.ask(0, 1, session_id=session.session_id, connection=2)
    assert another is not None and another.session_id != session.session_id
    assert len(cache) == 1 and cache.overtaken == [session]
    assert cache.ask(0, 1, session_id=another.session_id, epoch=-1) is None
    assert (len(cache), cache.partition_count) == (0, 0)


def test_a_full_cache_gives_the_place_of_an_unused_or_a_smaller_old_session() -> None:
    cache = Cache(limit=2)
    first, second = cache.new(0, 1, connection=1), cache.new(0, 1, 2, connection=2)
    assert cache.ask(0, connection=3, now_ms=EVICTABLE_AFTER_MS) is None
    later_ms = EVICTABLE_AFTER_MS + 1
    assert cache.ask(session_id=first.session_id, epoch=1, now_ms=later_ms) is first
    assert cache.ask(session_id=second.session_id, epoch=1, now_ms=later_ms) is second
    assert cache.ask(0, 1, connection=3, now_ms=later_ms) is None, "not smaller"
    assert cache.ask(0, 1, 2, connection=3, now_ms=later_ms) is not None
    assert cache.find(first.session_id) is None and cache.find(second.session_id) is second
    assert cache.ask(0, connection=4, now_ms=later_ms + later_ms) is not None, "the second one is not used any more"
    assert cache.find(second.session_id) is None


def test_a_client_that_begins_many_sessions_has_one() -> None:
    cache = Cache(limit=1_000)
    honest = cache.new(0, connection=1)
    for _ in range(100_000):
        cache.new(0, connection=2)
    assert len(cache) == 2 and cache.find(honest.session_id) is honest
    for connection in range(3, 5_000):
        cache.ask(0, connection=connection)
    assert len(cache) == 1_000 and cache.find(honest.session_id) is honest


def test_sessions_have_a_limit_of_partitions_in_all() -> None:
    cache = Cache()
    cache.partition_count = fetch_sessions.MAX_CACHED_PARTITIONS - 3
    session = cache.new(0, 1)
    assert cache.ask(0, 1, connection=2) is None
    with pytest.raises(FetchSessionIdNotFoundError):
        cache.ask(2, 3, session_id=session.session_id, epoch=1)
    assert len(cache) == 0


def test_readers_of_the_offsets_topic_have_no_session() -> None:
    cache = Cache()
    offsets = FetchPartition(topic=CONSUMER_OFFSETS_TOPIC, partition=0, fetch_offset=0, max_bytes=1)
    assert cache.ask(0, partitions=(offsets,)) is None
    assert Cache(limit=0).ask(0) is None


# --- the handler ------------------------------------------------------------------------------------------------------


class World(HandlerWorld):
    handler: FetchHandler

    def send(self, request: FetchRequest, connection: object = None) -> Client:
        client = Client()
        client.connection = connection or self
        self.handler(request, client, client.reply)  # type: ignore[arg-type]
        return client

    def ask(self, *positions: FetchPartition, **options: object) -> FetchResponse:
        response = self.send(fetch(*positions, **options)).answer()  # type: ignore[arg-type]
        assert isinstance(response, FetchResponse)
        return response


async def world_of(**settings: str) -> World:
    world = await World.start(ALONE, **settings)
    assert isinstance(world, World)
    world.handler = FetchHandler(world.services)
    return world


def fetch(*positions: FetchPartition, max_wait_ms: int = 0, min_bytes: int = 1, **options: object) -> FetchRequest:
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, partitions=positions)
    return replace(request, **options)


async def settled() -> None:
    """All is done that needs no time."""
    for _ in range(10):
        await asyncio.sleep(0)


def everything() -> list[FetchPartition]:
    return [position(number=number) for number in range(PARTITIONS)]


def told(response: FetchResponse) -> list[int]:
    return [item.partition for item in response.partitions]


@simulated
async def test_a_reader_of_many_partitions_is_answered_with_those_that_have_records() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    assert told(begun) == list(range(PARTITIONS)) and begun.session_id > 0
    assert told(world.ask(session_id=begun.session_id, session_epoch=1)) == []
    world.append(b"a", number=3)
    await settled()
    found = world.ask(session_id=begun.session_id, session_epoch=2)
    assert told(found) == [3] and values(found.partitions[0]) == [b"a"]
    assert told(world.ask(session_id=begun.session_id, session_epoch=3)) == [3], "until the reader goes on behind them"
    assert told(world.ask(position(offset=1, number=3), session_id=begun.session_id, session_epoch=4)) == []
    assert world.handler.sessions.find(begun.session_id).to_read() == []  # type: ignore[union-attr]


@simulated
async def test_a_request_that_waits_is_woken_by_any_partition_of_its_session() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    client = world.send(fetch(session_id=begun.session_id, session_epoch=1, max_wait_ms=60_000))
    await settled()
    assert client.replies == [] and len(world.replication.purgatory) == 1
    world.append(b"a", number=4)
    await settled()
    found = client.answer()
    assert isinstance(found, FetchResponse) and told(found) == [4]
    assert len(world.replication.purgatory) == 0


@simulated
async def test_a_request_that_waits_is_answered_empty_when_its_time_is_over() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    client = world.send(fetch(session_id=begun.session_id, session_epoch=1, max_wait_ms=100))
    for operation in world.replication.purgatory.expire(world.shell.clock.now_ms() + 101):
        operation.token(operation)  # type: ignore[operator]
    assert client.answer() == FetchResponse(partitions=(), session_id=begun.session_id)
    assert told(world.ask(session_id=begun.session_id, session_epoch=2)) == []


@simulated
async def test_min_bytes_counts_over_all_partitions_of_a_session() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    client = world.send(fetch(session_id=begun.session_id, session_epoch=1, max_wait_ms=60_000, min_bytes=100))
    world.append(b"a", number=0)
    await settled()
    assert client.replies == []
    world.append(b"b", number=1)
    await settled()
    found = client.answer()
    assert isinstance(found, FetchResponse) and sorted(told(found)) == [0, 1]


@simulated
async def test_the_next_request_overtakes_one_that_waits() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    waiting = world.send(fetch(session_id=begun.session_id, session_epoch=1, max_wait_ms=60_000))
    assert told(world.ask(session_id=begun.session_id, session_epoch=2)) == []
    assert told(waiting.answer()) == []  # type: ignore[arg-type]


@simulated
async def test_a_disconnected_reader_leaves_nothing_parked_and_may_come_back() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    client = world.send(fetch(session_id=begun.session_id, session_epoch=1, max_wait_ms=60_000))
    client.disconnect()
    assert len(world.replication.purgatory) == 0
    world.append(b"a")
    await settled()
    assert told(world.ask(session_id=begun.session_id, session_epoch=2)) == [0]
    world.ask(session_id=begun.session_id, session_epoch=-1)
    assert world.replication.purgatory._watches == {}


@simulated
async def test_a_partition_that_is_led_elsewhere_is_told_at_once_and_each_time() -> None:
    world = await world_of()
    begun = world.ask(*everything(), session_epoch=0)
    client = world.send(fetch(session_id=begun.session_id, session_epoch=1, max_wait_ms=60_000))
    moved = [partition(1, replicas=(0, 1), epoch=2), *[partition(0, replicas=(0,)) for _ in range(PARTITIONS - 1)]]
    world.show(topic("t", *moved), offset=11)
    await asyncio.sleep(0.1)
    found = client.answer()
    assert isinstance(found, FetchResponse)
    assert [(item.partition, item.error) for item in found.partitions] == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    again = world.ask(session_id=begun.session_id, session_epoch=2, max_wait_ms=60_000)
    assert [(item.partition, item.error) for item in again.partitions] == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]


@simulated
async def test_without_places_every_request_has_all_partitions() -> None:
    world = await world_of(max_incremental_fetch_session_cache_slots="0")
    begun = world.ask(*everything(), session_epoch=0)
    assert told(begun) == list(range(PARTITIONS)) and begun.session_id == 0
