"""Who is served in a pass of the loop, when a crowd of connections has sent more than a pass can take."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from unit.net.shell_world import simulated
from unit.net.wire_world import (
    Body,
    RawClient,
    World,
    produce_request,
    produce_response,
    raw_client,
    request_bytes,
    run_in_simulation,
    run_real,
    serve,
)

from barnabas.net.base.fair_reads import (
    ARRIVED_US,
    FRAME_US,
    LEAST_FRAMES,
    LEAST_WAITING_US,
    PASS_US,
    UNNOTICED_US,
    FairReads,
)
from barnabas.net.base.limits import MAX_FRAMES_PER_TURN
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.msgpack import MsgpackCodec
from barnabas.net.wire.protocol.responses import Response

MOST_IN_A_PASS = (PASS_US + UNNOTICED_US + ARRIVED_US) // FRAME_US  # what arrives, and with it what waits in line
CROWD = 40
SENT = 3 * MAX_FRAMES_PER_TURN  # by each of the crowd at once
Run = Callable[[Body], None]


@pytest.fixture(params=[run_real, run_in_simulation], ids=["loopback", "simulated"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def test_a_crowd_does_not_make_a_pass_of_the_loop_long(run: Run) -> None:
    """Forty connections send 7,680 requests at once, which used to be up to 2,560 in one pass. All are answered in order."""

    async def body(world: World) -> None:
        in_pass: list[int] = [0]
        is_marked = False

        def turned() -> None:
            nonlocal is_marked
            is_marked = False
            in_pass.append(0)

        def count(request: Any, context: RequestContext, reply: Callable[[Response], None]) -> None:
            nonlocal is_marked
            if not is_marked:
                is_marked = True
                asyncio.get_running_loop().call_soon(turned)
            in_pass[-1] += 1
            reply(produce_response(0))

        server = await serve(world, {ApiKey.PRODUCE: count})
        crowd = [await raw_client(world, server.address) for _ in range(CROWD)]
        asked = b"".join(request_bytes(number, produce_request(b"")) for number in range(SENT))
        for client in crowd:
            client.transport.write(asked)
        for client in crowd:
            assert [await _answered(client) for _ in range(SENT)] == list(range(SENT))
        assert sum(in_pass) == CROWD * SENT
        assert max(in_pass) <= MOST_IN_A_PASS
        for client in crowd:
            client.transport.abort()
        await server.close()

    run(body)


async def _answered(client: RawClient) -> int:
    return MsgpackCodec().decode_response(memoryview(await client.frame())).correlation_id


@simulated
async def test_who_has_just_arrived_does_not_wait_behind_the_line() -> None:
    reads = FairReads()
    served: list[str] = []
    for number in range(100):
        reads.wait(lambda number=number: _take(reads, served, f"waits {number}"))  # type: ignore[misc]
    while len(reads):
        await asyncio.sleep(0)
        most = reads.frames(in_line=False)
        assert most == MAX_FRAMES_PER_TURN, "the line does not use up what belongs to those who arrive"
        reads.used(1, 0)
    assert served == [f"waits {number}" for number in range(100)]


@simulated
async def test_the_line_goes_on_however_many_arrive() -> None:
    reads = FairReads()
    served: list[str] = []
    for number in range(100):
        reads.wait(lambda number=number: _take(reads, served, f"waits {number}"))  # type: ignore[misc]
    passes = 0
    while len(reads):
        while most := reads.frames(in_line=False):
            reads.used(most, 0)
        await asyncio.sleep(0)
        passes += 1
    least = LEAST_WAITING_US // (LEAST_FRAMES * FRAME_US)
    assert passes <= 100 / least + 2


@simulated
async def test_requests_that_take_long_count_by_their_time() -> None:
    reads = FairReads()
    reads.used(1, PASS_US)
    assert reads.frames(in_line=False) == 1, "one request at a time, as long as bytes can be taken up as they come"
    reads.used(1, ARRIVED_US - PASS_US)
    assert reads.frames(in_line=False) == 0
    await asyncio.sleep(0)
    assert reads.frames(in_line=False) == MAX_FRAMES_PER_TURN, "the next pass has its own budget"


@simulated
async def test_a_pass_that_used_little_leaves_nothing_of_it_to_the_next_one() -> None:
    reads = FairReads()
    for _ in range(PASS_US // UNNOTICED_US + 1):
        reads.used(1, UNNOTICED_US)
        await asyncio.sleep(0)
        assert reads.frames(in_line=False) == MAX_FRAMES_PER_TURN


@simulated
async def test_few_in_line_get_a_whole_turn_and_many_a_small_one() -> None:
    reads = FairReads()
    shares: list[int] = []
    reads.wait(lambda: shares.append(reads.frames(in_line=True)))
    await asyncio.sleep(0)
    assert shares == [MAX_FRAMES_PER_TURN]
    for _ in range(100):
        reads.wait(lambda: shares.append(reads.frames(in_line=True)))
    await asyncio.sleep(0)
    assert set(shares[1:]) == {LEAST_FRAMES} and not len(reads)


def _take(reads: FairReads, served: list[str], name: str) -> None:
    reads.used(reads.frames(in_line=True), 0)
    served.append(name)
