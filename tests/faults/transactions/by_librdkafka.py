"""Transactional clients of librdkafka: a source, a transform in a group (KIP-447), a bank and a reader of committed records."""

import faulthandler
import json
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Message, Producer, TopicPartition

from .journal import Journal, Transactions
from .layout import (
    ABORTS,
    BATCH,
    CALL_S,
    FIRST_GROUP,
    MAX_REREAD,
    MIDDLE,
    PAUSE_S,
    PAUSES,
    SESSION_TIMEOUT_MS,
    SOURCE,
    TOPICS,
    TRANSACTION_TIMEOUT_MS,
    Orders,
)
from .transfers import transfers
from .values import origin

IsOver = Callable[[], bool]
READ: Final = [(topic, number) for topic, count in TOPICS.items() if topic != SOURCE for number in range(count)]
LIFE_S: Final = (8.0, 25.0)  # of a reader
POLL_S: Final = 0.2
INSISTING_S: Final = 30.0  # a call that only fails with errors that may pass
SILENT_S: Final = 20.0
STANDING_MS: Final = 3_000
TOLD: Final = ("fetch_state", "app_offset", "next_offset", "committed_offset", "hi_offset", "leader", "leader_epoch")


def insist(call: Callable[[], Any]) -> Any:
    """Repeat a call while librdkafka says that it may be repeated."""
    deadline_s = time.monotonic() + INSISTING_S
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


def common(orders: Orders) -> dict[str, Any]:
    return {"bootstrap.servers": orders.bootstrap, "client.id": orders.process, "log_level": 0}


def transactional(orders: Orders) -> Producer:
    producer = Producer(
        {
            **common(orders),
            "transactional.id": orders.transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 2,
            "retry.backoff.max.ms": 200,
        }
    )
    insist(lambda: producer.init_transactions(CALL_S))
    return producer


def source(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    """The input of the chain, by an idempotent producer that never gives up."""
    producer = Producer({**common(orders), "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 2})
    number = 0
    while not is_over():
        try:
            producer.produce(SOURCE, f"{orders.process}:{number}".encode(), partition=number % TOPICS[SOURCE])
            number += 1
        except BufferError:
            producer.poll(POLL_S)
        producer.poll(orders.pace_s)
    producer.flush(INSISTING_S)


class Ending:
    """Ends the transactions of one producer."""

    def __init__(self, producer: Producer, transactions: Transactions, rng: Random) -> None:
        self._producer = producer
        self._transactions = transactions
        self._rng = rng

    def linger(self) -> None:
        """Stay open for a while, sometimes, with everything written."""
        if self._rng.random() < PAUSES:
            self._producer.flush(CALL_S)
            time.sleep(self._rng.uniform(0, PAUSE_S))

    def end(self, *, is_meant: bool) -> bool:
        """Whether the transaction was committed. Raises KafkaException if this producer is fenced."""
        if not is_meant:
            self.abort("")
            return False
        try:
            self._transactions.commits()
            insist(lambda: self._producer.commit_transaction(CALL_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.abort(str(error.args[0]))
            return False
        self._transactions.ended("committed")
        return True

    def abort(self, why: str) -> None:
        insist(lambda: self._producer.abort_transaction(CALL_S))
        self._transactions.ended("aborted", why)


def bank(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    rng = Random(orders.seed)
    producer = transactional(orders)
    names = Transactions(journal, rng, process=orders.process, transactional_id=orders.transactional_id, aborts=ABORTS)
    ending = Ending(producer, names, rng)
    while not is_over():
        is_meant, records = names.begin(transfers(rng))
        producer.begin_transaction()
        for topic, number, value in records:
            producer.produce(topic, value, partition=number)
        ending.linger()
        ending.end(is_meant=is_meant)
        producer.poll(orders.pace_s)


def transform(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    """From SOURCE to MIDDLE, as a member of a group: who takes its partitions over is protected by the group's generation."""
    rng = Random(orders.seed)
    producer = transactional(orders)
    consumer = Consumer(
        {
            **common(orders),
            "group.id": FIRST_GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 1_000,
            "statistics.interval.ms": STANDING_MS,
            "stats_cb": partial(note_standing, journal),
        }
    )
    consumer.subscribe([SOURCE])
    names = Transactions(journal, rng, process=orders.process, transactional_id=orders.transactional_id, aborts=ABORTS)
    ending = Ending(producer, names, rng)
    silence = Silence(consumer)
    while not is_over():
        messages = [message for message in consumer.consume(BATCH, POLL_S) if message.error() is None]
        silence.check(messages)
        if messages and not transformed(messages, producer, consumer, names, ending, rng):
            rewind(consumer)
    consumer.close()


class SilentConsumerError(Exception):
    """librdkafka hands over nothing of a partition that has more. A watched application is started again; campaigns count how
    often, and SDK and aiokafka, which are not watched, show whether brokers are the cause."""


class Silence:
    """Which partitions of a consumer have given nothing for long."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._heard_s: dict[tuple[str, int], float] = {}

    def check(self, messages: list[Message]) -> None:
        """Raises SilentConsumerError."""
        now_s = time.monotonic()
        assigned = {(place.topic, place.partition) for place in self._consumer.assignment()}
        heard_s = {place: self._heard_s.get(place, now_s) for place in assigned}
        self._heard_s = heard_s | {(message.topic(), message.partition()): now_s for message in messages}
        for place, since_s in heard_s.items():
            if now_s - since_s > SILENT_S:
                self._heard_s[place] = now_s
                self._ask(TopicPartition(*place))

    def _ask(self, place: TopicPartition) -> None:
        try:
            _, end = self._consumer.get_watermark_offsets(place, CALL_S)
            (position,) = self._consumer.position([place])
            if position.offset == OFFSET_INVALID:  # nothing has come since it was assigned
                (position,) = self._consumer.committed([place], CALL_S)
        except KafkaException:
            return  # without a leader or a coordinator nobody gets anything
        at = 0 if position.offset == OFFSET_INVALID else position.offset
        if at < end:
            raise SilentConsumerError(
                f"nothing of {place.topic}-{place.partition} for {SILENT_S:g} s, at {at} of {end}"
            )


def note_standing(journal: Journal, statistics: str) -> None:
    """What librdkafka says of its group and its partitions: the only account of a consumer that gets nothing."""
    told = json.loads(statistics)
    partitions = {
        f"{topic}-{number}": {name: state.get(name) for name in TOLD}
        for topic, item in told["topics"].items()
        for number, state in item["partitions"].items()
        if state.get("fetch_state", "none") != "none"
    }
    journal.note("standing", group=told.get("cgrp"), partitions=partitions)


def transformed(
    messages: list[Message],
    producer: Producer,
    consumer: Consumer,
    names: Transactions,
    ending: Ending,
    rng: Random,
) -> bool:
    """One transaction; whether it was committed."""
    is_meant, records = names.begin(
        (MIDDLE, rng.randrange(TOPICS[MIDDLE]), origin((message.topic(), message.partition()), message.offset()))
        for message in messages
    )
    offsets = {(message.topic(), message.partition()): message.offset() + 1 for message in messages}
    producer.begin_transaction()
    for topic, number, value in records:
        producer.produce(topic, value, partition=number)
    try:
        group = consumer.consumer_group_metadata()
        positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        # librdkafka may never return from this if the coordinator is down (its issues 5456 and 5511): then the process ends.
        faulthandler.dump_traceback_later(INSISTING_S, exit=True)
        insist(lambda: producer.send_offsets_to_transaction(positions, group, CALL_S))
        faulthandler.cancel_dump_traceback_later()
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        faulthandler.cancel_dump_traceback_later()
        ending.abort(str(error.args[0]))
        return False
    ending.linger()
    return ending.end(is_meant=is_meant)


def rewind(consumer: Consumer) -> None:
    """What was read belongs to a transaction that is aborted. Raises KafkaException during a rebalance."""
    assigned = consumer.assignment()
    if not assigned:
        return
    for place in insist(lambda: consumer.committed(assigned, CALL_S)):
        offset = 0 if place.offset == OFFSET_INVALID else place.offset
        consumer.seek(TopicPartition(place.topic, place.partition, offset))


def read(orders: Orders, journal: Journal, is_over: IsOver) -> None:
    """Readers of committed records, one after another; each begins where some of what was read before comes again."""
    rng = Random(orders.seed)
    session = 0
    while not is_over():
        consumer = Consumer(
            {
                **common(orders),
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        life_s = rng.uniform(*LIFE_S)
        # A reader did not end at its SIGTERM within 60 s: a call of librdkafka had not returned, so the process ends.
        faulthandler.dump_traceback_later(life_s + INSISTING_S, exit=True)
        try:
            read_for(consumer, life_s, orders.process, session, journal, is_over)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        finally:
            consumer.close()
            faulthandler.cancel_dump_traceback_later()
        session += 1


def read_for(consumer: Consumer, life_s: float, process: str, session: int, journal: Journal, is_over: IsOver) -> None:
    starts = []
    for topic, number in READ:
        _, end = insist(partial(consumer.get_watermark_offsets, TopicPartition(topic, number), CALL_S))
        starts.append(TopicPartition(topic, number, max(0, end - MAX_REREAD)))
    consumer.assign(starts)
    ends_s = time.monotonic() + life_s
    while not is_over() and time.monotonic() < ends_s:
        found: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for message in consumer.consume(500, POLL_S):
            if message.error() is None:
                place = (message.topic(), message.partition())
                found.setdefault(place, []).append((message.offset(), message.value().decode()))
        for partition, records in found.items():
            journal.note("poll", process=process, session=session, partition=partition, records=records)
