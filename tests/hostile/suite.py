"""Attacks on three real brokers with honest clients beside them: run, measured and judged."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Self

from faults.shim import build, why_not
from integration.cluster import SESSION, Cluster, Node, describe_cluster, full_isr, limited, until

from barnabas.net.base.local.local_cluster import LAUNCHER

from .attack import Address, Attack, Port
from .attacker import AttackSucceeded, attacking
from .garbage import FORGED
from .honest import Gaps, GroupReader, LibrdkafkaProducer, SdkProducer, lost_and_doubled
from .verdict import AFTER_S, PROMISE, Measured
from .watch import Watch

BROKERS: Final = 3
SDK_TOPIC: Final = "honest"
LIBRDKAFKA_TOPIC: Final = "honest-librdkafka"
PARTITIONS: Final = 3
ACKNOWLEDGED_MEANWHILE: Final = 40  # on every partition by each producer, before an attack may end: some two seconds
ACKNOWLEDGED_HUNG: Final = 150  # instead, while a disk hangs: longer than any session
SERVED_S: Final = 60.0  # until all brokers are in sync again after an attack
HANG_US: Final = 60_000_000  # longer than any attack; it ends with its order
LAG_INTERVAL_S: Final = 0.02
_ORDERS: Final = "orders"


def with_shim(library: Path) -> tuple[str, ...]:
    """A launcher of brokers whose disks obey orders in `<folder of the broker>/orders`."""
    script = (
        'for config; do :; done; folder=$(dirname "$config"); '
        f'exec env LD_PRELOAD={library} DISKFAULT_ORDERS="$folder/{_ORDERS}" DISKFAULT_PATH="$folder/data" "$@"'
    )
    return ("/bin/sh", "-c", script, "sh", *LAUNCHER)


def launcher_of(attack: Attack, folder: Path) -> tuple[str, ...]:
    if attack.hangs_disk:
        folder.mkdir(parents=True, exist_ok=True)
        return with_shim(build(folder))
    return LAUNCHER if attack.descriptors is None else limited(attack.descriptors)


def addresses(cluster: Cluster, port: Port) -> list[Address]:
    match port:
        case Port.CLIENT:
            found = [node.address for node in cluster.nodes]
        case Port.ADMIN:
            found = [node.property(port.value) for node in cluster.nodes]
        case Port.QUORUM:
            voters = dict(item.split("@") for item in cluster.nodes[0].property("controller.quorum.voters").split(","))
            found = [voters[str(node.node_id)] for node in cluster.nodes]
    return [(one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in found]


class Lag:
    """How late the event loop of this process itself is."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LAG_INTERVAL_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s - LAG_INTERVAL_S)


class Field:
    """A cluster with honest clients, on which attacks are tried one after the other. A context."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sdk = SdkProducer(cluster.bootstrap, SDK_TOPIC, partitions=PARTITIONS)
        self._librdkafka = LibrdkafkaProducer(cluster.bootstrap, LIBRDKAFKA_TOPIC, partitions=PARTITIONS)
        self._reader = GroupReader(cluster.bootstrap, SDK_TOPIC, "honest")
        self._watches = [Watch((node.host, node.port), node.process.pid) for node in cluster.nodes]
        self._pids = [node.process.pid for node in cluster.nodes]
        self._lag = Lag()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        topics = (SDK_TOPIC, LIBRDKAFKA_TOPIC)
        async with self._cluster.admin() as admin:
            for topic in topics:
                await admin.create_topic(
                    topic, partitions=PARTITIONS, replication_factor=BROKERS, configs={"min.insync.replicas": "2"}
                )
            await full_isr(admin, topics)
        async with AsyncExitStack() as stack:
            for watch in self._watches:
                await stack.enter_async_context(watch)
            await stack.enter_async_context(self._reader)
            await stack.enter_async_context(self._sdk)
            await stack.enter_async_context(self._librdkafka)
            lag = asyncio.create_task(self._lag.run())
            stack.callback(lag.cancel)
            await self._more(ACKNOWLEDGED_MEANWHILE)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def _gaps(self) -> tuple[Gaps, Gaps]:
        return self._sdk.gaps, self._librdkafka.gaps

    @property
    def _acknowledged(self) -> int:
        return sum(sum(gaps.counts) for gaps in self._gaps)

    async def _more(self, count: int) -> None:
        """Until each producer has so many more acknowledgements on each of its partitions."""
        wanted = [(gaps, [one + count for one in gaps.counts]) for gaps in self._gaps]

        def all_there() -> bool:
            return all(one >= least for gaps, counts in wanted for one, least in zip(gaps.counts, counts, strict=True))

        await until(all_there, f"{count} more acknowledgements on every partition", timeout_s=SERVED_S)

    async def measure(self, attack: Attack) -> Measured:
        """Run it to its end, and wait until its memory is back."""
        found = Measured(attack=attack.name)
        sizes = [node.log_size() for node in self._cluster.nodes]
        term, began_s, before = await self._term(), time.monotonic(), self._acknowledged
        for watch in self._watches:
            watch.begin()
        for gaps in self._gaps:
            gaps.begin()
        self._lag.longest_s = 0.0
        try:
            async with attacking(attack, addresses(self._cluster, attack.port)), self._disk(attack):
                await self._more(ACKNOWLEDGED_HUNG if attack.hangs_disk else ACKNOWLEDGED_MEANWHILE)
        except (AttackSucceeded, AssertionError) as error:
            found.broken.append(str(error))
        found.seconds = time.monotonic() - began_s
        try:
            await self._serves()
        except AssertionError as error:
            found.broken.append(str(error))
        found.gap_s = max(gaps.longest_s for gaps in self._gaps)
        found.stall_s = [watch.longest_answer_s for watch in self._watches]
        found.starved_s = [watch.starved_s for watch in self._watches]
        found.busy_s = [watch.longest_busy_s for watch in self._watches]
        found.own_lag_s = self._lag.longest_s
        found.peak_rss_mib = [watch.peak_rss_mib for watch in self._watches]
        found.acknowledged = self._acknowledged - before
        if not found.broken:
            found.elections = await self._term() - term
        await self._memory_back(found)
        self._look_at_brokers(found, sizes)
        return found

    @asynccontextmanager
    async def _disk(self, attack: Attack) -> AsyncIterator[None]:
        if not attack.hangs_disk:
            yield
            return
        node = self._cluster.nodes[(await describe_cluster(self._cluster)).controller_id]
        order(node, sync_us=HANG_US)
        try:
            yield
        finally:
            order(node)

    async def _term(self) -> int:
        async def term() -> int:
            async with self._cluster.admin() as admin:
                return (await admin.describe_quorum()).term

        return int(await until(term, "the quorum's term"))

    async def _serves(self) -> None:
        await self._more(1)
        async with self._cluster.admin() as admin:
            await full_isr(admin, (SDK_TOPIC, LIBRDKAFKA_TOPIC), timeout_s=SERVED_S)

    async def _memory_back(self, found: Measured) -> None:
        began_s = time.monotonic()

        def is_back() -> bool:
            return max(watch.rss_mib for watch in self._watches) < PROMISE.rss_after_mib

        try:
            await until(is_back, "memory is back", timeout_s=AFTER_S)
        except AssertionError:
            pass  # the verdict says it
        found.after_s = time.monotonic() - began_s
        found.rss_after_mib = [watch.rss_mib for watch in self._watches]

    def _look_at_brokers(self, found: Measured, sizes: list[int]) -> None:
        for node, pid, size in zip(self._cluster.nodes, self._pids, sizes, strict=True):
            if not node.is_running or node.process.pid != pid:
                found.broken.append(f"broker {node.node_id} ended with {node.process.returncode}: {node.log()[-400:]}")
            lines = node.log_since(size)
            found.fencings += sum("broker fenced" in line for line in lines)
            if any("Traceback" in line for line in lines):
                found.broken.append(f"broker {node.node_id} logged a traceback")
            if any(line.startswith(FORGED) or "\x1b" in line for line in lines):
                found.broken.append(f"a client wrote a line into the log of broker {node.node_id}")

    async def ended(self) -> list[str]:
        """Stop the honest clients. What was lost, doubled or refused; empty where all is well."""
        await self._sdk.stop()
        await self._librdkafka.stop()
        broken = [f"the SDK's producer: {error!r}" for error in self._sdk.failed[:1]]
        broken += [f"librdkafka: {error}" for error in self._librdkafka.failed[:1]]
        try:
            await self._reader.has_all(self._sdk.values)
            for topic, values in ((SDK_TOPIC, self._sdk.values), (LIBRDKAFKA_TOPIC, self._librdkafka.values)):
                lost, doubled = await lost_and_doubled(self._cluster.bootstrap, topic, values)
                if lost or doubled:
                    broken.append(f"{topic}: {lost} of {len(values)} acknowledged records are lost, {doubled} doubled")
        except (AssertionError, TimeoutError) as error:
            broken.append(f"reading: {error}"[:400])
        return broken


def order(node: Node, **orders: int) -> None:
    """What the disk of this broker does from now on: see tests/faults/diskfault.c."""
    new = node.folder / f"{_ORDERS}.new"
    new.write_text(" ".join(f"{name}={value}" for name, value in orders.items()), encoding="ascii")
    new.replace(node.folder / _ORDERS)


async def run(folder: Path, attack: Attack) -> Measured:
    """On a cluster of its own."""
    if attack.hangs_disk and (why := why_not()):
        raise LookupError(why)
    with Cluster(folder / "cluster", BROKERS, overrides=SESSION, launcher=launcher_of(attack, folder)) as cluster:
        await cluster.ready()
        async with Field(cluster) as field:
            measured = await field.measure(attack)
            measured.broken += await field.ended()
    return measured


async def run_all(folder: Path, attacks: list[Attack], say: Callable[[Measured], None]) -> list[Measured]:
    """Attacks that need nothing of their own, one after the other on the same cluster."""
    measured: list[Measured] = []
    with Cluster(folder / "cluster", BROKERS, overrides=SESSION) as cluster:
        await cluster.ready()
        async with Field(cluster) as field:
            for attack in attacks:
                assert not attack.hangs_disk and attack.descriptors is None
                measured.append(await field.measure(attack))
                say(measured[-1])
            measured[-1].broken += await field.ended()
    return measured
