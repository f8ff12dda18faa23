"""The task that keeps a membership alive: what happens when it fails."""

import asyncio
import logging
from typing import cast

import pytest

from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.group.group_membership import GroupMembership
from barnabas.net.client.group.ownership import Subscription
from barnabas.net.client.group.session import Session


class FailingSession(Session):
    async def _step(self) -> float:
        raise ZeroDivisionError("a bug")


async def test_a_session_that_fails_is_told_to_the_application(caplog: pytest.LogCaptureFixture) -> None:
    told: asyncio.Future[BarnabasError] = asyncio.get_running_loop().create_future()
    session = FailingSession(
        cast(Client, None),
        GroupMembership("readers", "m", Subscription(topics=("t",))),
        on_change=lambda: None,
        on_error=told.set_result,
        idle_ms=lambda: 0,
        max_poll_interval_ms=1_000,
    )
    with caplog.at_level(logging.CRITICAL, logger="barnabas.consumer"):
        session.start()
        error = await asyncio.wait_for(told, 10)
    assert "session of group readers failed" in error.message and "ZeroDivisionError" in error.message
