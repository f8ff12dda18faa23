"""Faults of disks: lost power, a full disk, and what the system calls of one broker's files answer."""

import asyncio
import errno
from typing import Final

from .cluster import BROKERS, FaultBroker
from .injector import Injector, restarted_if_ended

TORN_CHANCE: Final = 0.02
SLOW_US: Final = 20_000
SHORT_CHANCE: Final = 0.2
CLOCK_JUMP_MS: Final = 3_600_000
HANG_US: Final = 20_000_000  # longer than any session; a hang ends with its order


async def lost_power(injector: Injector) -> None:
    """One broker's machine: within the promise of acks=all with min.insync.replicas=2."""
    await _lose_power(injector, injector.anyone())


async def _lose_power(injector: Injector, broker: FaultBroker) -> None:
    assert broker.disk is not None
    broker.disk.cut_power()
    broker.kill()
    await asyncio.to_thread(broker.disk.restore_power)
    await injector.hold(0.0, 4.0)
    broker.launch()


async def lost_power_in_turn(injector: Injector) -> None:
    """Every machine, one after another, each when the cluster has recovered from the one before."""
    for broker in injector.rng.sample(injector.cluster.brokers, BROKERS):
        injector.targets.append(broker.node_id)
        await _lose_power(injector, broker)
        await injector.until_whole()


async def disk_full(injector: Injector) -> None:
    """No room on a leader's disk, and room again; the broker must come back by itself or with a restart."""
    broker = injector.leader()
    assert broker.disk is not None
    await asyncio.to_thread(broker.disk.fill)
    try:
        await injector.hold(2.0, 6.0)
    finally:
        broker.disk.free()
    await restarted_if_ended(broker)


async def _orders(injector: Injector, **orders: float) -> FaultBroker:
    broker = injector.leader()
    assert broker.shim is not None
    broker.shim.order(**orders)
    try:
        await injector.hold(1.0, 8.0)
    finally:
        broker.shim.order()
    return broker


async def write_errors(injector: Injector) -> None:
    """EIO. The broker may stop; what its memory says is not what its disk says, so it starts again from the disk."""
    broker = await _orders(injector, write_errno=errno.EIO)
    broker.kill()
    broker.launch()


async def sync_errors(injector: Injector) -> None:
    broker = await _orders(injector, sync_errno=errno.EIO)
    broker.kill()
    broker.launch()


async def log_write_errors(injector: Injector) -> None:
    """EIO for the partitions' files only: the broker keeps running, and must stop serving partitions that it cannot write."""
    broker = await _orders(injector, write_errno=errno.EIO, logs_only=1)
    broker.kill()
    broker.launch()


async def log_sync_errors(injector: Injector) -> None:
    broker = await _orders(injector, sync_errno=errno.EIO, logs_only=1)
    broker.kill()
    broker.launch()


async def torn_write(injector: Injector) -> None:
    """Dies in the middle of a write."""
    broker = await _orders(injector, torn_kill=TORN_CHANCE)
    broker.kill()
    broker.launch()


async def short_writes(injector: Injector) -> None:
    """Writes that store only their beginning, and say so."""
    await restarted_if_ended(await _orders(injector, short=SHORT_CHANCE))


async def slow_disk(injector: Injector) -> None:
    await _orders(injector, delay_us=SLOW_US)


async def clock_jump(injector: Injector) -> None:
    """The wall clock of one broker jumps an hour, and back again."""
    await _orders(injector, clock_ms=injector.rng.choice([-CLOCK_JUMP_MS, CLOCK_JUMP_MS]))


async def _hanging_sync(injector: Injector, broker: FaultBroker) -> None:
    """No fsync comes back, of the quorum's journal neither; everything else works."""
    assert broker.shim is not None
    broker.shim.order(sync_us=HANG_US)
    try:
        await injector.hold(2.0, 10.0)
    finally:
        broker.shim.order()
    await restarted_if_ended(broker)


async def hanging_sync_of_leader(injector: Injector) -> None:
    await _hanging_sync(injector, injector.leader())


async def hanging_sync_of_controller(injector: Injector) -> None:
    await _hanging_sync(injector, injector.controller())


async def hanging_log_sync(injector: Injector) -> None:
    """Only the partitions' files hang; the quorum's journal does not."""
    await restarted_if_ended(await _orders(injector, sync_us=HANG_US, logs_only=1))


async def two_slow_disks(injector: Injector) -> None:
    sick = injector.rng.sample(injector.cluster.brokers, 2)
    for broker in sick:
        injector.targets.append(broker.node_id)
        assert broker.shim is not None
        broker.shim.order(delay_us=SLOW_US)
    try:
        await injector.hold(1.0, 6.0)
    finally:
        for broker in sick:
            assert broker.shim is not None
            broker.shim.order()


async def rename_errors(injector: Injector) -> None:
    """Nothing can be renamed or removed for a while, and the broker goes on; it is started again only if it ends."""
    await restarted_if_ended(await _orders(injector, rename_errno=errno.EIO))


async def create_errors(injector: Injector) -> None:
    """No new file for a while: logs cannot roll, topics cannot be made."""
    await restarted_if_ended(await _orders(injector, create_errno=errno.EMFILE))
