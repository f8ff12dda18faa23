"""Handlers over real logs on a simulated disk, real replicas, and metadata and a controller that the test scripts."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, cast

from simulation.log_building import batch_of
from unit.net.shell_world import Client, NoEffects, Shell, broker, image_of

from barnabas.consumer_groups.coordinator import GroupCoordinator
from barnabas.consumer_groups.slot_coordinator import SlotCoordinator
from barnabas.consumer_groups.transactions.settings import TransactionSettings
from barnabas.kraft.metadata.image import BrokerImage, MetadataImage, SlotImage, TopicImage
from barnabas.kraft.metadata.requests import ProducerIdBlock
from barnabas.log.folders.log_manager import LogManager
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import ProducerFields, iter_records
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.replication.effects import FlushLog, ProposeIsr
from barnabas.log.replication.partition import Partition
from barnabas.log.replication.replica_manager import ReplicaManager
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.settings.config import load
from barnabas.net.broker.logins import authenticator_of
from barnabas.net.broker.transactions import BrokerTransactions
from barnabas.net.coordination.groups.group_service import GroupService
from barnabas.net.coordination.groups.slot_hosting import LoadedSlot, SlotHosting
from barnabas.net.coordination.shares.share_service import ShareService
from barnabas.net.handlers.common.services import Services
from barnabas.net.logs.flusher import Flusher
from barnabas.net.logs.following.replication_throttle import ReplicationThrottle
from barnabas.net.logs.log_service import LogService
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.metadata.events.event_log import EventLog
from barnabas.net.metadata.metadata_service import MetadataService
from barnabas.net.metadata.producer_ids import ProducerIds
from barnabas.net.testing.simulation.disk import SimulatedDisk
from barnabas.net.wire.protocol.requests import FetchPartition, FetchRequest, ProducePartition, ProduceRequest, Request
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse, Response

EPOCH = 100  # of this broker's registration; node n has 100 + n


class _Effects(NoEffects):
    def __init__(self, world: "HandlerWorld", log_service: LogService) -> None:
        self._world = world
        self.made_ready = log_service.made_ready  # type: ignore[method-assign]

    def propose(self, proposals: list[ProposeIsr]) -> None:
        self._world.proposed.extend(proposals)

    def flush(self, effect: FlushLog) -> None:
        log = self._world.logs.get(effect.topic_partition)
        assert log is not None
        self._world.flusher.ask(log)


SETTINGS = {"node.id": "0", "log.dirs": "/data", "allow.plaintext.listeners": "true"}


class HandlerWorld:
    def __init__(self, shell: Shell, settings: dict[str, str]) -> None:
        self.shell, self.source = shell, shell.source
        self.config = load(None, SETTINGS | settings, {})
        self.disk = SimulatedDisk()
        self.logs = LogManager(self.disk, ["/data"], node_id=0)
        self.fetched_blocks = 0
        self.proposed: list[ProposeIsr] = []
        log_service = LogService(
            logs=self.logs,
            metadata=shell.metadata,
            config=self.config,
            clock=shell.clock,
            fatal=self._fatal,
            is_current=lambda: True,
            flush=lambda log: self.flusher.ask(log),
        )
        self.flusher = Flusher(
            folder_of=self.logs.folder_of,
            ended=lambda log, error: self.replication.flush_ended(log.topic_partition, error),
            wall_ms=shell.clock.wall_ms,
            fatal=self._fatal,
        )
        self.replication = ReplicationService(
            node_id=0,
            manager=ReplicaManager(0, log_service),
            clock=shell.clock,
            effects=_Effects(self, log_service),
        )
        self.slots = SlotHosting(
            node_id=0,
            metadata=shell.metadata,
            controller=shell.controller,
            clock=shell.clock,
            make_machine=_coordinator,
            fatal=self._fatal,
        )
        self.groups = GroupService(metadata=shell.metadata, slots=self.slots)
        throttle = ReplicationThrottle(node_id=0, config=self.config, clock=shell.clock)
        for part in (log_service, throttle, self.replication):
            shell.metadata.subscribe(part.published)
        producer_ids = ProducerIds(self._fetch_producer_ids)
        transactions = BrokerTransactions(
            node_id=0,
            clock=shell.clock,
            fatal=self._fatal,
            metadata=shell.metadata,
            controller=shell.controller,
            replication=self.replication,
            slots=self.slots,
            producer_ids=producer_ids,
        )
        self.services = Services(
            node_id=0,
            config=self.config,
            clock=shell.clock,
            metadata=shell.metadata,
            controller=shell.controller,
            replication=self.replication,
            groups=self.groups,
            rng=Random(5),
            throttle=throttle,
            producer_ids=producer_ids,
            transactions=transactions.service,
            markers=transactions.writer,
            transaction_operations=transactions.operations,
            verification=transactions.verification,
            shares=ShareService(self, shell.clock, self._fatal),
            authenticator=authenticator_of(self.config, {}, shell.clock, lambda: shell.metadata.image),
            events=EventLog(1, shell.clock),
        )

    @property
    def node_id(self) -> int:
        return 0

    @property
    def metadata(self) -> MetadataService:
        return self.shell.metadata

    @property
    def controller(self) -> ControllerChannel:
        return self.shell.controller

    async def _fetch_producer_ids(self) -> ProducerIdBlock:
        self.fetched_blocks += 1
        return ProducerIdBlock(first=self.fetched_blocks * 1_000, count=1_000)

    @classmethod
    async def start(
        cls, *topics: TopicImage, brokers: tuple[BrokerImage, ...] = (), slots: tuple[int, ...] = (), **settings: str
    ) -> "HandlerWorld":
        """Broker 0, registered, in a cluster with broker 1 and these topics; `slots` are its own."""
        named = {key.replace("_", "."): value for key, value in settings.items()}
        world = cls(await Shell.start(), named)
        world.replication.registered(EPOCH)
        world.slots.registered(EPOCH)
        world.show(*topics, brokers=brokers, slots=slots)
        return world

    def show(
        self,
        *topics: TopicImage,
        brokers: tuple[BrokerImage, ...] = (),
        slots: tuple[int, ...] = (),
        offset: int = 10,
        topic_configs: dict[str, dict[str, str]] | None = None,
        group_configs: dict[str, dict[str, str]] | None = None,
    ) -> MetadataImage:
        image = image_of(
            *(brokers or (broker(0), broker(1))),
            topics=topics,
            slots={number: SlotImage(coordinator=0, coordinator_epoch=1) for number in slots},
            offset=offset,
            topic_configs=topic_configs,
            group_configs=group_configs,
        )
        self.source.publish(image)
        return image

    def _fatal(self, reason: str) -> None:
        raise AssertionError(reason)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def partition(self, name: str = "t", number: int = 0) -> Partition:
        return self.replication.manager.partition(TopicPartition(name, number))

    def log(self, name: str = "t", number: int = 0) -> PartitionLog:
        found = self.logs.get(TopicPartition(name, number))
        assert found is not None
        return found

    def batch(self, *values: bytes, producer: ProducerFields | None = None, at_ms: int = 0) -> bytearray:
        timestamp_ms = self.shell.clock.wall_ms() + at_ms
        return batch_of(*values, timestamp_ms=timestamp_ms, producer=producer)

    def append(self, *values: bytes, name: str = "t", number: int = 0, at_ms: int = 0) -> int:
        """As a client with acks=1; returns the first offset."""
        info, _ = self.replication.append(self.partition(name, number), self.batch(*values, at_ms=at_ms), acks=1)
        return info.first_offset

    def follower_has(self, offset: int, *, name: str = "t", number: int = 0, node_id: int = 1) -> None:
        partition = self.partition(name, number)
        _, effects = partition.leading.read_for_follower(
            node_id,
            broker_epoch=100 + node_id,
            offset=offset,
            max_bytes=1,
            current_leader_epoch=partition.leader_epoch,
            last_fetched_epoch=-1,
            now_ms=self.shell.clock.now_ms(),
        )
        self.replication.perform(effects)


async def ask(handler: Callable[[Any, Any], Coroutine[Any, Any, Response]], request: Request, **client: str) -> Any:
    """Call a handler that is a coroutine."""
    return await handler(request, Client(**client))


def answer_of(handler: Callable[[Any, Any, Any], None], request: Request) -> Any:
    """Call a handler that answers at once."""
    client = Client()
    handler(request, client, client.reply)
    return client.answer()


def produce(
    *records: bytes | bytearray | tuple[str, int, bytearray], acks: int = 1, timeout_ms: int = 1_000
) -> ProduceRequest:
    """Batches alone go to partition 0 of t."""
    items = [item if isinstance(item, tuple) else ("t", 0, item) for item in records]
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        partitions=tuple(ProducePartition(topic=name, partition=number, records=item) for name, number, item in items),
    )


def fetch(
    *positions: FetchPartition,
    offset: int = 0,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    **options: Any,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        partitions=positions or (position(offset=offset),),
        **options,
    )


def position(
    name: str = "t", number: int = 0, *, offset: int = 0, max_bytes: int = 1 << 20, **more: Any
) -> FetchPartition:
    return FetchPartition(topic=name, partition=number, fetch_offset=offset, max_bytes=max_bytes, **more)


def data(response: FetchPartitionResponse) -> bytes:
    records = cast(Any, response.records)
    return bytes(records) if isinstance(records, bytes | bytearray | memoryview) else records.read()  # type: ignore[no-any-return]


def values(response: FetchPartitionResponse) -> list[bytes]:
    """The values of all records in the answer."""
    read, found, start = data(response), [], 0
    for header in iter_headers(read, verify_crc=True):
        found += [
            cast(bytes, record.value) for record in iter_records(read[start : start + header.size_bytes], check=True)
        ]
        start += header.size_bytes
    return found


def only(response: Response) -> FetchPartitionResponse:
    assert isinstance(response, FetchResponse)
    (partition,) = response.partitions
    return partition


async def soon(client: Client) -> Response:
    """The reply, once all is done that needs no time."""
    for _ in range(10):
        await asyncio.sleep(0)
    return client.answer()


def _coordinator(loaded: LoadedSlot) -> SlotCoordinator:
    groups = GroupCoordinator(
        slot=loaded.number,
        coordinator_epoch=loaded.coordinator_epoch,
        records=loaded.records,
        rng=Random(6),
        topics=loaded.topics,
        now_ms=loaded.now_ms,
    )
    return SlotCoordinator(groups=groups, settings=TransactionSettings(), now_ms=loaded.now_ms)
