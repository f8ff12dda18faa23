"""Transactional clients of aiokafka: a bank, and a transform whose partition belongs to its transactional id (before KIP-447)."""

import asyncio
from collections.abc import Callable
from random import Random

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from .journal import Journal, Transactions
from .layout import (
    ABORTS,
    BATCH,
    MIDDLE,
    PAUSE_S,
    PAUSES,
    SECOND_GROUP,
    SINK,
    TOPICS,
    TRANSACTION_TIMEOUT_MS,
    Orders,
)
from .transfers import transfers
from .values import origin

IsOver = Callable[[], bool]
POLL_MS = 200


def transactional(orders: Orders) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=orders.bootstrap.split(","),
        client_id=orders.process,
        transactional_id=orders.transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        request_timeout_ms=10_000,
        metadata_max_age_ms=5_000,
        linger_ms=2,
    )


class Ending:
    """Ends the transactions of one producer."""

    def __init__(self, producer: AIOKafkaProducer, names: Transactions, rng: Random) -> None:
        self._producer = producer
        self._names = names
        self._rng = rng

    async def linger(self) -> None:
        if self._rng.random() < PAUSES:
            await self._producer.flush()
            await asyncio.sleep(self._rng.uniform(0, PAUSE_S))

    async def end(self, *, is_meant: bool) -> bool:
        """Whether the transaction was committed. Raises KafkaError if this producer cannot go on."""
        if not is_meant:
            await self._producer.abort_transaction()
            self._names.ended("aborted")
            return False
        self._names.commits()
        await self._producer.commit_transaction()
        self._names.ended("committed")
        return True

    async def abort(self, error: KafkaError) -> None:
        """Raises the error again if the producer is fenced."""
        if isinstance(error, ProducerFenced):
            raise error
        await self._producer.abort_transaction()
        self._names.ended("aborted", repr(error))


async def bank(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    rng = Random(orders.seed)
    names = Transactions(journal, rng, process=orders.process, transactional_id=orders.transactional_id, aborts=ABORTS)
    async with transactional(orders) as producer:
        ending = Ending(producer, names, rng)
        while not is_over():
            is_meant, records = names.begin(transfers(rng))
            await producer.begin_transaction()
            try:
                sent = [await producer.send(topic, value, partition=number) for topic, number, value in records]
                await asyncio.gather(*sent)
                await ending.linger()
            except KafkaError as error:
                await ending.abort(error)
            else:
                await ending.end(is_meant=is_meant)
            await asyncio.sleep(orders.pace_s)


async def transform(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    """One partition of MIDDLE to SINK. Another process with the same transactional id takes the partition over."""
    rng = Random(orders.seed)
    names = Transactions(journal, rng, process=orders.process, transactional_id=orders.transactional_id, aborts=ABORTS)
    place = TopicPartition(MIDDLE, orders.slot)
    async with transactional(orders) as producer:
        await producer.begin_transaction()  # it has its epoch now, and what the process before it left open has ended
        await producer.abort_transaction()
        async with AIOKafkaConsumer(
            bootstrap_servers=orders.bootstrap.split(","),
            client_id=orders.process,
            group_id=SECOND_GROUP,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=10_000,
            metadata_max_age_ms=5_000,
        ) as consumer:
            consumer.assign([place])
            ending = Ending(producer, names, rng)
            await rewind(consumer, place)
            while not is_over():
                if not await transform_some(consumer, place, producer, names, ending, rng):
                    await rewind(consumer, place)


async def transform_some(
    consumer: AIOKafkaConsumer,
    place: TopicPartition,
    producer: AIOKafkaProducer,
    names: Transactions,
    ending: Ending,
    rng: Random,
) -> bool:
    """One transaction, if there is something to read; False: it was not committed."""
    messages = (await consumer.getmany(place, timeout_ms=POLL_MS, max_records=BATCH)).get(place, [])
    if not messages:
        return True
    is_meant, records = names.begin(
        (SINK, rng.randrange(TOPICS[SINK]), origin((place.topic, place.partition), message.offset))
        for message in messages
    )
    await producer.begin_transaction()
    try:
        sent = [await producer.send(topic, value, partition=number) for topic, number, value in records]
        await asyncio.gather(*sent)
        await producer.send_offsets_to_transaction({place: messages[-1].offset + 1}, SECOND_GROUP)
        await ending.linger()
    except KafkaError as error:
        await ending.abort(error)
        return False
    return await ending.end(is_meant=is_meant)


async def rewind(consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
    consumer.seek(place, await consumer.committed(place) or 0)
