"""Registration and heartbeats of a broker against a controller that answers what a test says."""

import asyncio
import logging
from typing import Any, cast

import pytest

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import BrokerHeartbeat, HeartbeatAnswer, RegisterBroker, Registered
from barnabas.log.vocabulary.errors import (
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    StaleBrokerEpochError,
)
from barnabas.net.base.clock import SystemClock
from barnabas.net.metadata.broker_lifecycle import BrokerLifecycle


class Controller:
    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[object] = []

    async def call(self, request: object, *, timeout_ms: int) -> object:
        self.asked.append(request)
        if not self.answers:
            await asyncio.sleep(60)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Metadata:
    image = MetadataImage(offset=9)
    applied_offset = 9

    def confirmed(self) -> None:
        """Nothing here asks how old the metadata is."""


async def live(controller: Controller) -> tuple[BrokerLifecycle, list[int], list[str]]:
    """Live until the controller has no more answers."""
    epochs: list[int] = []
    fatal: list[str] = []
    lifecycle = BrokerLifecycle(
        registration=RegisterBroker(node_id=1, incarnation="i", cluster_id="", endpoints=(), lost_unflushed_data=True),
        controller=cast(Any, controller),
        metadata=cast(Any, Metadata()),
        clock=SystemClock(),
        registered=epochs.append,
        heartbeat_interval_ms=1,
        session_timeout_ms=100,
        fatal=fatal.append,
    )
    task = asyncio.create_task(lifecycle.run())
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return lifecycle, epochs, fatal


async def test_a_lost_registration_is_made_again_without_the_loss_that_was_told() -> None:
    controller = Controller(
        Registered(broker_epoch=3, offset=3),
        HeartbeatAnswer(fenced=False, may_shut_down=False),
        StaleBrokerEpochError("another one has registered"),
        Registered(broker_epoch=8, offset=8),
    )
    lifecycle, epochs, fatal = await live(controller)
    assert epochs == [3, 8] and fatal == []
    assert lifecycle.fenced and not lifecycle.unfenced.is_set()
    told = [item.lost_unflushed_data for item in controller.asked if isinstance(item, RegisterBroker)]
    assert told == [True, False]
    beats = [item.broker_epoch for item in controller.asked if isinstance(item, BrokerHeartbeat)]
    assert beats == [3, 3, 8]


async def test_the_same_refusal_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refusals = [DuplicateBrokerRegistrationError("broker 1 is alive in another process")] * 20
    _, epochs, _ = await live(Controller(*refusals, Registered(broker_epoch=3, offset=3)))
    assert epochs == [3]
    assert len([record for record in caplog.records if "alive in another process" in record.message]) == 1


async def test_a_folder_of_another_cluster_ends_the_broker() -> None:
    _, epochs, fatal = await live(Controller(InconsistentClusterIdError("data of the cluster X")))
    assert epochs == [] and fatal == ["data of the cluster X"]
