"""The wait of a stop for the controller to move leaderships away: what ends it early is noticed within a poll."""

import asyncio
from types import SimpleNamespace
from typing import Any

from unit.net.shell_world import now_ms, simulated

from barnabas.net.broker.broker import HAND_OVER_POLL_MS, QUORUM_GONE_ELECTIONS, _handed_over

TIMEOUT_MS, ELECTION_MS = 30_000, 1_000


def stopping(leader_id: int | None = 0) -> Any:
    return SimpleNamespace(
        ports=SimpleNamespace(clock=SimpleNamespace(now_ms=now_ms)),
        config=SimpleNamespace(
            controlled_shutdown_timeout_ms=TIMEOUT_MS, controller_quorum_election_timeout_ms=ELECTION_MS
        ),
        lifecycle=SimpleNamespace(may_shut_down=asyncio.Event()),
        metadata=SimpleNamespace(leadership=SimpleNamespace(leader_id=leader_id)),
        shutdown_hurried=asyncio.Event(),
    )


@simulated
async def test_it_ends_with_the_permission_of_the_controller() -> None:
    broker = stopping()
    asyncio.get_running_loop().call_later(7, broker.lifecycle.may_shut_down.set)
    assert await _handed_over(broker) and now_ms() == 7_000


@simulated
async def test_it_ends_after_its_time() -> None:
    assert not await _handed_over(stopping())
    assert TIMEOUT_MS <= now_ms() <= TIMEOUT_MS + HAND_OVER_POLL_MS


@simulated
async def test_a_second_signal_ends_it_within_a_poll() -> None:
    broker = stopping()
    asyncio.get_running_loop().call_later(7, broker.shutdown_hurried.set)
    assert not await _handed_over(broker)
    assert 7_000 <= now_ms() <= 7_000 + HAND_OVER_POLL_MS


@simulated
async def test_a_quorum_that_is_gone_ends_it_within_a_poll() -> None:
    assert not await _handed_over(stopping(leader_id=None))
    gone_ms = QUORUM_GONE_ELECTIONS * ELECTION_MS
    assert gone_ms <= now_ms() <= gone_ms + HAND_OVER_POLL_MS
