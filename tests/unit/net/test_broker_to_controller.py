"""Finding the controller, and what a caller hears when the outcome of a request is not known."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import ControllerRequest, DeleteTopic, Done
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.log.vocabulary.cluster_changes import ElectionNotNeededError, ElectLeaderRequest
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.base.clock import SystemClock
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.metadata_service import MetadataService

DELETE = DeleteTopic(name="t")


class Controller:
    """The controller of this very node, with its answers in order; the last one is repeated."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def submit(self, request: ControllerRequest) -> object:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return await answer()
        return answer


def channel(controller: Controller, leader_id: int | None = 0) -> ControllerChannel:
    metadata = MetadataService(cast(Any, controller))
    metadata.image = MetadataImage(offset=77)
    metadata.leadership = Leadership(leader_id=leader_id, term=1, is_self=True)
    return ControllerChannel(
        node_id=0,
        metadata=metadata,
        pool=cast(Any, None),
        clock=SystemClock(),
        rng=random.Random(1),
        listener="PLAINTEXT",
        attempt_timeout_ms=50,
    )


def ask(controller: Controller, request: ControllerRequest = DELETE, **options: Any) -> object:
    async def asked() -> object:
        return await channel(controller).call(request, timeout_ms=2_000, **options)

    return asyncio.run(asked())


def test_a_refusal_is_raised() -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        ask(Controller(UnknownTopicOrPartitionError("none")), done_already=(UnknownTopicOrPartitionError,))


@pytest.mark.parametrize("unknown", [NetworkError("cut off"), RequestTimedOutError("may or may not be made")])
def test_what_an_earlier_copy_has_done_is_no_failure(unknown: BarnabasError) -> None:
    controller = Controller(unknown, NotControllerError("moved"), UnknownTopicOrPartitionError("gone already"))
    assert ask(controller, done_already=(UnknownTopicOrPartitionError,)) == Done(offset=77)
    assert controller.asked == 3


def test_a_definite_refusal_before_is_no_reason_to_believe_that_it_is_done() -> None:
    controller = Controller(NotControllerError("moved"), ElectionNotNeededError("leads already"))
    with pytest.raises(ElectionNotNeededError):
        ask(controller, ElectLeaderRequest(topic="t", partition=0), done_already=(ElectionNotNeededError,))


def test_a_controller_that_says_nothing_is_not_waited_for_until_the_end() -> None:
    async def frozen() -> object:
        return await asyncio.sleep(60)

    assert ask(Controller(frozen, Done(offset=5))) == Done(offset=5)


@pytest.mark.parametrize("unknown", [NetworkError("cut off"), RequestTimedOutError("may or may not be made")])
def test_what_must_not_be_repeated_is_not(unknown: BarnabasError) -> None:
    controller = Controller(unknown)
    with pytest.raises(type(unknown)):
        ask(controller, repeat_when_unknown=False)
    assert controller.asked == 1


def test_without_a_controller_the_time_ends() -> None:
    controller = Controller(Done())

    async def asked() -> object:
        return await channel(controller, leader_id=None).call(DELETE, timeout_ms=50)

    with pytest.raises(RequestTimedOutError, match="no active controller"):
        asyncio.run(asked())
    assert controller.asked == 0


def test_a_change_of_the_leader_at_the_moment_of_a_timeout_is_published() -> None:
    """The publication failed, for all that follow the metadata: an attempt had timed out, and its task had not run yet."""

    async def main() -> None:
        frozen = Controller(lambda: asyncio.sleep(60))
        asking = channel(frozen)
        scopes = asking._asked
        calling = asyncio.create_task(asking.call(DELETE, timeout_ms=2_000))
        await asyncio.sleep(0)
        (scope,) = scopes
        scope.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        assert scope.expired() and scopes, "its task has run already"
        asking._published(cast(Any, SimpleNamespace(leader=Leadership(leader_id=1, term=2, is_self=False))))
        calling.cancel()
        await asyncio.wait({calling})

    asyncio.run(main())
