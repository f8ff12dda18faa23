"""Whole clusters in which a broker's event loop is blocked, or its disk hangs, while its quorum continues.

Each quorum runs in a thread of its own here. While the fault lasts, every partition must take records with acks=all again within
`RESUME_S`: the fault itself does not end, because a hanging disk does not recover by itself.
"""

from random import Random

from barnabas.net.testing.simulation.cluster import wait_until

from .checkers.violation import Violation
from .history import START_LIMIT_S, History, Result, Scenario, run_history

RESUME_S = (
    4.0  # a session of 0.9 s: two thirds of it until the voter gives way, a takeover, a session until it is fenced
)
FAULT_S = 6.0
TOPICS: dict[str, tuple[int, int, dict[str, str]]] = {"events": (3, 3, {"min.insync.replicas": "2"})}


class StallHistory(History):
    async def run(self) -> None:
        rng = Random(self.rng.getrandbits(64))
        for node in self.cluster.nodes:
            self.loop.call_later(rng.uniform(0, 0.3), self.cluster.start, node.node_id)
        await self._require(self._is_up, START_LIMIT_S, "the cluster did not come up")
        await self.workload.create_topics(TOPICS)
        self.workload.start(producers=1, consumers=1, members=0, groups=(), admin=False)
        for fault in rng.sample(("loop", "disk", "loop"), 3):
            controller = self.cluster.newest_image().controller_id
            victim = controller if rng.random() < 0.7 else rng.randrange(len(self.cluster.nodes))
            began = self.loop.time()
            self.loop.note(f"{fault} of node {victim} stands still, controller {controller}")
            if fault == "loop":
                self.cluster.stall_loop(victim, FAULT_S)
            else:
                self.cluster.nodes[victim].disk_hangs_until = began + FAULT_S
            await self._all_resume(fault, victim)
            await wait_until(lambda began=began: self.loop.time() >= began + FAULT_S, limit_s=2 * FAULT_S)  # type: ignore[misc]
            await self._require(self._is_up, START_LIMIT_S, "not every broker was unfenced again")
        await self.workload.stop()
        await self._compare("at the end")

    async def _all_resume(self, fault: str, victim: int) -> None:
        client, deadline = self.workload.client(f"prober-{self.loop.time():.0f}"), self.loop.time() + RESUME_S
        for partition in self.workload.partitions:
            while not await self.workload.produce(client, partition, -1):
                if self.loop.time() > deadline:
                    raise Violation(
                        f"{partition} takes no records {RESUME_S} s after the {fault} of node {victim} stood still"
                    )


def run_stall_history(seed: int) -> Result:
    return run_history(seed, Scenario(brokers=3, kinds=("stall",), has_quorum_threads=True), make=StallHistory)
