"""Finding the active controller: here, there, somewhere else meanwhile, or nowhere in time."""

import asyncio
from collections.abc import Callable

import pytest
from unit.net.shell_world import LISTENER, Shell, broker, image_of, now_ms, simulated

from barnabas.kraft.metadata.requests import DeleteTopic, Done, decode_request, encode_answer
from barnabas.log.vocabulary.errors import (
    BrokerNotAvailableError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.metadata.broker_to_controller import ATTEMPT_TIMEOUT_MS
from barnabas.net.server.dispatcher import Dispatcher, Reply, RequestContext
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import ControllerCallRequest
from barnabas.net.wire.protocol.responses import ControllerCallResponse

REQUEST = DeleteTopic(name="t")


class RemoteController:
    """A broker that serves controller calls as the test says: `answer(call number)` is a value, an error, or None (silence)."""

    def __init__(self, shell: Shell, node_id: int, answer: Callable[[int], object]) -> None:
        self.requests: list[object] = []
        self._answer = answer
        self._address = (f"host-{node_id}", 9092)
        self.server = Server(
            shell.world.node(f"host-{node_id}"),
            Dispatcher({ApiKey.CONTROLLER_CALL: self._call}),
            listener_name=LISTENER,
        )

    async def start(self) -> "RemoteController":
        await self.server.start(*self._address)
        return self

    def _call(self, request: ControllerCallRequest, context: RequestContext, reply: Reply) -> None:
        self.requests.append(decode_request(request.body))
        answer = self._answer(len(self.requests))
        if answer is not None:
            reply(ControllerCallResponse(body=encode_answer(answer)))


async def led_by(node_id: int | None) -> Shell:
    shell = await Shell.start()
    shell.source.publish(image_of(broker(0), broker(1), broker(2)), leader=node_id)
    return shell


@simulated
async def test_the_controller_of_this_process_is_asked_directly() -> None:
    shell = await led_by(0)
    shell.source.script(Done(offset=4))
    assert await shell.controller.call(REQUEST, timeout_ms=100) == Done(offset=4)
    assert shell.source.requests == [REQUEST] and now_ms() == 0


@simulated
async def test_a_controller_elsewhere_is_asked_by_rpc() -> None:
    shell = await led_by(1)
    remote = await RemoteController(shell, 1, lambda _: Done(offset=5)).start()
    assert await shell.controller.call(REQUEST, timeout_ms=1_000) == Done(offset=5)
    assert remote.requests == [REQUEST] and shell.source.requests == []


@simulated
async def test_an_error_of_the_controller_comes_back_as_it_is_and_is_not_repeated() -> None:
    shell = await led_by(1)
    remote = await RemoteController(shell, 1, lambda _: UnknownTopicOrPartitionError("there is no topic 't'")).start()
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 't'"):
        await shell.controller.call(REQUEST, timeout_ms=1_000)
    assert len(remote.requests) == 1


@simulated
async def test_the_controller_is_followed_when_it_moves() -> None:
    shell = await led_by(1)

    def deposed(call: int) -> NotControllerError:
        if call == 2:
            shell.source.publish(leader=2, term=2)
        return NotControllerError("no more")

    first = await RemoteController(shell, 1, deposed).start()
    second = await RemoteController(shell, 2, lambda _: Done(offset=6)).start()
    assert await shell.controller.call(REQUEST, timeout_ms=5_000) == Done(offset=6)
    assert (len(first.requests), len(second.requests)) == (2, 1)


@simulated
async def test_a_leader_is_waited_for_with_growing_pauses_until_the_time_is_over() -> None:
    shell = await led_by(0)
    shell.source.script(NotControllerError("an election is under way"))
    with pytest.raises(RequestTimedOutError, match="no active controller answered within 3000 ms"):
        await shell.controller.call(REQUEST, timeout_ms=3_000)
    assert 3_000 <= now_ms() <= 3_002
    assert 5 < len(shell.source.requests) < 25  # a pause of 20 ms would make 150 of them
    times = shell.source.asked_at_ms
    assert times[1] - times[0] < 50 < times[-1] - times[-2]


@simulated
async def test_without_any_leader_nobody_is_asked() -> None:
    shell = await led_by(None)
    asyncio.get_running_loop().call_later(0.5, lambda: shell.source.publish(leader=0))
    shell.source.script(Done(offset=1))
    assert await shell.controller.call(REQUEST, timeout_ms=3_000) == Done(offset=1)
    assert 500 <= shell.source.asked_at_ms[0] <= 1_250 and len(shell.source.requests) == 1


@pytest.mark.parametrize("repeat", [True, False])
@simulated
async def test_a_request_that_may_have_been_taken_is_repeated_only_where_that_is_wanted(repeat: bool) -> None:
    shell = await led_by(1)

    def dying(call: int) -> Done | None:
        if call > 1:
            return Done(offset=8)
        asyncio.get_running_loop().call_soon(shell.world.reset_connections, "host-0", "host-1")
        return None

    remote = await RemoteController(shell, 1, dying).start()
    if repeat:
        assert await shell.controller.call(REQUEST, timeout_ms=5_000) == Done(offset=8)
        assert len(remote.requests) == 2
    else:
        with pytest.raises(NetworkError):
            await shell.controller.call(REQUEST, timeout_ms=5_000, repeat_when_unknown=False)
        assert len(remote.requests) == 1 and now_ms() < 100


@simulated
async def test_a_refused_connection_is_definite_and_tried_again_in_any_case() -> None:
    shell = await led_by(1)
    remote = RemoteController(shell, 1, lambda _: Done(offset=9))
    call = asyncio.create_task(shell.controller.call(REQUEST, timeout_ms=5_000, repeat_when_unknown=False))
    await asyncio.sleep(0.3)
    await remote.start()
    assert await call == Done(offset=9)


@pytest.mark.parametrize("repeat", [True, False])
@simulated
async def test_a_silent_controller_costs_the_whole_time_and_the_outcome_is_unknown(repeat: bool) -> None:
    shell = await led_by(1)
    remote = await RemoteController(shell, 1, lambda _: None).start()
    with pytest.raises(RequestTimedOutError):
        await shell.controller.call(REQUEST, timeout_ms=900, repeat_when_unknown=repeat)
    assert len(remote.requests) == 1 and 895 <= now_ms() <= 905


@simulated
async def test_the_address_comes_from_the_metadata_else_from_the_quorum_else_it_is_unknown() -> None:
    shell = await led_by(7)
    with pytest.raises(BrokerNotAvailableError, match="address of broker 7 is not known"):
        shell.controller.address_of(7)
    with pytest.raises(RequestTimedOutError):
        await shell.controller.call(REQUEST, timeout_ms=200)
    shell.source.addresses[7] = ("voter", 1)
    assert shell.controller.address_of(7) == ("voter", 1)
    shell.source.publish(image_of(broker(7)))
    assert shell.controller.address_of(7) == ("host-7", 9092)


@simulated
async def test_giving_up_a_call_cancels_it() -> None:
    shell = await led_by(0)
    shell.source.script(asyncio.get_running_loop().create_future())
    call = asyncio.create_task(shell.controller.call(REQUEST, timeout_ms=5_000))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(shell.source.requests) == 1


@simulated
async def test_the_silence_of_a_leader_ends_when_another_one_leads() -> None:
    """Frozen or cut off, the old one would be waited for until the attempt's time is over; a new controller must hear of us
    sooner, or it takes us for dead."""
    shell = await led_by(1)
    first = await RemoteController(shell, 1, lambda _: None).start()
    second = await RemoteController(shell, 2, lambda _: Done(offset=6)).start()
    asking = asyncio.ensure_future(shell.controller.call(REQUEST, timeout_ms=10_000))
    await asyncio.sleep(0.1)
    shell.source.publish(leader=2, term=2)
    assert await asking == Done(offset=6)
    assert now_ms() < 200
    assert (len(first.requests), len(second.requests)) == (1, 1)


@simulated
async def test_another_leader_that_is_known_in_the_moment_of_a_timeout_disturbs_nothing() -> None:
    """The attempt has ended, but the caller does not know yet."""
    shell = await led_by(1)
    await RemoteController(shell, 1, lambda _: None).start()
    remote = await RemoteController(shell, 2, lambda _: Done(offset=6)).start()
    failures: list[BaseException] = []

    def another_leads() -> None:
        try:
            shell.source.publish(image_of(broker(0), broker(1), broker(2)), leader=2)
        except RuntimeError as error:
            failures.append(error)

    call = asyncio.create_task(shell.controller.call(REQUEST, timeout_ms=30_000))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + ATTEMPT_TIMEOUT_MS / 1000, another_leads)
    assert await call == Done(offset=6)
    assert failures == [] and remote.requests == [REQUEST]


@simulated
async def test_what_must_not_be_repeated_waits_for_its_answer_whoever_leads() -> None:
    shell = await led_by(1)
    await RemoteController(shell, 1, lambda _: None).start()
    second = await RemoteController(shell, 2, lambda _: Done(offset=6)).start()
    asking = asyncio.ensure_future(shell.controller.call(REQUEST, timeout_ms=1_000, repeat_when_unknown=False))
    await asyncio.sleep(0.1)
    shell.source.publish(leader=2, term=2)
    with pytest.raises(RequestTimedOutError):
        await asking
    assert now_ms() >= 1_000 and second.requests == []


@simulated
async def test_who_is_told_that_topics_change_too_fast_waits_for_the_next_turn() -> None:
    shell = await led_by(0)
    shell.source.script(*[ThrottlingQuotaExceededError("too fast")] * 3, Done(offset=4))
    assert await shell.controller.call(REQUEST, timeout_ms=5_000) == Done(offset=4)
    assert len(shell.source.requests) == 4 and now_ms() > 0


@simulated
async def test_who_does_not_get_a_turn_in_time_is_told_why() -> None:
    shell = await led_by(0)
    shell.source.script(*[ThrottlingQuotaExceededError("too fast")] * 100)
    with pytest.raises(ThrottlingQuotaExceededError, match="too fast"):
        await shell.controller.call(REQUEST, timeout_ms=2_000)
    assert 2_000 <= now_ms() <= 2_100 and len(shell.source.requests) < 20
