"""A cluster of whole, real brokers in one process, on virtual time: the network, the disks and the clocks are simulated.

Each node runs `net.broker.broker.Broker` as a real process would: the real handlers, the real quorum (pysyncobj) on the same
loop, real logs on a `SimulatedDisk`. What happens to nodes is done here: `start`, `kill`, `power_loss`, `stall`, `stop`;
what happens between them on `world` (simulation.network). When and to whom is decided in `faults`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.node.metadata_node import MetadataNode
from barnabas.kraft.quorum.config import RaftTiming, SnapshotPolicy
from barnabas.kraft.raft.net.network import Listener as RaftListener
from barnabas.kraft.raft.net.network import ProtocolFactory
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.base.settings.config import load

from ...base.clock import SimulatedClock
from ...broker.broker import Broker, Ports
from ...broker.metadata_sources import QuorumPorts, build_source
from ...metadata.quorum_role import QuorumRole
from ...metadata.quorum_source import BuildQuorum, SameLoopHost, VoterMetadata, Work
from .disk import SimulatedDisk
from .executor import DelayedExecutor
from .network import NodeNetwork, SimulatedNetwork
from .observed_loop import ObservedLoop
from .process import NOBODY, OWNER, ProcessDied, SimulatedProcess, SimulatedThread

CLIENT_PORT, QUORUM_PORT = 9092, 9093
MOST_VOTERS = 3
PLENTY_BYTES = 1 << 30
FIRST_FOLDER, SECOND_FOLDER = "/data", "/more"  # the second one where the scenario wants it
UNEVEN_SEGMENT_BYTES = (4096, 2500, 3300, 5000, 1900)  # by node: no two replicas end their segments at the same offsets
QUORUM_FOLDER = "/__cluster_metadata/"
# What each action costs, in flushes: a file that is replaced is flushed, and so is the folder that names it.
_FLUSHES_OF = {"append": 0.05, "flush": 1.0, "write": 2.0, "sync_dir": 1.0}
TIMING = RaftTiming(election_min_s=0.3, election_max_s=0.6, heartbeat_s=0.06, leader_fallback_s=0.27)
# Everything that waits is shortened, so that a seed sees in ten virtual seconds what production sees in minutes.
SETTINGS = {
    "admin.listener": "none",
    "allow.plaintext.listeners": "true",  # the simulated network has no strangers
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "100",
    "broker.session.timeout.ms": "900",
    "controlled.shutdown.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.session.timeout.ms": "1500",
    "leader.imbalance.check.interval.seconds": "3",
    "log.segment.bytes": "4096",
    "log.index.interval.bytes": "256",
    "log.segment.delete.delay.ms": "500",
    "replica.fetch.backoff.ms": "50",
    "replica.fetch.wait.max.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "700",
    "replica.lag.time.max.ms": "800",
    "replica.socket.timeout.ms": "1500",
}


@dataclass(eq=False)
class SimulatedNode:
    """One machine. `process` and `broker` are None while nothing runs on it."""

    node_id: int
    disk: SimulatedDisk
    process: SimulatedProcess | None = None
    broker: Broker | None = None
    incarnations: int = 0
    has_powered_off: bool = False
    clock: SimulatedClock | None = None  # of its process
    clock_skew_ms: int = 0  # of the wall clock only
    slow_disk_s: float = 0.0  # what a flush or write takes at most
    disk_hangs_until: float = 0.0  # whatever waits for the disk then; the loop itself does not
    disk_may_refuse: bool = False  # so that the broker may end itself
    fatal: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"node-{self.node_id}"

    @property
    def is_running(self) -> bool:
        return self.process is not None


class OwnThreadHost:
    """The quorum in a thread of its own, as in a real broker: it goes on while the broker's loop stands still."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._thread = SimulatedThread(process, "quorum")
        self._quorum: RaftQuorum | None = None

    async def start(self, build: BuildQuorum) -> None:
        await self._loop.create_task(self._start(build), context=self._thread.context.copy())

    async def _start(self, build: BuildQuorum) -> None:
        self._quorum = build(self._loop)
        await self._quorum.start()

    def post(self, work: Work) -> None:
        self._loop.call_soon(work, context=self._thread.context.copy())

    def post_back(self, work: Work) -> None:
        self._loop.call_soon(work, context=self._process.context.copy())

    async def stop(self) -> None:
        if self._quorum is not None:
            await self._loop.create_task(self._quorum.close(), context=self._thread.context.copy())


class QuorumNetwork:
    """The simulated network as the port of the quorum. It has neither TLS nor sockets: these options are left out."""

    def __init__(self, network: NodeNetwork) -> None:
        self._network = network

    async def connect(self, protocol_factory: ProtocolFactory, host: str, port: int, **_: object) -> None:
        await self._network.connect(protocol_factory, host, port)

    async def listen(self, protocol_factory: ProtocolFactory, host: str, port: int, **_: object) -> RaftListener:
        listener: Any = await self._network.listen(protocol_factory, host, port)
        return _QuorumListener(listener)


class _QuorumListener:
    def __init__(self, listener: Any) -> None:
        self._listener = listener

    def close(self) -> None:
        self._listener.close_now()


def rack_of(node_id: int) -> str:
    """The rack of a broker, in a cluster that has racks."""
    return f"rack-{node_id}"


class SimulatedCluster:
    """`violate` is called for what no broker may ever do; `ending` for every node whose process is about to die, `ended` for
    every process that is no more, and why."""

    def __init__(
        self,
        loop: ObservedLoop,
        rng: Random,
        *,
        brokers: int = 3,
        settings: dict[str, str] | None = None,
        snapshot_policy: SnapshotPolicy | None = None,
        fsync_s: float = 0.003,
        has_uneven_segments: bool = False,
        has_racks: bool = False,
        make_broker: Callable[[Any, Ports], Broker] = Broker,
        has_quorum_threads: bool = False,
        violate: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.world = SimulatedNetwork(loop, Random(rng.getrandbits(64)))
        self.nodes = [SimulatedNode(node_id=node_id, disk=SimulatedDisk()) for node_id in range(brokers)]
        for node in self.nodes:
            node.disk.took_time = lambda action, path, node=node: self._disk_took_time(node, action, path)
        self.fsync_s = fsync_s
        self.graveyard: list[SimulatedProcess] = []
        self.guests: dict[str, SimulatedProcess] = {}  # processes of clients, by the name of their machine
        self.lossy: set[int] = set()  # nodes that lost writes and are not back in every ISR
        self.ending: list[Callable[[SimulatedNode], None]] = []
        self.ended: list[Callable[[SimulatedNode, SimulatedProcess, bool], None]] = []
        self.violate = violate
        self.is_over = False
        self.disturbed_at_s = 0.0  # something was last done to a node, or a fault began or ended
        self.client_names: list[str] = []
        self._make_broker = make_broker
        self._has_quorum_threads = has_quorum_threads
        self._settings = SETTINGS | (settings or {})
        self.changed_files: dict[int, dict[str, str]] = {}  # of nodes, from their next start on
        self._has_uneven_segments = has_uneven_segments
        self.has_racks = has_racks
        self._snapshot_policy = snapshot_policy
        self._voters = ",".join(f"{n}@node-{n}:{QUORUM_PORT}" for n in range(min(brokers, MOST_VOTERS)))

    def disturbed(self) -> None:
        self.disturbed_at_s = self.loop.time()

    # --- life and death -----------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.process is not None:
            return
        self.disturbed()
        node.incarnations += 1
        process = SimulatedProcess(node.name, node.incarnations)
        node.process = process
        self.world.power_on(node.name)
        self.loop.note(f"START {process}")
        self.loop.create_task(self._boot(node, process), context=process.context.copy())

    async def _boot(self, node: SimulatedNode, process: SimulatedProcess) -> None:
        rng = Random(self.rng.getrandbits(64))
        network = self.world.node(node.name)
        node.clock = SimulatedClock(self.loop, skew_ms=node.clock_skew_ms)
        quorum = QuorumPorts(
            ballast_bytes=0,
            host=(lambda: OwnThreadHost(process)) if self._has_quorum_threads else SameLoopHost,
            network=lambda: QuorumNetwork(network),
            executor=lambda: DelayedExecutor(self.loop, lambda: rng.uniform(0.0002, self.fsync_s + node.slow_disk_s)),
            timing=TIMING,
            snapshot_policy=self._snapshot_policy,
        )
        ports = Ports(
            network=network,
            files=node.disk,
            clock=node.clock,
            rng=rng,
            make_source=lambda broker: build_source(broker, quorum),
            fatal=lambda reason: self._fatal(node, process, reason),
            incarnation=f"{rng.getrandbits(128):032x}",
            writes_events=False,
        )
        try:
            broker = self._make_broker(load(None, self._properties(node), {}), ports)
            node.broker = broker
            await broker.start()
        except (BarnabasError, OSError) as error:
            self._fatal(node, process, f"cannot start: {error}")

    def _properties(self, node: SimulatedNode) -> dict[str, str]:
        segment_bytes = UNEVEN_SEGMENT_BYTES[node.node_id % len(UNEVEN_SEGMENT_BYTES)]
        return (
            {"log.dirs": FIRST_FOLDER}
            | self._settings
            | ({"log.segment.bytes": str(segment_bytes)} if self._has_uneven_segments else {})
            | ({"broker.rack": rack_of(node.node_id)} if self.has_racks else {})
            | {
                "node.id": str(node.node_id),
                "listeners": f"PLAINTEXT://{node.name}:{CLIENT_PORT}",
                "controller.quorum.voters": self._voters,
            }
            | self.changed_files.get(node.node_id, {})
        )

    def _fatal(self, node: SimulatedNode, process: SimulatedProcess, reason: str) -> None:
        """What os._exit is to a real broker: nothing after this call runs."""
        node.fatal.append(reason)
        self.loop.note(f"FATAL {process} {reason}")
        if not node.disk_may_refuse or "a background task failed" in reason:
            self.violate(f"{process} stopped: {reason}")
        if node.process is process:
            self.kill(node.node_id)
        raise ProcessDied

    def kill(self, node_id: int) -> None:
        """kill -9: what was written stays, peers are reset."""
        self._end(self.nodes[node_id], power=False)

    def power_loss(self, node_id: int) -> None:
        """The machine goes down: unflushed writes may be lost, and peers receive no reset."""
        self._end(self.nodes[node_id], power=True)
        self.lossy.add(node_id)

    def wipe(self, node_id: int) -> None:
        """The machine goes down and comes back with an empty disk."""
        self.power_loss(node_id)
        self.loop.note(f"WIPED node-{node_id}")
        self.nodes[node_id].disk.wipe()

    def _end(self, node: SimulatedNode, *, power: bool) -> None:
        process = node.process
        self.disturbed()
        if process is not None:
            for ending in self.ending:
                ending(node)
            self.loop.note(f"{'POWER LOSS' if power else 'KILL'} {process}")
            process.is_dead = True
            process.parked.clear()
            self.graveyard.append(process)
            node.process = node.broker = None
        if power:
            self.world.power_off(node.name)
            node.disk.power_loss(self.rng)
        else:
            self.world.kill(node.name)
            node.disk.kill()
        if process is not None:
            for ended in self.ended:
                ended(node, process, power)

    def start_guest(self, name: str, incarnation: int) -> SimulatedProcess:
        """A process of a client on a machine of its own: it dies and stands still as brokers do."""
        process = self.guests[name] = SimulatedProcess(name, incarnation)
        self.loop.note(f"START {process}")
        return process

    def kill_guest(self, name: str) -> None:
        process = self.guests.pop(name, None)
        if process is not None:
            self.loop.note(f"KILL {process}")
            process.is_dead = True
            process.parked.clear()
            self.graveyard.append(process)
            self.world.kill(name)

    def stall(self, node_id: int, duration_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        process = self.nodes[node_id].process
        self.stall_process(process, duration_s)
        for thread in process.threads if process is not None else ():
            self.stall_process(thread, duration_s)

    def stall_loop(self, node_id: int, duration_s: float) -> None:
        """The broker's loop stands still, as in a write that hangs; its quorum's thread goes on."""
        assert self._has_quorum_threads
        self.stall_process(self.nodes[node_id].process, duration_s)

    def stall_process(self, process: SimulatedProcess | None, duration_s: float) -> None:
        if process is None or process.stalled_until > self.loop.time():
            return
        self.loop.note(f"STALL {process} {duration_s:.3f}")
        process.stalled_until = self.loop.time() + duration_s
        self.loop.call_at(process.stalled_until, self._resume, process, context=NOBODY)

    def _disk_took_time(self, node: SimulatedNode, action: str, path: str) -> None:
        """The broker's loop is blocked for the duration of its call to a slow disk; a call in an executor delays only the task
        that waits for it."""
        process = node.process
        if process is None or QUORUM_FOLDER in f"{path}/" or action not in _FLUSHES_OF:
            return
        if not self.loop.is_in_executor and is_serving(node) and action != "append":  # that goes to the page cache
            self.violate(f"the loop of {process} waits for its disk: {action} {path}")
        if self.loop.is_in_executor and self.loop.time() < node.disk_hangs_until:
            self.loop.executor_s = max(self.loop.executor_s, node.disk_hangs_until - self.loop.time())
        if not node.slow_disk_s:
            return
        taken_s = self.rng.uniform(0.0, node.slow_disk_s) * _FLUSHES_OF[action]
        if self.loop.is_in_executor:
            self.loop.executor_s += taken_s
            return
        self.loop.block(process, taken_s)

    def jump_clock(self, node_id: int, by_ms: int) -> None:
        node = self.nodes[node_id]
        self.loop.note(f"CLOCK JUMP {node.name} {by_ms}")
        node.clock_skew_ms += by_ms
        if node.clock is not None:
            node.clock.skew_ms = node.clock_skew_ms

    def _resume(self, process: SimulatedProcess) -> None:
        if not process.is_dead:
            self.loop.note(f"RESUME {process}")
            self.loop.resume(process)

    def stop(self, node_id: int) -> None:
        """SIGTERM: a controlled shutdown; the process ends by itself."""
        node = self.nodes[node_id]
        process, broker = node.process, node.broker
        if process is None or broker is None or not hasattr(broker, "lifecycle"):
            return
        self.loop.note(f"STOP {process}")
        self.loop.create_task(self._stop(node, process, broker), context=process.context.copy())

    async def _stop(self, node: SimulatedNode, process: SimulatedProcess, broker: Broker) -> None:
        await broker.stop()
        if node.process is process:
            self.kill(node.node_id)
        raise ProcessDied

    # --- what is known ------------------------------------------------------------------------------------------------

    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes if node.process is not None]

    def newest_image(self) -> MetadataImage:
        images = [node.broker.metadata.image for node in self.nodes if is_serving(node) and node.broker is not None]
        return max(images, key=lambda image: image.offset, default=MetadataImage())

    def update_lossy(self) -> None:
        """A node that lost writes has made up for it once it is in the ISR of all its partitions again."""
        image = self.newest_image()
        for node_id in sorted(self.lossy):
            known, broker = image.brokers.get(node_id), self.nodes[node_id].broker
            if self.nodes[node_id].disk.failed or not is_serving(self.nodes[node_id]) or broker is None:
                continue
            if broker.logs.offline_folders or broker.logs.offline:
                continue
            if known is None or known.fenced or known.incarnation != broker.ports.incarnation:
                continue  # what the metadata says of an earlier process is from before the loss
            own = [p for topic in image.topics.values() for p in topic.partitions if node_id in p.replicas]
            if all(node_id in partition.isr for partition in own):
                self.lossy.discard(node_id)

    def close(self) -> None:
        """After the loop's last event."""
        self.is_over = True
        for node in self.nodes:
            if node.process is not None:
                node.process.is_dead = True
                self.graveyard.append(node.process)
        for name in list(self.guests):
            self.kill_guest(name)
        token = OWNER.set(None)
        for process in self.graveyard:
            process.bury(self.loop)
        OWNER.reset(token)


def is_serving(node: SimulatedNode) -> bool:
    """Has its broker come so far that it has metadata?"""
    return node.process is not None and node.broker is not None and hasattr(node.broker, "lifecycle")


def voter_machine(node: SimulatedNode) -> MetadataNode | None:
    """What the quorum on this node has applied, groups included; None on a broker without a vote."""
    if node.broker is None or not is_serving(node):
        return None
    role = node.broker.metadata.source
    assert isinstance(role, QuorumRole)  # otherwise the checks would silently skip every voter
    voter = role._active.source
    return voter._node if isinstance(voter, VoterMetadata) else None


async def wait_until(condition: Callable[[], bool], *, limit_s: float, every_s: float = 0.05) -> bool:
    """Virtual time; False when it has not come true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(every_s)
    return True
