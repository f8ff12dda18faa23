"""The programs of `test_any_turn`, which use the SDK as applications do, and the check of what was acknowledged to them."""

import asyncio
from typing import Final

from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.processing.process_each import process_each
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.client.transactions.machine import Outcome
from barnabas.net.client.transactions.transform_once import transform_once

from .any_turn import Program, Trial
from .checkers.violation import Violation

INPUT, OUTPUT = "orders", "results"
RECORDS: Final = 12
POLL_MS: Final = 300
REQUEST_MS: Final = 3_000
DELIVERY_MS: Final = 10_000
IDS: Final = 3  # of transactions: each is taken over from a disturbed program


class Both:
    """What `transform_once` uses."""

    def __init__(self, consumer: Consumer, producer: Producer) -> None:
        self._consumer = consumer
        self._producer = producer

    async def close(self) -> None:
        await asyncio.gather(self._consumer.close(), self._producer.close())


class Programs:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.by_name: dict[str, Program] = {
            "consumer": self.consume,
            "producer": self.produce,
            "transactions": self.transact,
            "share consumer": self.share,
            "transform_once": self.transform,
            "process_each": self.process,
        }

    async def fill(self) -> None:
        async with Producer(self._bootstrap) as producer:
            for number in range(RECORDS):
                await (await producer.send(INPUT, b"%d" % number, key=b"%d" % number))

    def _consumer(self, trial: Trial, *, auto_commit: bool = True) -> Consumer:
        return Consumer(
            INPUT,
            bootstrap=self._bootstrap,
            group=trial.name,
            auto_offset_reset="earliest",
            auto_commit=auto_commit,
            auto_commit_interval_ms=1,
            isolation_level="read_committed",
        )

    def _producer(self, transactional_id: str | None = None) -> Producer:
        return Producer(
            self._bootstrap,
            enable_idempotence=True,
            transactional_id=transactional_id,
            request_timeout_ms=REQUEST_MS,
            delivery_timeout_ms=DELIVERY_MS,
        )

    async def consume(self, trial: Trial) -> None:
        consumer = trial.open = self._consumer(trial)
        async with consumer:
            for _ in range(3):
                await consumer.poll(max_records=4, timeout_ms=POLL_MS)
                positions = {place: await consumer.position(place) for place in consumer.assignment}
                await consumer.commit()
                trial.offsets |= positions

    async def produce(self, trial: Trial) -> None:
        producer = trial.open = self._producer()
        async with producer:
            for number in range(4):
                values = [f"{trial.name} {number} {part}".encode() for part in range(3)]
                handles = [await producer.send(OUTPUT, value) for value in values]
                await handles[0]
                trial.stored.append(values[0])

    async def transact(self, trial: Trial) -> None:
        producer = trial.open = self._producer(f"id-{trial.number % IDS}")
        async with producer:
            for number in range(2):
                value = f"{trial.name} {number}".encode()
                transaction = producer.transaction()
                try:
                    async with transaction:
                        await transaction.send(OUTPUT, value)
                finally:
                    self._note(trial, transaction, value)

    @staticmethod
    def _note(trial: Trial, transaction: Transaction, value: bytes) -> None:
        if transaction.outcome is Outcome.COMMITTED:
            trial.stored.append(value)
        elif transaction.outcome in (Outcome.ABORTED, Outcome.ABORTING):
            trial.absent.append(value)

    async def share(self, trial: Trial) -> None:
        consumer = trial.open = ShareConsumer(INPUT, group="workers", bootstrap=self._bootstrap)
        async with consumer:
            for _ in range(3):
                for record in await consumer.poll(max_records=4, timeout_ms=POLL_MS):
                    consumer.acknowledge(record, "release")
                await consumer.commit()

    async def transform(self, trial: Trial) -> None:
        consumer, producer = self._consumer(trial, auto_commit=False), self._producer(f"id-{trial.number % IDS}")
        trial.open = Both(consumer, producer)

        async def copy(record: ConsumerRecord, transaction: Transaction) -> None:
            await transaction.send(OUTPUT, trial.name.encode() + b" " + (record.value or b""))

        async with consumer, producer:
            await transform_once(consumer, producer, copy, max_records=5, idle_timeout_ms=POLL_MS)

    async def process(self, trial: Trial) -> None:
        consumer = trial.open = self._consumer(trial, auto_commit=False)
        stop = asyncio.Event()
        done: list[int] = []

        async def handle(record: ConsumerRecord) -> None:
            await asyncio.sleep(0.001)
            done.append(record.offset)
            if len(done) == RECORDS:
                stop.set()

        async with consumer:
            await process_each(consumer, handle, concurrency=4, commit_interval_ms=5, stop=stop)

    # --- what was acknowledged ----------------------------------------------------------------------------------------

    async def check(self, trials: list[Trial]) -> None:
        values = await self._output()
        async with Admin(self._bootstrap) as admin:
            for trial in trials:
                for value in trial.stored:
                    if values.count(value) != 1:
                        raise Violation(f"{value!r} was acknowledged, and is there {values.count(value)} times")
                if present := [value for value in trial.absent if value in values]:
                    raise Violation(f"{present} were aborted, and are there")
                lags = await admin.group_offsets(trial.name) if trial.offsets else {}
                for place, offset in trial.offsets.items():
                    if place not in lags or (lags[place].committed or 0) < offset:
                        raise Violation(f"{trial.name}: offset {offset} of {place} was committed: {lags}")
        if len(values) != len(set(values)):
            raise Violation("a record is there twice")

    async def _output(self) -> list[bytes]:
        """What readers of committed records see once each transaction has ended."""
        for number in range(IDS):  # a take-over ends what is left of it
            async with Producer(self._bootstrap, transactional_id=f"id-{number}"):
                pass
        async with Consumer(
            OUTPUT, bootstrap=self._bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as reader:
            values: list[bytes] = []
            while records := await reader.poll(timeout_ms=POLL_MS * 3):
                values += [record.value or b"" for batch in records.values() for record in batch]
        return values
