"""The simulated loop and network keep TCP's promises, and give the same course for the same seed."""

import asyncio
from random import Random
from typing import Any

import pytest

from barnabas.net.base.clock import SimulatedClock
from barnabas.net.testing.simulation.loop import SimulatedLoop, SimulationDeadlock, run_simulated
from barnabas.net.testing.simulation.network import SimulatedNetwork, SimulatedTransport


class Sink(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.times: list[float] = []

    def connection_made(self, transport: Any) -> None:
        self.transport: SimulatedTransport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.times.append(asyncio.get_running_loop().time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


async def pair(world: SimulatedNetwork) -> tuple[Sink, Sink]:
    accepted: list[Sink] = []

    def accept() -> Sink:
        accepted.append(Sink())
        return accepted[-1]

    listener = await world.node("b").listen(accept, "b", 0)
    ours = await world.node("a").connect(Sink, *listener.address)
    assert isinstance(ours, Sink)
    return ours, accepted[0]


def simulate(body: Any, seed: int = 1) -> Any:
    async def main(loop: SimulatedLoop) -> Any:
        return await body(SimulatedNetwork(loop, Random(seed)))

    return run_simulated(main)


def test_time_jumps_to_the_next_timer() -> None:
    async def main(loop: SimulatedLoop) -> float:
        clock = SimulatedClock(loop, epoch_ms=1000, skew_ms=5)
        await asyncio.gather(asyncio.sleep(86_400 * 3), asyncio.sleep(5))
        assert clock.wall_ms() == 1005 + clock.now_ms()
        return loop.time()

    assert run_simulated(main) == 86_400 * 3


def test_waiting_for_nothing_is_a_deadlock() -> None:
    async def main(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(SimulationDeadlock):
        run_simulated(main)


def test_executors_run_inline() -> None:
    async def main(loop: SimulatedLoop) -> int:
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 7)

    assert run_simulated(main) == 7


def test_the_same_seed_takes_the_same_course() -> None:
    async def body(world: SimulatedNetwork) -> list[float]:
        ours, theirs = await pair(world)
        world.link("a", "b").loss = 0.2
        for number in range(100):
            ours.transport.write(bytes([number]))
            await asyncio.sleep(0.001)
        await asyncio.sleep(60)
        return theirs.times

    assert simulate(body, 1) == simulate(body, 1) != simulate(body, 2)


@pytest.mark.parametrize("seed", range(10))
def test_bytes_arrive_in_order_through_loss_and_cuts(seed: int) -> None:
    async def body(world: SimulatedNetwork) -> None:
        random = Random(seed)
        ours, theirs = await pair(world)
        sent = bytearray()
        for _ in range(200):
            match random.randrange(8):
                case 0:
                    world.cut("a", "b")
                case 1:
                    world.cut("b", "a")
                case 2 | 3:
                    world.heal()
                case 4:
                    world.link("a", "b").loss = random.random() * 0.5
                case 5:
                    theirs.transport.pause_reading() if random.random() < 0.5 else theirs.transport.resume_reading()
                case _:
                    data = random.randbytes(random.choice((1, 100, 100_000)))
                    ours.transport.write(data)
                    sent += data
            await asyncio.sleep(random.random() * 0.1)
        world.heal()
        theirs.transport.resume_reading()
        await asyncio.sleep(20)
        assert theirs.received == sent and not theirs.lost and not ours.lost

    simulate(body)


def test_a_one_way_cut_lets_the_other_way_deliver() -> None:
    async def body(world: SimulatedNetwork) -> None:
        ours, theirs = await pair(world)
        world.cut("a", "b")
        ours.transport.write(b"lost for now")
        theirs.transport.write(b"arrives")
        await asyncio.sleep(1)
        assert theirs.received == b"" and ours.received == b"arrives"
        world.heal()
        await asyncio.sleep(1)
        assert theirs.received == b"lost for now"

    simulate(body)


def test_a_cut_that_lasts_ends_in_a_timeout() -> None:
    async def body(world: SimulatedNetwork) -> None:
        ours, _ = await pair(world)
        world.cut("a", "b")
        ours.transport.write(b"x")
        await asyncio.sleep(29)
        assert not ours.lost
        await asyncio.sleep(2)
        assert isinstance(ours.lost[0], TimeoutError)

    simulate(body)


def test_a_killed_process_resets_its_peers_and_refuses() -> None:
    async def body(world: SimulatedNetwork) -> None:
        ours, theirs = await pair(world)
        world.kill("b")
        await asyncio.sleep(1)
        assert isinstance(ours.lost[0], ConnectionResetError) and not theirs.lost
        with pytest.raises(ConnectionRefusedError):
            await world.node("a").connect(Sink, "b", 1)

    simulate(body)


def test_a_machine_without_power_is_silent_until_it_is_back() -> None:
    async def body(world: SimulatedNetwork) -> None:
        ours, _ = await pair(world)
        world.power_off("b")
        ours.transport.write(b"anybody?")
        await asyncio.sleep(5)
        assert not ours.lost
        world.power_on("b")
        await asyncio.sleep(1)
        assert isinstance(ours.lost[0], ConnectionResetError)

    simulate(body)


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    async def body(world: SimulatedNetwork) -> None:
        ours, theirs = await pair(world)
        theirs.transport.pause_reading()
        ours.transport.write(b"x" * 1_000_000)
        await asyncio.sleep(1)
        assert ours.transport.get_write_buffer_size() > 600_000 and not theirs.received
        theirs.transport.resume_reading()
        ours.transport.close()
        await asyncio.sleep(1)
        assert len(theirs.received) == 1_000_000 and ours.lost == [None] == theirs.lost

    simulate(body)


def test_a_listening_address_is_taken() -> None:
    async def body(world: SimulatedNetwork) -> None:
        listener = await world.node("b").listen(Sink, "b", 5)
        with pytest.raises(OSError, match="in use"):
            await world.node("b").listen(Sink, "b", 5)
        await listener.close()
        await world.node("b").listen(Sink, "b", 5)

    simulate(body)
