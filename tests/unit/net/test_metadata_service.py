"""Whoever waits for an offset is woken by it, and subscribers hear of everything in order."""

import asyncio

import pytest
from unit.net.shell_world import Shell, broker, image_of, now_ms, simulated, turns

from barnabas.log.vocabulary.errors import LeaderNotAvailableError, RequestTimedOutError


@simulated
async def test_a_publication_is_visible_before_its_subscribers_hear_of_it_in_their_order() -> None:
    shell = await Shell.start()
    heard: list[tuple[str, int, int | None]] = []
    for name in ("first", "second"):
        shell.metadata.subscribe(
            lambda publication, name=name: heard.append(
                (name, shell.metadata.image.offset, shell.metadata.leadership.leader_id)
            )
        )
    shell.source.publish(image_of(offset=11), leader=2, term=4)
    assert heard == [("first", 11, 2), ("second", 11, 2)]
    assert not shell.metadata.is_active_controller and shell.metadata.leadership.term == 4
    shell.source.publish(image_of(offset=12), leader=0)
    assert shell.metadata.is_active_controller


@simulated
async def test_the_image_ages_from_the_moment_when_nobody_confirms_it_any_more() -> None:
    shell = await Shell.start()
    await asyncio.sleep(3)
    shell.metadata.confirmed()  # a heartbeat was answered
    await asyncio.sleep(2)
    assert round(shell.metadata.unconfirmed_ms(), -2) == 2_000
    shell.source.publish(leader=None)
    await asyncio.sleep(4)
    shell.source.publish(leader=None)
    assert round(shell.metadata.unconfirmed_ms(), -2) == 4_000


@simulated
async def test_waiters_wake_at_their_offset_after_the_subscribers() -> None:
    shell = await Shell.start()
    order: list[str] = []
    shell.metadata.subscribe(lambda publication: order.append(f"published {publication.image.offset}"))

    async def wait(offset: int) -> None:
        await shell.metadata.wait_for_offset(offset, timeout_ms=1_000)
        order.append(f"reached {offset}")

    waiting = asyncio.gather(wait(13), wait(12), wait(0))
    await turns()
    shell.source.publish(image_of(offset=12))
    await turns()
    shell.source.publish(image_of(offset=15))
    await waiting
    assert order == ["reached 0", "published 12", "reached 12", "published 15", "reached 13"]


@simulated
async def test_a_wait_ends_with_its_time_and_leaves_nothing_behind() -> None:
    shell = await Shell.start()
    with pytest.raises(RequestTimedOutError, match="committed at metadata offset 20"):
        await shell.metadata.wait_for_offset(20, timeout_ms=700)
    assert now_ms() == 700
    given_up = asyncio.create_task(shell.metadata.wait_for_offset(20, timeout_ms=700))
    await turns()
    given_up.cancel()
    await turns()
    # Long polls of a quiet cluster end so all day long, without any publication that could sweep them out.
    assert not shell.metadata._waiters


@simulated
async def test_what_arrives_in_the_turn_in_which_the_time_of_a_wait_ends_is_not_too_late() -> None:
    """A process that was paused finds both in the same turn. The error said that a broker at offset 20 had not reached 20."""
    shell = await Shell.start()
    loop = asyncio.get_running_loop()
    loop.call_later(0.7, lambda: shell.source.publish(image_of(offset=20)))
    await shell.metadata.wait_for_offset(20, timeout_ms=700)
    loop.call_later(0.7, lambda: shell.source.publish(image_of(broker(0), offset=21)))
    await shell.metadata.wait_until_known(timeout_ms=700)
    assert now_ms() == 1_400


@simulated
async def test_closing_ends_all_waits_and_the_source() -> None:
    shell = await Shell.start()
    waiting = asyncio.create_task(shell.metadata.wait_for_offset(20, timeout_ms=60_000))
    await turns()
    await shell.metadata.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert shell.source.is_closed and now_ms() == 0


@simulated
async def test_a_subscriber_that_comes_late_hears_of_the_next_publication_only() -> None:
    shell = await Shell.start()
    heard: list[int] = []
    shell.source.publish(image_of(broker(1), offset=5))
    shell.metadata.subscribe(lambda publication: heard.append(publication.image.offset))
    assert heard == []
    shell.source.publish(image_of(broker(1), offset=6))
    assert heard == [6]


@simulated
async def test_clients_wait_until_the_registration_of_this_process_is_in_the_image() -> None:
    """Whichever comes last wakes them: the image, or the answer of the controller."""
    for image_first in (True, False):
        shell = Shell()
        await shell.metadata.start()
        waiting = asyncio.create_task(shell.metadata.wait_until_known(timeout_ms=1_000))
        if not image_first:
            shell.metadata.registered(20)
        shell.source.publish(image_of(broker(0), offset=20))
        await turns()
        assert waiting.done() != image_first
        shell.metadata.registered(20)
        await turns()
        assert shell.metadata.is_known and waiting.done()


@simulated
async def test_an_image_without_active_brokers_is_not_shown_to_clients() -> None:
    shell = await Shell.start()
    shell.source.publish(image_of(broker(0, fenced=True), offset=20))
    assert shell.metadata.is_current and not shell.metadata.is_known
    with pytest.raises(LeaderNotAvailableError, match="has not received the cluster metadata within 700 ms"):
        await shell.metadata.wait_until_known(timeout_ms=700)
    assert not shell.metadata._unknown  # each client that comes meanwhile waits here
    shell.source.publish(image_of(broker(0), offset=21))
    await shell.metadata.wait_until_known(timeout_ms=0)
