"""`scripts/faults failover`: how long acks=all is silent when a leader goes, measured on three real brokers.

Default settings but for what is named in the head of the table, loopback, one topic. Each partition has a client of its own
that sends the next record when the one before is acknowledged and never gives up; all of them share one producer. The figure
of an event and a partition is the longest silence from the event until the cluster is hurt no more: what a user's record
waits at most. Both are reported: every partition by itself, and per event the partition that waited longest.
"""

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.producer.producer import Producer

from .checker import longest_gap_s, percentile
from .cluster import BROKERS, SHIM_NEED, FaultBroker, FaultCluster

TOPIC: Final = "failover"
PARTITIONS: Final = 30
PACE_S: Final = 0.005  # between an acknowledgement and the next record of a partition
SETTLED_RECORDS: Final = 20  # acknowledged on every partition before and after an event
HOLD_S: Final = 40.0  # how long a disk hangs: longer than any timeout that could end the hang
FLUSHED: Final = {"log.flush.interval.messages": "1"}  # otherwise no request would wait for an fsync
HANGS: Final = ("sync_us", "write_us", "name_us", "read_us")
HANG_US: Final = 600_000_000  # it ends when the order is taken back
LIMIT_S: Final = 90.0  # for anything to happen at all
STOP_S: Final = 45.0
POLL_S: Final = 0.02
CALM_S: Final = (0.1, 0.6)  # so that events fall on any point of a heartbeat's interval
OVERRIDES: Final = {"admin.listener": "none", "default.replication.factor": "3", "min.insync.replicas": "2"}


@dataclass(slots=True)
class Figures:
    """Silences in seconds of one kind of event."""

    kind: str
    events: int = 0
    partitions_s: list[float] = field(default_factory=list)
    worst_s: list[float] = field(default_factory=list)  # one per event

    def add(self, silences_s: Sequence[float]) -> None:
        self.events += 1
        self.partitions_s.extend(silences_s)
        self.worst_s.append(max(silences_s, default=0.0))

    def row(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "events": self.events,
            "partitions": len(self.partitions_s),
            **{
                f"{name}_{share}_s": round(percentile(values, part), 4)
                for name, values in (("partition", self.partitions_s), ("event", self.worst_s))
                for share, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            },
        }


class Failover:
    """One cluster under load, hurt again and again."""

    def __init__(
        self, cluster: FaultCluster, rng: Random, say: Callable[[str], None], *, calls: Sequence[str] = HANGS
    ) -> None:
        """`calls`: what hangs, in turn, in the events of disks that hang."""
        self._cluster = cluster
        self._calls = calls
        self._rng = rng
        self._say = say
        self._admin: Admin = cluster.admin()
        self._acked_s: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self._over = asyncio.Event()
        self._hangs = 0  # so far: each is of another kind of call

    async def run(self, kinds: Sequence[str], times: int) -> list[Figures]:
        self._cluster.start()
        await self._until(self._is_ready, "the cluster is ready")
        async with self._admin, Producer(self._cluster.bootstrap, on_error=lambda *_: None) as producer:
            await self._admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=BROKERS)
            await self._until(self._is_whole, "the topic is ready")
            clients = [asyncio.create_task(self._send(producer, number)) for number in range(PARTITIONS)]
            try:
                return [await self._measure(kind, times) for kind in kinds]
            finally:
                self._over.set()
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)
                self._cluster.kill_all()

    async def _send(self, producer: Producer, number: int) -> None:
        while not self._over.is_set():
            handle = await producer.send(TOPIC, b"x" * 100, partition=number)
            with suppress(BarnabasError):
                await handle
                self._acked_s[number].append(time.monotonic())
            await asyncio.sleep(PACE_S)

    async def _measure(self, kind: str, times: int) -> Figures:
        figures = Figures(kind)
        for number in range(times):
            await self._settle()
            await asyncio.sleep(self._rng.uniform(*CALM_S))
            began_s, affected, undo = await EVENTS[kind](self)
            if kind.startswith("hang_"):
                await asyncio.sleep(HOLD_S - (time.monotonic() - began_s))
            await self._until_all_acknowledge(affected, began_s)
            ended_s = time.monotonic()
            silences_s = [longest_gap_s(self._acked_s[place], began_s, ended_s) for place in affected]
            figures.add(silences_s)
            self._say(f"{kind} {number + 1}/{times}: longest silence {max(silences_s, default=0.0):.3f} s")
            undo()
        await self._settle()
        return figures

    # --- events: when it began, whom it concerns, and how it is undone -------------------------------------------------

    async def kill_leader(self) -> tuple[float, list[int], Callable[[], None]]:
        """kill -9 of a broker that leads partitions and not the quorum."""
        controller = (await self._admin.describe_cluster()).controller_id
        return await self._kill([node_id for node_id in range(BROKERS) if node_id != controller])

    async def kill_quorum_leader(self) -> tuple[float, list[int], Callable[[], None]]:
        return await self._kill([(await self._admin.describe_cluster()).controller_id])

    async def _kill(self, candidates: list[int]) -> tuple[float, list[int], Callable[[], None]]:
        broker, affected = await self._one_that_leads(candidates)
        began_s = time.monotonic()
        broker.kill()
        return began_s, affected, broker.launch

    async def freeze_leader(self) -> tuple[float, list[int], Callable[[], None]]:
        """SIGSTOP: no connection breaks, so the session has to run out."""
        controller = (await self._admin.describe_cluster()).controller_id
        return await self._freeze([node_id for node_id in range(BROKERS) if node_id != controller])

    async def freeze_quorum_leader(self) -> tuple[float, list[int], Callable[[], None]]:
        return await self._freeze([(await self._admin.describe_cluster()).controller_id])

    async def _freeze(self, candidates: list[int]) -> tuple[float, list[int], Callable[[], None]]:
        broker, affected = await self._one_that_leads(candidates)
        began_s = time.monotonic()
        broker.freeze()
        return began_s, affected, broker.thaw

    async def transfer(self) -> tuple[float, list[int], Callable[[], None]]:
        """A planned change of one partition's leader."""
        number = self._rng.randrange(PARTITIONS)
        partition = (await self._admin.describe_topic(TOPIC)).partitions[number]
        target = self._rng.choice([replica for replica in partition.isr if replica != partition.leader])
        began_s = time.monotonic()
        await self._admin.transfer_leadership(TOPIC, number, target)
        return began_s, [number], lambda: None

    async def stop_leader(self) -> tuple[float, list[int], Callable[[], None]]:
        """A planned restart of one broker (SIGTERM, and start when it has ended)."""
        broker, affected = await self._one_that_leads(list(range(BROKERS)))
        began_s = time.monotonic()
        await self._bounce(broker)
        return began_s, affected, lambda: None

    async def rolling(self) -> tuple[float, list[int], Callable[[], None]]:
        """A planned restart of all brokers, each when the one before is back."""
        began_s = time.monotonic()
        for broker in self._cluster.brokers:
            await self._bounce(broker)
            await self._until(self._is_whole, "every ISR is full")
        return began_s, list(range(PARTITIONS)), lambda: None

    async def _bounce(self, broker: FaultBroker) -> None:
        broker.signal(signal.SIGTERM)
        await asyncio.to_thread(broker.wait, STOP_S)
        broker.launch()

    async def hang_leader(self) -> tuple[float, list[int], Callable[[], None]]:
        """A kind of call to the disk hangs, on a broker that leads partitions and not the quorum."""
        controller = (await self._admin.describe_cluster()).controller_id
        return await self._hang([node_id for node_id in range(BROKERS) if node_id != controller])

    async def hang_controller(self) -> tuple[float, list[int], Callable[[], None]]:
        """What it leads, and what it follows: both depend on the controller."""
        began_s, _, undo = await self._hang([(await self._admin.describe_cluster()).controller_id])
        return began_s, list(range(PARTITIONS)), undo

    async def hang_follower(self) -> tuple[float, list[int], Callable[[], None]]:
        """As before; the partitions are those that others lead."""
        broker, led = await self._one_that_leads(list(range(BROKERS)))
        return self._hung(broker, [number for number in range(PARTITIONS) if number not in led])

    async def _hang(self, candidates: list[int]) -> tuple[float, list[int], Callable[[], None]]:
        return self._hung(*await self._one_that_leads(candidates))

    def _hung(self, broker: FaultBroker, affected: list[int]) -> tuple[float, list[int], Callable[[], None]]:
        assert broker.shim is not None, "hanging disks need gcc"
        order = self._calls[self._hangs % len(self._calls)]
        self._hangs += 1
        self._say(f"on broker {broker.node_id}: {order}")
        began_s = time.monotonic()
        broker.shim.order(**{order: HANG_US})
        return began_s, affected, broker.shim.order

    # --- waiting -------------------------------------------------------------------------------------------------------

    async def _one_that_leads(self, candidates: list[int]) -> tuple[FaultBroker, list[int]]:
        """Any of them, and the partitions that it leads."""
        broker = self._cluster.brokers[self._rng.choice(candidates)]
        partitions = (await self._admin.describe_topic(TOPIC)).partitions
        affected = [number for number, item in enumerate(partitions) if item.leader == broker.node_id]
        assert affected, f"broker {broker.node_id} leads nothing, though leaders were balanced"
        return broker, affected

    async def _settle(self) -> None:
        """Everybody is back, everybody leads what it leads usually, and every partition moves."""
        await self._until(self._is_whole, "every ISR is full")
        await self._until(self._is_balanced, "every preferred replica leads")
        await self._until(self._is_whole, "every ISR is full")
        await self._until_all_acknowledge(range(PARTITIONS), time.monotonic())

    async def _is_balanced(self) -> bool:
        partitions = (await self._admin.describe_topic(TOPIC)).partitions
        strangers = [number for number, item in enumerate(partitions) if item.leader != item.replicas[0]]
        for number in strangers:
            await self._admin.elect_leader(TOPIC, number)
        return not strangers

    async def _is_ready(self) -> bool:
        async with self._cluster.admin() as admin:
            found = await admin.describe_cluster()
        return found.controller_id >= 0 and sum(not item.fenced for item in found.brokers) == BROKERS

    async def _is_whole(self) -> bool:
        partitions = (await self._admin.describe_topic(TOPIC)).partitions
        return len(partitions) == PARTITIONS and all(len(item.isr) == BROKERS for item in partitions)

    async def _until_all_acknowledge(self, numbers: Sequence[int], began_s: float) -> None:
        async def moved() -> bool:
            return all(
                len(acked) >= SETTLED_RECORDS and acked[-SETTLED_RECORDS] > began_s
                for acked in (self._acked_s[number] for number in numbers)
            )

        await self._until(moved, "every partition acknowledges")

    async def _until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        last: object = None
        while time.monotonic() < deadline_s:
            try:
                if last := await condition():
                    return
            except (BarnabasError, OSError) as error:
                last = error
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"not within {LIMIT_S:g} s: {what}; last seen: {last!r}")


Event = Callable[[Failover], Awaitable[tuple[float, list[int], Callable[[], None]]]]
EVENTS: Final[dict[str, Event]] = {
    event.__name__: event
    for event in (
        Failover.kill_leader,
        Failover.kill_quorum_leader,
        Failover.freeze_leader,
        Failover.freeze_quorum_leader,
        Failover.transfer,
        Failover.hang_leader,
        Failover.hang_controller,
        Failover.hang_follower,
        Failover.stop_leader,
        Failover.rolling,
    )
}


def run(
    folder: Path,
    *,
    kinds: Sequence[str],
    times: int,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    calls: Sequence[str] = HANGS,
    flushes_first: bool = True,
) -> list[Figures]:
    """A cluster with default settings, and the figures of each kind. Leaves the brokers' logs in the folder. `calls` and
    `flushes_first` (flush.messages=1) are about disks that hang."""
    hangs = any(kind.startswith("hang_") for kind in kinds)
    needs = frozenset({SHIM_NEED}) if hangs else frozenset()
    config = OVERRIDES | FLUSHED if hangs and flushes_first else OVERRIDES
    with FaultCluster(folder, needs=needs, config=config) as cluster:
        return asyncio.run(Failover(cluster, Random(seed), say, calls=calls).run(kinds, times))


def table(figures: Sequence[Figures]) -> str:
    head = "".join(f"{share:>9}" for share in ("p50", "p99", "max"))
    lines = [
        f"{'seconds of silence':29} | {'each partition':>27} | {'worst partition of an event':>27}",
        f"{'':22}{'events':>7} | {head} | {head}",
    ]
    for item in figures:
        row = item.row()
        cells = [
            "".join(f"{row[f'{name}_{share}_s']:9.3f}" for share in ("p50", "p99", "max"))
            for name in ("partition", "event")
        ]
        lines.append(f"{item.kind:22}{item.events:7} | {cells[0]} | {cells[1]}")
    return "\n".join(lines)


def as_json(figures: Sequence[Figures]) -> str:
    return json.dumps({"partitions": PARTITIONS, "factor": BROKERS, "figures": [item.row() for item in figures]})
