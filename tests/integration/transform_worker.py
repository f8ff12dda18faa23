"""A worker that copies a topic by `transform_once`, as a process that tests kill: BOOTSTRAP SOURCE SINK TRANSACTIONAL_ID KIND."""

import asyncio
import sys
from typing import Any

from barnabas import sync
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction
from barnabas.net.client.transactions.transform_once import transform_once

OPTIONS: dict[str, Any] = {
    "auto_commit": False,
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    "session_timeout_ms": 6_000,
}
MAX_RECORDS = 50  # of a transaction, so that there are many


async def copy(bootstrap: str, source: str, sink: str, transactional_id: str) -> None:
    async def one(record: ConsumerRecord, transaction: Transaction) -> None:
        await transaction.send(sink, record.value, key=record.key)

    async with (
        Producer(bootstrap, transactional_id=transactional_id, transaction_timeout_ms=10_000) as producer,
        Consumer(source, bootstrap=bootstrap, group=f"copy-{source}", **OPTIONS) as consumer,
    ):
        await transform_once(consumer, producer, one, max_records=MAX_RECORDS)


def copy_blocking(bootstrap: str, source: str, sink: str, transactional_id: str) -> None:
    def one(record: ConsumerRecord, transaction: sync.Transaction) -> None:
        transaction.send(sink, record.value, key=record.key)

    with (
        sync.Producer(bootstrap, transactional_id=transactional_id, transaction_timeout_ms=10_000) as producer,
        sync.Consumer(source, bootstrap=bootstrap, group=f"copy-{source}", **OPTIONS) as consumer,
    ):
        sync.transform_once(consumer, producer, one, max_records=MAX_RECORDS)


if __name__ == "__main__":
    *arguments, kind = sys.argv[1:]
    if kind == "blocking":
        copy_blocking(*arguments)
    else:
        asyncio.run(copy(*arguments))
