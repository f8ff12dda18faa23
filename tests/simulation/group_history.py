"""One history of consumer groups: whole brokers, the SDK's consumers, faults on both sides. `run_groups(seed)`.

On top of everything that `history` judges, `checkers.groups` looks at every event; here are the bounds in time. Two groups
read the same topics, one by names and one by a pattern; some members are static.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from barnabas.net.testing.simulation.cluster import SimulatedNode, is_serving, wait_until
from barnabas.net.testing.simulation.fault_room import FaultPlan
from barnabas.net.testing.simulation.process import SimulatedProcess

from .checkers.groups import GroupChecker, Partition
from .checkers.violation import Violation
from .faults import WEIGHTS, Faults
from .group_faults import GroupFaults
from .group_members import SimulatedMember
from .history import SETTLE_S, START_LIMIT_S, History, Result, Scenario, run_history
from .once_members import ONCE, ONCE_MEMBERS, ONCE_TOPICS, EffectsDatabase, OnceFaults, OnceMember
from .workload import PHOENIX

BY_NAME, BY_PATTERN = "readers", "watchers"
PATTERN = "events|fresh-.*"
# What the members of the second group say: all mean the same topics, and some stop an engine that backtracks.
PATTERNS = (PATTERN, r"(([d-v]+)+|(fresh-?)+\d*)\z", r"\Qevents\E|(\pL+-?)+\d+")
TOPICS = ("clicks", "events")
MOST_MEMBERS = {BY_NAME: 8, BY_PATTERN: 4}
WATCH_S = 0.1
# After the last fault, and all brokers are up: sessions (1.5 s) and rebalance time-outs (2 s) run out, one after the other at
# worst, and a client that waits for a machine that is silently gone gives up after its connect time-out (5 s).
STABLE_LIMIT_S = 12.0
# How long a partition may have no reader while members live and no fault affects brokers, links or the members that should
# get it: a session, a rebalance timeout and a poll interval, and the same clients' timeouts.
UNOWNED_LIMIT_S = 12.0
CALM_LATENCY_S = 0.05
BROKER_KINDS = (
    "kill", "kill_all", "power_loss", "stop", "stall", "clock_jump", "cut_one_way", "cut", "isolate", "slow", "reset",
    "late_reset", "reassign", "elect", "join_or_leave",
)  # fmt: skip


class GroupHistory(History):
    def __init__(self, seed: int, scenario: Scenario, trace_line: Callable[[str], None] | None) -> None:
        self.members: list[SimulatedMember] = []
        super().__init__(seed, scenario, trace_line)
        self.longest_unowned_s = 0.0
        self.stable_after_s = 0.0
        self._unowned_since: dict[tuple[str, Partition], float] = {}
        self._responsible: dict[tuple[str, Partition], str | None] = {}
        self._calm_since: float | None = None

    def _draw_plan(self) -> FaultPlan:
        """In some histories nothing happens to brokers, so that the bounds of what happens to members hold all along."""
        weights = dict(GroupFaults.WEIGHTS)
        if self.rng.random() < 0.3:
            weights = {
                kind: weight for kind, weight in weights.items() if not kind.endswith("_kill") or "member" in kind
            }
        else:
            weights |= {kind: WEIGHTS[kind] for kind in BROKER_KINDS}
        weights |= OnceFaults.WEIGHTS | {"recreate": 1}
        plan = FaultPlan.draw(self.rng, weights)
        return (
            plan
            if any(kind in GroupFaults.WEIGHTS for kind in plan.kinds)
            else replace(plan, kinds=(*plan.kinds, "member_kill"))
        )

    def _make_faults(self, rng: Random) -> Faults:
        self.checker = GroupChecker(self.partitions, (BY_NAME, BY_PATTERN), self.violations.append)
        own = Random(rng.getrandbits(64))
        self.effects = EffectsDatabase(self.violations.append)
        once = OnceFaults(self.cluster, self.plan, Random(f"{self.seed}/once"), self.workload, self.effects)
        room = GroupFaults(self.cluster, self.plan, own, self.workload, self.checker, self.members, self._disturbed)
        return Faults(
            self.cluster, self.plan, rng, self.workload, self.partitions.permit_start, more_rooms=(room, once)
        )

    def _observe(self, ran: list[SimulatedProcess]) -> None:
        super()._observe([process for process in ran if process.name in self._nodes])
        for process in ran:
            node = self._nodes.get(process.name)
            if node is not None and node.process is process:
                self.checker.follow(node)
        if self.violations:
            raise Violation(self.violations[0])

    def _last_look(self, node: SimulatedNode) -> None:
        super()._last_look(node)
        self.checker.follow(node)

    # --- the course ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self.effects.close()

    async def _run(self) -> None:
        rng = self.rng
        for node in self.cluster.nodes:
            self.loop.call_later(rng.uniform(0, 0.3), self.cluster.start, node.node_id)
        await self._require(self._is_up, START_LIMIT_S, "the cluster did not come up")
        careful = {"min.insync.replicas": "2"}
        await self.workload.create_topics({"events": (2, 3, careful), "clicks": (1, 3, careful)})
        if self._has_once:
            await self.workload.create_extras({PHOENIX: (1, 3, careful)})
        self.workload.start(producers=rng.randint(1, 2), consumers=0, members=0, groups=(), admin=False)
        self._make_members(rng)
        if self._has_once:
            self._make_once_members()
        watcher = asyncio.get_running_loop().create_task(self._watch())
        await self.faults.run(self.scenario.faults_s or rng.choice((4.0, 8.0, 12.0)))
        self.faults.heal()
        await self._settle()
        watcher.cancel()
        self._count()

    def _make_members(self, rng: Random) -> None:
        for group, most in MOST_MEMBERS.items():
            begin = rng.randint(1, most // 2)
            for number in range(most):
                member = SimulatedMember(
                    self.cluster,
                    self.checker,
                    Random(rng.getrandbits(64)),
                    name=f"{group}-{number}",
                    group=group,
                    topics=TOPICS if group == BY_NAME else (),
                    pattern=PATTERNS[number % len(PATTERNS)] if group == BY_PATTERN else None,
                    instance_id=f"static-{number}" if rng.random() < 0.25 else None,
                )
                self.members.append(member)
                if number < begin:
                    member.start()

    @property
    def _has_once(self) -> bool:
        return bool({"once_seek", "recreate"}.intersection(self.plan.kinds))

    def _make_once_members(self) -> None:
        for number in range(ONCE_MEMBERS):
            member = OnceMember(
                self.cluster, self.checker, Random(f"{self.seed}/once-{number}"), name=f"{ONCE}-{number}", group=ONCE,
                topics=ONCE_TOPICS, database=self.effects,
            )  # fmt: skip
            self.members.append(member)
            member.start()

    def wanted(self, group: str) -> list[Partition]:
        """What the group is to read, as of the newest metadata."""
        found = []
        for name, topic in sorted(self.cluster.newest_image().topics.items()):
            if name in TOPICS if group == BY_NAME else re.fullmatch(PATTERN, name):
                found += [(name, number) for number in range(len(topic.partitions))]
        return found

    def _count(self) -> None:
        self.workload.counts |= {
            "polled": self.checker.polled,
            "adopted": self.checker.adoptions,
            "resets": self.checker.resets,
            "effects": sum(self.effects.ends.values()),
            "topics_with_effects": len({topic_id for _, _, topic_id in self.effects.ends}),
            "unowned_ms": int(self.longest_unowned_s * 1000),
            "stable_ms": int(self.stable_after_s * 1000),
        }

    # --- bounds -------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._learn_topics()
            self._watch_calm()
            for group in self.checker.groups:
                self._watch_group(group)
            self.violations += [failure for member in self.members for failure in member.failures]

    def _learn_topics(self) -> None:
        image = self.cluster.newest_image()
        for name in sorted(image.topics):
            if name.startswith("fresh-") and (name, 0) not in self.workload.partitions:
                self.workload.partitions.append((name, 0))
                self.clients.topic_ids[name] = image.topics[name].topic_id
        self.workload.learn_partitions(image)

    def _watch_calm(self) -> None:
        """Calm: nothing is wrong with any broker or link."""
        now = self.loop.time()
        nodes_are_well = all(
            is_serving(node)
            and node.broker.is_ready  # type: ignore[union-attr]
            and node.process.stalled_until <= now  # type: ignore[union-attr]
            for node in self.cluster.nodes
        )
        links_are_well = all(
            not link.is_cut and not link.loss and link.latency_s + link.jitter_s <= CALM_LATENCY_S
            for link in self.cluster.world.links()
        )
        if not (nodes_are_well and links_are_well):
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now

    def _watch_group(self, group: str) -> None:
        now = self.loop.time()
        has_members = any(member.group == group and member.is_running for member in self.members)
        for partition in self.wanted(group):
            key = (group, partition)
            responsible = self.checker.responsible(group, partition)
            if self._responsible.get(key) != responsible or not has_members or self._calm_since is None:
                self._responsible[key] = responsible
                self._unowned_since.pop(key, None)
            if not has_members or self._calm_since is None or self.checker.owners(group, partition):
                self._unowned_since.pop(key, None)
                continue
            unowned_s = now - self._unowned_since.setdefault(key, now)
            self.longest_unowned_s = max(self.longest_unowned_s, unowned_s)
            if unowned_s > UNOWNED_LIMIT_S:
                raise self._unowned(group, partition, unowned_s)

    def _unowned(self, group: str, partition: Partition, unowned_s: float) -> Violation:
        self.violations.append(
            f"group {group}: nobody reads {partition} for {unowned_s:.1f} s, responsible is "
            f"{self.checker.responsible(group, partition)}: {self._members_state(group)}"
        )
        return Violation(self.violations[-1])

    def _disturbed(self, member: SimulatedMember) -> None:
        """What a member is to have may be unowned for a while from now on."""
        for key, responsible in self._responsible.items():
            if responsible == member.member_id:
                self._unowned_since.pop(key, None)

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        await self._require(self._is_up, SETTLE_S, "not every broker was unfenced again")
        since = self.loop.time()
        await self._require(lambda: not self._unstable(), STABLE_LIMIT_S, "the groups did not become stable")
        self.stable_after_s = self.loop.time() - since
        await self._require(self._all_in_sync, SETTLE_S, "not every replica was in sync again")
        await self._progress()
        await self.workload.stop()
        await self._require(lambda: not self._behind(), SETTLE_S, "the groups did not come to the ends of the logs")
        for member in self.members:
            member.close()
        await self._require(
            lambda: not any(member.is_alive for member in self.members), SETTLE_S, "not every consumer could be closed"
        )
        self.loop.note("QUIET")
        await self._compare("at the end")

    def _unstable(self) -> str:
        for group in self.checker.groups:
            if reason := self.checker.why_not_stable(group, self.wanted(group)):
                return reason
        return ""

    def _behind(self) -> str:
        """Every committed record was handed out, worked on and committed."""
        for group in self.checker.groups:
            for partition in self.wanted(group):
                progress, end = self.checker.of(group, partition), self.checker.end(partition)
                if progress.done < end or (progress.committed or 0) < end:
                    return f"group {group}: {partition} done={progress.done} committed={progress.committed} end={end}"
        return self._effects_behind()

    def _effects_behind(self) -> str:
        """Every committed record of the topics that are there now had its effect."""
        for name in ONCE_TOPICS if self._has_once else ():
            topic = self.cluster.newest_image().topics.get(name)
            for number in range(len(topic.partitions) if topic is not None else 0):
                history = self.partitions.histories.get((topic.topic_id, number))  # type: ignore[union-attr]
                end = 0 if history is None else history.committed_end
                done = self.effects.ends.get((name, number, topic.topic_id), 0)  # type: ignore[union-attr]
                if done < end:
                    return f"effects of {name}-{number}: {done} of {end}"
        return ""

    async def _require(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        if not await wait_until(lambda: self._checked(condition), limit_s=limit_s):
            told = "\n  ".join(self._members_state(group) for group in self.checker.groups)
            why = [text for text in (self._unstable(), self._behind()) if text]
            raise Violation(f"{what} within {limit_s} s: {why}\n  {told}\n  {self._state()}")

    def _members_state(self, group: str) -> str:
        told = []
        for member in self.members:
            if member.group == group and member.is_alive:
                held = [f"{topic}-{number}" for topic, number in self.wanted(group) if member.holds((topic, number))]
                told.append(f"{member.identity} id={member.member_id} epoch={member.epoch} holds={held}")
        state = self.checker.states.get(group)
        currents: dict[str, Any] = {} if state is None else state.currents
        return f"{group}: {told} " + " ".join(
            f"[{it.member_id} epoch={it.member_epoch} {it.state} {it.assigned} revokes {it.pending_revocation}]"
            for it in currents.values()
        )


def run_groups(
    seed: int, scenario: Scenario | None = None, *, trace_line: Callable[[str], None] | None = None
) -> Result:
    return run_history(seed, scenario, trace_line=trace_line, make=GroupHistory)
