"""The faults: what is done to which broker, for how long, and how it is undone. Each ends with the cluster whole again.

`disk_injections` has those of disks. The names are those of the runner's `--faults`. A fault that needs what this machine lacks
is not offered. A new kind is a coroutine that takes an `Injector`, and a line in `FAULTS`: what it needs of the machine, and how
often it comes.
"""

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import Final

from hostile.attacker import AttackSucceeded, attacking
from hostile.catalogue import ATTACKS, BESIDE_FAULTS

from barnabas.net.client.connection.errors import BarnabasError

from .cluster import (
    BROKERS,
    DISK_NEED,
    LINKS_NEED,
    NETWORK_NEED,
    QUORUM_PORT,
    SHIM_NEED,
    FaultBroker,
)
from .disk_injections import (
    clock_jump,
    create_errors,
    disk_full,
    hanging_log_sync,
    hanging_sync_of_controller,
    hanging_sync_of_leader,
    log_sync_errors,
    log_write_errors,
    lost_power,
    lost_power_in_turn,
    rename_errors,
    short_writes,
    slow_disk,
    sync_errors,
    torn_write,
    two_slow_disks,
    write_errors,
)
from .history import Partition
from .injector import Fault, Injector, Kind
from .switch import Quality

STOP_S: Final = 45.0  # of a controlled shutdown: controlled.shutdown.timeout.ms is 30 s
CHURN_KILLS: Final = 3
SETTING: Final = "min.insync.replicas"
TRANSFERS: Final = 10
# Of an attack that takes longer, the rest is left out. `scripts/test.sh long` has the whole of each.
BOMBS_S: Final = float(os.environ.get("BARNABAS_BOMBS_S", "10"))
MOVES_S: Final = 30.0  # until a move is accepted, whatever else goes on


# --- processes -------------------------------------------------------------------------------------------------------


async def _kill(injector: Injector, broker: FaultBroker) -> None:
    broker.kill()
    await injector.hold(0.0, 5.0)
    broker.launch()


async def kill_leader(injector: Injector) -> None:
    await _kill(injector, injector.leader())


async def kill_follower(injector: Injector) -> None:
    await _kill(injector, injector.follower())


async def kill_controller(injector: Injector) -> None:
    await _kill(injector, injector.controller())


async def kill_all(injector: Injector) -> None:
    injector.targets.extend(range(BROKERS))
    injector.cluster.kill_all()
    injector.cluster.start()


async def kill_two(injector: Injector) -> None:
    """One after the other, so that the last one standing matters."""
    first = injector.anyone()
    second = injector.broker(injector.rng.choice(injector.others(first)))
    first.kill()
    await injector.hold(0.0, 4.0)
    second.kill()
    await injector.hold(0.0, 3.0)
    for broker in injector.rng.sample([first, second], 2):
        broker.launch()
        await injector.hold(0.0, 1.0)


async def _bounce(broker: FaultBroker) -> None:
    broker.signal(signal.SIGTERM)
    await asyncio.to_thread(broker.wait, STOP_S)
    if not broker.is_running:  # another fault may have started it
        broker.launch()


async def bounce(injector: Injector) -> None:
    """A planned restart of a leader."""
    await _bounce(injector.leader())


async def bounce_controller(injector: Injector) -> None:
    await _bounce(injector.controller())


async def rolling(injector: Injector) -> None:
    """A planned restart of all, each when the one before is back."""
    for broker in list(injector.cluster.brokers):
        injector.targets.append(broker.node_id)
        await _bounce(broker)
        await injector.until_whole()


async def _pause(injector: Injector, broker: FaultBroker) -> None:
    broker.freeze()
    try:
        await injector.hold()
    finally:
        broker.thaw()


async def pause_leader(injector: Injector) -> None:
    await _pause(injector, injector.leader())


async def pause_follower(injector: Injector) -> None:
    await _pause(injector, injector.follower())


async def pause_controller(injector: Injector) -> None:
    await _pause(injector, injector.controller())


# --- the network -----------------------------------------------------------------------------------------------------


async def _until_mended(injector: Injector, longest_s: float = 8.0) -> None:
    try:
        await injector.hold(1.0, longest_s)
    finally:
        injector.network.mend()


async def isolate_leader(injector: Injector) -> None:
    """From everybody, clients included."""
    broker = injector.leader()
    injector.network.part([broker.node_id], [*injector.others(broker), -1])
    await _until_mended(injector)


async def isolate_controller(injector: Injector) -> None:
    broker = injector.controller()
    injector.network.part([broker.node_id], [*injector.others(broker), -1])
    await _until_mended(injector)


async def isolate_inside(injector: Injector) -> None:
    """A leader from the other brokers, while clients still reach it: it must not acknowledge."""
    broker = injector.leader()
    injector.network.part([broker.node_id], injector.others(broker))
    await _until_mended(injector)


async def one_way_deaf(injector: Injector) -> None:
    """It hears no other broker; they hear it."""
    broker = injector.leader()
    for other in injector.others(broker):
        injector.network.cut(other, broker.node_id)
    await _until_mended(injector)


async def one_way_mute(injector: Injector) -> None:
    """No other broker hears it; it hears them."""
    broker = injector.leader()
    for other in injector.others(broker):
        injector.network.cut(broker.node_id, other)
    await _until_mended(injector)


async def split(injector: Injector) -> None:
    """Two brokers lose each other; both still have the third."""
    first = injector.leader()
    second = injector.rng.choice(injector.others(first))
    injector.network.part([first.node_id], [second])
    await _until_mended(injector)


async def isolate_from_quorum(injector: Injector) -> None:
    """A leader from the other voters' quorum ports; clients and followers still reach it."""
    injector.network.cut_port(injector.leader().node_id, QUORUM_PORT)
    await _until_mended(injector)


async def _weak(injector: Injector, quality: Quality) -> None:
    injector.network.weaken(injector.leader().node_id, quality, injector.rng.getrandbits(32))
    await _until_mended(injector)


async def slow_link(injector: Injector) -> None:
    """As far away as another continent."""
    await _weak(injector, Quality(delay_ms=injector.rng.uniform(20, 150), jitter_ms=10))


async def lossy_link(injector: Injector) -> None:
    await _weak(injector, Quality(loss=injector.rng.uniform(0.05, 0.3)))


async def reordering_link(injector: Injector) -> None:
    """Frames overtake each other, and some come twice."""
    await _weak(injector, Quality(delay_ms=20, jitter_ms=20, overtakes=0.2, twice=0.05))


# --- leaders and replicas --------------------------------------------------------------------------------------------


async def transfer(injector: Injector) -> None:
    """Planned changes of leaders, one upon the other."""
    for _ in range(TRANSFERS):
        topic, number = injector.rng.choice(sorted(injector.roles.leaders))
        with suppress(BarnabasError):
            async with asyncio.timeout(STOP_S):
                await injector.admin.transfer_leadership(topic, number, injector.rng.randrange(BROKERS))
        await injector.hold(0.0, 0.2)


async def transfer_and_kill(injector: Injector) -> None:
    """The new leader dies as soon as it is one."""
    topic, number = injector.rng.choice(sorted(injector.roles.leaders))
    target = injector.anyone()
    with suppress(BarnabasError):
        await injector.admin.transfer_leadership(topic, number, target.node_id)
    await _kill(injector, target)


async def _assign(injector: Injector, partition: Partition, replicas: list[int]) -> None:
    """Until the cluster takes it: some moves are refused while others, or faults, are under way."""
    deadline_s = time.monotonic() + MOVES_S
    while True:
        try:
            return await injector.admin.assign_replicas(*partition, replicas)
        except BarnabasError:
            if time.monotonic() > deadline_s:
                raise
        await injector.hold(0.05, 0.2)


async def _reassign(injector: Injector, meanwhile: Fault | None = None) -> None:
    """Some partitions give a replica up, which is deleted, and get it again, which is copied; another is preferred."""
    moved = injector.rng.sample(sorted(injector.roles.leaders), 3)
    try:
        for partition in moved:
            await _assign(injector, partition, injector.rng.sample(range(BROKERS), 2))
        await injector.hold(0.0, 1.0)
    finally:
        hurt = asyncio.create_task(_run_if(meanwhile, injector))
        try:
            for partition in moved:
                await _assign(injector, partition, injector.rng.sample(range(BROKERS), BROKERS))
        finally:
            await hurt


async def _run_if(fault: Fault | None, injector: Injector) -> None:
    if fault is not None:
        await injector.hold(0.0, 0.3)
        await fault(injector)


async def reassign(injector: Injector) -> None:
    await _reassign(injector)


async def reassign_and_kill(injector: Injector) -> None:
    await _reassign(injector, kill_leader)


async def reassign_and_pause(injector: Injector) -> None:
    await _reassign(injector, pause_leader)


# --- settings and whole machines -------------------------------------------------------------------------------------


async def different_settings(injector: Injector) -> None:
    """Brokers whose files say min.insync.replicas=1 beside a controller whose file says 2, as in a rolling change; then two
    kills. Only one of the values may hold, on both sides."""
    controller = injector.roles.controller
    changed = [broker for broker in injector.cluster.brokers if broker.node_id != controller]
    for broker in changed:
        broker.set(SETTING, "1")
        await _bounce(broker)
        await injector.until_whole()
    try:
        follower, leader = injector.rng.sample(changed, 2)
        injector.targets.extend((follower.node_id, leader.node_id))
        follower.kill()
        await injector.hold(1.0, 3.0)
        leader.kill()
        follower.launch()
        await injector.hold(1.0, 3.0)
        leader.launch()
    finally:
        for broker in changed:
            broker.set(SETTING, "2")
        await injector.until_whole()
    for broker in changed:
        await _bounce(broker)
        await injector.until_whole()


async def wiped(injector: Injector) -> None:
    """A machine comes back with an empty disk, vote and all, while the others are whole: within the promise."""
    await injector.until_whole()
    broker = injector.anyone()
    broker.kill()
    await asyncio.to_thread(broker.wipe)
    await injector.hold(0.0, 3.0)
    broker.launch()


async def churn(injector: Injector) -> None:
    """Leaders are killed while a planned restart of all goes round."""
    kills = asyncio.create_task(_kill_leaders(injector))
    try:
        for broker in list(injector.cluster.brokers):
            if broker.is_running:
                await _bounce(broker)
            await injector.hold(0.0, 1.0)
    finally:
        await kills
        injector.cluster.start()


async def _kill_leaders(injector: Injector) -> None:
    for _ in range(CHURN_KILLS):
        await injector.hold(0.5, 2.0)
        running = [broker for broker in injector.cluster.brokers if broker.is_running]
        if len(running) == BROKERS:
            broker = injector.rng.choice(running)
            injector.targets.append(broker.node_id)
            broker.kill()
            await injector.hold(0.0, 2.0)
            if not broker.is_running:
                broker.launch()


async def bombs(injector: Injector) -> None:
    """A hostile client of any kind, beside the load. What it must not achieve is judged by `scripts/hostile`; here another
    fault may be in its way."""
    leader = injector.leader()
    brokers = [leader, *(injector.cluster.brokers[node_id] for node_id in injector.others(leader))]
    addresses = [(broker.address.rpartition(":")[0], int(broker.address.rpartition(":")[2])) for broker in brokers]
    attack = ATTACKS[injector.rng.choice(BESIDE_FAULTS)]
    with suppress(AttackSucceeded, TimeoutError):
        async with asyncio.timeout(BOMBS_S), attacking(attack, addresses):
            await injector.hold()


FAULTS: Final[dict[str, Kind]] = {
    kind.inflict.__name__: kind
    for kind in (
        Kind(inflict=kill_leader, need=None, weight=2),
        Kind(inflict=kill_follower, need=None),
        Kind(inflict=kill_controller, need=None, weight=2),
        Kind(inflict=kill_two, need=None),
        Kind(inflict=kill_all, need=None),
        Kind(inflict=bounce, need=None),
        Kind(inflict=bounce_controller, need=None),
        Kind(inflict=rolling, need=None, weight=0.5),
        Kind(inflict=pause_leader, need=None, weight=2),
        Kind(inflict=pause_follower, need=None),
        Kind(inflict=pause_controller, need=None),
        Kind(inflict=transfer, need=None),
        Kind(inflict=transfer_and_kill, need=None),
        Kind(inflict=reassign, need=None),
        Kind(inflict=reassign_and_kill, need=None),
        Kind(inflict=reassign_and_pause, need=None),
        Kind(inflict=churn, need=None),
        Kind(inflict=wiped, need=None),
        Kind(inflict=bombs, need=None),
        Kind(inflict=different_settings, need=None, weight=0.3),
        Kind(inflict=isolate_leader, need=NETWORK_NEED),
        Kind(inflict=isolate_controller, need=NETWORK_NEED),
        Kind(inflict=isolate_inside, need=NETWORK_NEED),
        Kind(inflict=isolate_from_quorum, need=NETWORK_NEED),
        Kind(inflict=one_way_deaf, need=NETWORK_NEED),
        Kind(inflict=one_way_mute, need=NETWORK_NEED),
        Kind(inflict=split, need=NETWORK_NEED),
        Kind(inflict=slow_link, need=LINKS_NEED),
        Kind(inflict=lossy_link, need=LINKS_NEED),
        Kind(inflict=reordering_link, need=LINKS_NEED),
        Kind(inflict=lost_power, need=DISK_NEED, weight=2),
        Kind(inflict=lost_power_in_turn, need=DISK_NEED, weight=0.5),
        Kind(inflict=disk_full, need=DISK_NEED),
        Kind(inflict=write_errors, need=SHIM_NEED),
        Kind(inflict=sync_errors, need=SHIM_NEED),
        Kind(inflict=log_write_errors, need=SHIM_NEED),
        Kind(inflict=log_sync_errors, need=SHIM_NEED),
        Kind(inflict=torn_write, need=SHIM_NEED),
        Kind(inflict=short_writes, need=SHIM_NEED),
        Kind(inflict=slow_disk, need=SHIM_NEED),
        Kind(inflict=two_slow_disks, need=SHIM_NEED),
        Kind(inflict=hanging_sync_of_leader, need=SHIM_NEED),
        Kind(inflict=hanging_sync_of_controller, need=SHIM_NEED),
        Kind(inflict=hanging_log_sync, need=SHIM_NEED),
        Kind(inflict=rename_errors, need=SHIM_NEED),
        Kind(inflict=create_errors, need=SHIM_NEED),
        Kind(inflict=clock_jump, need=SHIM_NEED),
    )
}
