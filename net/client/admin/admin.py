"""`Admin`: topics, configuration, the cluster, consumer groups. Each call retries retriable errors within a
timeout."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping
from random import Random
from typing import Any, Final, Self, TypeVar, Unpack

from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    ConfigEntryChange,
    CreateTopicResponse,
    DecommissionBrokerRequest,
    ElectLeaderRequest,
    FillBrokerRequest,
    FillBrokerResponse,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol.broker_figures import DescribeBrokerRequest, DescribeBrokerResponse
from barnabas.net.wire.protocol.responses import (
    AlterVotersResponse,
    ConfigEntry,
    DeleteRecordsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeMovesResponse,
    DescribeQuorumResponse,
    DescribeStorageResponse,
    MetadataResponse,
    PartitionMove,
    TopicMetadata,
)

from ...base.clock import Clock
from ...wire.network import Network
from ..connection.arguments import explained
from ..connection.client import API_TIMEOUT_MS, DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, Client
from ..connection.errors import (
    BarnabasError,
    InvalidConfigError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    error_for,
)
from ..connection.habits import asynchronous, keyworded, texts_of, with_habits
from ..connection.records import OffsetAndTimestamp
from ..connection.security import SecurityOptions
from ..positions.offset_lookup import EARLIEST, LATEST, list_offsets
from ..positions.offset_lookup import isolation_level as isolation_level_of
from .acls import AclAdmin
from .admin_groups import GroupAdmin
from .asking import Ask
from .events import EventAdmin
from .quotas import QuotaAdmin
from .transactions import TransactionAdmin
from .users import UserAdmin

TOPIC = 2  # Resource types, as in Kafka.
BROKER = 4
GROUP = 32
MAX_FILL_REQUESTS: Final = 100  # each begins up to 2,500 moves, and a cluster has 200,000 partitions at most
_RESOURCE_TYPES: Final = {"topic": TOPIC, "broker": BROKER, "group": GROUP}

T = TypeVar("T")


@explained(partition="the number of a partition", partitions="how many partitions")
@asynchronous
class Admin(GroupAdmin):
    """Manages a cluster.

    async with Admin("localhost:9092") as admin:
        await admin.create_topic("orders", partitions=6, replication_factor=3)
    """

    @with_habits
    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        timeout_ms: int = API_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-admin",
        network: Network | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        client: Client | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        self._client = client or Client(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            network=network,
            clock=clock,
            rng=rng,
            **security,
        )
        self._ask = Ask(self._client, timeout_ms)
        self._timeout_ms = timeout_ms
        self.transactions = TransactionAdmin(self._client, self._ask, timeout_ms)
        self.users = UserAdmin(self._ask)
        self.acls = AclAdmin(self._ask)
        self.quotas = QuotaAdmin(self._ask)
        self.events = EventAdmin(self._client, self._ask)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Raises NoBrokersAvailableError, which lists each address with its error."""
        await self._client.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()

    @property
    def client(self) -> Client:
        """The connections and the metadata, which producers, consumers and admin clients can share."""
        return self._client

    # --- topics ------------------------------------------------------------------------------------------------------

    @keyworded
    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignment: Iterable[Iterable[int]] = (),
        validate_only: bool = False,
        if_not_exists: bool = False,
    ) -> CreateTopicResponse:
        """Create a topic; -1 means the cluster's default. `assignment` lists the replicas of each partition instead.

        Raises TopicAlreadyExistsError; with `if_not_exists`, returns the topic that exists, and leaves it as it is.
        """
        request = q.CreateTopicRequest(
            name=name,
            partition_count=partitions,
            replication_factor=replication_factor,
            assignment=tuple(tuple(replicas) for replicas in assignment),
            configs=texts_of(configs) if configs else None,
            validate_only=validate_only,
            timeout_ms=self._timeout_ms,
            topic_id=f"{self._client.rng.getrandbits(128):032x}",
        )
        creation: Coroutine[Any, Any, CreateTopicResponse] = self._ask.controller(request)
        return await (_unless_exists(self, name, creation) if if_not_exists else creation)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its records; one that is gone already is no error."""
        request = q.DeleteTopicRequest(name=name, timeout_ms=self._timeout_ms)
        await self._ask.controller(request, done_already=(UnknownTopicOrPartitionError,))

    async def add_partitions(
        self, name: str, total_count: int, *, assignment: Iterable[Iterable[int]] = (), validate_only: bool = False
    ) -> None:
        """Grow a topic to `total_count` partitions. This changes the partition of most keys."""
        await self._ask.controller(
            AddPartitionsRequest(
                name=name,
                total_count=total_count,
                assignment=tuple(tuple(replicas) for replicas in assignment),
                validate_only=validate_only,
            )
        )

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names, sorted; with `include_internal` also those of the cluster itself."""
        topics = (await _metadata(self, None)).topics
        return sorted(topic.name for topic in topics if include_internal or not topic.internal)

    async def describe_topic(self, name: str) -> TopicMetadata:
        """Describe the partitions with leaders, replicas and ISR. Raises UnknownTopicOrPartitionError."""
        (topic,) = (await _metadata(self, (name,))).topics
        if topic.error:
            raise error_for(topic.error, topic.message or f"topic {name!r}")
        return topic

    async def list_offsets(self, topic: str, *, timestamp_ms: int = LATEST) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset at or after a time for each partition; LATEST (-1) is the end, EARLIEST (-2) the start."""
        count = await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms)
        times_ms = {TopicPartition(topic, number): timestamp_ms for number in range(count)}
        return await list_offsets(self._client, times_ms, timeout_ms=self._timeout_ms)

    async def describe_topics(self, *, include_internal: bool = True) -> list[TopicMetadata]:
        """Describe all topics with their partitions, sorted by name."""
        topics = (await _metadata(self, None)).topics
        return sorted((t for t in topics if include_internal or not t.internal), key=lambda topic: topic.name)

    async def find_offsets(
        self, timestamps_ms: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return offsets of several partitions, also of several topics, by time (or EARLIEST, LATEST). For read_committed, LATEST
        is where the first open transaction begins, if there is one."""
        level = isolation_level_of(isolation_level)
        for topic in {partition.topic for partition in timestamps_ms}:
            await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms)
        return await list_offsets(self._client, dict(timestamps_ms), timeout_ms=self._timeout_ms, isolation_level=level)

    async def delete_records(self, topic: str, partition: int, *, before_offset: int = -1) -> int:
        """Delete all records before an offset (-1: all that are committed); returns the new start of the log.

        Raises UnknownTopicOrPartitionError, without retries if the partition does not exist.
        """
        count = await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms)
        if partition >= count:  # The partition may have been added since.
            await self._client.refresh()
            count = self._client.metadata.partition_count(topic)
        if not 0 <= partition < count:
            raise UnknownTopicOrPartitionError(
                f"{topic} has no partition {partition}; its partitions are 0 to {count - 1}"
            )
        request = q.DeleteRecordsRequest(topic=topic, partition=partition, before_offset=before_offset)

        async def attempt() -> DeleteRecordsResponse:
            response: DeleteRecordsResponse = await self._client.call_leader(TopicPartition(topic, partition), request)
            return response

        found = await self._client.retrying(attempt, timeout_ms=self._timeout_ms, before_retry=self._client.refresh)
        return found.log_start_offset

    # --- configuration -----------------------------------------------------------------------------------------------

    async def alter_config(
        self,
        resource: str | int,
        changes: Mapping[str, str | None],
        *,
        resource_type: int | str = TOPIC,
        validate_only: bool = False,
    ) -> None:
        """Change the configuration of a "topic", a "broker" or a "group", which `resource_type` says; None is a key's default.
        Raises InvalidConfigError for another type, and for values that the cluster refuses."""
        await self._ask.controller(
            AlterConfigRequest(
                resource_type=_resource_type_of(resource_type),
                resource=str(resource),
                changes=tuple(ConfigEntryChange(key=key, value=value) for key, value in texts_of(changes).items()),
                validate_only=validate_only,
            )
        )

    async def describe_configs(self, resource: str | int, *, resource_type: int | str = TOPIC) -> list[ConfigEntry]:
        """The configuration of a "topic", a "broker" or a "group"."""
        number = _resource_type_of(resource_type)
        request = q.DescribeConfigsRequest(resource_type=number, resource=str(resource))

        async def attempt() -> DescribeConfigsResponse:
            # Only a broker itself knows its configuration file.
            is_broker = number == BROKER and str(resource).isdigit()
            response: DescribeConfigsResponse = (
                await self._client.call(int(resource), request) if is_broker else await self._client.call_any(request)
            )
            return response

        return list((await self._client.retrying(attempt, timeout_ms=self._timeout_ms)).entries)

    # --- leaders and replicas ----------------------------------------------------------------------------------------

    async def elect_leader(
        self, topic: str, partition: int, *, target: int | None = None, unclean: bool = False
    ) -> None:
        """Elect the preferred replica, or `target`, as leader. `unclean` allows a replica that may lack records."""
        await self._ask.controller(ElectLeaderRequest(topic=topic, partition=partition, target=target, unclean=unclean))

    async def transfer_leadership(self, topic: str, partition: int, target: int) -> None:
        """Make `target`, one of the in-sync replicas, the leader of a partition."""
        await self.elect_leader(topic, partition, target=target)

    async def assign_replicas(
        self, topic: str, partition: int, replicas: Iterable[int], *, throttle_bytes_per_s: int = 0
    ) -> None:
        """Move a partition (no replicas: cancel its move); returns when the move has started. `describe_moves` shows the
        progress. A throttle applies to all moves, never to in-sync replicas, and ends with the last move."""
        await self._ask.controller(
            AssignReplicasRequest(
                topic=topic,
                partition=partition,
                replicas=tuple(replicas),
                throttle_bytes_per_s=throttle_bytes_per_s,
            )
        )

    async def describe_moves(self) -> DescribeMovesResponse:
        """List moves in progress, with the bytes that each new replica has yet to copy if its leader can be queried."""
        found: DescribeMovesResponse = await self._ask.anywhere(q.DescribeMovesRequest())
        leaders = sorted({move.leader for move in found.moves} & self._client.metadata.brokers.keys())
        answers = await asyncio.gather(*(self._moves_led_by(leader) for leader in leaders))
        known = {(move.topic, move.partition): move for moves in answers for move in moves}
        moves = tuple(known.get((move.topic, move.partition), move) for move in found.moves)
        return DescribeMovesResponse(moves=moves, throttle_bytes_per_s=found.throttle_bytes_per_s)

    async def _moves_led_by(self, leader: int) -> list[PartitionMove]:
        try:
            answer: DescribeMovesResponse = await self._client.call(leader, q.DescribeMovesRequest())
        except BarnabasError as error:
            if not error.retriable:
                raise
            return []  # this leader is shutting down: its moves are listed without progress
        return [move for move in answer.moves if move.leader == leader]

    # --- the cluster -------------------------------------------------------------------------------------------------

    async def describe_cluster(self) -> DescribeClusterResponse:
        """Describe the brokers, the controller, and the settings that have one value for the cluster."""
        response: DescribeClusterResponse = await self._ask.anywhere(q.DescribeClusterRequest())
        return response

    async def describe_quorum(self) -> DescribeQuorumResponse:
        """Describe the voters of the metadata quorum, their leader, and how far each of them has got."""
        response: DescribeQuorumResponse = await self._ask.anywhere(q.DescribeQuorumRequest())
        return response

    async def add_voter(self, node_id: int) -> str:
        """Make a running broker a voter of the quorum; returns the list of voters in words after the commit.

        Raises InvalidRequestError if the broker is a voter already or is not active, or another change is in progress.
        """
        return await self._alter_voters(node_id, add=True)

    async def remove_voter(self, node_id: int) -> str:
        """Remove a voter, dead or alive, from the quorum; it stays a broker. Returns after the commit.

        Raises InvalidRequestError if the node is not a voter, is the last one, or no majority would be up without it.
        """
        return await self._alter_voters(node_id, add=False)

    async def _alter_voters(self, node_id: int, *, add: bool) -> str:
        timeout_ms = min(
            self._timeout_ms, self._client.request_timeout_ms * 9 // 10
        )  # so that the broker can report why the change takes longer
        request = q.AlterVotersRequest(node_id=node_id, add=add, timeout_ms=timeout_ms)
        response: AlterVotersResponse = await self._ask.controller(request)
        return response.state

    async def unregister_broker(self, node_id: int) -> None:
        """Remove a permanently lost broker from the cluster; it must not hold replicas."""
        await self._ask.controller(UnregisterBrokerRequest(node_id=node_id))

    async def decommission_broker(self, node_id: int, *, cancel: bool = False, throttle_bytes_per_s: int = 0) -> None:
        """Have the cluster move all replicas and group slots off a broker; returns when that has started. `describe_cluster`
        shows how many are left. Raises InvalidReplicationFactorError if too few brokers would remain."""
        await self._ask.controller(
            DecommissionBrokerRequest(node_id=node_id, cancel=cancel, throttle_bytes_per_s=throttle_bytes_per_s)
        )

    async def fill_broker(self, node_id: int, *, throttle_bytes_per_s: int = 0) -> int:
        """Move a fair share of replicas to a broker; returns the number of moves started."""
        return await _fill_broker(
            self._ask, FillBrokerRequest(node_id=node_id, throttle_bytes_per_s=throttle_bytes_per_s)
        )

    async def shut_down_broker(self, node_id: int) -> None:
        """Have a broker hand over its leaderships and stop."""
        await self._client.call(node_id, q.BrokerShutdownRequest(node_id=node_id), timeout_ms=self._timeout_ms)

    async def describe_storage(self, node_id: int, *, topic: str = "") -> DescribeStorageResponse:
        """Describe the data folders of a broker and their problems; `topic`: also the sizes of its partitions there."""
        return await _of(self, node_id, q.DescribeStorageRequest(node_id=node_id, topic=topic), DescribeStorageResponse)

    async def describe_broker(self, node_id: int, *, history: bool = False) -> DescribeBrokerResponse:
        """Figures of a broker's machine, load and clients; with `history`, also the last hour in steps of ten seconds."""
        request = DescribeBrokerRequest(node_id=node_id, history=history)
        return await _of(self, node_id, request, DescribeBrokerResponse)

    async def bring_back_folder(self, node_id: int, path: str) -> DescribeStorageResponse:
        """Recover a data folder after a disk repair; its replicas fetch until they are in sync again."""
        return await _of(self, node_id, q.BringBackFolderRequest(node_id=node_id, path=path), DescribeStorageResponse)


__all__ = ["BROKER", "EARLIEST", "GROUP", "LATEST", "TOPIC", "Admin", "topic_sizes"]


def _resource_type_of(given: int | str) -> int:
    if isinstance(given, int):
        return given
    if given not in _RESOURCE_TYPES:
        raise InvalidConfigError(f"resource_type is {given!r}; it must be one of {', '.join(_RESOURCE_TYPES)}")
    return _RESOURCE_TYPES[given]


async def _unless_exists(
    admin: Admin, name: str, creation: Coroutine[Any, Any, CreateTopicResponse]
) -> CreateTopicResponse:
    try:
        return await creation
    except TopicAlreadyExistsError:
        topic = await admin.describe_topic(name)
    replicas = max((len(partition.replicas) for partition in topic.partitions), default=0)
    return CreateTopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_count=len(topic.partitions),
        replication_factor=replicas,
    )


async def _of(admin: Admin, node_id: int, request: q.Request, kind: type[T]) -> T:
    """The answer of one broker."""
    response = await admin._client.call(node_id, request, timeout_ms=admin._timeout_ms)
    assert isinstance(response, kind)
    return response


async def topic_sizes(
    admin: Admin, topic: str, brokers: Collection[int], *, wait_s: float
) -> dict[int, dict[int, int]]:
    """Bytes on disk of the partitions of a topic: {partition: {node id: bytes}}. Brokers that do not answer within `wait_s` are
    left out, and all of them where the caller may not describe the cluster."""
    found: dict[int, dict[int, int]] = {}

    async def look(node_id: int) -> None:
        try:
            async with asyncio.timeout(wait_s):
                told = await admin.describe_storage(node_id, topic=topic)
        except (TimeoutError, BarnabasError):
            return
        for item in told.sizes:
            found.setdefault(item.partition, {})[node_id] = item.size_bytes

    await asyncio.gather(*map(look, brokers))
    return found


async def _metadata(admin: Admin, topics: tuple[str, ...] | None) -> MetadataResponse:
    response: MetadataResponse = await admin._ask.anywhere(q.MetadataRequest(topics=topics))
    return response


async def _fill_broker(ask: Ask, request: FillBrokerRequest) -> int:
    count = 0
    for _ in range(MAX_FILL_REQUESTS):
        begun: FillBrokerResponse = await ask.controller(request)
        if not begun.move_count:
            break
        count += begun.move_count
    return count
