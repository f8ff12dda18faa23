"""Producer ids come in blocks: each is given out once, the next block is fetched ahead, and nobody waits for ever."""

import asyncio

import pytest
from unit.net.shell_world import simulated

from barnabas.kraft.metadata.requests import ProducerIdBlock
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CoordinatorLoadInProgressError,
    InvalidRequestError,
    UnsupportedVersionError,
)
from barnabas.net.handlers.own.producer_ids import ProducerIdHandler
from barnabas.net.metadata import producer_ids
from barnabas.net.metadata.producer_ids import ProducerIds
from barnabas.net.wire.protocol.requests import InitProducerIdRequest


class Controller:
    """Gives blocks of ten; answers when it is let to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: BarnabasError | None = None

    async def fetch(self) -> ProducerIdBlock:
        self.asked += 1
        first = self.asked * 100
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return ProducerIdBlock(first=first, count=10)


@simulated
async def test_ids_follow_each_other_and_the_next_block_is_fetched_before_it_is_needed() -> None:
    controller = Controller()
    ids = ProducerIds(controller.fetch)
    assert [await ids.next_id() for _ in range(8)] == list(range(100, 108))
    assert controller.asked == 1
    assert await ids.next_id() == 108
    await asyncio.sleep(0)
    assert controller.asked == 2  # one is left
    assert [await ids.next_id() for _ in range(2)] == [109, 200]


@simulated
async def test_many_who_wait_cause_one_request_at_a_time_and_get_an_id_each() -> None:
    controller = Controller()
    controller.may_answer.clear()
    ids = ProducerIds(controller.fetch)
    waiting = [asyncio.ensure_future(ids.next_id()) for _ in range(25)]
    await asyncio.sleep(0.1)
    assert controller.asked == 1
    waiting[3].cancel()
    controller.may_answer.set()
    found = [one for one in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(one, int)]
    assert len(set(found)) == len(found) == 24
    assert controller.asked == 3


@simulated
async def test_without_a_controller_producers_are_told_to_come_again() -> None:
    controller = Controller()
    controller.error = UnsupportedVersionError("nobody")
    ids = ProducerIds(controller.fetch)
    with pytest.raises(CoordinatorLoadInProgressError, match="nobody"):
        await ids.next_id()
    controller.error = None
    assert await ids.next_id() == 200


@simulated
async def test_who_waits_is_counted_and_released_at_the_end() -> None:
    controller = Controller()
    controller.may_answer.clear()
    ids = ProducerIds(controller.fetch)
    waiting = [asyncio.ensure_future(ids.next_id()) for _ in range(producer_ids.MAX_WAITERS)]
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorLoadInProgressError, match="too many"):
        await ids.next_id()
    await ids.close()
    assert all(
        isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*waiting, return_exceptions=True)
    )


@simulated
async def test_the_handler_gives_ids_to_producers_without_transactions() -> None:
    handler = ProducerIdHandler(ProducerIds(Controller().fetch))
    answer = await handler.init(InitProducerIdRequest(), None)  # type: ignore[arg-type]
    assert (answer.producer_id, answer.producer_epoch, answer.error) == (100, 0, 0)
    with pytest.raises(InvalidRequestError, match="transactional"):
        await handler.init(InitProducerIdRequest(transactional_id="t"), None)  # type: ignore[arg-type]
