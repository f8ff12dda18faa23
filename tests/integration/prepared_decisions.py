"""Transactions that are prepared in one state of a cluster and decided in another, and what readers must find."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import pytest
from integration.cluster import Cluster, until

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import TransactionAbortedError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.transactions.prepared import PreparedTransaction

PARTITIONS: Final = 3
RECORDS: Final = 6  # of each transaction


@dataclass
class Decisions:
    """Transactions that are prepared in one state of the cluster and decided in another."""

    cluster: Cluster
    waiting: dict[str, PreparedTransaction] = field(default_factory=dict)
    expected: Counter[bytes] = field(default_factory=Counter)

    async def prepare(self, *names: str, timeout_ms: int = 60_000) -> None:
        for name in names:
            async with Producer(
                self.cluster.bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
            ) as producer:
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
