"""One history: a cluster, its clients, faults for a while, then quiet; judged all along and at the end. `run_history(seed)`.

After *every* event the partitions and the metadata of the brokers that ran in it are checked; group state of voters is
compared every eighth metadata offset. At the end everything is healed and has `SETTLE_S` of virtual time to come to rest.
"""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from barnabas.kraft.quorum.config import SnapshotPolicy
from barnabas.log.vocabulary.cluster_changes import DecommissionBrokerRequest
from barnabas.log.vocabulary.errors import BarnabasError, StorageError
from barnabas.net.broker.broker import Broker
from barnabas.net.testing.simulation.cluster import (
    FIRST_FOLDER,
    SECOND_FOLDER,
    SimulatedCluster,
    SimulatedNode,
    is_serving,
    wait_until,
)
from barnabas.net.testing.simulation.fault_room import FaultPlan
from barnabas.net.testing.simulation.node_faults import NodeFaults
from barnabas.net.testing.simulation.observed_loop import ObservedLoop
from barnabas.net.testing.simulation.process import OWNER, ProcessDied, SimulatedProcess

from .checkers.clients import ClientChecker
from .checkers.eligible import EligibleChecker
from .checkers.metadata import MetadataChecker
from .checkers.partitions import PartitionChecker, read_batches
from .checkers.progress import ProgressChecker
from .checkers.violation import Violation
from .faults import FIRST_ERA, WEIGHTS, Faults
from .workload import LATEST_VALUES, PHOENIX, SHORT, Workload

START_LIMIT_S = 20.0
SETTLE_S = 40.0
GROUPS = ("group-a", "group-b")
DISKS_REFUSE = frozenset({"disk_full", "io_error", "refusal", "folder_failure"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a history is made of; None and empty: drawn from the seed."""

    brokers: int | None = None
    faults_s: float | None = None
    kinds: tuple[str, ...] = ()
    is_first_era: bool = False  # as it was drawn when there were no other faults than `faults.FIRST_ERA`
    make_broker: Callable[..., Broker] = Broker
    settings: dict[str, str] = field(default_factory=dict)  # of the brokers, over those of every history
    node_faults: type[NodeFaults] = NodeFaults
    has_quorum_threads: bool = False  # the quorum of each broker goes on while the broker's loop stands still


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seed: int
    events: int
    trace_hash: str
    virtual_s: float
    wall_s: float
    faults: int
    plan: FaultPlan
    counts: dict[str, int]
    failure: str = ""

    def __str__(self) -> str:
        told = f"FAILED {self.failure}" if self.failure else "ok"
        counts = " ".join(f"{name}={count}" for name, count in self.counts.items())
        return (
            f"seed {self.seed}: {told} | events={self.events} virtual={self.virtual_s:.1f}s wall={self.wall_s:.1f}s "
            f"faults={self.faults} ({','.join(self.plan.kinds)}) {counts} trace={self.trace_hash}"
        )


class History:
    def __init__(self, seed: int, scenario: Scenario, trace_line: Callable[[str], None] | None) -> None:
        self.seed = seed
        self.scenario = scenario
        self.rng = Random(seed)
        self.loop = ObservedLoop()
        self.loop.trace_line = trace_line
        self.loop.set_exception_handler(self._unseen)
        self.violations: list[str] = []
        self.plan = self._draw_plan()
        # Drawn apart, so that it changes nothing else of the history.
        self.has_racks = not scenario.is_first_era and Random(f"racks {seed}").random() < 0.35
        if scenario.kinds:
            self.plan = FaultPlan(kinds=scenario.kinds, interval_s=self.plan.interval_s, longest_s=self.plan.longest_s)
        self.cluster = SimulatedCluster(
            self.loop,
            Random(self.rng.getrandbits(64)),
            brokers=(scenario.brokers or self.rng.choice((3, 3, 3, 4, 5))) + ("join_or_leave" in self.plan.kinds),
            snapshot_policy=self.rng.choice((None, SnapshotPolicy(entries=50), SnapshotPolicy(entries=300))),
            fsync_s=self.rng.choice((0.001, 0.004, 0.02)),
            settings=self._settings(),
            has_uneven_segments=not scenario.is_first_era,
            has_racks=self.has_racks,
            make_broker=scenario.make_broker,
            has_quorum_threads=scenario.has_quorum_threads,
            violate=self.violations.append,
        )
        self._draw_surroundings()
        self.partitions = PartitionChecker(self.cluster)
        self.metadata = MetadataChecker(self.cluster)
        counts_copies = not DISKS_REFUSE.intersection(self.plan.kinds)
        self.eligible = EligibleChecker(self.cluster, self.partitions, counts_copies=counts_copies)
        self.progress = ProgressChecker(self.cluster, self.eligible)
        self.clients = ClientChecker(self.partitions)
        self.workload = Workload(self.cluster, self.clients, Random(self.rng.getrandbits(64)))
        self.workload.racks = Random(f"readers {seed}") if self.has_racks else None
        self.clients.recreated.add(PHOENIX)
        self.faults = self._make_faults(Random(self.rng.getrandbits(64)))
        self._nodes = {node.name: node for node in self.cluster.nodes}
        self.loop.observer = self._observe
        self.cluster.ending.append(self._last_look)

    def _settings(self) -> dict[str, str]:
        settings = {"min.insync.replicas": "2", "log.retention.check.interval.ms": "600"}
        if "compact" in self.plan.kinds:
            settings["log.cleaner.backoff.ms"] = "150"
        if "folder_failure" in self.plan.kinds:
            settings["log.dirs"] = f"{FIRST_FOLDER},{SECOND_FOLDER}"
        return settings | self.scenario.settings

    def _draw_plan(self) -> FaultPlan:
        if self.scenario.is_first_era:
            return FaultPlan.draw_of_first_era(self.rng, FIRST_ERA)
        return FaultPlan.draw(self.rng, WEIGHTS)

    def _make_faults(self, rng: Random) -> Faults:
        return Faults(
            self.cluster,
            self.plan,
            rng,
            self.workload,
            self.partitions.permit_start,
            self.scenario.node_faults,
        )

    def _draw_surroundings(self) -> None:
        """Wall clocks that are wrong by up to a minute, and a network that is fast, or not so fast, for everybody."""
        if self.rng.random() < 0.3:
            for node in self.cluster.nodes:
                node.clock_skew_ms = self.rng.randint(-60_000, 60_000)
        latency_s = self.rng.choice((0.0002, 0.0002, 0.002, 0.01))
        names = [node.name for node in self.cluster.nodes]
        for source in names:
            for target in names:
                if source != target:
                    self.cluster.world.link(source, target).latency_s = latency_s

    def _unseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, (ProcessDied, BarnabasError, asyncio.CancelledError)):
            return
        if isinstance(error, Violation):
            self.violations.append(str(error))
        else:
            self.violations.append(f"{context.get('message')}: {error!r} ({_where(error)})")

    def _observe(self, ran: list[SimulatedProcess]) -> None:
        if self.violations:
            raise Violation(self.violations[0])
        for process in ran:
            node = self._nodes[process.name]
            if node.process is process:
                self.eligible.follow(node)
                self.partitions.check(node)
                self.metadata.check(node)
        self.eligible.judge()
        self.progress.look()

    def _last_look(self, node: SimulatedNode) -> None:
        """What a process did in the very event in which it dies counts as well: its last answers may be on the wire."""
        try:
            self.eligible.follow(node)
            self.partitions.check(node, is_between_operations=False)
            self.metadata.check(node)
        except Violation as violation:  # inside of code of the broker, which must not take it for an error of its own
            self.violations.append(str(violation))

    # --- the course ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        rng = self.rng
        for node in self.cluster.nodes:
            self.loop.call_later(rng.uniform(0, 0.3), self.cluster.start, node.node_id)
        await self._require(self._is_up, START_LIMIT_S, "the cluster did not come up")
        await self.workload.create_topics(
            {"events": (2, 3, {"min.insync.replicas": "2"}), "clicks": (1, min(3, len(self.cluster.nodes)), {})}
        )
        self._change_files()
        await self._create_extras()
        self.workload.start(
            producers=rng.randint(1, 3),
            consumers=rng.randint(1, 2),
            members=rng.randint(0, 4),
            groups=GROUPS,
            admin=rng.random() < 0.6,
        )
        await self.faults.run(self.scenario.faults_s or rng.choice((4.0, 8.0, 12.0)))
        self.faults.heal()
        await self._settle()

    def _change_files(self) -> None:
        """A rolling change of server.properties that is never finished: every node has another one from its next start on.

        What it says of settings of the cluster must have no effect, and segments may end anywhere on any replica.
        """
        if self.scenario.is_first_era:
            return
        dice = Random(self.rng.getrandbits(64))
        for node in self.cluster.nodes:
            self.cluster.changed_files[node.node_id] = {
                "min.insync.replicas": dice.choice(("1", "2", "3")),
                "unclean.leader.election.enable": dice.choice(("false", "true")),
                "default.replication.factor": dice.choice(("1", "3")),
                "log.flush.interval.messages": dice.choice(("1", "100")),
                "log.segment.bytes": dice.choice(("4096", "16384", "1048576")),
            }

    async def _create_extras(self) -> None:
        """Topics that only some faults need, and settings that are not the usual ones."""
        if self.scenario.is_first_era:
            return
        self.workload.acks = (-1, -1, -1, 1, 0)
        kinds, dice = self.plan.kinds, Random(self.rng.getrandbits(64))
        topics: dict[str, tuple[int, int, dict[str, str]]] = {}
        if "recreate" in kinds:
            topics[PHOENIX] = (1, 3, {})
        if "delete_records" in kinds or "retention" in kinds:
            topics[SHORT] = (1, 3, {"segment.bytes": "1024", "file.delete.delay.ms": "200"})
        if "compact" in kinds:
            topics[LATEST_VALUES] = (1, 3, {
                "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1024",
                "file.delete.delay.ms": "200",
            })  # fmt: skip
            self.partitions.compacted.add(LATEST_VALUES)
        if dice.random() < 0.25:
            topics["careful"] = (1, 3, {"min.insync.replicas": "3"})
        if dice.random() < 0.25 and not {"power_loss", "wipe"}.intersection(kinds):  # which are beyond its promise
            topics["careless"] = (1, 3, {"min.insync.replicas": "1"})
        if topics:
            await self.workload.create_extras(topics)

    def _is_up(self) -> bool:
        return all(is_serving(node) and node.broker.is_ready for node in self.cluster.nodes)  # type: ignore[union-attr]

    async def _require(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        if not await wait_until(lambda: self._checked(condition), limit_s=limit_s):
            raise Violation(f"{what} within {limit_s} s: {self._state()}")

    def _checked(self, condition: Callable[[], bool]) -> bool:
        self.workload.check_tasks()
        self.faults.restart_dead()
        return condition()

    async def _settle(self) -> None:
        await self._require(self._is_up, SETTLE_S, "not every broker was unfenced again")
        await self._give_back()
        await self._require(self._all_in_sync, SETTLE_S, "not every replica was in sync again")
        self.workload.learn_partitions(self.cluster.newest_image())
        await self._progress()
        await self._check_groups()
        self.loop.note("QUIET")
        if not self.metadata.group_states:
            raise Violation("the groups' state of no voter was ever looked at")
        await self.workload.stop()
        await self._compare("at the end")
        if self.rng.random() < 0.4:
            for node in self.cluster.nodes:
                self.cluster.kill(node.node_id)
            self.faults.restart_dead()
            await self._require(self._is_up, SETTLE_S, "the cluster did not come back after kill -9 of everything")
            await self._compare("after kill -9 of everything")

    async def _give_back(self) -> None:
        """Brokers that were to leave stay after all: the end needs all of them."""
        client, deadline = self.workload.client("giver"), self.loop.time() + SETTLE_S
        while leaving := [it.node_id for it in self.cluster.newest_image().brokers.values() if it.decommissioning]:
            with contextlib.suppress(BarnabasError, TimeoutError):
                await client.ask_anyone(DecommissionBrokerRequest(node_id=leaving[0], cancel=True), timeout_ms=2_000)
            await asyncio.sleep(0.1)
            self.faults.restart_dead()
            if self.loop.time() > deadline:
                raise Violation(f"broker {leaving[0]} cannot be given back: {self._state()}")

    async def _compare(self, when: str) -> None:
        await self._require(self._all_in_sync, SETTLE_S, f"not every replica was in sync {when}")
        await self._require(self._ends_agree, SETTLE_S, f"the replicas' logs did not become equal {when}")
        self._compare_logs()

    def _all_in_sync(self) -> bool:
        image = self.cluster.newest_image()
        return all(
            set(partition.isr) == set(partition.replicas) and partition.leader >= 0 and not partition.adding_replicas
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    async def _progress(self) -> None:
        client = self.workload.client("prober")
        for partition in self.workload.partitions + [key for key in self.workload.extras if key[0] != PHOENIX]:
            deadline = self.loop.time() + SETTLE_S
            while not await self.workload.produce(client, partition, -1):
                self.faults.restart_dead()  # one that was told to stop before everything was healed
                if self.loop.time() > deadline:
                    raise Violation(f"{partition} takes no records after everything was healed: {self._state()}")

    async def _check_groups(self) -> None:
        members = self.workload.members
        for group in GROUPS:
            own = [member for member in members if member.group == group]
            if not own:
                continue
            deadline = self.loop.time() + SETTLE_S
            while True:
                # An administrator's request that was under way when everything was healed may add a partition later.
                self.workload.learn_partitions(self.cluster.newest_image())
                owned = sorted(key for member in own for key in member.owned)
                if owned == sorted(self.workload.partitions):
                    break
                if self.loop.time() > deadline:
                    raise Violation(f"group {group} owns {owned}, not {sorted(self.workload.partitions)}")
                await asyncio.sleep(0.05)
                self.workload.check_tasks()
                self.faults.restart_dead()
            await self._check_commits(own[0], deadline)

    async def _check_commits(self, member: Any, deadline: float) -> None:
        while True:
            try:
                # Commits that begin while the answer is under way are unknown to it: they do not count as later ones.
                ended = {id(c) for commits in self.clients.commits.values() for c in commits if c.ended is not None}
                told = await member.committed()
                break
            except (BarnabasError, TimeoutError):
                member._coordinator = None
                if self.loop.time() > deadline:
                    raise Violation(f"group {member.group} does not tell its offsets: {self._state()}") from None
        for topic, partition in self.workload.partitions:
            commits = self.clients.commits.get((member.group, topic, partition), [])
            hidden = [commit for commit in commits if commit.ended is not None and id(commit) not in ended]
            ends = [commit.ended for commit in hidden]
            for commit in hidden:
                commit.ended = None
            self.clients.check_commit(member.group, topic, partition, told.get((topic, partition), ""))
            for commit, end in zip(hidden, ends, strict=True):
                commit.ended = end

    def _replicas(self) -> list[tuple[tuple[str, int], list[tuple[SimulatedProcess, Any]]]]:
        """By topic id and number, of each partition the logs of all its replicas."""
        image = self.cluster.newest_image()
        found = []
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                logs = []
                for node_id in partition.replicas:
                    node = self.cluster.nodes[node_id]
                    key = (topic.topic_id, number)
                    view = self.partitions.views.get(node.process, {}).get(key) if node.process is not None else None
                    if view is not None and node.process is not None:
                        logs.append((node.process, view.log))
                found.append(((topic.topic_id, number), logs if len(logs) == len(partition.replicas) else []))
        return found

    def _ends_agree(self) -> bool:
        return all(
            logs and all(log.log_end_offset == log.high_watermark == logs[0][1].log_end_offset for _, log in logs)
            for _, logs in self._replicas()
        )

    def _compare_logs(self) -> None:
        """Read everything from the files again: replicas are equal, and everything that was committed is there."""
        contents: dict[tuple[str, int], tuple[int, dict[int, Any]]] = {}
        for key, logs in self._replicas():
            name = logs[0][1].topic_partition
            if name.topic in self.partitions.compacted:
                self.workload.counts["compacted"] = self.workload.compacted.check(name, [log for _, log in logs])
                continue
            start = max(log.log_start_offset for _, log in logs)  # each broker's retention has its own time
            copies = [read_batches(log, start) if start < log.log_end_offset else [] for _, log in logs]
            if any(copy != copies[0] for copy in copies):
                raise Violation(f"{self.partitions.histories[key].name}: the replicas differ at the end")
            contents[key] = (start, {batch.base_offset: batch for batch in copies[0]})
        for key, (start, batches) in contents.items():
            history = self.partitions.histories[key]
            for base_offset, committed in history.committed.items():
                if base_offset >= start and batches.get(base_offset) != committed.batch:
                    raise Violation(f"{history.name}: {committed} is lost at the end: {batches.get(base_offset)}")
        for item in self.clients.acknowledged:
            if item.topic in self.clients.recreated:
                continue  # it may have been an earlier topic's
            start, batches = contents[self.clients.topic_ids[item.topic], item.partition]
            batch = batches.get(item.base_offset)
            if item.base_offset >= start and (batch is None or batch.crc != item.crc):
                raise Violation(f"{item} is lost at the end: {batch}")

    def reach(self) -> dict[str, int]:
        """How often the history came to what its faults are for."""
        return {
            "appends": self.partitions.appends,
            "truncations": self.partitions.truncations,
            "rolls_within_an_answer": self.partitions.rolls_within_an_answer,
            "elections": self.eligible.elections,
            "isr_changes": self.eligible.isr_changes,
            "moves_ended": self.eligible.moves_ended,
            "eligible": self.eligible.judged,
            "calm_waits": self.progress.judged,
        }

    def _state(self) -> str:
        told = []
        for node in self.cluster.nodes:
            broker = node.broker
            if broker is None or not is_serving(node):
                told.append(f"{node.name} down {node.fatal[-1:]}")
                continue
            told.append(
                f"{node.process} offset={broker.metadata.image.offset} leader={broker.metadata.leadership} "
                f"fenced={broker.lifecycle.fenced} "
                + "; ".join(str(partition) for partition in broker.replication.manager.partitions())
            )
        image = self.cluster.newest_image()
        for topic in image.topics.values():
            told += [f"{topic.name}: {partition}" for partition in topic.partitions]
        return "\n  ".join(told)


class _LogLines(logging.Handler):
    """Errors that our code caught and logged with a traceback are bugs; under a trace, every line goes into it."""

    def __init__(self, history: History, *, verbose: bool) -> None:
        super().__init__(logging.INFO if verbose else logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        line = self._history.loop.trace_line
        if line is not None:
            line(f"{self._history.loop.time():.6f} LOG {record.levelname} {record.name}: {record.getMessage()}")
        owner = OWNER.get()
        if owner is not None and owner.is_dead:
            return  # cleaning up behind its death, which no process does
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            if not isinstance(
                error, (ProcessDied, Violation, StorageError)
            ):  # a full disk may be told with its traceback
                self._history.violations.append(f"{record.getMessage()}: {error!r} ({_where(error)})")


def run_history(
    seed: int,
    scenario: Scenario | None = None,
    *,
    trace_line: Callable[[str], None] | None = None,
    make: Callable[[int, Scenario, Callable[[str], None] | None], History] = History,
) -> Result:
    """Run it to its end or to the first violation. The result is the same for the same seed and scenario."""
    began = time.perf_counter()
    gc.collect()
    gc.disable()  # coroutines and sockets that die at random moments would make the course random
    history = make(seed, scenario or Scenario(), trace_line)
    logger = logging.getLogger("barnabas")
    former = (logger.level, logger.propagate)
    handler = _LogLines(history, verbose=trace_line is not None)
    logger.setLevel(logging.INFO if trace_line is not None else logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    failure = ""
    try:
        history.loop.run_until_complete(history.run())
        if history.violations:
            failure = history.violations[0]
    except Violation as error:
        failure = str(error)
    except Exception as error:
        failure = f"{error!r} ({_where(error)})"
    finally:
        events, trace_hash, virtual_s = history.loop.event_count, history.loop.trace_hash, history.loop.time()
        _take_down(history)
        logger.removeHandler(handler)
        logger.setLevel(former[0])
        logger.propagate = former[1]
        gc.enable()
    return Result(
        seed=seed,
        events=events,
        trace_hash=trace_hash,
        virtual_s=virtual_s,
        wall_s=time.perf_counter() - began,
        faults=history.faults.count,
        plan=history.plan,
        counts=history.workload.counts | history.reach(),
        failure=failure,
    )


def _take_down(history: History) -> None:
    """Nothing that happens from here on counts."""
    loop = history.loop
    loop.observer = loop.trace_line = None
    loop.set_exception_handler(lambda _, context: None)
    history.cluster.close()
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.cancel()
    loop.call_later(0, loop.stop)
    loop.run_forever()
    loop.close()


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    frames = []
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(frames[-6:]))
