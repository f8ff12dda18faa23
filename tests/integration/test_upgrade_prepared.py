"""A cluster is upgraded broker by broker, and one broker back, while transactions are prepared: none is lost or doubled, and
readers of committed records wait for none that is decided.

The older version is the first one that knows prepared transactions. Its records of them have fewer fields.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest
from integration.cluster import Cluster, full_isr, until
from integration.older_version import older_launcher, roll

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import TransactionAbortedError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.prepared import PreparedTransaction
from barnabas.net.local_cluster import LAUNCHER

pytestmark = pytest.mark.timeout(600)
Maker = Callable[..., Cluster]
OLD: Final = "85071e5fdffbcd87460b6d952fae0a7e8d30741f"
PARTITIONS: Final = 3
RECORDS: Final = 6  # of each transaction


@dataclass
class Decisions:
    """Transactions that are prepared in one state of the cluster and decided in another."""

    cluster: Cluster
    waiting: dict[str, PreparedTransaction] = field(default_factory=dict)
    expected: Counter[bytes] = field(default_factory=Counter)

    async def prepare(self, *names: str) -> None:
        for name in names:
            async with Producer(self.cluster.bootstrap, transactional_id=name) as producer:
                transaction = producer.transaction()
                await transaction.begin()
                for number in range(RECORDS):
                    await transaction.send("t", f"{name} {number}".encode(), partition=number % PARTITIONS)
                prepared = await transaction.prepare(name)
            assert prepared is not None
            self.waiting[name] = prepared

    async def decide(self, name: str, *, is_commit: bool) -> None:
        """Twice, as a process does that has not seen the answer."""
        prepared = self.waiting.pop(name)
        async with self.cluster.admin() as admin:
            for _ in range(2):
                await admin.transactions.end_prepared(prepared, is_commit=is_commit)
        if is_commit:
            self.expected.update(f"{name} {number}".encode() for number in range(RECORDS))

    async def give_up(self, name: str) -> None:
        """An operator aborts it; its commit is an error, also when the id has gone on."""
        prepared = self.waiting.pop(name)
        async with self.cluster.admin() as admin:
            await admin.transactions.abort(name)
            with pytest.raises(TransactionAbortedError):
                await admin.transactions.end_prepared(prepared, is_commit=True)

    async def check(self) -> None:
        """All that is committed is there once; a transaction that waits holds up its readers, and nothing else does."""
        async with self.cluster.admin() as admin:
            found = await admin.transactions.list()
        assert {item.transactional_id for item in found.transactions if item.state == "Prepared"} == {*self.waiting}
        if not self.waiting:
            await until(self._is_complete, "readers of committed records see everything")

    async def _is_complete(self) -> bool:
        async with Consumer(bootstrap=self.cluster.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign([TopicPartition("t", number) for number in range(PARTITIONS)])
            await consumer.seek_to_start()
            found: Counter[bytes] = Counter()
            for _ in range(20):
                for records in (await consumer.poll(timeout_ms=200)).values():
                    found.update(record.value or b"" for record in records)
                if found == self.expected:
                    break
        assert found <= self.expected, "nothing aborted, nothing twice"
        return found == self.expected


async def test_prepared_transactions_survive_an_upgrade_and_a_broker_that_goes_back(
    new_cluster: Maker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    old_launcher = older_launcher(OLD, tmp_path_factory.mktemp("old"))
    cluster = await new_cluster(3, launcher=old_launcher).ready()
    async with cluster.admin() as admin:
        await admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"})
        await full_isr(admin, ["t"])
    decisions = Decisions(cluster)
    await decisions.prepare("old-new", "old-mixed", "old-aborted")
    await roll(cluster, 0, LAUNCHER)
    await decisions.check()
    await decisions.decide("old-mixed", is_commit=True)
    await decisions.prepare("mixed-new", "mixed-given-up", "mixed-back")
    await roll(cluster, 1, LAUNCHER)
    await decisions.give_up("mixed-given-up")
    await decisions.decide("old-aborted", is_commit=False)
    await roll(cluster, 1, old_launcher)  # and back, while transactions wait
    await decisions.check()
    await decisions.decide("mixed-back", is_commit=True)
    for node_id in (1, 2):
        await roll(cluster, node_id, LAUNCHER)
    await decisions.check()
    await decisions.prepare("new-new")
    for name in ("old-new", "mixed-new", "new-new"):
        await decisions.decide(name, is_commit=True)
    await decisions.check()
