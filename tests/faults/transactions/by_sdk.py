"""Transactional clients of Barnabas' SDK: a bank, and a transform in a group. They use the second version of the protocol."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    BarnabasError,
    ProducerFencedError,
    TransactionOutcomeUnknownError,
)
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction

from .journal import Journal, Transactions
from .layout import (
    ABORTS,
    BATCH,
    COPIES,
    PAUSE_S,
    PAUSES,
    SESSION_TIMEOUT_MS,
    SOURCE,
    THIRD_GROUP,
    TOPICS,
    TRANSACTION_TIMEOUT_MS,
    Orders,
)
from .transfers import transfers
from .values import origin

IsOver = Callable[[], bool]
POLL_MS: Final = 200


class OnPurposeError(Exception):
    """Leaves a transaction, which is aborted."""


def transactional(orders: Orders) -> Producer:
    return Producer(
        orders.bootstrap,
        client_id=orders.process,
        transactional_id=orders.transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        on_error=lambda *_: None,
    )


async def bank(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    rng = Random(orders.seed)
    names = Transactions(journal, rng, process=orders.process, transactional_id=orders.transactional_id, aborts=ABORTS)
    async with transactional(orders) as producer:
        while not is_over():
            is_meant, records = names.begin(transfers(rng))
            await one(producer.transaction(), records, None, names, rng, is_meant=is_meant)
            await asyncio.sleep(orders.pace_s)


async def transform(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    """From SOURCE to COPIES, as a member of a group of the consumer protocol."""
    rng = Random(orders.seed)
    names = Transactions(journal, rng, process=orders.process, transactional_id=orders.transactional_id, aborts=ABORTS)
    async with (
        transactional(orders) as producer,
        Consumer(
            SOURCE,
            bootstrap=orders.bootstrap,
            group=THIRD_GROUP,
            auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            client_id=orders.process,
        ) as consumer,
    ):
        while not is_over():
            found = await consumer.poll(timeout_ms=POLL_MS, max_records=BATCH)
            if found and not await transformed(found, producer, consumer, names, rng):
                await rewind(consumer)


async def transformed(
    found: dict[TopicPartition, list[ConsumerRecord]],
    producer: Producer,
    consumer: Consumer,
    names: Transactions,
    rng: Random,
) -> bool:
    """One transaction; whether it was committed."""
    is_meant, records = names.begin(
        (COPIES, rng.randrange(TOPICS[COPIES]), origin((place.topic, place.partition), record.offset))
        for place, items in found.items()
        for record in items
    )
    return await one(producer.transaction(), records, consumer, names, rng, is_meant=is_meant)


async def one(
    transaction: Transaction,
    records: list[tuple[str, int, bytes]],
    consumer: Consumer | None,
    names: Transactions,
    rng: Random,
    *,
    is_meant: bool,
) -> bool:
    """Whether the transaction was committed. Raises ProducerFencedError, and TransactionOutcomeUnknownError."""
    try:
        async with transaction:
            for topic, number, value in records:
                await transaction.send(topic, value, partition=number)
            if consumer is not None:
                await transaction.commit_offsets(consumer)
            if rng.random() < PAUSES:
                await asyncio.sleep(rng.uniform(0, PAUSE_S))
            if not is_meant:
                raise OnPurposeError
            names.commits()
    except (ProducerFencedError, TransactionOutcomeUnknownError):
        raise
    except (OnPurposeError, BarnabasError) as error:
        if transaction.outcome == "aborted":  # else the abort is not confirmed yet
            names.ended("aborted", "" if isinstance(error, OnPurposeError) else repr(error))
        return False
    names.ended("committed")
    return True


async def rewind(consumer: Consumer) -> None:
    """What was read belongs to a transaction that is aborted."""
    committed = await consumer.committed()
    for place in consumer.assignment:
        consumer.seek(place, committed.get(place, 0))
