"""kill -9 of programs and of the brokers that they depend on, one at a time; each comes back, and no work is left behind."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from integration.cluster import Cluster, describe_cluster, full_isr, partitions_of, until
from integration.kafka_wire import GROUP, TRANSACTION, coordinator_of
from integration.programs import Program

WORK_LIMIT_S = 180.0
AWAY_S = 1.0  # of a program: shorter than the timeout of its session and of its transaction
BROKER_AWAY_S = 4.0  # longer than the session of a broker


class Harm:
    """After each kill, the programs must do all that they were `given` until then, so a partition that stands still is found."""

    def __init__(
        self,
        cluster: Cluster,
        programs: Sequence[Program],
        topics: Sequence[str],
        *,
        done: Callable[[], int],
        given: Callable[[], int],
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._cluster = cluster
        self._programs = programs
        self._topics = topics
        self._done = done
        self._given = given

    @property
    def done(self) -> int:
        return self._done()

    async def program(self, number: int) -> None:
        chosen = self._programs[number]
        chosen.kill()
        self.kills["program"] += 1
        await asyncio.sleep(AWAY_S)
        chosen.start()
        await self.recovered()

    async def leader(self, topic: str, partition: int) -> None:
        async with self._cluster.admin() as admin:
            found = (await partitions_of(admin, topic))[partition].leader
        await self._broker(found, "leader")

    async def group_coordinator(self, group: str) -> None:
        await self._broker(await self.coordinator(group, GROUP), "group coordinator")

    async def transaction_coordinator(self, transactional_id: str) -> None:
        await self._broker(await self.coordinator(transactional_id, TRANSACTION), "transaction coordinator")

    async def controller(self) -> None:
        await self._broker((await describe_cluster(self._cluster)).controller_id, "controller")

    async def coordinator(self, key: str, key_type: int) -> int:
        asked = self._cluster.nodes[0]

        async def found() -> bool:
            return await asyncio.to_thread(coordinator_of, (asked.host, asked.port), key, key_type) >= 0

        await until(found, f"a coordinator of {key}")
        return await asyncio.to_thread(coordinator_of, (asked.host, asked.port), key, key_type)

    async def _broker(self, node_id: int, role: str) -> None:
        self._cluster.kill(node_id)
        self.kills[role] += 1
        await asyncio.sleep(BROKER_AWAY_S)
        self._cluster.start(node_id)
        await self.recovered()

    async def recovered(self) -> None:
        """All brokers are there with every replica in sync, and the programs have caught up."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._cluster.ready()
        async with self._cluster.admin() as admin:
            await full_isr(admin, self._topics)
        given = self._given()
        await until(lambda: self.done >= given or None, f"{given} pieces of work are done", timeout_s=WORK_LIMIT_S)
        self.slowest_s = max(self.slowest_s, loop.time() - began_s)
