"""The admin API's port onto this broker: requests go wherever in the cluster they belong, metrics are counted here."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from barnabas.kraft.metadata.image import NO_LEADER, MetadataImage
from barnabas.kraft.metadata.records import BROKER_RESOURCE
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
    error_for,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..admin.frame.backend import Sample
from ..protocol.group_responses import ListedGroup, ListGroupsResponse, UnreadPartitionResponse, UnreadResponse
from ..protocol.kafka.apis import KafkaResponse
from ..protocol.requests import (
    BringBackFolderRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    DescribeGroupRequest,
    DescribeStorageRequest,
    FetchRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    Request,
    ResetOffsetsRequest,
    UndoOffsetResetRequest,
    UnreadRequest,
)
from ..protocol.responses import ErrorResponse, ListOffsetsResponse, Response
from ..server.dispatcher import error_response
from .broker import Broker
from .metrics import samples

CALL_TIMEOUT_MS = 30_000
COORDINATED = (
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    DescribeGroupRequest,
    DeleteGroupRequest,
    ResetOffsetsRequest,
    UndoOffsetResetRequest,
)


class _LocalContext:
    """A request of this process itself: nobody can disconnect."""

    client_host = "127.0.0.1"
    client_id = "admin-api"
    is_connected = True

    def __init__(self, listener_name: str) -> None:
        self.listener_name = listener_name

    @property
    def connection(self) -> object:
        return self

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Never."""

    def no_reply(self) -> None:
        raise AssertionError("the admin API asks for an acknowledgement of what it produces")

    def hang_up(self) -> None:
        raise AssertionError("the admin API asks for an acknowledgement of what it produces")


class BrokerBackend:
    """Implements admin.backend.AdminBackend."""

    def __init__(self, broker: Broker, host_names: frozenset[str] = frozenset()) -> None:
        self._broker = broker
        self._host_names = host_names

    @property
    def node_id(self) -> int:
        return self._broker.node_id

    def host_names(self) -> frozenset[str]:
        return self._host_names

    def image(self) -> MetadataImage:
        return self._broker.metadata.image

    def is_ready(self) -> tuple[bool, str]:
        broker = self._broker
        if broker.shutdown_requested.is_set():
            return False, "the broker is stopping"
        if broker.metadata.leadership.leader_id is None:
            return False, "the quorum has no leader"
        if not broker.lifecycle.unfenced.is_set():
            return False, "the broker is not registered yet, or fenced by the controller"
        offline = broker.logs.offline_folders
        # Clients find their leaders by the metadata: a broker with a bad folder serves the rest, and says so.
        return True, "serving" if not offline else f"serving without the data folders {', '.join(offline)}"

    def metrics(self) -> Sequence[Sample]:
        return samples(self._broker)

    async def handle_here(self, request: Request) -> Response:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def reply(response: Response | KafkaResponse[object]) -> None:
            assert not isinstance(response, KafkaResponse), "the request was one of ours"
            if not answer.done():
                answer.set_result(response)

        context = _LocalContext(self._broker.config.inter_broker_listener())
        self._broker.dispatcher.dispatch(request, context, reply)
        return await answer

    async def handle(self, request: Request) -> Response:
        try:
            return await self._routed(request)
        except BarnabasError as error:
            return error_response(error)

    async def _routed(self, request: Request) -> Response:
        if isinstance(request, COORDINATED):
            return await self._ask(self._broker.groups.coordinator_of(request.group_id), request)
        if isinstance(request, ListGroupsRequest):
            return await self._of_all_brokers(request)
        if isinstance(request, ListOffsetsRequest):
            return await self._list_offsets(request)
        if isinstance(request, UnreadRequest):
            return await self._unread(request)
        if isinstance(request, ProduceRequest | FetchRequest):
            return await self._ask_leader([(item.topic, item.partition) for item in request.partitions], request)
        if isinstance(request, DeleteRecordsRequest):
            return await self._ask_leader([(request.topic, request.partition)], request)
        if isinstance(request, DescribeConfigsRequest) and request.resource_type == BROKER_RESOURCE:
            return await self._ask(int(request.resource) if request.resource.isdecimal() else self.node_id, request)
        if isinstance(request, DescribeStorageRequest | BringBackFolderRequest):
            return await self._ask(request.node_id, request)
        return await self.handle_here(request)

    async def _ask(self, node_id: int, request: Request) -> Response:
        if node_id == self.node_id:
            return await self.handle_here(request)
        connection = await self._broker.pool.get(*self._broker.controller.address_of(node_id))
        response: Response = await connection.send(request, timeout_ms=CALL_TIMEOUT_MS)
        return response

    async def _ask_leader(self, partitions: Sequence[tuple[str, int]], request: Request) -> Response:
        leaders = {self._leader_of(topic, partition) for topic, partition in partitions}
        if len(leaders) != 1:
            raise NotLeaderOrFollowerError("the partitions of one request must have one leader; ask for each by itself")
        return await self._ask(leaders.pop(), request)

    def _leader_of(self, topic: str, partition: int) -> int:
        found = self.image().partition(TopicPartition(topic, partition))
        if found is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {partition} of topic {topic!r}")
        if found.leader == NO_LEADER:
            raise LeaderNotAvailableError(f"partition {partition} of topic {topic!r} has no leader at the moment")
        return found.leader

    async def _list_offsets(self, request: ListOffsetsRequest) -> Response:
        """Partitions of many leaders in one request: asked of each, answered as one."""
        by_leader: dict[int, list[int]] = {}
        for position, item in enumerate(request.partitions):
            by_leader.setdefault(self._leader_of(item.topic, item.partition), []).append(position)
        found: dict[int, object] = {}
        for leader, positions in by_leader.items():
            part = replace(request, partitions=tuple(request.partitions[position] for position in positions))
            response = await self._ask(leader, part)
            if not isinstance(response, ListOffsetsResponse):
                return response
            found.update(zip(positions, response.partitions, strict=True))
        ordered = tuple(found[position] for position in range(len(request.partitions)))
        return ListOffsetsResponse(partitions=ordered)  # type: ignore[arg-type]

    async def _unread(self, request: UnreadRequest) -> Response:
        """Partitions of many leaders; where one cannot be asked, only its own partitions have an error."""
        by_leader: dict[int, list[int]] = {}
        found: dict[int, UnreadPartitionResponse] = {}

        def fail(position: int, error: BarnabasError) -> None:
            item = request.partitions[position]
            found[position] = UnreadPartitionResponse(
                topic=item.topic, partition=item.partition, error=error.code, message=error.message
            )

        async def ask(leader: int, positions: list[int]) -> None:
            part = UnreadRequest(partitions=tuple(request.partitions[position] for position in positions))
            try:
                response = await self._ask(leader, part)
                if isinstance(response, ErrorResponse):
                    raise error_for(response.error, response.message)
                assert isinstance(response, UnreadResponse)
                found.update(zip(positions, response.partitions, strict=True))
            except BarnabasError as error:
                for position in positions:
                    fail(position, error)

        for position, item in enumerate(request.partitions):
            try:
                by_leader.setdefault(self._leader_of(item.topic, item.partition), []).append(position)
            except BarnabasError as error:
                fail(position, error)
        await asyncio.gather(*(ask(leader, positions) for leader, positions in by_leader.items()))
        return UnreadResponse(partitions=tuple(found[position] for position in range(len(request.partitions))))

    async def _of_all_brokers(self, request: ListGroupsRequest) -> Response:
        active = [broker.node_id for broker in self.image().brokers.values() if not broker.fenced]
        asked: list[Awaitable[Response]] = [self._ask(node_id, request) for node_id in active]
        groups: list[ListedGroup] = []
        for response in await asyncio.gather(*asked):
            if isinstance(response, ErrorResponse):
                return response
            assert isinstance(response, ListGroupsResponse)
            groups.extend(response.groups)
        return ListGroupsResponse(groups=tuple(sorted(groups, key=lambda group: group.group_id)))
