"""`RaftQuorum`: the quorum port on an asyncio loop. It puts folder, transport and core together.

It runs as it is in a broker (in a thread of its own, see `thread`) and in simulation (on a virtual loop): clock, network,
storage, executor and randomness are handed in. All calls happen on that loop. `driver` decides when the core takes a step,
`reception` answers voters and observers that connect.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from concurrent.futures import Executor

from msgspec.structs import replace

from barnabas.log.vocabulary.node_address import NodeAddress

from ..quorum.config import RaftTiming, SnapshotPolicy
from ..quorum.quorum import AppendOutcome, FatalHandler, Leadership, QuorumListener
from ..quorum.voters import BOOTSTRAP_INDEX, Membership, QuorumStatus, VoterProgress, VoterSet
from .consensus.core import RaftCore
from .consensus.ports import Ports, RaftEvent
from .disk.folder import QuorumFolder
from .disk.storage import JournalStorage
from .driver import StepDriver
from .net.mutual_tls import MutualTls
from .net.network import RaftNetwork
from .net.transport import MAX_STRANGERS, RaftTransport
from .reception import Reception

_log = logging.getLogger("barnabas.quorum")

HAND_OVER_POLL_S = 0.002


class RaftQuorum:
    """One voter, or a node that shall become one: it learns, and counts only from the configuration on that names it.

    `voters` are those of server.properties. They count as long as no configuration is on disk; later they are only further
    addresses. A node that is not among them needs `listen`, the address of its own quorum port. `fatal` is called once,
    when going on could break a promise: the process must end.

    `committed_in` gets the seconds from each append of this node to its commit.

    `executor` needs two threads, one to flush the journal and one to pack a snapshot meanwhile; in simulation it is the
    loop itself.
    """

    core_type: type[RaftCore] = RaftCore  # a test's subclass shows what a planted fault does

    def __init__(
        self,
        *,
        node_id: int,
        voters: dict[int, tuple[str, int]],
        directory: str,
        storage: JournalStorage,
        network: RaftNetwork,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        clock: Callable[[], float],
        listener: QuorumListener,
        fatal: FatalHandler,
        cluster_id: str = "",
        broker_endpoint: bytes = b"",
        timing: RaftTiming | None = None,
        snapshot_policy: SnapshotPolicy | None = None,
        tls: MutualTls | None = None,
        listen: tuple[str, int] | None = None,
        max_strangers: int = MAX_STRANGERS,
        committed_in: Callable[[float], object] = lambda seconds: None,
    ) -> None:
        if node_id not in voters and listen is None:
            raise ValueError(f"node {node_id} is not among the voters {sorted(voters)}, and has no address")
        self._node_id = node_id
        self._voters = voters
        self._directory_path = directory
        self._storage = storage
        self._executor = executor
        self._loop = loop
        self._rng = rng
        self._clock = clock
        self._listener = listener
        self._fatal = fatal
        self._committed_in = committed_in
        self._timing = timing or RaftTiming()
        self._policy = snapshot_policy or SnapshotPolicy()
        self._driver = StepDriver(loop, clock, self._timing.heartbeat_s)
        self._reception = Reception(node_id, cluster_id=cluster_id, broker_endpoint=broker_endpoint)
        self._transport = RaftTransport(
            node_id=node_id,
            listen=listen or voters[node_id],
            contacts=voters,
            network=network,
            loop=loop,
            rng=rng,
            handler=self._reception,
            tls=tls,
            max_strangers=max_strangers,
            dead_after_s=self._timing.dead_link_s,
        )
        self._core: RaftCore | None = None
        self._folder: QuorumFolder | None = None

    async def start(self, sock: socket.socket | None = None) -> None:
        """Load the state on disk (which calls the listener's `restore`), listen and dial. Raises DamagedQuorumError, OSError."""
        self._folder = folder = QuorumFolder(
            storage=self._storage,
            directory=self._directory_path,
            loop=self._loop,
            executor=self._executor,
            clock=self._clock,
            wake=self._driver.wake,
            fatal=self._halt,
        )
        self._core = core = self._build_core(folder)
        self._reception.serve(core)
        self._driver.drive(core)
        core.load(folder.snapshot)
        await self._transport.start(sock)
        self._driver.tick()

    def _membership(self, folder: QuorumFolder) -> Membership:
        """The configuration on disk wins over the one of server.properties."""
        journal, snapshot = folder.journal, folder.snapshot
        given = VoterSet(
            voters=tuple(NodeAddress(node_id=i, host=h, port=p) for i, (h, p) in sorted(self._voters.items()))
        )
        base = snapshot.voters if snapshot is not None and snapshot.voters is not None else given
        membership = Membership(base, journal.entries_from(journal.first_index, len(journal)))
        stored = membership.current
        if stored.index != BOOTSTRAP_INDEX and _places(stored) != _places(given):
            _log.warning(
                "node=%d the stored voters %s (entry %d) win over controller.quorum.voters, which names %s",
                self._node_id,
                _places(stored),
                stored.index,
                _places(given),
            )
        return membership

    def _build_core(self, folder: QuorumFolder) -> RaftCore:
        return self.core_type(
            node_id=self._node_id,
            membership=self._membership(folder),
            journal=folder.journal,
            hard_state=folder.hard_state,
            snapshots=folder.snapshots,
            listener=self._listener,
            policy=self._policy,
            fatal=self._halt,
            ports=Ports(
                transport=self._transport,
                clock=self._clock,
                rng=self._rng,
                timing=self._timing,
                wake=self._driver.wake,
                wake_later=self._driver.wake_later,
                report=_log_event,
            ),
        )

    async def close(self) -> None:
        """Hand over the leadership, write everything to disk, and stop. Pending appends end with UNKNOWN or NOT_APPENDED."""
        await self.hand_over_and_wait()
        self._driver.stop_ticking()
        core, folder = self._core, self._folder
        if core is not None and folder is not None and not core.halted:
            core.abandon()
            folder.close()
        await self._transport.close()

    # The port (kraft.quorum.quorum.Quorum)

    def append(
        self, command: bytes, *, term: int, done: Callable[[AppendOutcome], None], others_wait: bool = True
    ) -> None:
        began_s = self._clock()

        def ended(outcome: AppendOutcome) -> None:
            if outcome is AppendOutcome.COMMITTED:
                self._committed_in(self._clock() - began_s)
            done(outcome)

        self._started.commands.submit(command, term, ended, others_wait=others_wait)

    @property
    def leadership(self) -> Leadership:
        return self._started.leadership

    @property
    def committed_index(self) -> int:
        return self._started.applier.applied_index

    # Beyond the port

    def read_barrier(self, done: Callable[[AppendOutcome], None]) -> None:
        """Commit a no-op in the current term: COMMITTED means that this node was the leader at the time of the call."""
        core = self._started
        core.commands.submit(None, core.engine.term, done, others_wait=False)

    def transfer_leadership(self, target_id: int) -> bool:
        """Ask `target_id` to take over at once. False: not the leader, or the target lacks entries or is gone."""
        core = self._started
        return target_id in core.electorate.other_ids and core.engine.ask_transfer(target_id)

    def hand_over(self) -> bool:
        """Let the best other voter take over; False: there is none, or this node does not lead."""
        return self._started.hand_over.begin(self._clock())

    async def hand_over_and_wait(self) -> None:
        """Before leaving: a hand-over is ten times quicker than an election. Bounded by half an election timeout."""
        core = self._core
        if core is None or core.halted or not core.engine.is_leader or not self.hand_over():
            return
        while core.engine.is_leader and core.hand_over.is_open and not core.halted:  # noqa: ASYNC110 - the core knows no loop
            await asyncio.sleep(HAND_OVER_POLL_S)

    @property
    def may_lead(self) -> bool:
        return self._started.elections.may_lead

    def set_may_lead(self, may_lead: bool) -> None:
        """False: hand the leadership over, and do not campaign. For a node that cannot serve as the controller."""
        self._started.elections.may_lead = may_lead
        self._driver.wake()

    def add_voter(self, voter: NodeAddress) -> VoterProgress:
        """Begin or go on; ask until it is done. Raises NotControllerError, InvalidRequestError (refused)."""
        return self._started.changes.add_voter(voter, self._clock())

    def remove_voter(self, node_id: int) -> VoterProgress:
        """Begin or go on; ask until it is done. Raises NotControllerError, InvalidRequestError (refused)."""
        return self._started.changes.remove_voter(node_id, self._clock())

    def meet(self, voters: VoterSet) -> None:
        """Link a node without a leader to the voters that other nodes have named."""
        self._started.links.meet(voters)

    def status(self) -> QuorumStatus:
        return replace(self._started.changes.status(self._clock()), strangers=self._transport.strangers())

    @property
    def voters(self) -> VoterSet:
        """The configuration that is committed, as far as this node knows."""
        return self._started.committed_voters

    @property
    def is_voter(self) -> bool:
        """By the newest configuration that this node has in its journal."""
        return self._started.electorate.is_voter

    @property
    def listens_at(self) -> tuple[str, int]:
        return self._transport.listens_at

    def set_cluster_id(self, cluster_id: str) -> None:
        """The cluster id was committed: from now on, connections of peers of another cluster are refused."""
        self._reception.cluster_id = cluster_id

    def take_snapshot(self) -> None:
        """Compact now, regardless of the policy."""
        self._started.compaction.request()

    def broker_endpoint_of(self, node_id: int) -> bytes:
        """The (opaque) broker address in the hello of a voter; empty: not known."""
        return self._reception.broker_endpoint if node_id == self._node_id else self._transport.endpoint_of(node_id)

    @property
    def is_blank(self) -> bool:
        return self._started.formation.blank

    @property
    def connected_voters(self) -> list[int]:
        return sorted(self._started.formation.peers)

    @property
    def _started(self) -> RaftCore:
        if self._core is None:
            raise RuntimeError("the quorum has not been started")
        return self._core

    def kill(self) -> None:
        """As the death of a process: from now on nothing is decided, written, sent or reported."""
        if self._core is not None:
            self._core.stop()
        self._transport.halt()

    def _halt(self, reason: str) -> None:
        self.kill()
        self._fatal(reason)


def _places(voters: VoterSet) -> str:
    return ",".join(sorted(f"{voter.node_id}@{voter.host}:{voter.port}" for voter in voters.voters))


def _log_event(event: RaftEvent) -> None:
    _log.log(event.severity, "%s", event.text, exc_info=event.error)
