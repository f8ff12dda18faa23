"""Requests that name very many things: the loop turns between them, and none of them is walked in one go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.vocabulary.errors import ErrorCode, InvalidRequestError
from barnabas.net.base.limits import MAX_DATA_ITEMS
from barnabas.net.base.slices import SLICE_STEPS, sliced
from barnabas.net.handlers.common.many import MAX_CHANGES_AT_A_TIME, Outcome, each
from barnabas.net.handlers.own.offsets import OffsetHandlers
from barnabas.net.wire.protocol.kafka.apis import KafkaResponse
from barnabas.net.wire.protocol.kafka.data_apis import fetch_by_name
from barnabas.net.wire.protocol.kafka.message_classes import types_of
from barnabas.net.wire.protocol.requests import ListOffsetsPartition, ListOffsetsRequest
from barnabas.net.wire.protocol.responses import ListOffsetsResponse, Response


class Turns:
    """How often the loop has turned."""

    def __init__(self) -> None:
        self.count = 0


@asynccontextmanager
async def counted() -> AsyncIterator[Turns]:
    turns = Turns()

    async def count() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    try:
        yield turns
    finally:
        task.cancel()


@simulated
async def test_things_that_are_done_at_once_let_the_loop_turn() -> None:
    async def refuse(number: int) -> int:
        if number % 2:
            raise InvalidRequestError(str(number))
        return number

    many = 100 * SLICE_STEPS
    async with counted() as turns:
        results = await each(refuse(number) for number in range(many))
    assert turns.count >= many // (SLICE_STEPS + MAX_CHANGES_AT_A_TIME)
    assert results[:2] == [0, Outcome(error=ErrorCode.INVALID_REQUEST, message="1")] and len(results) == many


@simulated
async def test_no_more_things_are_made_than_are_worked_on() -> None:
    under_way, most = 0, 0

    async def work() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1)
        under_way -= 1

    assert await each(work() for _ in range(3 * MAX_CHANGES_AT_A_TIME)) == [None] * 3 * MAX_CHANGES_AT_A_TIME
    assert most == MAX_CHANGES_AT_A_TIME


@simulated
async def test_items_are_yielded_in_order_and_in_slices() -> None:
    async with counted() as turns:
        found = [item async for item in sliced(range(10 * SLICE_STEPS), lambda: 0)]
    assert found == list(range(10 * SLICE_STEPS)) and turns.count >= 10


@simulated
async def test_one_partition_that_is_listed_very_often_does_not_hold_the_loop() -> None:
    world = await HandlerWorld.start(topic("t", partition(0)))
    handlers = OffsetHandlers(world.services)
    request = ListOffsetsRequest(
        partitions=(ListOffsetsPartition(topic="t", partition=0, timestamp_ms=1),) * MAX_DATA_ITEMS
    )
    replied: asyncio.Future[Response | KafkaResponse[object]] = asyncio.get_running_loop().create_future()
    async with counted() as turns:
        handlers.list_offsets(request, Client(), replied.set_result)
        response = await replied
    assert isinstance(response, ListOffsetsResponse) and len(response.partitions) == MAX_DATA_ITEMS
    assert turns.count >= MAX_DATA_ITEMS // SLICE_STEPS


def test_a_partition_that_is_fetched_twice_is_read_once_as_it_was_named_last() -> None:
    types = types_of("FetchRequest")
    partitions = [types["FetchPartition"](partition=number % 2, fetch_offset=number) for number in range(10)]
    body = types["FetchRequest"](topics=[types["FetchTopic"](topic="t", partitions=partitions)])
    found = fetch_by_name(body).partitions
    assert [(item.partition, item.fetch_offset) for item in found] == [(0, 8), (1, 9)]
