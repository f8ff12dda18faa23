"""A campaign: faults one after another on a cluster under load, then peace, two full readings, and the verdict."""

import asyncio
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from random import Random
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.local.local_cluster import LAUNCHER
from barnabas.net.client.connection.errors import BarnabasError
from barnabas.net.client.positions.offset_lookup import LATEST
from barnabas.net.wire.protocol.responses import PartitionMetadata

from .checker import Report
from .cluster import LINKS_NEED, NETWORK_NEED, FaultCluster
from .history import Fault, History, Partition, Stuck
from .injections import FAULTS
from .injector import Injector, Roles
from .load import Load
from .replicas import read_replica
from .transactions.coordinators import COORDINATOR_FAULTS
from .workload import PACE_S, Workload

READY_S: Final = 60.0
WHOLE_S: Final = 45.0  # until every ISR is full again after a fault
MAX_NAMED: Final = 3  # of the partitions that were the last to make progress
PROGRESS_RECORDS: Final = 5  # acknowledged on every partition before the next fault
POLL_S: Final = 0.05
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


class Campaign:
    """One run: `await Campaign(...).run()`."""

    def __init__(
        self,
        cluster: FaultCluster,
        *,
        seed: int,
        seconds: float,
        kinds: Sequence[str],
        make: "MakeLoad",
        say: Callable[[str], None] = lambda _: None,
        least_faults: int = 0,
        slowness: float = 1.0,
    ) -> None:
        self.cluster = cluster
        self.history = History()
        self._rng = Random(seed)
        self._seconds = seconds
        self._least_faults = least_faults
        self._say = say
        self._admin = cluster.admin()
        self._load = make(cluster, self.history, Random(seed + 1), max(slowness, seconds / FULL_PACE_S))
        self._faults = {**FAULTS, **self._load.faults}
        self._kinds = [kind for kind in kinds if self._faults[kind].need in (None, *cluster.has)]
        self._rss_mib: dict[int, float] = {}
        self._began_s = time.monotonic()
        self._pending: list[tuple[int, asyncio.Task[None]]] = []

    async def run(self) -> Outcome:
        self.cluster.start()
        await self._until(self._is_ready, "the cluster is ready", READY_S, fatal=True)
        async with self._admin as admin:
            for topic, count in self._load.topics.items():
                config = self._load.topic_config.get(topic, {})
                await admin.create_topic(topic, partitions=count, replication_factor=3, configs=config)
            await self._until(self.is_whole, "the topics are ready", READY_S, fatal=True)
            self._load.start()
            minutes = asyncio.create_task(self._tell_every_minute())
            try:
                await self._until_progress(READY_S)  # the clients start
                self._rss_mib = {broker.node_id: broker.rss_mib() for broker in self.cluster.brokers}
                await self._rage()
                await self._end()
            finally:
                minutes.cancel()
                await self._load.cancel()
        failure = self._load.failure()
        if failure is not None:
            text = "".join(traceback.format_exception(failure))
            self.history.add(Stuck(what=f"a client died of {text}", at_s=time.monotonic()))
        return self._outcome()

    # --- faults ------------------------------------------------------------------------------------------------------

    async def _rage(self) -> None:
        """Every kind once, in any order, then at random, by weight, until the time is over and there were enough."""
        queue = self._rng.sample(self._kinds, len(self._kinds))
        weights = [self._faults[kind].weight for kind in self._kinds]
        deadline_s = time.monotonic() + self._seconds
        for number in numbers():
            is_over = time.monotonic() >= deadline_s and (self._seconds > 0 or not queue)
            if is_over and number >= self._least_faults:
                break
            kind = queue.pop() if queue else self._rng.choices(self._kinds, weights)[0]
            await self._strike(kind)
            if self._load.failure() is not None:
                return
            await asyncio.sleep(self._rng.uniform(*CALM_S))

    async def _strike(self, kind: str) -> None:
        injector = Injector(self.cluster, self._rng, await self._roles(), self._admin, self._whole)
        began_s = time.monotonic()
        sizes = {broker.node_id: broker.rss_mib() for broker in self.cluster.brokers}
        try:
            await self._faults[kind].inflict(injector)
        except (BarnabasError, OSError, TimeoutError) as error:
            self._stuck(f"{kind} on {injector.targets} went wrong itself: {error!r}")
            await asyncio.to_thread(self._heal)
        healed_s = whole_s = time.monotonic()
        last: list[Partition] = []
        if self._rng.random() >= OVERLAP or self._faults[kind].need not in _MAY_OVERLAP:
            await self._whole()
            whole_s = time.monotonic()
            last = await self._until_progress()
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
            f"whole after {whole_s - healed_s:5.1f} s, progress after {recovered_s - whole_s:5.1f} s{_named(last)}; "
            f"acked {sum(self._load.acked.values())}, memory {max(sizes.values()):.0f} MiB"
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
                f"minute: {faults} faults, {sum(self._load.acked.values())} records acknowledged with acks=all, "
                f"{len(self.history.of(Stuck))} times no progress, {len(self.history.events)} events in the history"
            )

    async def _roles(self) -> Roles:
        controller, leaders = -1, dict.fromkeys(self._partitions(), -1)
        try:
            async with asyncio.timeout(10):
                controller = (await self._admin.describe_cluster()).controller_id
                leaders = {place: item.leader for place, item in (await self._described()).items()}
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
        found = await self._described()
        return set(found) == set(self._partitions()) and all(
            len(item.isr) == 3 and item.leader >= 0 for item in found.values()
        )

    def _partitions(self) -> list[Partition]:
        return [(topic, number) for topic, count in self._load.topics.items() for number in range(count)]

    async def _described(self) -> dict[Partition, PartitionMetadata]:
        """The partitions of the load, as the cluster describes them."""
        return {
            (topic.name, number): item
            for topic in await self._admin.describe_topics()
            if topic.name in self._load.topics
            for number, item in enumerate(topic.partitions)
        }

    async def _is_ready(self) -> bool:
        dead = [broker for broker in self.cluster.brokers if not broker.is_running]
        if dead:
            raise RuntimeError(f"broker {dead[0].node_id} ended: {dead[0].log()[-2000:]}")
        async with self.cluster.admin() as admin:
            found = await admin.describe_cluster()
        return found.controller_id >= 0 and sum(not item.fenced for item in found.brokers) == len(self.cluster.brokers)

    async def _until_progress(self, limit_s: float = WHOLE_S) -> list[Partition]:
        """Every partition acknowledges again. Return those that were the last to do so."""
        start = dict(self._load.acked)
        last: list[Partition] = []

        async def moves() -> bool:
            waiting = [
                place
                for place in self._load.progressing
                if self._load.acked[place] < start.get(place, 0) + PROGRESS_RECORDS
            ]
            last[:] = waiting or last
            return self._load.failure() is not None or not waiting

        await self._until(moves, "every partition acknowledges", limit_s)
        return last

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
                partitions = await self._described()
                brokers = (await self._admin.describe_cluster()).brokers
        except (BarnabasError, TimeoutError) as error:
            return f"running {running}, {error!r}"
        places = [(place, item.leader, item.leader_epoch, item.isr) for place, item in partitions.items()]
        fenced = [item.node_id for item in brokers if item.fenced]
        return f"running {running}, fenced {fenced}, (partition, leader, epoch, ISR) {places}"

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Peace; everything is read; kill -9 of all; everything is read again; the disks are compared."""
        await self._whole()
        await self._until_progress()
        for broker in self.cluster.brokers:
            broker.rss_mib()
        self._tell("peace")
        await self._load.stop_producing()
        self._tell("producers have ended")
        await self._load.drain(await self._ends())
        self._tell("everything that was written is consumed")
        await self._load.read_all("before kill -9 of all", await self._ends())
        self._tell("everything is read; now kill -9 of all")
        self.cluster.kill_all()
        self.cluster.start()
        await self._until(self._is_ready, "the cluster is ready after kill -9 of all", READY_S)
        await self._whole()
        self._tell("the cluster is whole again")
        await self._load.read_all("after kill -9 of all", await self._ends())
        self._tell("everything is read again; now all stop")
        await self._compare_disks()

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:7.1f} s  {text}")

    async def _ends(self) -> dict[Partition, int]:
        found: dict[Partition, int] = {}

        async def all_ends() -> bool:
            asked = {TopicPartition(*place): LATEST for place in self._partitions()}
            for place, item in (await self._admin.find_offsets(asked)).items():
                found[place.topic, place.partition] = item.offset
            return len(found) == len(asked)

        await self._until(all_ends, "the ends of all partitions", WHOLE_S)
        return found

    async def _compare_disks(self) -> None:
        for broker in self.cluster.brokers:
            if broker.is_running:
                broker.signal(signal.SIGTERM)
        for broker in self.cluster.brokers:
            code = await asyncio.to_thread(broker.wait, READY_S)
            if code != 0:
                self.history.add(Stuck(what=f"broker {broker.node_id} ended with {code}", at_s=time.monotonic()))
            for place in self._partitions():
                self.history.add(read_replica(broker.node_id, broker.data / "logs", place))

    def _outcome(self) -> Outcome:
        happened = frozenset(fault.kind for fault in self.history.of(Fault))
        report = self._load.judge(happened or frozenset(self._kinds))
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
            client_errors={what: dict(counts) for what, counts in self._load.errors().items()},
        )


MakeLoad = Callable[[FaultCluster, History, Random, float], Load]


def _named(places: list[Partition]) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in places[:MAX_NAMED])
    return f" (last: {shown})" if shown else ""


def plain_load(
    cluster: FaultCluster, history: History, rng: Random, slowness: float, *, kind: type[Workload] = Workload
) -> Load:
    return kind(cluster.bootstrap, history, rng, pace_s=PACE_S * slowness)


def run(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    kinds: Sequence[str],
    say: Callable[[str], None] = lambda _: None,
    program: tuple[str, ...] = LAUNCHER,
    make: MakeLoad = plain_load,
    least_faults: int = 0,
    slowness: float = 1.0,
) -> Outcome:
    """A cluster for one campaign, and the campaign. Leaves the brokers' logs in the folder. `least_faults`: it goes on after the
    time is over until there were so many, as a busy machine recovers slowly; in 0 `seconds` each kind comes once. `slowness`: how
    many times longer the clients' pauses are than usual."""
    known = {**FAULTS, **COORDINATOR_FAULTS}  # all others need nothing
    needs = frozenset(need for kind in kinds if kind in known and (need := known[kind].need) is not None)
    with FaultCluster(folder, needs=needs, program=program) as cluster:

        async def whole() -> Outcome:
            campaign = Campaign(
                cluster,
                seed=seed,
                seconds=seconds,
                kinds=kinds,
                make=make,
                say=say,
                least_faults=least_faults,
                slowness=slowness,
            )
            return await campaign.run()

        return asyncio.run(whole())
