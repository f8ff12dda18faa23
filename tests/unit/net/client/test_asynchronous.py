"""What a client answers where `with` and `for` are written instead of `async with` and `async for`; handles on other loops."""

import asyncio
import threading
from typing import Any

import pytest
from unit.net.client.consumer_world import filled
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import NetworkError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.handles import Handle
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.record_accumulator import Batch
from barnabas.net.client.share.share_consumer import ShareConsumer

DEADLINE_S = 30.0


@pytest.mark.parametrize(
    ("kind", "options"), [(Producer, {}), (Consumer, {}), (Admin, {}), (ShareConsumer, {"group": "g"})]
)
def test_with_is_answered_with_async_with_and_the_blocking_client(kind: Any, options: dict[str, str]) -> None:
    name = kind.__name__
    cure = rf"{name} is asynchronous: write `async with {name}\(...\)` in a coroutine, or use `with` and {name} of barnabas.sync"
    with pytest.raises(TypeError, match=cure), kind("t", **options):
        pass


@pytest.mark.parametrize(("kind", "options"), [(Consumer, {}), (ShareConsumer, {"group": "g"})])
def test_for_is_answered_with_async_for(kind: Any, options: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="write `async for` in a coroutine"):
        list(kind("t", **options))


def test_clients_that_are_used_as_they_should_be_are_as_before() -> None:
    async def main() -> None:
        async with Producer(client=filled(1).client()) as producer:
            await (await producer.send("t", b"x"))

    run(main())


def test_a_handle_can_be_awaited_on_the_loop_of_another_thread() -> None:
    batch = Batch(TopicPartition("t", 0), room=1_000, created_ms=0, stamp_ms=0)
    told: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.wait_for(Handle(batch, 0), DEADLINE_S)
        except NetworkError as error:
            told.append(error.message)

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    while not batch.callbacks:
        assert thread.is_alive()

    async def finish() -> None:
        batch.finish(error=NetworkError("gone"))

    asyncio.run(finish())  # on the loop of the producer
    thread.join()
    assert told == ["gone"]
