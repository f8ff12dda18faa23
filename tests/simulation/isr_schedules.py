"""Directed schedules of one partition: for bugs that random faults do not find in thousands of seeds.

A schedule cuts links, loses single kinds of message and kills, each when the cluster has come to a certain state; who is hit,
latencies, repetitions and what the clients do are still drawn from the seed. There are no other faults. The sound code passes.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from .isr_cluster import CONTROLLER, LAG_MS, IsrCluster, SimBroker
from .isr_controller import SESSION_S
from .isr_scenario import Scenario

LOOK_EVERY_S = 0.002
LONGEST_S = 30.0  # of one wait: a schedule whose moment does not come has failed
LAG_S = LAG_MS / 1000


class MomentMissed(Exception):
    """The cluster did not come to the state that the schedule waits for: nothing was shown."""


class ScheduledCluster(IsrCluster):
    """`lost` are kinds of message (by link, and by what they would do there) that do not arrive."""

    EVENTS: ClassVar = 100_000  # more than any schedule takes

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.lost: set[tuple[int, int, str]] = set()
        self.is_over = False
        super().__init__(seed, scenario)
        # What is lost and when it happens is chosen here, so the network is a quick one without losses of its own.
        self.loss, self.latency_s, self.flush_s = 0.0, min(self.latency_s, 0.01), min(self.flush_s, 0.02)
        self._steps = self.schedule()
        self.at(0.3 + self.rng.random() * 0.3, self._look)

    def schedule(self) -> Iterator[None]:
        """Yields as long as the moment for its next step has not come."""
        raise NotImplementedError

    def _fault(self) -> None:
        """None but those of the schedule."""

    def _look(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self.is_over = True
            return
        self.at(LOOK_EVERY_S, self._look)

    def when(self, condition: Callable[[], bool]) -> Iterator[None]:
        deadline_s = self.now_s + LONGEST_S
        while not condition():
            if self.now_s > deadline_s:
                raise MomentMissed(f"the schedule's moment did not come: {self.describe()}")
            yield

    def after(self, duration_s: float) -> Iterator[None]:
        end_s = self.now_s + duration_s
        return self.when(lambda: self.now_s >= end_s)

    def send(self, source: int, target: int, action: Any, *arguments: object) -> None:
        if (source, target, action.__name__) not in self.lost:
            super().send(source, target, action, *arguments)

    # --- what schedules are made of ----------------------------------------------------------------------------------

    def leader(self) -> SimBroker:
        return self.brokers[self.controller.leader]

    def choose_follower(self) -> int:
        return self.rng.choice([node for node in self.controller.replicas if node != self.controller.leader])

    def isr_as_known_to(self, node_id: int) -> frozenset[int]:
        leading = self.brokers[node_id].partition.role.leader_state
        assert leading is not None
        return leading.isr.maximal_isr

    def cut(self, one: int, *others: int) -> None:
        self.cuts |= {(one, other) for other in others} | {(other, one) for other in others}

    def mend(self, one: int, *others: int) -> None:
        self.cuts -= {(one, other) for other in others} | {(other, one) for other in others}

    def others(self, node_id: int) -> list[int]:
        return [node for node in self.controller.replicas if node != node_id]


class ExpansionUnheard(ScheduledCluster):
    """The controller takes a follower into the ISR, and the leader does not hear of it; then the follower falls silent, goes
    on living, and is elected. What the leader acknowledged meanwhile it may not have done without that follower."""

    def schedule(self) -> Iterator[None]:
        leader, late = self.leader().node_id, self.choose_follower()
        self.cut(leader, late)
        yield from self.when(lambda: late not in self.isr_as_known_to(leader))
        self.cuts.add((CONTROLLER, leader))
        self.mend(leader, late)
        yield from self.when(lambda: late in self.controller.isr or self.controller.leader != leader)
        self.cut(leader, late)
        yield from self.after(LAG_S + 0.3 + self.rng.random())
        self._crash(self.brokers[leader], False)
        self.cuts.clear()
        yield from self.when(lambda: self.controller.leader not in (leader, -1))


class LeaderDeposedUnheard(ScheduledCluster):
    """A leader loses its followers and its session, and hears nothing of a successor; clients reach both. Its records are not
    committed, whatever comes of them: then it learns all at once who leads."""

    LOST: ClassVar[tuple[str, ...]] = ("_on_metadata", "_on_isr_answer")

    def schedule(self) -> Iterator[None]:
        for _ in range(3):
            yield from self.when(lambda: self.controller.isr == set(self.controller.replicas))
            leader = self.leader().node_id
            self.lost |= {(CONTROLLER, leader, kind) for kind in self.LOST}
            self.lost.add((leader, CONTROLLER, "_on_heartbeat"))
            yield from self.after(SESSION_S - self.rng.random() * 0.2)  # so late that it cannot shrink its ISR before
            self.cut(leader, *self.others(leader))
            yield from self.when(lambda leader=leader: self.controller.leader not in (leader, -1))  # type: ignore[misc]
            yield from self.after(LAG_S + self.rng.random() * 2 * LAG_S)
            self.cuts.clear()
            self.lost.clear()
            yield from self.after(0.5)


class LeaderDeposedAnswered(LeaderDeposedUnheard):
    """The same, and the controller's refusals of what it proposes come through."""

    LOST: ClassVar = ("_on_metadata",)


def run_schedule(kind: type[ScheduledCluster], seed: int, scenario: Scenario) -> ScheduledCluster:
    cluster = kind(seed, scenario)
    while not cluster.is_over:
        cluster.run(50)
        if cluster.events > ScheduledCluster.EVENTS:
            raise MomentMissed(f"the schedule has not ended after {cluster.events} events: {cluster.describe()}")
    cluster.heal_and_finish()
    return cluster


SCHEDULES: tuple[type[ScheduledCluster], ...] = (ExpansionUnheard, LeaderDeposedUnheard, LeaderDeposedAnswered)
