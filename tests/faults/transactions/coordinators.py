"""Faults of the brokers that coordinate transactions and groups, found as clients find them (FindCoordinator)."""

import asyncio
import signal
from typing import Final

from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from ..cluster import BROKERS, NETWORK_NEED, FaultBroker
from ..injections import STOP_S
from ..injector import Injector, Kind
from .layout import STAGES, TRANSACTIONAL

FIND_S: Final = 5.0
IDS: Final = tuple(f"{role}-0" for role in TRANSACTIONAL)


def coordinator_of(bootstrap: str, transactional_id: str) -> int:
    """-1: the cluster does not say so at the moment."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","), request_timeout_ms=int(FIND_S * 1000))
    try:
        found = admin.describe_transactions([transactional_id])
        return int(found[transactional_id].coordinator_id)
    except KafkaError:
        return -1
    finally:
        admin.close()


def coordinator_of_group(bootstrap: str, group: str) -> int:
    """-1: the cluster does not say so at the moment."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        found = admin.describe_consumer_groups([group], request_timeout=FIND_S)[group].result(FIND_S)
        return int(found.coordinator.id)
    except Exception:  # of librdkafka, or a timeout of its future
        return -1


async def transaction_coordinator(injector: Injector) -> FaultBroker:
    wanted = injector.rng.choice(IDS)
    try:
        node_id = await asyncio.to_thread(coordinator_of, injector.cluster.bootstrap, wanted)
    except KafkaError:  # no broker answers
        node_id = -1
    return injector.broker(node_id if node_id >= 0 else injector.rng.randrange(BROKERS))


async def kill_transaction_coordinator(injector: Injector) -> None:
    broker = await transaction_coordinator(injector)
    broker.kill()
    await injector.hold(0.0, 5.0)
    broker.launch()


async def pause_transaction_coordinator(injector: Injector) -> None:
    broker = await transaction_coordinator(injector)
    broker.freeze()
    try:
        await injector.hold(2.0, 8.0)
    finally:
        broker.thaw()


async def bounce_transaction_coordinator(injector: Injector) -> None:
    """Its slots go to the others; it gets some of them again."""
    broker = await transaction_coordinator(injector)
    broker.signal(signal.SIGTERM)
    await asyncio.to_thread(broker.wait, STOP_S)
    broker.launch()


async def isolate_transaction_coordinator(injector: Injector) -> None:
    """From the other brokers; clients still reach it, and markers that it has begun to send are late."""
    broker = await transaction_coordinator(injector)
    injector.network.part([broker.node_id], injector.others(broker))
    try:
        await injector.hold(1.0, 10.0)
    finally:
        injector.network.mend()


async def kill_group_coordinator(injector: Injector) -> None:
    _, _, group = injector.rng.choice(STAGES)
    node_id = await asyncio.to_thread(coordinator_of_group, injector.cluster.bootstrap, group)
    broker = injector.broker(node_id if node_id >= 0 else injector.rng.randrange(BROKERS))
    broker.kill()
    await injector.hold(0.0, 5.0)
    broker.launch()


COORDINATOR_FAULTS: Final[dict[str, Kind]] = {
    kind.inflict.__name__: kind
    for kind in (
        Kind(inflict=kill_transaction_coordinator, need=None, weight=4),
        Kind(inflict=pause_transaction_coordinator, need=None, weight=3),
        Kind(inflict=bounce_transaction_coordinator, need=None, weight=2),
        Kind(inflict=isolate_transaction_coordinator, need=NETWORK_NEED, weight=3),
        Kind(inflict=kill_group_coordinator, need=None, weight=2),
    )
}
