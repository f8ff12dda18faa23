"""Faults of transactional clients, and of the topics that their transactions write to."""

import asyncio
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Final

from confluent_kafka import KafkaException

from barnabas.net.client.connection.errors import BarnabasError

from ..history import History, Stuck
from ..injector import Injector, Kind
from .by_librdkafka import insist, transactional
from .clients import Client
from .coordinators import COORDINATOR_FAULTS
from .journal import Journal, Transactions, read_journal
from .layout import BANKS, CALL_S, CUT, SESSION_TIMEOUT_MS, TOPICS, TRANSACTION_TIMEOUT_MS, TRANSACTIONAL, Orders

ZOMBIE_S: Final = 12.0  # that a fenced process has to notice; one that is idle may never do
DELETIONS: Final = 6
DOOMED: Final = "doomed"


class ClientFaults:
    def __init__(self, clients: Mapping[str, Client], history: History, folder: Path) -> None:
        self._clients = clients
        self._history = history
        self._folder = folder
        self._numbers = count()

    def _any(self, injector: Injector, *roles: str) -> Client:
        chosen = [client for client in self._clients.values() if client.role in roles]
        return injector.rng.choice(chosen)

    async def kill_client(self, injector: Injector) -> None:
        self._any(injector, *TRANSACTIONAL).kill()
        await injector.hold(0.0, 2.0)

    async def kill_clients(self, injector: Injector) -> None:
        """All that have transactions, at once."""
        for client in self._clients.values():
            if client.role in TRANSACTIONAL:
                client.kill()
        await injector.hold(0.0, 2.0)

    async def zombie_member(self, injector: Injector) -> None:
        """A member of a group sleeps until others have its partitions, or its transaction has timed out, and goes on."""
        client = self._any(injector, "librdkafka_transform", "sdk_transform")
        await _frozen(injector, client, SESSION_TIMEOUT_MS / 1000)

    async def sleeping_bank(self, injector: Injector) -> None:
        """A producer sleeps past the timeout of its transaction, and goes on."""
        client = self._any(injector, "librdkafka_bank", "aiokafka_bank", "aiokafka_transform", "sdk_bank")
        await _frozen(injector, client, TRANSACTION_TIMEOUT_MS / 1000 - 2)

    async def zombie_producer(self, injector: Injector) -> None:
        """Another process takes over with the same transactional id, while the one before it sleeps; then it goes on."""
        zombie = self._any(injector, *TRANSACTIONAL).replace_frozen()
        if zombie is None:
            return
        try:
            await injector.hold(2.0, 9.0)
        finally:
            zombie.send_signal(SIGCONT)
        await _ended(zombie)

    async def delete_records(self, injector: Injector) -> None:
        """Up to anywhere, in the middle of transactions and past all that is open."""
        for _ in range(DELETIONS):
            number = injector.rng.randrange(TOPICS[CUT])
            with suppress(BarnabasError):
                ends = await injector.admin.list_offsets(CUT)
                end = max((item.offset for place, item in ends.items() if place.partition == number), default=0)
                before = -1 if injector.rng.random() < 0.5 else max(0, end - injector.rng.randrange(20))
                await injector.admin.delete_records(CUT, number, before_offset=before)
            await injector.hold(0.0, 0.5)

    async def delete_topic_in_transaction(self, injector: Injector) -> None:
        """A topic is deleted, and sometimes created again, while a transaction has written to it; the rest must be committed."""
        number = next(self._numbers)
        topic = f"{DOOMED}-{number}"
        try:
            await injector.admin.create_topic(topic, partitions=2, replication_factor=3)
        except BarnabasError:
            return
        orders = Orders(
            role="librdkafka_bank",
            slot=100 + number,
            process=f"{DOOMED}-{number}",
            bootstrap=injector.cluster.bootstrap,
            journal=str(self._folder / f"{DOOMED}-{number}.jsonl"),
            seed=0,
            pace_s=0.0,
        )
        again = injector.rng.random() < 0.5
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        work = asyncio.create_task(asyncio.to_thread(_commit_without, orders, topic, told, gone, loop))
        await told.wait()
        with suppress(BarnabasError):
            await injector.admin.delete_topic(topic)
            if again:
                await injector.admin.create_topic(topic, partitions=1, replication_factor=3)
        gone.set()
        try:
            await work
        except KafkaException as error:
            self._history.add(
                Stuck(what=f"a transaction with the deleted topic {topic} failed: {error}", at_s=time.monotonic())
            )
        for event in read_journal(Path(orders.journal)):
            self._history.add(event)


def _commit_without(
    orders: Orders, topic: str, told: asyncio.Event, gone: asyncio.Event, loop: asyncio.AbstractEventLoop
) -> None:
    """A transaction of a topic and of two accounts, committed when the topic is `gone`."""
    journal = Journal(orders.journal)
    try:
        producer = transactional(orders)
        names = Transactions(
            journal,
            Random(0),
            process=orders.process,
            transactional_id=orders.transactional_id,
            aborts=0.0,
        )
        places = [(BANKS[0], 0, "-5"), (topic, 0, "+0"), (BANKS[1], 0, "+5"), (topic, 1, "+0")]
        _, records = names.begin(places)
        producer.begin_transaction()
        for name, number, value in records:
            producer.produce(name, value, partition=number)
        producer.flush(CALL_S)
    finally:
        loop.call_soon_threadsafe(told.set)
    asyncio.run_coroutine_threadsafe(gone.wait(), loop).result()
    names.commits()
    insist(lambda: producer.commit_transaction(CALL_S))
    names.ended("committed")
    journal.close()


async def _frozen(injector: Injector, client: Client, shortest_s: float) -> None:
    client.signal(SIGSTOP)
    try:
        await injector.hold(shortest_s, shortest_s + 6.0)
    finally:
        client.signal(SIGCONT)


async def _ended(process: "subprocess.Popen[bytes]") -> None:
    try:
        await asyncio.to_thread(process.wait, ZOMBIE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)


def client_faults(clients: Mapping[str, Client], history: History, folder: Path) -> dict[str, Kind]:
    faults = ClientFaults(clients, history, folder)
    kinds = (
        Kind(inflict=faults.kill_client, need=None, weight=3),
        Kind(inflict=faults.kill_clients, need=None),
        Kind(inflict=faults.zombie_member, need=None, weight=2),
        Kind(inflict=faults.sleeping_bank, need=None, weight=1),
        Kind(inflict=faults.zombie_producer, need=None, weight=3),
        Kind(inflict=faults.delete_records, need=None, weight=2),
        Kind(inflict=faults.delete_topic_in_transaction, need=None, weight=2),
    )
    return {**COORDINATOR_FAULTS, **{kind.inflict.__name__: kind for kind in kinds}}


TRANSACTION_FAULTS: Final = tuple(client_faults({}, History(), Path()))  # their names
