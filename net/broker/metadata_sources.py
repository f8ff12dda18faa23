"""Creates the metadata source for a broker's configuration: the quorum of a voter, or the feed of an observer."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.group_state.group_state import GroupState
from barnabas.kraft.node.metadata_node import MetadataNode
from barnabas.kraft.quorum.config import RaftTiming, SnapshotPolicy
from barnabas.kraft.raft.disk.folder import JOURNAL_NAME
from barnabas.kraft.raft.net.network import RaftNetwork
from barnabas.kraft.raft.quorum import RaftQuorum
from barnabas.log.vocabulary.node_address import NodeAddress

from ..metadata.journal_ballast import BALLAST_BYTES, BallastedStorage
from ..metadata.metadata_observer import MetadataObserver
from ..metadata.metadata_service import MetadataSource, Subscriber
from ..metadata.quorum_directory import QuorumDirectory
from ..metadata.quorum_role import QuorumRole
from ..metadata.quorum_source import QuorumHost, ThreadHost, VoterMetadata, encode_address
from .broker import Broker
from .core_settings import config_rules, controller_settings, loop_limit_ms, raft_timing, snapshot_policy
from .tls import QuorumNetwork

DISK_THREADS = 2  # one for the journal's fdatasync, one for snapshots: packing a snapshot must not delay a commit


def _disk_threads() -> Executor:
    return ThreadPoolExecutor(max_workers=DISK_THREADS, thread_name_prefix="quorum-disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumPorts:
    """The outside world of the quorum in a real process; simulation passes in its own."""

    host: Callable[[], QuorumHost] = ThreadHost
    network: Callable[[], RaftNetwork] = QuorumNetwork
    executor: Callable[[], Executor] = _disk_threads
    timing: RaftTiming | None = None  # overrides the configuration
    snapshot_policy: SnapshotPolicy | None = None
    ballast_bytes: int = BALLAST_BYTES  # space that is reserved for the journal on a full disk; 0: none


def build_source(broker: Broker, ports: QuorumPorts | None = None) -> MetadataSource:
    """Return a source that starts as a voter if the node has the quorum's journal or is named in `controller.quorum.voters`,
    otherwise as an observer. While it runs, the quorum's own configuration decides."""
    ports = ports or QuorumPorts()
    folder = broker.config.metadata_folder()
    given = {voter.node_id: voter for voter in broker.config.voters()}
    directory = QuorumDirectory(
        voters=tuple((voter.host, voter.port) for voter in given.values()),
        network=ports.network(),
        files=broker.ports.files,
        folder=folder,
        cluster_id=broker.logs.cluster_id or "",
        tls=broker.ports.quorum_tls.for_dialing if broker.ports.quorum_tls else lambda: None,
    )
    return QuorumRole(
        node_id=broker.node_id,
        starts_as_voter=broker.node_id in given or broker.ports.files.exists(f"{folder}/{JOURNAL_NAME}"),
        build_voter=lambda contacts: _build_voter(broker, ports, contacts),
        build_observer=lambda: _build_observer(broker, directory),
        directory=directory,
        fatal=broker.ports.fatal,
    )


def _build_voter(broker: Broker, ports: QuorumPorts, contacts: tuple[NodeAddress, ...]) -> VoterMetadata:
    rng = random.Random(
        broker.ports.rng.getrandbits(64)
    )  # a separate generator, because the quorum runs in another thread
    return VoterMetadata(
        node_id=broker.node_id,
        host=ports.host(),
        build_node=lambda publish: _build_node(broker, rng, publish),
        build_quorum=lambda loop, node: _build_quorum(broker, ports, contacts, rng, loop, node),
        fatal=broker.ports.fatal,
        loop_limit_ms=loop_limit_ms(broker.config),
    )


def _build_observer(broker: Broker, directory: QuorumDirectory) -> MetadataObserver:
    rng = random.Random(broker.ports.rng.getrandbits(64))
    return MetadataObserver(
        node_id=broker.node_id,
        build_node=lambda publish: _build_node(broker, rng, publish),
        fatal=broker.ports.fatal,
        directory=directory,
        pool=broker.pool,
        rng=rng,
    )


def _build_node(broker: Broker, rng: random.Random, publish: Subscriber) -> MetadataNode:
    return MetadataNode(
        node_id=broker.node_id,
        controller=Controller(
            settings=controller_settings(broker.config),
            rng=rng,
            config_rules=config_rules(broker.config),
        ),
        new_groups=cast(Callable[[], GroupState], GroupSlots),
        publish=publish,
        fatal=broker.ports.fatal,
        rng=rng,
    )


def _build_quorum(
    broker: Broker,
    ports: QuorumPorts,
    contacts: tuple[NodeAddress, ...],
    rng: random.Random,
    loop: asyncio.AbstractEventLoop,
    node: MetadataNode,
) -> RaftQuorum:
    broker.journal_storage = BallastedStorage(
        broker.ports.files, broker.config.metadata_folder(), size_bytes=ports.ballast_bytes
    )
    given = {voter.node_id: (voter.host, voter.port) for voter in broker.config.voters()}
    inter_broker = next(
        endpoint
        for endpoint in broker.listeners.advertised()
        if endpoint.listener == broker.config.inter_broker_listener()
    )
    return RaftQuorum(
        node_id=broker.node_id,
        voters={voter.node_id: (voter.host, voter.port) for voter in contacts} if contacts else given,
        listen=given.get(broker.node_id) or broker.listeners.quorum_address(),
        directory=broker.config.metadata_folder(),
        storage=broker.journal_storage,
        network=ports.network(),
        executor=ports.executor(),
        loop=loop,
        rng=rng,
        clock=loop.time,
        listener=node,
        fatal=broker.ports.fatal,
        cluster_id=broker.logs.cluster_id or "",
        broker_endpoint=encode_address(inter_broker.host, inter_broker.port),
        timing=ports.timing or raft_timing(broker.config),
        snapshot_policy=ports.snapshot_policy or snapshot_policy(broker.config),
        max_strangers=broker.ports.max_strangers,
        tls=broker.ports.quorum_tls,
        committed_in=broker.figures.measures.commits.note,
    )
