"""`simulate`: users' coroutines with the SDK against a cluster of whole brokers, on virtual time, with faults from a seed.

    async def main(simulation):
        await simulation.create_topic("orders", partitions=3)
        simulation.program(bill, ledger)          # a process: killed and started again at any moment
        async with Producer(simulation.bootstrap_servers) as producer: ...
        await simulation.quiet()                  # no more faults; everything runs again
        assert ledger == ...

    simulate(main, seed=17)

Clients that are made in these coroutines use the simulated network, clock and randomness. Whatever else a program asks of the
outside world (threads, files, time.time) it gets from the system, and a seed replays only what does not depend on that.
"""

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError

from ...base.clock import SimulatedClock
from ...client.admin.admin import Admin
from ...wire.surroundings import SURROUNDINGS, Surroundings
from .cluster import CLIENT_PORT, SimulatedCluster, is_serving, wait_until
from .fault_room import FaultPlan, FaultRoom
from .link_faults import LinkFaults
from .loop import SimulationDeadlock
from .node_faults import NodeFaults
from .observed_loop import ObservedLoop
from .process import NOBODY, ProcessDied, SimulatedProcess, unwind
from .program_faults import ProgramFaults

FAULTS: Final[Mapping[str, int]] = NodeFaults.WEIGHTS | LinkFaults.WEIGHTS | ProgramFaults.WEIGHTS
START_LIMIT_S: Final = 60.0
QUIET_LIMIT_S: Final = 120.0  # for brokers and replicas to be whole again
SUPERVISOR_PAUSE_S: Final = 1.0  # before a program is started again that has ended with an error of its client
MAX_RESTARTS: Final = 1_000  # of one program by its own errors; it will never succeed
# With these, an acknowledged record survives every fault of a simulation (docs/guarantees.md).
SETTINGS: Final[Mapping[str, str]] = {"default.replication.factor": "3", "min.insync.replicas": "2"}
_MAIN: Final = "main"
YOUNG: Final = (
    0  # the generation of what was made while collections were off: the others cost the time of the whole heap
)


class SimulationFailed(AssertionError):
    """The message names the seed that repeats it; the cause is what the program raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """`trace_hash` is the same whenever the course was the same."""

    seed: int
    trace_hash: str
    events: int
    virtual_s: float
    faults: int


@dataclass(eq=False)
class _Program:
    name: str
    function: Callable[..., Coroutine[Any, Any, object]]
    arguments: Sequence[Any]
    process: SimulatedProcess | None = None
    starts: int = 0
    errors: int = 0
    has_ended: bool = False


@dataclass(kw_only=True)
class _Options:
    seed: int
    faults: tuple[str, ...]
    seconds: float
    brokers: int
    config: Mapping[str, str] = field(default_factory=dict)


class Simulation:
    """What `main` is given. `rng` is its own randomness, drawn from the seed."""

    def __init__(self, options: _Options) -> None:
        dice = Random(options.seed)
        self.seed = options.seed
        self.rng = Random(dice.getrandbits(64))
        self.loop = ObservedLoop()
        self.loop.set_exception_handler(self._unseen)
        self.trouble: BaseException | None = None  # the first error outside of `main`
        self._options = options
        self._programs: dict[str, _Program] = {}
        self._cluster = SimulatedCluster(
            self.loop,
            Random(dice.getrandbits(64)),
            brokers=options.brokers,
            settings={**SETTINGS, **options.config},
            violate=self._violated,
        )
        self._client_rng = Random(dice.getrandbits(64))
        plan = FaultPlan.draw(dice, dict(FAULTS))
        if options.faults:
            plan = FaultPlan(kinds=options.faults, interval_s=plan.interval_s, longest_s=plan.longest_s)
        self._plan = plan
        rng = Random(dice.getrandbits(64))
        self._rooms: tuple[FaultRoom, ...] = (
            NodeFaults(self._cluster, plan, rng),
            LinkFaults(self._cluster, plan, rng),
            ProgramFaults(self._cluster, plan, rng, self._running, self._start),
        )
        self._rng = rng
        self.fault_count = 0
        self._struck: asyncio.Task[None] | None = None
        self._done: asyncio.Future[None] = self.loop.create_future()

    # --- for users ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, for the SDK of Barnabas."""
        return ",".join(f"{node.name}:{CLIENT_PORT}" for node in self._cluster.nodes)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time()

    async def create_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """`name`: of a topic with so many `partitions`, and its `configs`, {key: value}."""
        async with Admin(self.bootstrap_servers) as admin:
            await admin.create_topic(name, partitions=partitions, configs=configs)

    def program(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> str:
        """Run `function(*arguments)` as a process: faults kill it between any two steps; it is started again until it returns.

        If it raises a BarnabasError, a supervisor starts it again; any other exception fails the simulation. Objects that are
        passed survive its death, as a database does. Returns its name.
        """
        name = f"program-{len(self._programs)}"
        self._programs[name] = _Program(name, function, arguments)
        self._cluster.client_names.append(name)
        self._start(name)
        return name

    async def quiet(self) -> None:
        """Returns when the time of faults is over, all brokers run and all replicas are in sync."""
        if self._struck is not None:
            await self._struck
        if not await wait_until(self._is_whole, limit_s=QUIET_LIMIT_S):
            raise SimulationFailed(f"the cluster was not whole within {QUIET_LIMIT_S:g} s after the last fault")

    # --- programs -----------------------------------------------------------------------------------------------------

    def _running(self) -> list[str]:
        return [name for name in sorted(self._cluster.guests) if name != _MAIN]

    def _start(self, name: str) -> None:
        program = self._programs[name]
        if program.has_ended or name in self._cluster.guests:
            return
        program.starts += 1
        program.process = self._guest(name, program.starts)
        self.loop.create_task(self._run(program, program.process), context=program.process.context.copy())

    def _guest(self, name: str, incarnation: int) -> SimulatedProcess:
        process = self._cluster.start_guest(name, incarnation)
        around = Surroundings(
            network=self._cluster.world.node(name),
            clock=SimulatedClock(self.loop),
            rng=Random(self._client_rng.getrandbits(64)),
        )
        process.context.run(SURROUNDINGS.set, around)
        return process

    async def _run(self, program: _Program, process: SimulatedProcess) -> None:
        course = program.function(*program.arguments)
        try:
            await course
            program.has_ended = True
        except BarnabasError as error:
            self.loop.note(f"{process} ended with {error.code.name}")
            program.errors += 1
            if program.errors > MAX_RESTARTS:
                self._failed(error)
        except Exception as error:  # noqa: BLE001 - it fails the simulation
            self._failed(error)
        finally:
            unwind(course)
        self.loop.call_soon(self._ended, program, process, context=NOBODY)

    def _ended(self, program: _Program, process: SimulatedProcess) -> None:
        if self._cluster.guests.get(program.name) is process:
            self._cluster.kill_guest(program.name)
            if not program.has_ended:
                self.loop.call_later(SUPERVISOR_PAUSE_S, self._start, program.name, context=NOBODY)

    # --- the course ---------------------------------------------------------------------------------------------------

    async def run(self, main: "Callable[[Simulation], Coroutine[Any, Any, object]]") -> None:
        """Start the brokers, then `main` and the faults; returns when `main` has returned, or raises what went wrong."""
        for node in self._cluster.nodes:
            self._cluster.start(node.node_id)
        if not await wait_until(self._is_up, limit_s=START_LIMIT_S):
            raise SimulationFailed(f"the cluster did not start within {START_LIMIT_S:g} s")
        process = self._guest(_MAIN, 1)
        self._cluster.client_names.append(_MAIN)  # whose answers may be lost; it is never killed
        self._struck = self.loop.create_task(self._strike(), context=NOBODY.copy())
        self.loop.create_task(self._guarded(main), context=process.context.copy())
        await self._done

    async def _guarded(self, main: "Callable[[Simulation], Coroutine[Any, Any, object]]") -> None:
        course = main(self)
        try:
            await course
        except BaseException as error:  # noqa: BLE001 - `simulate` raises it
            self._failed(error)
        finally:
            unwind(course)
        if not self._done.done():
            self._done.set_result(None)

    async def _strike(self) -> None:
        rooms = {kind: room for room in self._rooms for kind in room.WEIGHTS}
        end_s = self.loop.time() + self._options.seconds
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._plan.interval_s))
            if self.loop.time() >= end_s:
                break
            self._cluster.update_lossy()
            kind = self._rng.choice(self._plan.kinds)
            rooms[kind].strike(kind, self._rng.randrange(len(self._cluster.nodes)))
            self.fault_count += 1
        self.loop.note("HEAL")
        for room in self._rooms:
            room.heal()
        for name in self._programs:
            self._start(name)

    def _is_up(self) -> bool:
        return all(is_serving(node) and node.broker.is_ready for node in self._cluster.nodes)  # type: ignore[union-attr]

    def _is_whole(self) -> bool:
        for node in self._cluster.nodes:
            self._cluster.start(node.node_id)  # one that was told to stop before everything was healed
        topics = self._cluster.newest_image().topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions]
        return self._is_up() and all(
            partition.leader >= 0 and set(partition.isr) == set(partition.replicas) for partition in partitions
        )

    def close(self) -> None:
        """Called by `simulate`."""
        self._cluster.close()
        self.loop.close()

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        self.trouble = self.trouble or error
        if not self._done.done():
            self._done.set_result(None)

    def _violated(self, what: str) -> None:
        self._failed(SimulationFailed(f"a broker broke its promise: {what}; please report this with the seed"))

    def _unseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, ProcessDied | BarnabasError | asyncio.CancelledError):
            self._failed(error)


def simulate(
    main: Callable[[Simulation], Coroutine[Any, Any, object]],
    *,
    seed: int | None = None,
    faults: Sequence[str] = (),
    seconds: float = 30.0,
    brokers: int = 3,
    config: Mapping[str, str] | None = None,
    limit_s: float = 3600.0,
) -> SimulationResult:
    """Run `main` to its end. The same seed takes the same course.

    `faults`: names of FAULTS, repeated to make one more frequent; by default, each seed has some of them. `seconds`: of virtual
    time in which faults strike. `brokers`: how many; `config`: their keys, as of `Cluster`. `limit_s`: of virtual time for
    `main`. Raises SimulationFailed, which names the seed.
    """
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"there are no faults {', '.join(unknown)}; choose among {', '.join(FAULTS)}")
    chosen = random.SystemRandom().getrandbits(32) if seed is None else seed
    options = _Options(seed=chosen, faults=tuple(faults), seconds=seconds, brokers=brokers, config=dict(config or {}))
    with _undisturbed(chosen):
        simulation = Simulation(options)
        try:
            simulation.loop.run_until_complete(_limited(simulation, main, limit_s))
            trouble = simulation.trouble
        except (SimulationFailed, SimulationDeadlock) as error:
            trouble = error
        result = SimulationResult(
            seed=chosen,
            trace_hash=simulation.loop.trace_hash,
            events=simulation.loop.event_count,
            virtual_s=simulation.loop.time(),
            faults=simulation.fault_count,
        )
        simulation.close()
    if trouble is not None:
        told = str(trouble) or type(trouble).__name__
        raise SimulationFailed(
            f"after {result.virtual_s:.1f} virtual seconds and {result.faults} faults: {told}\nrepeat it with seed={chosen}"
        ) from trouble
    return result


async def _limited(
    simulation: Simulation, main: Callable[[Simulation], Coroutine[Any, Any, object]], limit_s: float
) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await simulation.run(main)
    except TimeoutError:
        raise SimulationFailed(f"main did not return within {limit_s:g} virtual seconds") from None


@contextmanager
def _undisturbed(seed: int) -> Iterator[None]:
    """No garbage collection at random moments, the global randomness from the seed, and no log lines of brokers that die."""
    logger = logging.getLogger("barnabas")
    level, state = logger.level, random.getstate()
    gc.disable()
    random.seed(seed)
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        random.setstate(state)
        gc.collect(YOUNG)
        gc.enable()
