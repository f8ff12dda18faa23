"""Registering, being unfenced, losing the registration, leaving: the broker's side of it, with a scripted controller."""

import asyncio
from itertools import pairwise

import pytest
from unit.net.shell_world import Shell, image_of, now_ms, simulated, turns

from barnabas.kraft.metadata.controller_errors import DivergentMetadataError
from barnabas.kraft.metadata.image import Endpoint
from barnabas.kraft.metadata.requests import BrokerHeartbeat, HeartbeatAnswer, RegisterBroker, Registered
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidConfigError,
    InvalidRequestError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.net.metadata.broker_lifecycle import UNFENCING_HEARTBEAT_INTERVAL_MS, BrokerLifecycle

NOTHING_KNOWN = MetadataPosition()
HEARTBEAT_MS, SESSION_MS = 2_000, 9_000
FENCED = HeartbeatAnswer(fenced=True, may_shut_down=False)
UNFENCED = HeartbeatAnswer(fenced=False, may_shut_down=False)


class World:
    def __init__(self, shell: Shell, known: MetadataPosition) -> None:
        self.shell = shell
        self.epochs: list[int] = []
        self.fatal: list[str] = []
        self.lifecycle = BrokerLifecycle(
            registration=RegisterBroker(
                node_id=0,
                incarnation="this-start",
                cluster_id="",  # its folders were empty when it started
                endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1),),
                lost_unflushed_data=True,
            ),
            controller=shell.controller,
            metadata=shell.metadata,
            clock=shell.clock,
            registered=self._registered,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            fatal=self.fatal.append,
            known_metadata=lambda: known,
        )

    def _registered(self, broker_epoch: int) -> None:
        assert self.lifecycle.broker_epoch == broker_epoch  # who is told asks for it
        self.epochs.append(broker_epoch)

    @classmethod
    async def start(cls, *answers: object, known: MetadataPosition = NOTHING_KNOWN) -> "World":
        world = cls(await Shell.start(), known)
        world.shell.source.script(*answers)
        world.running = asyncio.create_task(world.lifecycle.run())
        return world

    running: "asyncio.Task[None]"

    async def after(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    @property
    def heartbeats(self) -> list[BrokerHeartbeat]:
        return self.shell.source.asked(BrokerHeartbeat)

    @property
    def registrations(self) -> list[RegisterBroker]:
        return self.shell.source.asked(RegisterBroker)


@simulated
async def test_a_registration_is_repeated_with_the_same_incarnation_until_it_is_taken() -> None:
    world = await World.start(
        RequestTimedOutError("lost"), InvalidConfigError("not yet"), Registered(broker_epoch=7), FENCED
    )
    world.shell.source.publish(image_of(offset=33))
    await world.after(HEARTBEAT_MS + 200)  # what is not retriable by itself is not asked again and again
    assert [request.incarnation for request in world.registrations] == ["this-start"] * 3
    assert all(request.lost_unflushed_data for request in world.registrations)
    assert world.epochs == [7] and world.lifecycle.broker_epoch == 7
    heartbeat = world.heartbeats[0]
    assert (heartbeat.node_id, heartbeat.broker_epoch, heartbeat.metadata_offset) == (0, 7, 33)
    assert not heartbeat.want_shut_down and not heartbeat.want_fence


@simulated
async def test_another_living_broker_with_our_id_is_waited_for_patiently() -> None:
    world = await World.start(DuplicateBrokerRegistrationError("node 0 lives"), Registered(broker_epoch=7), FENCED)
    await world.after(HEARTBEAT_MS - 1)
    assert len(world.registrations) == 1 and world.epochs == []
    await world.after(2)
    assert len(world.registrations) == 2 and world.epochs == [7]


@simulated
async def test_heartbeats_are_quick_while_fenced_and_slow_afterwards() -> None:
    world = await World.start(Registered(broker_epoch=7), FENCED, FENCED, UNFENCED)
    assert world.lifecycle.fenced
    await world.lifecycle.unfenced.wait()
    assert now_ms() == 2 * UNFENCING_HEARTBEAT_INTERVAL_MS and not world.lifecycle.fenced
    await world.after(3 * HEARTBEAT_MS + 1)
    times = world.shell.source.asked_at_ms[1:]
    assert [after - before for before, after in pairwise(times)] == [
        *[UNFENCING_HEARTBEAT_INTERVAL_MS] * 2,
        *[HEARTBEAT_MS] * 3,
    ]


@simulated
async def test_fencing_is_noticed_and_clears_the_event() -> None:
    world = await World.start(Registered(broker_epoch=7), UNFENCED, FENCED, UNFENCED)
    await world.lifecycle.unfenced.wait()
    await world.after(HEARTBEAT_MS + 1)
    assert world.lifecycle.fenced and not world.lifecycle.unfenced.is_set()
    await world.after(UNFENCING_HEARTBEAT_INTERVAL_MS)
    assert not world.lifecycle.fenced and world.lifecycle.unfenced.is_set()


@simulated
async def test_a_lost_registration_is_made_again_without_the_old_loss() -> None:
    answers = asyncio.get_running_loop().create_future()
    world = await World.start(
        Registered(broker_epoch=7), UNFENCED, StaleBrokerEpochError("7 is gone"), answers, UNFENCED
    )
    await world.lifecycle.unfenced.wait()
    await world.after(HEARTBEAT_MS + 1)
    assert world.lifecycle.fenced and not world.lifecycle.unfenced.is_set()
    answers.set_result(Registered(broker_epoch=21))
    await turns()
    first, second = world.registrations
    assert (first.lost_unflushed_data, second.lost_unflushed_data) == (True, False)
    assert first.incarnation == second.incarnation
    assert world.epochs == [7, 21] and world.heartbeats[-1].broker_epoch == 21
    assert world.lifecycle.unfenced.is_set()


@simulated
async def test_a_refused_heartbeat_is_repeated_at_the_ordinary_pace() -> None:
    world = await World.start(Registered(broker_epoch=7), UNFENCED, InvalidRequestError("?"), UNFENCED)
    await world.after(2 * HEARTBEAT_MS + 1)
    assert len(world.heartbeats) == 3 and not world.lifecycle.fenced


@simulated
async def test_a_heartbeat_of_unknown_outcome_is_repeated_soon_but_not_in_a_tight_loop() -> None:
    # A controller that loses its leadership answers at once: the call has not waited.
    world = await World.start(Registered(broker_epoch=7), RequestTimedOutError("leadership lost"))
    await world.after(200)
    assert 2 <= len(world.heartbeats) <= 200 // UNFENCING_HEARTBEAT_INTERVAL_MS + 1


@simulated
async def test_a_controlled_shutdown_is_asked_for_at_once_and_waited_for_quickly() -> None:
    done = HeartbeatAnswer(fenced=False, may_shut_down=True)
    world = await World.start(Registered(broker_epoch=7), done, UNFENCED, UNFENCED, done)
    await world.after(1)
    assert not world.lifecycle.may_shut_down.is_set()  # nobody has asked
    world.lifecycle.begin_controlled_shutdown()
    await world.lifecycle.may_shut_down.wait()
    assert now_ms() == 1 + 2 * UNFENCING_HEARTBEAT_INTERVAL_MS
    assert [request.want_shut_down for request in world.heartbeats] == [False, True, True, True]


@pytest.mark.parametrize("turns_between", range(4))
@simulated
async def test_an_end_that_meets_the_wish_to_shut_down_is_the_end(turns_between: int) -> None:
    world = await World.start(Registered(broker_epoch=7), UNFENCED)
    await world.lifecycle.unfenced.wait()
    await turns()
    world.lifecycle.begin_controlled_shutdown()
    await turns(turns_between)
    world.running.cancel()
    await turns()
    assert world.running.cancelled()


@pytest.mark.parametrize("error", [InconsistentClusterIdError, UnsupportedVersionError])
@simulated
async def test_a_broker_that_the_cluster_cannot_take_stops_for_good(error: type[BarnabasError]) -> None:
    world = await World.start(error("use another folder"))
    await world.running
    assert world.fatal == ["use another folder"]
    assert len(world.registrations) == 1 and world.epochs == []


@simulated
async def test_no_leader_of_the_quorum_is_waited_for() -> None:
    world = await World.start(Registered(broker_epoch=7), UNFENCED)
    world.shell.source.publish(leader=None)
    await world.after(30_000)
    assert world.shell.source.requests == []
    world.shell.source.publish(leader=0)
    await world.lifecycle.unfenced.wait()
    assert world.epochs == [7]


@simulated
async def test_a_broker_that_registers_again_names_the_cluster_that_it_has_joined_since_its_start() -> None:
    """A controller of another cluster, whose voter was emptied, must be able to refuse it."""
    world = await World.start(Registered(broker_epoch=5, offset=5), StaleBrokerEpochError("who?"))
    world.shell.source.publish(image_of(cluster_id="joined"))
    await world.after(SESSION_MS)
    others = world.shell.source.asked(RegisterBroker)[1:]
    assert others and {request.cluster_id for request in others} == {"joined"}
    world.running.cancel()


@simulated
async def test_a_broker_that_knows_more_than_the_quorum_says_so_and_stops_when_it_is_refused() -> None:
    world = await World.start(Registered(broker_epoch=7), DivergentMetadataError("accept the loss"))
    await world.running
    assert world.fatal == ["accept the loss"]
    (registration,) = world.registrations
    assert registration.known == MetadataPosition()
    assert registration.applied == world.shell.metadata.image.position == world.heartbeats[0].applied


@simulated
async def test_a_broker_tells_what_an_accepted_recovery_has_cost(caplog: pytest.LogCaptureFixture) -> None:
    known = MetadataPosition(controller_epoch=3, offset=50)  # the copy was another course of history, and longer
    world = await World.start(Registered(broker_epoch=70, recovery_epoch=9, recovery_offset=60), UNFENCED, known=known)
    await world.lifecycle.unfenced.wait()
    assert "event=metadata_lost node=0" in caplog.text and "before offset 60" in caplog.text
    assert world.registrations[0].known == known
    world.running.cancel()
