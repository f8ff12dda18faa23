"""Fetches that name topics by id: they never get records of another topic of that name."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from simulation.log_building import NOW_MS, end_transaction, transactional
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import broker, image_of, partition, simulated, topic

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.handlers.kafka.fetch import FetchByTopicId
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.kafka.apis import KafkaApi
from barnabas.net.wire.protocol.requests import FetchPartition, FetchRequest

FETCH = 1
OLD, NEW, NOBODY = "0a" * 16, "0b" * 16, "0c" * 16
ALONE = partition(0, replicas=(0,))


async def started() -> tuple[HandlerWorld, KafkaClient]:
    world = await HandlerWorld.start(topic("t", ALONE, topic_id=OLD), topic("u", ALONE, topic_id=NEW))
    fetch = FetchHandler(world.services)
    by_id = FetchByTopicId(world.services, fetch)
    return world, KafkaClient(Dispatcher({ApiKey.FETCH: fetch, KafkaApi.FETCH: by_id}))


def fetch_of(*topic_ids: str, max_wait_ms: int = 0, session_id: int = 0, epoch: int = -1, forgotten: str = "") -> Any:
    message = "FetchRequest"
    forgets = [made(message, "ForgottenTopic", topic_id=bytes.fromhex(forgotten), partitions=[0])] if forgotten else []
    topics = [
        made(
            message,
            "FetchTopic",
            topic_id=bytes.fromhex(topic_id),
            partitions=[made(message, "FetchPartition", partition=0, partition_max_bytes=1 << 20)],
        )
        for topic_id in topic_ids
    ]
    return made(
        message,
        topics=topics,
        forgotten_topics_data=forgets,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
    )


def shown(answer: Any) -> dict[str, tuple[int, bool]]:
    """Error, and whether there are records, by topic id."""
    return {
        one.topic_id.hex(): (item.error_code, bool(item.records)) for one in answer.responses for item in one.partitions
    }


@simulated
async def test_topics_are_read_by_id_and_unknown_ones_are_told_at_once() -> None:
    world, client = await started()
    world.append(b"a")
    answer = await client.ask(FETCH, 13, fetch_of(OLD))
    assert shown(answer) == {OLD: (0, True)}
    assert answer.responses[0].partitions[0].high_watermark == 1
    before_ms = world.shell.clock.now_ms()
    answer = await client.ask(FETCH, 13, fetch_of(NEW, NOBODY, max_wait_ms=10_000))
    assert shown(answer) == {NEW: (0, False), NOBODY: (ErrorCode.UNKNOWN_TOPIC_ID, False)}
    assert world.shell.clock.now_ms() == before_ms


@simulated
async def test_a_session_of_topic_ids() -> None:
    world, client = await started()
    begun = await client.ask(FETCH, 13, fetch_of(OLD, NEW, epoch=0))
    assert shown(begun) == {OLD: (0, False), NEW: (0, False)} and begun.session_id
    world.append(b"a")
    answer = await client.ask(FETCH, 13, fetch_of(session_id=begun.session_id, epoch=1, max_wait_ms=10_000))
    assert shown(answer) == {OLD: (0, True)} and answer.session_id == begun.session_id
    answer = await client.ask(FETCH, 13, fetch_of(session_id=begun.session_id, epoch=2, forgotten=OLD))
    assert shown(answer) == {}
    answer = await client.ask(FETCH, 13, fetch_of(session_id=begun.session_id, epoch=2))
    assert (answer.error_code, answer.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)


@simulated
async def test_a_session_of_names_has_no_ids_to_tell() -> None:
    world = await HandlerWorld.start(topic("t", ALONE, topic_id=OLD))
    fetch = FetchHandler(world.services)
    client = KafkaClient(Dispatcher({KafkaApi.FETCH: FetchByTopicId(world.services, fetch)}))
    asked = (FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=100),)
    begins = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=100, partitions=asked, session_epoch=0)
    session = fetch.sessions.begin(begins, 1, 0, lambda session: None)
    assert session is not None
    world.append(b"a")
    answer = await client.ask(FETCH, 13, fetch_of(session_id=session.session_id, epoch=1))
    assert shown(answer) == {"00" * 16: (ErrorCode.UNKNOWN_TOPIC_ID, False)}


@simulated
async def test_an_unknown_topic_id_has_no_place_in_a_session() -> None:
    """Otherwise its partitions would never be read, also after the broker has learned of the topic."""
    _, client = await started()
    begun = await client.ask(FETCH, 13, fetch_of(OLD, NOBODY, epoch=0))
    assert shown(begun) == {OLD: (0, False), NOBODY: (ErrorCode.UNKNOWN_TOPIC_ID, False)} and not begun.session_id
    begun = await client.ask(FETCH, 13, fetch_of(OLD, epoch=0))
    answer = await client.ask(FETCH, 13, fetch_of(NOBODY, session_id=begun.session_id, epoch=1))
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND and not answer.responses


@simulated
async def test_a_topic_that_was_made_again_is_told_to_its_session() -> None:
    world, client = await started()
    begun = await client.ask(FETCH, 13, fetch_of(OLD, epoch=0))
    world.show(topic("t", ALONE, topic_id=NOBODY), offset=11)
    await asyncio.sleep(0.1)  # the deletion of the former log is flushed first
    answer = await client.ask(FETCH, 13, fetch_of(session_id=begun.session_id, epoch=1))
    assert shown(answer) == {OLD: (ErrorCode.UNKNOWN_TOPIC_ID, False)}
    again = fetch_of(NOBODY, session_id=begun.session_id, epoch=2, forgotten=OLD)
    assert shown(await client.ask(FETCH, 13, again)) == {NOBODY: (0, False)}


@simulated
async def test_a_topic_that_was_made_again_is_not_read_in_place_of_the_old_one() -> None:
    world, client = await started()
    world.append(b"a")
    world.show(topic("t", ALONE, topic_id=NOBODY), offset=11)
    await asyncio.sleep(0.1)  # the deletion of the former log is flushed first
    world.append(b"new")
    assert shown(await client.ask(FETCH, 13, fetch_of(OLD))) == {OLD: (ErrorCode.UNKNOWN_TOPIC_ID, False)}
    assert shown(await client.ask(FETCH, 13, fetch_of(NOBODY))) == {NOBODY: (0, True)}


@simulated
async def test_a_topic_may_go_while_a_fetch_of_it_waits() -> None:
    world, client = await started()

    loop = asyncio.get_running_loop()
    loop.call_later(0.5, lambda: world.show(topic("t", ALONE, topic_id=NOBODY), offset=11))
    loop.call_later(0.6, lambda: world.append(b"new"))
    answer = await client.ask(FETCH, 13, fetch_of(OLD, max_wait_ms=5_000))
    assert shown(answer) == {OLD: (ErrorCode.UNKNOWN_TOPIC_ID, False)}


@simulated
async def test_a_replica_of_an_older_topic_is_not_read_as_the_newer_one() -> None:
    """The metadata is ahead of the replica, which is still that of the topic before."""
    world, _ = await started()
    world.append(b"old")
    ahead = image_of(broker(0), topics=[topic("t", ALONE, topic_id=NOBODY)], offset=11)
    services = replace(world.services, metadata=cast(Any, SimpleNamespace(image=ahead)))
    handler = FetchByTopicId(services, FetchHandler(world.services))
    answer = await KafkaClient(Dispatcher({KafkaApi.FETCH: handler})).ask(FETCH, 13, fetch_of(NOBODY))
    assert shown(answer) == {NOBODY: (ErrorCode.INCONSISTENT_TOPIC_ID, False)}


@simulated
async def test_aborted_transactions_are_told_to_readers_of_committed_records() -> None:
    world, client = await started()
    log = world.log()
    log.append_as_leader(transactional(9, 0, b"a"), leader_epoch=1, now_ms=NOW_MS)
    end_transaction(log, 9, commits=False, leader_epoch=1)
    world.append(b"b")
    request = fetch_of(OLD)
    request.isolation_level = 1
    found = (await client.ask(FETCH, 13, request)).responses[0].partitions[0]
    assert [(it.producer_id, it.first_offset) for it in found.aborted_transactions] == [(9, 0)]
    request = fetch_of(OLD)
    assert not (await client.ask(FETCH, 13, request)).responses[0].partitions[0].aborted_transactions
