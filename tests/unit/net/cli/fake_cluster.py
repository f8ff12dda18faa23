"""A cluster in memory in place of the SDK's clients: one topic's records, groups, and a log of calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from unit.net.described_groups import described_group

from barnabas.log.vocabulary.access.acls import Acl, AclFilter
from barnabas.log.vocabulary.access.quotas import EntityQuotas, QuotaEntity, QuotaFilter
from barnabas.log.vocabulary.cluster_changes import CreateTopicResponse
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    OwnerChange,
    RebalanceEvent,
    RebalanceReason,
    UndoneOffset,
    UndoOffsetResetResponse,
    UnownedPartition,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.events import EventPage
from barnabas.net.client.admin.transactions import TransactionDescription
from barnabas.net.client.connection.records import OffsetAndTimestamp
from barnabas.net.wire.greeting import Greeting
from barnabas.net.wire.protocol import group_responses, responses
from barnabas.net.wire.protocol.lag import Lag
from barnabas.net.wire.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DeleteOffsetsRequest,
    UnreadRequest,
)
from barnabas.net.wire.protocol.transaction_operations import (
    ListedTransaction,
    ListTransactionsResponse,
    OpenTransaction,
)


@dataclass(frozen=True, kw_only=True)
class FakeRecord:
    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass
class FakeCluster:
    """Also the connector: `main(..., connector=cluster)`."""

    logs: dict[TopicPartition, list[FakeRecord]] = field(default_factory=dict)
    committed: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    records_of: str = ""  # the isolation level of the last consumer
    ends_of: set[str] = field(default_factory=set)  # the isolation levels for which offsets were looked up
    fenced: set[int] = field(default_factory=set)
    folders: tuple[responses.StorageFolder, ...] = ()
    troubled_folders: tuple[responses.TroubledFolder, ...] = ()  # of broker 1
    ignored_settings: tuple[responses.IgnoredSetting, ...] = ()  # of broker 1
    isr: tuple[int, ...] = (0, 1, 2)
    moves: tuple[responses.PartitionMove, ...] | BarnabasError = ()
    quorum_leader: int = 0
    at_port: dict[int, Greeting | BarnabasError] = field(default_factory=dict)
    failure: BaseException | None = None
    poll_failure: BaseException | None = None
    is_classic: bool = False  # all groups
    compression: str = ""  # of the last producer
    trouble: str = ""  # what clients tell of; with it, nothing gets on
    commit_failures: list[BaseException] = field(default_factory=list)
    assigned: list[TopicPartition] = field(default_factory=list)  # by the group, at the next poll
    polls_left: int = -1  # then Ctrl-C; -1: no end
    flushed_before_commit: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transactions = FakeTransactions(self.calls)
        self.events = FakeEvents(self.calls)
        self.acls = FakeAcls()
        self.quotas = FakeQuotas()

    def add(self, topic: str, *values: bytes, partition: int = 0) -> None:
        log = self.logs.setdefault(TopicPartition(topic, partition), [])
        for value in values:
            log.append(
                FakeRecord(topic=topic, partition=partition, offset=len(log), value=value, timestamp_ms=len(log))
            )

    async def greet(self, host: str, port: int) -> Greeting:
        """Broker n listens on port n, unless the test says who is there."""
        found = self.at_port.get(port, Greeting(cluster_id="c", node_id=port))
        if isinstance(found, BarnabasError):
            raise found
        return found

    @asynccontextmanager
    async def admin(self, bootstrap: str) -> AsyncIterator[Any]:
        if self.failure is not None:
            raise self.failure
        yield FakeAdmin(self)

    @asynccontextmanager
    async def producer(
        self, bootstrap: str, *, acks: str, compression: str = "none", linger_ms: float = 0
    ) -> AsyncIterator[Any]:
        if self.failure is not None:
            raise self.failure
        self.calls.append(("producer", acks))
        self.compression = compression
        yield FakeProducer(self)

    @asynccontextmanager
    async def consumer(
        self, bootstrap: str, *, topics: Sequence[str], group: str | None, start: str, isolation_level: str
    ) -> AsyncIterator[Any]:
        self.records_of = isolation_level
        consumer = FakeConsumer(self, group)
        if group:
            known = self.committed.setdefault(group, {})
            consumer.assign({place: known.get(place, 0) for place in self.logs if place.topic in topics})
        yield consumer
        self.calls.append(("consumer closed",))


class FakeProducer:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        *,
        headers: Any = None,
        partition: int | None = None,
    ) -> Awaitable[object]:
        self._cluster.calls.append(("send", topic, list(values), keys))
        if headers or partition is not None:
            self._cluster.calls.append(("columns", headers, partition))
        if self._cluster.trouble == "no topic":
            await asyncio.get_running_loop().create_future()
        return self._done()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Awaitable[object]:
        place = TopicPartition(topic, partition or 0)
        log = self._cluster.logs.setdefault(place, [])
        log.append(
            FakeRecord(
                topic=topic,
                partition=place.partition,
                offset=len(log),
                value=value,
                key=key,
                timestamp_ms=timestamp_ms or 0,
                headers=headers or (),
            )
        )
        return _Handle(self)

    @property
    def client(self) -> "FakeProducer":
        return self

    def trouble(self) -> str:
        return self._cluster.trouble

    async def _done(self) -> None:
        if self._cluster.trouble:
            await asyncio.get_running_loop().create_future()
        self._cluster.calls.append(("acknowledged",))

    async def flush(self) -> None:
        self._cluster.calls.append(("flush",))


class _Handle:
    """As the producer's handles, it need not be awaited."""

    is_done = False

    def __init__(self, producer: FakeProducer) -> None:
        self._producer = producer

    def __await__(self) -> Generator[Any, None, None]:
        return self._producer._done().__await__()


class FakeConsumer:
    def __init__(self, cluster: FakeCluster, group: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._next: dict[TopicPartition, int] = {}

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._next = dict(offsets)

    def trouble(self) -> str:
        return self._cluster.trouble

    async def positions(self) -> Mapping[TopicPartition, int]:
        return self._next

    async def poll(self, max_wait_ms: int) -> Iterable[FakeRecord]:
        if self._cluster.trouble:
            await asyncio.sleep(0.01)
            return ()
        if self._cluster.poll_failure is not None:
            raise self._cluster.poll_failure
        if self._cluster.polls_left == 0:
            raise KeyboardInterrupt
        self._cluster.polls_left -= 1
        found = [record for place, start in self._next.items() for record in self._cluster.logs[place][start:]]
        self._next = {place: len(self._cluster.logs[place]) for place in self._next}
        return found

    def take_assigned(self) -> Sequence[TopicPartition]:
        taken, self._cluster.assigned = self._cluster.assigned, []
        return taken

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert self._group is not None
        if self._cluster.commit_failures:
            raise self._cluster.commit_failures.pop(0)
        self._cluster.committed[self._group].update(offsets)
        self._cluster.calls.append(("commit", dict(offsets)))


class FakeEvents:
    """The pages of events that a test wants shown, one for each question."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.pages: list[EventPage | BarnabasError] = []
        self._calls = calls

    async def __call__(self, **asked: Any) -> EventPage:
        self._calls.append(("events", asked))
        page = self.pages.pop(0)
        if isinstance(page, BarnabasError):
            raise page
        return page


@dataclass
class FakeTransactions:
    """What a test says about transactions; aborts are among the calls of the cluster."""

    calls: list[tuple[Any, ...]]
    known: tuple[ListedTransaction, ...] = ()
    late: tuple[ListedTransaction, ...] = ()
    strays: tuple[OpenTransaction, ...] = ()
    described: TransactionDescription | None = None
    left_out: int = 0

    async def list(self, **filters: Any) -> ListTransactionsResponse:
        self.calls.append(("list", filters))
        return ListTransactionsResponse(transactions=self.known, slots=(), left_out=self.left_out)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        assert self.described is not None and self.described.summary.transactional_id == transactional_id
        return self.described

    async def abort(self, transactional_id: str) -> None:
        self.calls.append(("abort", transactional_id))

    async def hanging(self, *, older_than_ms: int = 10_000) -> tuple[OpenTransaction, ...]:
        return tuple(item for item in self.strays if item.age_ms >= older_than_ms)

    async def abort_hanging(self, topic: str, partition: int, **producer: Any) -> None:
        self.calls.append(("abort_hanging", topic, partition, producer))

    async def overdue(self, *, grace_ms: int) -> ListTransactionsResponse:
        return ListTransactionsResponse(transactions=self.late, slots=())


class FakeAcls:
    """Permissions in memory."""

    def __init__(self) -> None:
        self.held: list[Acl] = []

    async def find(self, wanted: AclFilter) -> list[Acl]:
        return [acl for acl in self.held if wanted.matches(acl)]

    async def add(self, acls: Iterable[Acl]) -> None:
        self.held += acls

    async def remove(self, filters: Iterable[AclFilter]) -> list[tuple[Acl, ...]]:
        found = [tuple(acl for acl in self.held if one.matches(acl)) for one in filters]
        self.held = [acl for acl in self.held if not any(acl in some for some in found)]
        return found


class FakeQuotas:
    """Quotas in memory."""

    def __init__(self) -> None:
        self.held: dict[QuotaEntity, dict[str, float]] = {}

    async def find(self, wanted: QuotaFilter) -> list[EntityQuotas]:
        return [EntityQuotas(entity=one, values=values) for one, values in self.held.items() if wanted.matches(one)]

    async def alter(self, entity: QuotaEntity, values: Mapping[str, float | None]) -> None:
        changed = {**self.held.pop(entity, {}), **values}
        if left := {str(kind): value for kind, value in changed.items() if value is not None}:
            self.held[entity] = left


class FakeCoordinators:
    """Groups here are of the consumer protocol, unless the test says otherwise."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def call(self, group_id: str, request: Any, *, timeout_ms: int) -> None:
        if isinstance(request, DeleteOffsetsRequest):
            self._cluster.calls.append(("DeleteOffsetsRequest", group_id, request.partitions))
            return
        self._cluster.calls.append((type(request).__name__, group_id, request.member_id))
        if self._cluster.is_classic and isinstance(request, ConsumerGroupHeartbeatRequest):
            raise InconsistentGroupProtocolError("the group is classic")


class FakeAdminClient:
    """Node 0 leads all partitions, and is the one that is asked for what has not been read."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.coordinators = FakeCoordinators(cluster)
        self.metadata = SimpleNamespace(leader=lambda place: SimpleNamespace(node_id=0))

    def want_topic(self, name: str) -> None:
        """All topics are known."""

    async def refresh(self) -> None:
        """Nothing changes."""

    async def call(self, node_id: int, request: UnreadRequest) -> group_responses.UnreadResponse:
        if self._cluster.trouble:
            await asyncio.get_running_loop().create_future()
        return group_responses.UnreadResponse(
            partitions=tuple(
                group_responses.UnreadPartitionResponse(
                    topic=item.topic,
                    partition=item.partition,
                    log_start_offset=0,
                    log_end_offset=len(self._cluster.logs[TopicPartition(item.topic, item.partition)]),
                )
                for item in request.partitions
            )
        )


class FakeAdmin:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.client = FakeAdminClient(cluster)
        self.transactions = cluster.transactions
        self.events = cluster.events
        self.acls = cluster.acls
        self.quotas = cluster.quotas

    def __getattr__(self, name: str) -> Any:
        async def record(*arguments: Any, **named: Any) -> None:
            self._cluster.calls.append((name, *arguments, *named.values()))

        return record

    def _names(self) -> list[str]:
        return sorted({place.topic for place in self._cluster.logs})

    async def create_topic(self, name: str, **named: Any) -> CreateTopicResponse:
        if name in self._names():
            raise TopicAlreadyExistsError(f"topic {name} exists;\n choose another name")
        self._cluster.calls.append(("create_topic", name, named))
        return CreateTopicResponse(
            name=name, topic_id="i", partition_count=named["partitions"], replication_factor=named["replication_factor"]
        )

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        return self._names()

    async def describe_moves(self) -> responses.DescribeMovesResponse:
        if isinstance(self._cluster.moves, BarnabasError):
            raise self._cluster.moves
        return responses.DescribeMovesResponse(moves=self._cluster.moves)

    async def describe_topics(self) -> list[responses.TopicMetadata]:
        return [await self.describe_topic(name) for name in self._names()]

    async def delete_records(self, topic: str, partition: int, *, before_offset: int) -> int:
        self._cluster.calls.append(("delete_records", topic, partition, before_offset))
        end = len(self._cluster.logs[TopicPartition(topic, partition)])
        if before_offset > end:
            raise OffsetOutOfRangeError(f"{topic}-{partition} ends at {end}")
        return before_offset

    async def assign_replicas(
        self, topic: str, partition: int, replicas: Sequence[int], *, throttle_bytes_per_s: int
    ) -> None:
        self._check(topic, partition)
        self._cluster.calls.append(("assign_replicas", topic, partition, replicas, throttle_bytes_per_s))

    async def elect_leader(self, topic: str, partition: int, *, target: int | None) -> None:
        self._check(topic, partition)
        self._cluster.calls.append(("elect_leader", topic, partition, target))

    def _check(self, topic: str, partition: int) -> None:
        if TopicPartition(topic, partition) not in self._cluster.logs:
            raise UnknownTopicOrPartitionError(f"there is no {topic}-{partition}")

    async def describe_topic(self, name: str) -> responses.TopicMetadata:
        places = [place for place in self._cluster.logs if place.topic == name]
        if not places:
            raise UnknownTopicOrPartitionError(f"topic {name} does not exist; see `barnabas topic list`")
        one = responses.PartitionMetadata(error=0, leader=0, leader_epoch=1, replicas=(0, 1, 2), isr=self._cluster.isr)
        return responses.TopicMetadata(error=0, name=name, topic_id="i", partitions=(one,) * len(places))

    async def describe_configs(self, resource: str, *, resource_type: int = 2) -> list[responses.ConfigEntry]:
        if resource_type == 2 and resource not in self._names():
            raise UnknownTopicOrPartitionError(f"topic {resource} does not exist")
        source = "topic" if resource_type == 2 else "broker"
        entry = responses.ConfigEntry(key="a", value="1", source=source, default=None, documentation="")
        return [entry, replace(entry, key="password", value="x", source="default", sensitive=True)]

    async def describe_cluster(self) -> responses.DescribeClusterResponse:
        brokers = tuple(
            responses.ClusterBroker(
                node_id=node,
                host="h",
                port=node,
                rack=None,
                fenced=node in self._cluster.fenced,
                in_controlled_shutdown=False,
                broker_epoch=1,
                troubled_folders=self._cluster.troubled_folders if node == 1 else (),
                ignored_settings=self._cluster.ignored_settings if node == 1 else (),
            )
            for node in range(3)
        )
        return responses.DescribeClusterResponse(cluster_id="c", controller_id=0, offset=5, brokers=brokers)

    async def describe_quorum(self) -> responses.DescribeQuorumResponse:
        is_lost = self._cluster.quorum_leader < 0
        return responses.DescribeQuorumResponse(
            leader_id=self._cluster.quorum_leader,
            term=1,
            committed_index=5,
            voters=(0, 1, 2),
            unconfirmed_ms=12_500 if is_lost else -1,
            unreachable_voters=(1, 2) if is_lost else (),
        )

    async def shut_down_broker(self, node_id: int) -> None:
        self._check_broker(node_id)
        self._cluster.calls.append(("shut_down_broker", node_id))

    def _check_broker(self, node_id: int) -> None:
        if node_id not in range(3) or node_id in self._cluster.fenced:
            raise BrokerNotAvailableError(f"broker {node_id} is not in the metadata")

    async def describe_storage(self, node_id: int, *, topic: str = "") -> responses.DescribeStorageResponse:
        """Each partition has as many bytes on this broker as its number says, times a thousand."""
        self._check_broker(node_id)
        sizes = [responses.PartitionSize(partition=number, size_bytes=1_000 * number + node_id) for number in range(2)]
        return responses.DescribeStorageResponse(
            node_id=node_id, folders=self._cluster.folders, sizes=tuple(sizes) if topic else ()
        )

    async def bring_back_folder(self, node_id: int, path: str) -> responses.DescribeStorageResponse:
        self._check_broker(node_id)
        self._cluster.calls.append(("bring_back_folder", node_id, path))
        return await self.describe_storage(node_id)

    async def list_groups(self) -> list[group_responses.ListedGroup]:
        return [
            group_responses.ListedGroup(group_id=name, state="Empty", protocol="consumer", member_count=0)
            for name in self._cluster.committed
        ]

    async def explain_group(self, group: str) -> group_responses.DescribeGroupResponse:
        described = await self.describe_group(group)
        (event,) = described.rebalances
        reason = RebalanceReason(
            at_ms=0, cause="member_joined", member_id="m", client_id="c", client_host="h", detail="it subscribes to t"
        )
        move = OwnerChange(topic="t", partition=0, from_member="", to_member="m", at_ms=5, pause_ms=5)
        event = replace(event, rebalance_id=1, reasons=(reason,), moves=(move,), moved_count=1, stable_after_ms=7)
        unowned = UnownedPartition(
            topic="t", partition=1, reason="waiting_for_heartbeat", text="it is free", member_id="m", since_ms=1_500
        )
        return replace(described, rebalances=(event,), unowned=(unowned,))

    async def describe_group(self, group: str, *, shares: bool = False) -> group_responses.DescribeGroupResponse:
        if group not in self._cluster.committed:
            raise GroupIdNotFoundError(f"group {group} does not exist")
        place = next(iter(self._cluster.logs))
        event = RebalanceEvent(at_ms=0, cause="member_joined", member_id="m", group_epoch=1)
        return described_group(group, place, event, member_id="m", client_id="c", client_host="h")

    async def group_offsets(self, group: str, *, only_reachable: bool = False) -> dict[TopicPartition, Lag]:
        return {
            place: Lag(
                committed=offset,
                log_start_offset=0,
                log_end_offset=len(self._cluster.logs[place]),
                lag_ms=-1,
                is_estimate=False,
            )
            for place, offset in self._cluster.committed[group].items()
        }

    async def undo_reset(
        self, group: str, *, validate_only: bool = False, topics: Collection[str] | None = None
    ) -> UndoOffsetResetResponse:
        self._cluster.calls.append(("undo_reset", group, validate_only, topics))
        offsets = tuple(
            UndoneOffset(topic=place.topic, partition=place.partition, before=offset, after=-1)
            for place, offset in self._cluster.committed[group].items()
        )
        return UndoOffsetResetResponse(reset_id=3, at_ms=1_000, by="cli@host", offsets=offsets)

    async def find_offsets(
        self, timestamps_ms: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> Mapping[TopicPartition, OffsetAndTimestamp]:
        self._cluster.ends_of.add(isolation_level)
        return {
            place: OffsetAndTimestamp(offset=self._offset(place, timestamp), timestamp_ms=-1, leader_epoch=1)
            for place, timestamp in timestamps_ms.items()
        }

    def _offset(self, place: TopicPartition, timestamp: int) -> int:
        if timestamp == EARLIEST_TIMESTAMP:
            return 0
        if timestamp == LATEST_TIMESTAMP:
            return len(self._cluster.logs[place])
        return timestamp if timestamp < len(self._cluster.logs[place]) else -1
