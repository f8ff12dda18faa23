"""The parts of the quorum's shell alone: who drives the core, who dials, and the end of all writing."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from simulation.raft_loop import VirtualLoop

from barnabas.kraft.raft.disk.fail_stop import FailStop
from barnabas.kraft.raft.driver import StepDriver
from barnabas.kraft.raft.net.connection import PeerConnection
from barnabas.kraft.raft.net.dialing import EAGER_FOR_S, PATIENT_DIAL_S, Dialer
from barnabas.kraft.raft.net.peer_addresses import PeerAddresses
from barnabas.kraft.raft.net.refusals import RefusalLog
from barnabas.kraft.raft.net.transport import RaftTransport
from barnabas.log.vocabulary.errors import StorageError

HEARTBEAT_S = 0.4


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    assert not loop.failures
    loop.close()


class Core:
    def __init__(self) -> None:
        self.halted = False
        self.steps = self.tidied = 0

    def step(self) -> None:
        self.steps += 1

    def tidy(self) -> None:
        self.tidied += 1


# --- the driver -------------------------------------------------------------------------------------------------------


def test_many_wakes_in_one_pass_are_one_step(loop: VirtualLoop) -> None:
    core, driver = Core(), StepDriver(loop, loop.time, HEARTBEAT_S)
    driver.drive(core)
    for _ in range(5):
        driver.wake()
    loop.run_for(0.01)
    assert core.steps == 1
    driver.wake()
    driver.wake_later(0.02)
    loop.run_for(0.03)
    assert core.steps == 3


def test_nothing_is_driven_before_there_is_a_core(loop: VirtualLoop) -> None:
    core, driver = Core(), StepDriver(loop, loop.time, HEARTBEAT_S)
    driver.wake()
    loop.run_for(0.01)
    driver.drive(core)
    loop.run_for(0.01)
    assert core.steps == 0


def test_a_tick_comes_four_times_in_a_heartbeat_and_tidies_once_a_second(loop: VirtualLoop) -> None:
    core, driver = Core(), StepDriver(loop, loop.time, HEARTBEAT_S)
    driver.drive(core)
    driver.tick()
    loop.run_for(2.05)
    assert (core.steps, core.tidied) == (21, 2)
    driver.stop_ticking()
    loop.run_for(1.0)
    assert core.steps == 21


def test_ticks_end_with_the_core(loop: VirtualLoop) -> None:
    core, driver = Core(), StepDriver(loop, loop.time, HEARTBEAT_S)
    driver.drive(core)
    driver.tick()
    core.halted = True
    loop.run_for(1.0)
    assert core.steps == 1


# --- the end of writing -----------------------------------------------------------------------------------------------


def fail() -> None:
    raise StorageError("no room")


def test_a_write_that_fails_is_fatal_once_and_is_told_to_its_caller() -> None:
    told: list[str] = []
    stop = FailStop(told.append)
    for _ in range(2):
        with pytest.raises(StorageError, match="no room"):
            stop.guarded(fail)
    assert stop.halted
    assert told == ["the quorum's journal cannot be written: no room"]


def test_a_write_that_fails_after_the_end_is_not_fatal_again() -> None:
    told: list[str] = []
    stop = FailStop(told.append)
    stop.halt()
    stop.fail(StorageError("no room"))
    assert not told


class _OutOfTimeError(BaseException):
    """As pytest's own outcome: no Exception."""


def test_the_time_limit_of_a_test_ends_a_simulation_as_itself(loop: VirtualLoop) -> None:
    """It comes by a signal, into whatever callback runs: it was reported as an error of that callback, under some seed."""

    def interrupted() -> None:
        raise _OutOfTimeError

    loop.call_later(0.1, interrupted)
    began = loop.time()
    with pytest.raises(_OutOfTimeError):
        loop.run_for(10.0)
    assert loop.time() < began + 1.0


# --- dialing ----------------------------------------------------------------------------------------------------------


class Nobody:
    """A network where no address answers."""

    def __init__(self, loop: VirtualLoop, error: Exception | None = None) -> None:
        self._loop = loop
        self._error = error or ConnectionRefusedError()
        self.dials: list[tuple[float, int]] = []  # when, which port

    async def connect(self, protocol_factory: object, host: str, port: int, **_more: object) -> None:
        self.dials.append((self._loop.time(), port))
        raise self._error

    async def listen(self, *_arguments: object, **_more: object) -> "Nobody":
        return self

    def close(self) -> None:
        pass

    def since(self, moment: float) -> list[int]:
        return [port for at, port in self.dials if at >= moment]


def dialer_of(loop: VirtualLoop, network: Nobody, links: dict[int, PeerConnection]) -> tuple[Dialer, PeerAddresses]:
    addresses = PeerAddresses({0: ("contact", 9)})
    dialer = Dialer(
        node_id=1,
        addresses=addresses,
        network=network,
        loop=loop,
        rng=random.Random(1),
        tls=lambda: None,
        refusals=RefusalLog(loop.time),
        links=links,
        connections=(),
        make=lambda _peer_id: pytest.fail("nobody answers"),
    )
    return dialer, addresses


def end(loop: VirtualLoop, dialer: Dialer) -> None:
    for task in dialer.tasks:
        task.cancel()
    loop.run_for(0.01)


def test_a_peer_with_a_lower_id_is_dialed_at_all_its_addresses(loop: VirtualLoop) -> None:
    network = Nobody(loop)
    dialer, addresses = dialer_of(loop, network, {})
    addresses.replace({0: ("own", 7), 2: ("other", 8)})
    dialer.begin()
    loop.run_for(0.01)
    assert network.since(0.0) == [7, 9]
    end(loop, dialer)


def test_dialing_becomes_patient_and_ends_with_the_peer(loop: VirtualLoop) -> None:
    network, began = Nobody(loop), loop.time()
    dialer, addresses = dialer_of(loop, network, {})
    addresses.replace({0: ("contact", 9)})
    dialer.begin()
    loop.run_for(EAGER_FOR_S)
    eager = len(network.since(began))
    loop.run_for(EAGER_FOR_S)
    patient = len(network.since(began + EAGER_FOR_S))
    assert patient <= EAGER_FOR_S / PATIENT_DIAL_S[0] + 1 < eager / 2
    assert addresses.replace({}) == [0]
    dialer.stop(0)
    loop.run_for(1.0)
    assert not network.since(began + 2 * EAGER_FOR_S + 0.01)


def test_an_internal_error_does_not_end_the_dialing(loop: VirtualLoop, caplog: pytest.LogCaptureFixture) -> None:
    network, began = Nobody(loop, RuntimeError("bound to a different event loop")), loop.time()
    dialer, addresses = dialer_of(loop, network, {})
    addresses.replace({0: ("contact", 9)})
    dialer.begin()
    loop.run_for(10.0)
    assert len(network.since(began + 9.0)) > 1
    assert caplog.text.count("voter 0: internal error: RuntimeError('bound to a different event loop')") == 1
    end(loop, dialer)


def test_a_peer_that_has_turned_us_away_is_dialed_patiently_at_once(loop: VirtualLoop) -> None:
    network, began = Nobody(loop), loop.time()
    dialer, addresses = dialer_of(loop, network, {})
    addresses.replace({0: ("contact", 9)})
    dialer.link_ended(0, lived_s=0.01)
    dialer.begin()
    loop.run_for(1.0)
    assert len(network.since(began)) <= 1.0 / PATIENT_DIAL_S[0] + 1
    dialer.link_ended(0, lived_s=60.0)
    loop.run_for(0.5)
    assert len(network.since(began + 1.0)) > 0.5 / PATIENT_DIAL_S[0] + 1
    end(loop, dialer)


def transport_on(loop: VirtualLoop, network: Any) -> RaftTransport:
    handler: Any = None
    return RaftTransport(
        node_id=1,
        listen=("own", 1),
        contacts={},
        network=network,
        loop=loop,
        rng=random.Random(1),
        handler=handler,
    )


def test_a_transport_that_was_halted_dials_nobody(loop: VirtualLoop) -> None:
    network = Nobody(loop)
    transport = transport_on(loop, network)
    loop.run_until_complete(transport.start())
    loop.run_until_complete(transport.close())
    transport.set_peers({0: ("peer", 5)})
    loop.run_for(1.0)
    assert not network.dials


def test_a_transport_is_closed_when_its_tasks_have_ended(loop: VirtualLoop) -> None:
    """The loop of the quorum's thread may end with the close: a task that is only cancelled would be destroyed pending."""
    transport = transport_on(loop, Nobody(loop))

    async def main() -> set[asyncio.Task[Any]]:
        await transport.start()
        transport.set_peers({0: ("peer", 5)})
        await asyncio.sleep(1.0)
        assert len(asyncio.all_tasks()) == 3  # this one, that which pings, that which dials
        await transport.close()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert not loop.run_until_complete(main())
