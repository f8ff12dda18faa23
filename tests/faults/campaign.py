"""A campaign: faults one after another on a cluster under load, then peace, two full readings, and the verdict."""

import asyncio
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.local_cluster import LAUNCHER

from .checker import Expected, Report, check
from .cluster import LINKS_NEED, NETWORK_NEED, FaultCluster
from .history import Fault, FinalRead, History, Partition, Stuck
from .injections import FAULTS
from .injector import Injector, Roles
from .replicas import read_replica
from .workload import PACE_S, PARTITIONS, TOPIC, Workload

READY_S: Final = 60.0
WHOLE_S: Final = 45.0  # until every ISR is full again after a fault
PROGRESS_RECORDS: Final = 5  # acknowledged on every partition before the next fault
POLL_S: Final = 0.05
READ_S: Final = 90.0
OVERLAP: Final = 0.15  # with this chance a fault of processes or links comes before the one before is recovered from
CALM_S: Final = (0.2, 1.5)
_LEVEL: Final = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
FULL_PACE_S: Final = 600.0  # longer campaigns send more slowly: the history of all clients is kept in memory
MINUTE_S: Final = 60.0
_MAY_OVERLAP: Final = (None, NETWORK_NEED, LINKS_NEED)


@dataclass(slots=True)
class Outcome:
    """What a campaign found."""

    history: History
    report: Report
    seconds: float
    lacking: dict[str, str]
    rss_mib: dict[int, tuple[float, float]] = field(default_factory=dict)  # broker: in the beginning, at the peak
    log_lines: dict[str, int] = field(default_factory=dict)  # by level
    unusual: list[str] = field(default_factory=list)  # tracebacks and errors of the brokers' logs
    client_errors: dict[str, dict[str, int]] = field(default_factory=dict)
    topics_made: int = 0
    slowest_topic_call_s: float = 0.0


class Campaign:
    """One run: `await Campaign(...).run()`."""

    def __init__(
        self,
        cluster: FaultCluster,
        *,
        seed: int,
        seconds: float,
        kinds: Sequence[str],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.cluster = cluster
        self.history = History()
        self._rng = Random(seed)
        self._seconds = seconds
        self._kinds = [kind for kind in kinds if FAULTS[kind].need is None or FAULTS[kind].need in cluster.has]
        self._say = say
        self._admin = cluster.admin()
        pace_s = PACE_S * max(1.0, seconds / FULL_PACE_S)
        self._workload = Workload(cluster.bootstrap, self.history, Random(seed + 1), pace_s=pace_s)
        self._rss_mib: dict[int, float] = {}
        self._began_s = time.monotonic()
        self._pending: list[tuple[int, asyncio.Task[None]]] = []

    async def run(self) -> Outcome:
        self.cluster.start()
        await self._until(self._is_ready, "the cluster is ready", READY_S, fatal=True)
        async with self._admin as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
            await self._until(self.is_whole, "the topic is ready", READY_S, fatal=True)
            self._workload.start()
            minutes = asyncio.create_task(self._tell_every_minute())
            try:
                await self._until_progress({})
                self._rss_mib = {broker.node_id: broker.rss_mib() for broker in self.cluster.brokers}
                await self._rage()
                await self._end()
            finally:
                minutes.cancel()
                await self._workload.cancel()
        failure = self._workload.failure()
        if failure is not None:
            text = "".join(traceback.format_exception(failure))
            self.history.add(Stuck(what=f"a client died of {text}", at_s=time.monotonic()))
        return self._outcome()

    # --- faults ------------------------------------------------------------------------------------------------------

    async def _rage(self) -> None:
        """Every kind once, in any order, then at random, by weight, until the time is over."""
        queue = self._rng.sample(self._kinds, len(self._kinds))
        weights = [FAULTS[kind].weight for kind in self._kinds]
        deadline_s = time.monotonic() + self._seconds
        while queue or time.monotonic() < deadline_s:
            if time.monotonic() > deadline_s and self._seconds:
                break
            kind = queue.pop() if queue else self._rng.choices(self._kinds, weights)[0]
            await self._strike(kind)
            if self._workload.failure() is not None:
                return
            await asyncio.sleep(self._rng.uniform(*CALM_S))

    async def _strike(self, kind: str) -> None:
        injector = Injector(self.cluster, self._rng, await self._roles(), self._admin, self._whole)
        began_s = time.monotonic()
        before = dict(self._workload.acked)
        sizes = {broker.node_id: broker.rss_mib() for broker in self.cluster.brokers}
        try:
            await FAULTS[kind].inflict(injector)
        except (BarnabasError, OSError, TimeoutError) as error:
            self._stuck(f"{kind} on {injector.targets} went wrong itself: {error!r}")
            await asyncio.to_thread(self._heal)
        healed_s = time.monotonic()
        if self._rng.random() >= OVERLAP or FAULTS[kind].need not in _MAY_OVERLAP:
            await self._whole()
            await self._until_progress(before)
        recovered_s = time.monotonic()
        self.history.add(
            Fault(
                kind=kind,
                target=",".join(map(str, injector.targets)),
                began_s=began_s,
                healed_s=healed_s,
                recovered_s=recovered_s,
                affected=injector.affected(),
            )
        )
        self._say(
            f"{began_s - self._began_s:7.1f} s  {kind:18} broker {injector.targets}  held {healed_s - began_s:5.1f} s, "
            f"whole after {recovered_s - healed_s:5.1f} s; acked {sum(self._workload.acked.values())}, "
            f"memory {max(sizes.values()):.0f} MiB"
        )

    def _heal(self) -> None:
        """Undo whatever a fault that went wrong may have left."""
        if self.cluster.network is not None:
            self.cluster.network.mend()
        for broker in self.cluster.brokers:
            if broker.frozen:
                broker.thaw()
            if broker.shim is not None:
                broker.shim.order()
            if broker.disk is not None:
                broker.disk.free()
        self.cluster.start()

    def _stuck(self, text: str) -> None:
        self._say(text)
        self.history.add(Stuck(what=text, at_s=time.monotonic()))

    async def _tell_every_minute(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_S)
            faults = len(self.history.of(Fault))
            self._tell(
                f"minute: {faults} faults, {sum(self._workload.acked.values())} records acknowledged with acks=all, "
                f"{len(self.history.of(Stuck))} times no progress, {len(self.history.events)} events in the history"
            )

    async def _roles(self) -> Roles:
        controller, leaders = -1, dict.fromkeys(((TOPIC, number) for number in range(PARTITIONS)), -1)
        try:
            async with asyncio.timeout(10):
                controller = (await self._admin.describe_cluster()).controller_id
                partitions = (await self._admin.describe_topic(TOPIC)).partitions
                leaders = {(TOPIC, number): item.leader for number, item in enumerate(partitions)}
        except (BarnabasError, TimeoutError):
            pass
        return Roles(controller=controller, leaders=leaders)

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def _whole(self) -> None:
        await self._until(self.is_whole, "every ISR is full", WHOLE_S)

    async def is_whole(self) -> bool:
        """A broker that was killed may be in every ISR for some time: until its end is noticed. So all must have started, too."""
        if not all(broker.has_started for broker in self.cluster.brokers):
            return False
        partitions = (await self._admin.describe_topic(TOPIC)).partitions
        return len(partitions) == PARTITIONS and all(len(item.isr) == 3 and item.leader >= 0 for item in partitions)

    async def _is_ready(self) -> bool:
        dead = [broker for broker in self.cluster.brokers if not broker.is_running]
        if dead:
            raise RuntimeError(f"broker {dead[0].node_id} ended: {dead[0].log()[-2000:]}")
        async with self.cluster.admin() as admin:
            found = await admin.describe_cluster()
        return found.controller_id >= 0 and sum(not item.fenced for item in found.brokers) == len(self.cluster.brokers)

    async def _until_progress(self, before: dict[Partition, int]) -> None:
        """Every partition acknowledges again."""
        start = dict(self._workload.acked)

        async def moves() -> bool:
            return self._workload.failure() is not None or all(
                self._workload.acked[TOPIC, number] >= start.get((TOPIC, number), 0) + PROGRESS_RECORDS
                for number in range(PARTITIONS)
            )

        await self._until(moves, "every partition acknowledges", WHOLE_S)

    async def _until(
        self, condition: Callable[[], Awaitable[bool]], what: str, limit_s: float, *, fatal: bool = False
    ) -> None:
        deadline_s = time.monotonic() + limit_s
        last: object = None
        while time.monotonic() < deadline_s:
            try:
                async with asyncio.timeout(limit_s):
                    last = await condition()
                if last:
                    return
            except (BarnabasError, OSError, TimeoutError) as error:
                last = error
            await asyncio.sleep(POLL_S)
        text = f"not within {limit_s:g} s: {what}; last seen: {last!r}; {await self._state()}"
        if fatal:
            raise AssertionError(text)
        self._stuck(text)

    async def _state(self) -> str:
        """What the cluster says of itself, for a post-mortem."""
        running = [broker.node_id for broker in self.cluster.brokers if broker.is_running]
        try:
            async with asyncio.timeout(10):
                partitions = (await self._admin.describe_topic(TOPIC)).partitions
                brokers = (await self._admin.describe_cluster()).brokers
        except (BarnabasError, TimeoutError) as error:
            return f"running {running}, {error!r}"
        places = [(number, item.leader, item.leader_epoch, item.isr) for number, item in enumerate(partitions)]
        fenced = [item.node_id for item in brokers if item.fenced]
        return f"running {running}, fenced {fenced}, (partition, leader, epoch, ISR) {places}"

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Peace; everything is read; kill -9 of all; everything is read again; the disks are compared."""
        await self._whole()
        await self._until_progress({})
        for broker in self.cluster.brokers:
            broker.rss_mib()
        self._tell("peace")
        await self._workload.stop_producing()
        ends = await self._ends()
        self._tell("producers have ended")
        await self._workload.drain(ends)
        self._tell("the group has read everything")
        await self._read_all("before kill -9 of all", ends)
        self._tell("everything is read; now kill -9 of all")
        self.cluster.kill_all()
        self.cluster.start()
        await self._until(self._is_ready, "the cluster is ready after kill -9 of all", READY_S)
        await self._whole()
        self._tell("the cluster is whole again")
        await self._read_all("after kill -9 of all", await self._ends())
        self._tell("everything is read again; now all stop")
        await self._compare_disks()

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    async def _ends(self) -> dict[Partition, int]:
        found: dict[Partition, int] = {}

        async def all_ends() -> bool:
            ends = await self._admin.list_offsets(TOPIC)
            found.update({(place.topic, place.partition): item.offset for place, item in ends.items()})
            return len(found) == PARTITIONS

        await self._until(all_ends, "the ends of all partitions", WHOLE_S)
        return found

    async def _read_all(self, name: str, ends: dict[Partition, int]) -> None:
        found: dict[Partition, dict[int, str]] = {partition: {} for partition in ends}
        deadline_s = time.monotonic() + READ_S
        async with Consumer(bootstrap=self.cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(sorted(ends))
            while any(max(found[place], default=-1) + 1 < end for place, end in ends.items()):
                if time.monotonic() > deadline_s:
                    self.history.add(Stuck(what=f"final read {name} has not ended", at_s=time.monotonic()))
                    break
                for place, records in (await consumer.poll(timeout_ms=500)).items():
                    values = found[place.topic, place.partition]
                    values.update((record.offset, (record.value or b"").decode()) for record in records)
        for partition, values in found.items():
            self.history.add(
                FinalRead(name=name, partition=partition, at_s=time.monotonic(), records=tuple(sorted(values.items())))
            )

    async def _compare_disks(self) -> None:
        for broker in self.cluster.brokers:
            if broker.is_running:
                broker.signal(signal.SIGTERM)
        for broker in self.cluster.brokers:
            code = await asyncio.to_thread(broker.wait, READY_S)
            if code != 0:
                self.history.add(Stuck(what=f"broker {broker.node_id} ended with {code}", at_s=time.monotonic()))
            for number in range(PARTITIONS):
                self.history.add(read_replica(broker.node_id, broker.data / "logs", (TOPIC, number)))

    def _outcome(self) -> Outcome:
        happened = frozenset(fault.kind for fault in self.history.of(Fault))
        expected = Expected(acknowledged=PARTITIONS * 50, polled=PARTITIONS * 50, fault_kinds=happened)
        report = check(self.history, expected)
        if not happened:
            report = check(self.history, Expected(fault_kinds=frozenset(self._kinds)))
        lines = [line for broker in self.cluster.brokers for line in broker.log().splitlines()]
        levels = Counter(found[1] for line in lines if (found := _LEVEL.search(line)))
        unusual = [line for line in lines if "Traceback" in line or re.search(r"\b(ERROR|CRITICAL)\b", line)]
        return Outcome(
            history=self.history,
            report=report,
            seconds=time.monotonic() - self._began_s,
            lacking=self.cluster.lacking,
            rss_mib={b.node_id: (self._rss_mib.get(b.node_id, 0.0), b.peak_rss_mib) for b in self.cluster.brokers},
            log_lines=dict(levels) or {"lines": len(lines)},
            unusual=unusual,
            client_errors={
                "topics": dict(self._workload.topic_errors),
                "commits": dict(self._workload.commit_errors),
                "polls": dict(self._workload.poll_errors),
            },
            topics_made=self._workload.topics_made,
            slowest_topic_call_s=self._workload.slowest_topic_call_s,
        )


def run(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    kinds: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
    program: tuple[str, ...] = LAUNCHER,
) -> Outcome:
    """A cluster for one campaign, and the campaign. Leaves the brokers' logs in the folder."""
    needs = frozenset(need for kind in kinds if (need := FAULTS[kind].need) is not None)
    with FaultCluster(folder, needs=needs, program=program) as cluster:
        return asyncio.run(_run(cluster, seed, seconds, kinds, say))


async def _run(
    cluster: FaultCluster, seed: int, seconds: float, kinds: Sequence[str], say: Callable[[str], None]
) -> Outcome:
    return await Campaign(cluster, seed=seed, seconds=seconds, kinds=kinds, say=say).run()
