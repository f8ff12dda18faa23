"""The composition root of a broker. Every port is passed in, so that simulation builds the same broker.

Order of a start: lock and load the logs, bind the listeners (then the addresses are known), join the metadata, register, become
unfenced. Order of a stop: ask the controller to move leaderships away, stop accepting requests, give up roles, leave the quorum,
close the logs. This module makes no decisions.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from barnabas.kraft.metadata.image import Endpoint
from barnabas.kraft.metadata.requests import AllocateProducerIds, ProducerIdBlock, RegisterBroker
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.raft.net.mutual_tls import MutualTls
from barnabas.kraft.raft.net.transport import MAX_STRANGERS
from barnabas.log.disk.files import Files
from barnabas.log.folders.log_manager import LogManager, new_directory_id
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.segment.open_segments import MAX_OPEN_SEALED_SEGMENTS
from barnabas.log.vocabulary.errors import BarnabasError, CoordinatorLoadInProgressError, StorageError

from ..base.clock import Clock
from ..base.figures.broker_clients import REPLICA_PREFIX
from ..base.sasl.oauthbearer import Tokens
from ..base.sasl.verifiers import UserFile
from ..base.settings.cluster_settings import ClusterSettingsReport, file_settings
from ..base.settings.config import BrokerConfig
from ..base.settings.server_limits import UNLIMITED_DESCRIPTORS
from ..base.turn import Turn
from ..coordination.groups.group_service import GroupService
from ..coordination.groups.rebalance_events import RebalanceEvents
from ..coordination.groups.slot_hosting import SlotHosting
from ..coordination.shares.share_service import ShareService
from ..handlers.common.services import Services
from ..handlers.registry import build_handlers
from ..logs.cleaner_service import CleanerService
from ..logs.flusher import Flusher
from ..logs.following.leader_connection import LeaderConnection
from ..logs.following.replica_fetcher import ReplicaFetcherManager
from ..logs.following.replication_throttle import ReplicationThrottle
from ..logs.isr_proposer import IsrProposer
from ..logs.log_loading import close_logs, load_logs
from ..logs.log_service import LogService
from ..logs.replica_repair import ReplicaRepair
from ..logs.replication_service import ReplicationService
from ..logs.scrubber import Scrubber
from ..logs.storage_service import StorageService
from ..metadata.broker_lifecycle import BrokerLifecycle
from ..metadata.broker_to_controller import ControllerChannel
from ..metadata.events.broker_events import BrokerEvents
from ..metadata.journal_ballast import BallastedStorage
from ..metadata.liveness import LivenessWatch, client_id_of
from ..metadata.metadata_service import MetadataService, MetadataSource
from ..metadata.producer_ids import ProducerIds
from ..server.dispatcher import Dispatcher, Handler
from ..server.memory_budget import MemoryBudget
from ..server.quotas.client_quotas import ClientQuotas
from ..wire.network import Network
from ..wire.protocol.msgpack import ServerHello
from ..wire.rpc import RpcPool
from .access import access_of, audit_of, guard_of, may_read_of
from .core_settings import fetch_settings, quota_bursts
from .effects import BrokerEffects
from .listeners import BrokerListeners
from .logins import authenticator_of
from .monitoring.figures import BrokerFigures
from .slot_machines import SlotMachines
from .transactions import BrokerTransactions

logger = logging.getLogger("barnabas.broker")

HAND_OVER_POLL_MS = 100
QUORUM_GONE_ELECTIONS = 2  # elections without a leader: then the other voters have stopped, too, and will not answer
PRODUCER_IDS_TIMEOUT_MS = 10_000  # well below the request timeout of a client that waits for an id
# Of a connection to another broker. When a cut heals, the kernel may wait for seconds before it tries again; a new attempt
# does not.
CONNECT_TIMEOUT_MS = 3_000
EXPIRY_INTERVAL_MS = 50  # maximum delay of the answer to a parked request that has timed out


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The outside world of a broker. `fatal` ends the process, because continuing could violate a guarantee."""

    network: Network
    files: Files
    clock: Clock
    rng: random.Random
    make_source: "Callable[[Broker], MetadataSource]"
    fatal: Callable[[str], None]
    incarnation: str
    max_client_descriptor: int = (
        UNLIMITED_DESCRIPTORS  # The sockets of ordinary clients have lower numbers; simulated sockets have none.
    )
    max_strangers: int = MAX_STRANGERS  # unidentified connections to the quorum's port
    max_open_segments: int = MAX_OPEN_SEALED_SEGMENTS
    network_of: Callable[[str], Network] | None = (
        None  # of a listener; None: `network`, which connects brokers, is for all
    )
    quorum_tls: MutualTls | None = None
    intercept: Callable[[dict[int, Handler]], dict[int, Handler]] | None = None  # of `barnabas.testing`: injects faults
    users: UserFile = field(default_factory=dict)  # that this broker knows without the quorum
    tokens: Tokens | None = None  # of OAUTHBEARER
    writes_events: bool = True  # False: they stay in memory (simulations, whose disks draw a fault for every operation)

    def listener_network(self, name: str) -> Network:
        return self.network if self.network_of is None else self.network_of(name)

    def intercepted(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        return handlers if self.intercept is None else self.intercept(handlers)


def _pool(ports: Ports, client_id: str) -> RpcPool:
    return RpcPool(ports.network, client_id=client_id, random=ports.rng, connect_timeout_ms=CONNECT_TIMEOUT_MS)


class Broker:
    """Built by a process or by the simulation. Call `start`, then `stop`."""

    def __init__(self, config: BrokerConfig, ports: Ports) -> None:
        self.config = config
        self.ports = ports
        self.node_id = config.node_id
        self.admin_endpoint: Endpoint | None = None
        self.shutdown_requested = asyncio.Event()
        self.shutdown_hurried = asyncio.Event()  # requested again: waits neither for a hand-over nor for clients
        self.journal_storage: BallastedStorage | None = None  # of a voter, once its quorum is built
        self._tasks: list[asyncio.Task[None]] = []
        self.listeners = BrokerListeners(config, ports.listener_network, max_descriptor=ports.max_client_descriptor)
        self.turn = Turn()
        self.figures = BrokerFigures(self)  # run by the process that runs this broker
        self.memory = MemoryBudget(config.network_memory_max_bytes)
        self.quotas = ClientQuotas(quota_bursts(config))
        self.logs = LogManager(
            ports.files,
            config.data_folders(),
            node_id=config.node_id,
            defaults=config.topics,
            new_directory_id=lambda: new_directory_id(ports.rng.randbytes(16)),
            max_open_segments=ports.max_open_segments,
        )
        self.effects = BrokerEffects(self.logs)
        self.pool = _pool(ports, client_id_of(config.node_id))

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises StorageError, OSError (a port), InconsistentClusterIdError; on success requests are served.

        If it fails, all started parts are closed again, and the data folders are unlocked.
        """
        try:
            self._build()
            self._connect()
            await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> None:
        self._check_journal_folder()
        await load_logs(self.logs, self.ports.clock)
        await self.listeners.listen(
            self.dispatcher,
            hello=self._hello,
            client_gone=self.liveness.connection_lost,
            turn=self.turn,
            memory=self.memory,
            quotas=self.quotas,
            measures=self.figures.measures,
        )
        if self.ports.writes_events:
            await self.events.open(self.config.data_folders()[0], self.ports.files, self.ports.fatal)
        self.metadata.subscribe(self._published)
        await self.metadata.start()
        self.lifecycle = self.effects.lifecycle = self._build_lifecycle()
        self._run(self.lifecycle.run())
        self._run(self.proposer.run())
        self._run(self.log_service.run())
        self._run(self.storage.run())
        self._run(self.storage.log_ends.run())
        self._run(self.cleaner_service.run())
        self._run(self.transactions.watch.run())
        self._run(self._build_scrubber().run())
        self._run(self._expire_requests())
        self._run(self._check_isr())

    @property
    def _journal_folder(self) -> str | None:
        is_voter = self.node_id in {voter.node_id for voter in self.config.voters()}
        return self.config.metadata_folder() if is_voter else None

    def _check_journal_folder(self) -> None:
        """Check before creating any file: the quorum must never start with an empty journal because its disk is missing."""
        for path, folder in self.logs.offline_folders.items():
            if f"{self._journal_folder}/".startswith(f"{path}/"):
                raise StorageError(f"the data folder with the quorum's journal cannot be used: {folder.cause}")

    def _build(self) -> None:
        config, ports = self.config, self.ports
        self.metadata = MetadataService(ports.make_source(self), taken_up=self.effects.taken_up_offset)
        self.events = BrokerEvents(self.node_id, ports.clock, is_current=lambda: self.metadata.is_current)
        self.controller = ControllerChannel(
            node_id=self.node_id,
            metadata=self.metadata,
            pool=self.pool,
            clock=ports.clock,
            rng=ports.rng,
            listener=config.inter_broker_listener(),
            attempt_timeout_ms=config.controller_quorum_request_timeout_ms,
        )
        self.liveness = LivenessWatch(
            node_id=self.node_id,
            metadata=self.metadata,
            network=ports.network,
            listener=config.inter_broker_listener(),
        )
        self.log_service = LogService(
            logs=self.logs,
            metadata=self.metadata,
            config=config,
            clock=ports.clock,
            fatal=ports.fatal,
            is_current=self.effects.is_current,
            flush=self.effects.flush_log,
            folder_refused=self.effects.folder_refused,
        )
        self.replication = self._build_replication()
        self.storage = self._build_storage()
        self.cleaner_service = self._build_cleaner()
        self.proposer = IsrProposer(
            node_id=self.node_id,
            controller=self.controller,
            broker_epoch=self.effects.broker_epoch,
            answered=self.replication.isr_answered,
        )
        self.settings_report = ClusterSettingsReport(config)
        self.throttle = ReplicationThrottle(node_id=self.node_id, config=config, clock=ports.clock)
        self.fetchers = self._build_fetchers()
        self.flusher = self._build_flusher()
        self.repair = self._build_repair()
        self._build_slots()
        audit = audit_of(config, ports.clock, self.events.log)
        image, is_current = (lambda: self.metadata.image), (lambda: self.metadata.is_current)
        self.access = access_of(config, image, audit, is_current)
        self.authenticator = authenticator_of(config, ports.users, ports.clock, image, audit, ports.tokens, is_current)
        self.services = self._build_services()
        handlers = build_handlers(self.services, shut_down=self.shutdown_requested.set, storage=self.storage)
        self.dispatcher = Dispatcher(ports.intercepted(handlers), guard_of(self.access))

    def _build_services(self) -> Services:
        return Services(
            node_id=self.node_id,
            config=self.config,
            clock=self.ports.clock,
            metadata=self.metadata,
            controller=self.controller,
            replication=self.replication,
            groups=self.groups,
            rng=self.ports.rng,
            throttle=self.throttle,
            producer_ids=self.producer_ids,
            transactions=self.transactions.service,
            markers=self.transactions.writer,
            transaction_operations=self.transactions.operations,
            verification=self.transactions.verification,
            shares=ShareService(self, self.ports.clock, self.ports.fatal, may_read=may_read_of(self.access)),
            memory=self.memory,
            quotas=self.quotas,
            figures=self.figures,
            events=self.events.log,
            authenticator=self.authenticator,
        )

    def _build_slots(self) -> None:
        config, ports = self.config, self.ports
        self.slot_machines = SlotMachines(config, ports.rng)
        self.slots = SlotHosting(
            node_id=self.node_id,
            metadata=self.metadata,
            controller=self.controller,
            clock=ports.clock,
            make_machine=self.slot_machines.make,
            fatal=ports.fatal,
            max_group_size=max(config.group_max_size, config.group_consumer_max_size),
            append_times=self.figures.measures.group_appends,
        )
        self.slots.observe(RebalanceEvents(self.events.log))
        self.groups = GroupService(metadata=self.metadata, slots=self.slots)
        self.producer_ids = ProducerIds(self._fetch_producer_ids)
        self.transactions = BrokerTransactions(
            node_id=self.node_id,
            clock=ports.clock,
            fatal=ports.fatal,
            metadata=self.metadata,
            controller=self.controller,
            replication=self.replication,
            slots=self.slots,
            producer_ids=self.producer_ids,
        )

    def _connect(self) -> None:
        effects = self.effects
        effects.metadata = self.metadata
        effects.log_service = self.log_service
        effects.replication = self.replication
        effects.storage = self.storage
        effects.proposer = self.proposer
        effects.fetchers = self.fetchers
        effects.flusher = self.flusher
        effects.repair = self.repair

    def _build_replication(self) -> ReplicationService:
        return ReplicationService(
            node_id=self.node_id,
            manager=ReplicaManager(
                self.node_id,
                self.log_service,
                replica_lag_time_max_ms=self.config.replica_lag_time_max_ms,
                storage_trouble=self.effects.storage_trouble,
            ),
            clock=self.ports.clock,
            effects=self.effects,
            turn=self.turn,
        )

    def _build_storage(self) -> StorageService:
        return StorageService(
            node_id=self.node_id,
            logs=self.logs,
            log_service=self.log_service,
            replication=self.replication,
            metadata=self.metadata,
            controller=self.controller,
            broker_epoch=self.effects.broker_epoch,
            clock=self.ports.clock,
            turn=self.turn,
            fatal=self.ports.fatal,
            journal_folder=self._journal_folder,
            hanging=self.effects.hanging_folders,
        )

    def _build_cleaner(self) -> CleanerService:
        return CleanerService(
            logs=self.logs,
            files=self.ports.files,
            config=self.config,
            clock=self.ports.clock,
            is_current=self.effects.is_current,
        )

    def _build_flusher(self) -> Flusher:
        return Flusher(
            folder_of=self.effects.folder_of,
            ended=self.effects.flush_ended,
            wall_ms=self.ports.clock.wall_ms,
            fatal=self.ports.fatal,
            folders=len(self.logs.folders),
        )

    def _build_repair(self) -> ReplicaRepair:
        return ReplicaRepair(
            node_id=self.node_id,
            controller=self.controller,
            broker_epoch=self.effects.broker_epoch,
            resigned=self.replication.resigned,
        )

    def _build_scrubber(self) -> Scrubber:
        return Scrubber(
            self.logs,
            bytes_per_second=self.config.log_scrub_io_max_bytes_per_second,
            interval_ms=self.config.log_scrub_interval_ms,
            found=self.effects.damage_found,
        )

    def _build_fetchers(self) -> ReplicaFetcherManager:
        # Separate from requests to the controller, which must not queue behind megabytes of records.
        self.fetch_pool = _pool(self.ports, f"{REPLICA_PREFIX}{self.node_id}")
        return ReplicaFetcherManager(
            identity=self,
            settings=fetch_settings(self.config),
            connect=lambda leader: LeaderConnection(leader, self.fetch_pool, self.controller.address_of),
            rng=self.ports.rng,
            wall_ms=self.ports.clock.wall_ms,
            on_effects=self.replication.perform,
            throttle=self.throttle,
        )

    @property
    def broker_epoch(self) -> int:
        """The epoch of this incarnation's registration; -1 before it."""
        return self.lifecycle.broker_epoch

    def _hello(self) -> ServerHello:
        return ServerHello(cluster_id=self.metadata.image.cluster_id, node_id=self.node_id)

    def _build_lifecycle(self) -> BrokerLifecycle:
        config = self.config
        return BrokerLifecycle(
            registration=RegisterBroker(
                node_id=self.node_id,
                incarnation=self.ports.incarnation,
                cluster_id=self.logs.cluster_id or "",
                endpoints=self.listeners.advertised(),
                admin_endpoint=self.admin_endpoint,
                rack=config.broker_rack,
                directories=tuple(folder.directory_id for folder in self.logs.folders),
                lost_unflushed_data=self.logs.may_have_lost_writes,
                file_settings=file_settings(config),
                machine=config.broker_machine,
            ),
            controller=self.controller,
            metadata=self.metadata,
            clock=self.ports.clock,
            registered=self._registered,
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
            fatal=self.ports.fatal,
            holds_back=self.effects.holds_back,
            known_metadata=self.effects.known_metadata,
        )

    def _registered(self, broker_epoch: int) -> None:
        self.metadata.registered(broker_epoch)
        self.replication.registered(broker_epoch)
        self.slots.registered(broker_epoch)
        self.log_service.loss_was_told()

    # --- metadata and effects -----------------------------------------------------------------------------------------

    def _published(self, publication: MetadataPublication) -> None:
        self.log_service.published(publication)
        if not publication.keeps_image:
            self.events.published(publication)
            self.settings_report.published(publication)
            self.throttle.published(publication)
            self.quotas.follow(publication.image.quotas)
        self.replication.published(publication)
        self.storage.log_ends.published(publication)

    async def _fetch_producer_ids(self) -> ProducerIdBlock:
        if not self.replication.is_current:
            raise CoordinatorLoadInProgressError("this broker has not joined its cluster yet")
        request = AllocateProducerIds(node_id=self.node_id, broker_epoch=self.broker_epoch)
        answer = await self.controller.call(request, timeout_ms=PRODUCER_IDS_TIMEOUT_MS)
        assert isinstance(answer, ProducerIdBlock)
        return answer

    # --- periodic work ------------------------------------------------------------------------------------------------

    def _run(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(self._guarded(work)))

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Stop the broker if a background task fails: without the task, the broker would only look alive."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("a background task failed")
            self.ports.fatal(f"a background task failed: {error!r}")

    async def _expire_requests(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_MS / 1000)
            self.replication.expire()
            self.services.shares.tick()

    async def _check_isr(self) -> None:
        interval_ms = max(1, self.config.replica_lag_time_max_ms // 2)
        while True:
            await asyncio.sleep(min(interval_ms, 1_000) / 1000)
            self.replication.check_isr()

    # --- stop ---------------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Return whether this broker is registered and unfenced, and the quorum has a leader."""
        return self.lifecycle.unfenced.is_set() and self.metadata.leadership.leader_id is not None

    async def stop(self, *, controlled: bool = True) -> None:
        """Leave the cluster with a controlled shutdown, within `controlled.shutdown.timeout.ms`. Call it only after a successful
        `start`."""
        if controlled and self.config.controlled_shutdown_enable and self.lifecycle.unfenced.is_set():
            self.lifecycle.begin_controlled_shutdown()
            if not await _handed_over(self):
                logger.warning("node=%d stops with leaderships that no other broker could take over", self.node_id)
        await self._close()
        logger.info("stopped node=%d", self.node_id)

    async def _close(self) -> None:
        """Close all started parts, each before the parts that it uses."""
        await self.listeners.close(self.shutdown_hurried)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.replication.stop()  # before the fetchers: metadata still arrives, and would start new fetchers
        await self.log_service.writers.close()  # also if the start failed before the upkeep of the logs ran
        await self.liveness.close()
        await self.fetchers.close()
        await self.flusher.close()
        for part in (self.repair, self.services.shares, self.slots, self.transactions, self.producer_ids):
            await part.close()
        await self.dispatcher.close()
        self.authenticator.close()
        await self.metadata.close()
        await self.events.close()
        await self.pool.close()
        await self.fetch_pool.close()
        try:
            await close_logs(self.logs)
        except BarnabasError as error:
            logger.error("the logs could not be closed cleanly: %s", error)


async def _handed_over(broker: Broker) -> bool:
    """Wait until the controller has moved this broker's leaderships away. False: the quorum stopped before, or the stop is
    hurried."""
    deadline_ms = broker.ports.clock.now_ms() + broker.config.controlled_shutdown_timeout_ms
    quorum_gone_ms = QUORUM_GONE_ELECTIONS * broker.config.controller_quorum_election_timeout_ms
    leaderless_since_ms: int | None = None
    while not broker.lifecycle.may_shut_down.is_set():
        if broker.shutdown_hurried.is_set():
            return False
        now_ms = broker.ports.clock.now_ms()
        if broker.metadata.leadership.leader_id is not None:
            leaderless_since_ms = None
        elif leaderless_since_ms is None:
            leaderless_since_ms = now_ms
        elif now_ms - leaderless_since_ms >= quorum_gone_ms:
            return False
        if now_ms >= deadline_ms:
            return False
        try:
            async with asyncio.timeout(HAND_OVER_POLL_MS / 1000):
                await broker.lifecycle.may_shut_down.wait()
        except TimeoutError:
            pass
    return True
