"""Whole clusters in which little is disturbed: brokers restart now and then, connections break, and between that partitions
come, grow, move and go, with little traffic.

Then followers' fetch sessions have what they are for: most partitions rest, and one is busy. `checkers.progress` judges how long
anything waits. The look at everything comes after ten seconds here, as in production, on both sides; it would end a wait late.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest, AssignReplicasRequest, ElectLeaderRequest
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.wire.protocol.requests import CreateTopicRequest, DeleteTopicRequest

from .checkers.progress import CALM_AFTER_S, JOIN_S
from .history import SETTLE_S, START_LIMIT_S, History, Result, Scenario, run_history
from .workload import PHOENIX, Client, Partition

ROUNDS: Final = 2  # of a disturbance and the calm after it, behind the calm after the start
CALM_S: Final = CALM_AFTER_S + JOIN_S + 1.0
LONGEST_DEATH_S: Final = 0.6
LONGEST_PAUSE_S: Final = 1.5
LATENCIES_S: Final = (
    0.0002,
    0.0002,
    0.004,
    0.012,
)  # of all that a node sends: followers acknowledge at different times
MOST_PARTITIONS: Final = 4  # of one topic
SETTINGS: Final = {"replica.lag.time.max.ms": "40000"}  # a leader looks again after a quarter of it
TOPICS: Final[dict[str, tuple[int, int, dict[str, str]]]] = {
    "events": (3, 3, {"min.insync.replicas": "2"}),
    "clicks": (2, 3, {}),
}


class CalmHistory(History):
    def __init__(self, seed: int, scenario: Scenario, trace_line: Callable[[str], None] | None) -> None:
        super().__init__(seed, scenario, trace_line)
        self.dice = Random(f"calm {seed}")
        self._operator = self.workload.client("operator")
        self._created = 0
        names = [node.name for node in self.cluster.nodes]
        for source in names:
            latency_s = self.dice.choice(LATENCIES_S)
            for target in names:
                self.cluster.world.link(source, target).latency_s = latency_s

    async def run(self) -> None:
        for node in self.cluster.nodes:
            self.loop.call_later(self.dice.uniform(0, 0.3), self.cluster.start, node.node_id)
        await self._require(self._is_up, START_LIMIT_S, "the cluster did not come up")
        await self.workload.create_topics(TOPICS)
        self.workload.start(producers=0, consumers=1, members=0, groups=(), admin=False)
        self.workload.run(self._produce(self.workload.client("producer")))
        await self._be_calm()
        for _ in range(ROUNDS):
            await self._disturb()
            await self._require(self._is_up, SETTLE_S, "not every broker was unfenced again")
            await self._be_calm()
        await self.workload.stop()
        await self._compare("at the end")

    async def _disturb(self) -> None:
        """One broker: what waits for its answers hears at once that there will be none."""
        node_id = self.dice.randrange(len(self.cluster.nodes))
        if self.dice.random() < 0.3:
            other = (node_id + 1) % len(self.cluster.nodes)
            self.loop.note(f"RESET {node_id} {other}")
            self.cluster.disturbed()
            self.cluster.world.reset_connections(f"node-{node_id}", f"node-{other}")
            return
        if self.dice.random() < 0.5:
            self.cluster.stop(node_id)
            await self._require(lambda: not self.cluster.nodes[node_id].is_running, SETTLE_S, "a broker did not stop")
        else:
            self.cluster.kill(node_id)
        await asyncio.sleep(self.dice.uniform(0.02, LONGEST_DEATH_S))
        self.cluster.start(node_id)

    def _checked(self, condition: Callable[[], bool]) -> bool:
        """Unlike after faults, this history starts the brokers itself."""
        self.workload.check_tasks()
        return condition()

    async def _be_calm(self) -> None:
        end_s = self.loop.time() + CALM_S
        while self.loop.time() < end_s:
            await asyncio.sleep(self.dice.uniform(0.05, LONGEST_PAUSE_S))
            self.workload.check_tasks()
            for request in self._draw_operation():
                self.loop.note(f"OPERATION {request}")
                with contextlib.suppress(BarnabasError, TimeoutError):
                    await self._operator.ask_anyone(request, timeout_ms=2_000)
            if self.dice.random() < 0.5:  # at once, and nothing else for a while
                self.loop.create_task(self.workload.produce(self._operator, self._partitions()[-1], -1))

    # --- operations ---------------------------------------------------------------------------------------------------

    def _draw_operation(self) -> Sequence[Any]:
        partitions = self._partitions()
        topic, number = self.dice.choice(partitions)
        kind = self.dice.choice(("create", "create", "grow", "delete", "recreate", "elect", "move"))
        if kind == "create":
            self._created += 1
            return [self._creation(f"new-{self._created}")]
        if kind == "recreate":
            return [DeleteTopicRequest(name=PHOENIX), self._creation(PHOENIX)]
        if kind == "elect":
            return [ElectLeaderRequest(topic=topic, partition=number, target=None)]
        if kind == "move":
            chosen = self.dice.sample(range(len(self.cluster.nodes)), 3)
            return [AssignReplicasRequest(topic=topic, partition=number, replicas=tuple(chosen))]
        if topic in TOPICS or topic == PHOENIX:
            return []
        if kind == "delete":
            return [DeleteTopicRequest(name=topic)]
        total = 1 + max(other for name, other in partitions if name == topic) + 1
        return [AddPartitionsRequest(name=topic, total_count=total)] if total <= MOST_PARTITIONS else []

    def _creation(self, name: str) -> CreateTopicRequest:
        self.clients.recreated.add(name)  # it may be deleted again
        return CreateTopicRequest(name=name, partition_count=self.dice.randint(1, 2), replication_factor=3)

    def _partitions(self) -> list[Partition]:
        topics = self.cluster.newest_image().topics.values()
        return [(topic.name, number) for topic in topics for number in range(len(topic.partitions))]

    async def _produce(self, client: Client) -> None:
        """Bursts to one partition, and pauses in which everything settles."""
        while True:
            partitions = self._partitions()
            for _ in range(client.rng.choice((1, 1, 3))):
                chosen = client.rng.sample(partitions, min(len(partitions), client.rng.choice((1, 3))))
                await asyncio.gather(*(self.workload.produce(client, partition, -1) for partition in chosen))
                await client.pause(0.0, 0.03)
            await client.pause(0.02, client.rng.choice((0.1, 1.0, LONGEST_PAUSE_S)))


def run_calm_history(seed: int, scenario: Scenario | None = None, **facts: Any) -> Result:
    brokers = Random(f"brokers {seed}").choice((3, 3, 4))
    calm = replace(scenario or Scenario(), brokers=brokers, kinds=("reset",), settings=SETTINGS)
    return run_history(seed, calm, make=CalmHistory, **facts)
