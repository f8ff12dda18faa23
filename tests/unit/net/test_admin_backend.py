"""Where the admin client of a broker's own process asks: this broker as a value, others over the broker's connections."""

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from unit.net.shell_world import LISTENER, Shell, broker, image_of, now_ms, partition, simulated, topic

from barnabas.kraft.metadata.image import NO_LEADER
from barnabas.log.vocabulary.cluster_changes import CreateTopicResponse
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.broker.admin_backend import CALL_TIMEOUT_MS, BrokerBackend
from barnabas.net.client.admin.admin import BROKER, Admin
from barnabas.net.client.positions.offset_lookup import unread_now
from barnabas.net.handlers.own.metadata import MetadataHandler
from barnabas.net.server.dispatcher import Dispatcher, Reply, RequestContext, answering
from barnabas.net.server.server import Server
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.group_responses import (
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsResponse,
    UnreadPartitionResponse,
    UnreadResponse,
)
from barnabas.net.wire.protocol.requests import (
    DescribeClusterRequest,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    UnreadRequest,
)
from barnabas.net.wire.protocol.responses import (
    DeleteRecordsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeStorageResponse,
    EmptyResponse,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    Response,
)

T = topic("t", partition(0), partition(1), partition(2), partition(0), partition(NO_LEADER))
LOOK_UPS = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR)


class Node:
    """One broker's handlers: every request is noted and answered in a way that shows who did."""

    def __init__(self, node_id: int, services: Any) -> None:
        self.node_id = node_id
        self.requests: list[Any] = []
        self.contexts: list[RequestContext] = []
        self.errors: list[Exception] = []  # one for each of the next answers
        self.coordinator: int | Exception = 0
        answers: dict[ApiKey, Callable[[Any], Response]] = {
            ApiKey.FIND_COORDINATOR: lambda request: self._coordinator(),
            ApiKey.LIST_OFFSETS: self._offsets,
            ApiKey.UNREAD: self._unread,
            ApiKey.LIST_GROUPS: lambda request: ListGroupsResponse(groups=self._groups()),
            ApiKey.DELETE_GROUP: lambda request: EmptyResponse(),
            ApiKey.DELETE_RECORDS: lambda request: DeleteRecordsResponse(log_start_offset=node_id),
            ApiKey.FETCH: lambda request: FetchResponse(partitions=()),
            ApiKey.DESCRIBE_CONFIGS: lambda request: DescribeConfigsResponse(entries=()),
            ApiKey.DESCRIBE_STORAGE: lambda request: DescribeStorageResponse(node_id=node_id, folders=()),
            ApiKey.CREATE_TOPIC: lambda request: CreateTopicResponse(
                name=request.name, topic_id=request.topic_id, partition_count=1, replication_factor=node_id
            ),
            ApiKey.DESCRIBE_CLUSTER: lambda request: DescribeClusterResponse(
                cluster_id=f"of-{node_id}", controller_id=0, offset=0, brokers=()
            ),
        }
        self.dispatcher = Dispatcher(
            {
                **{key: self._handler(key, answer) for key, answer in answers.items()},
                ApiKey.METADATA: answering(MetadataHandler(services)),
            }
        )

    def _handler(self, key: ApiKey, answer: Callable[[Any], Response]) -> Callable[[Any, RequestContext, Reply], None]:
        def handle(request: Any, context: RequestContext, reply: Reply) -> None:
            if key not in LOOK_UPS:
                self.requests.append(request)
                self.contexts.append(context)
                if self.errors:
                    raise self.errors.pop(0)
            reply(answer(request))

        return handle

    def _coordinator(self) -> FindCoordinatorResponse:
        if isinstance(self.coordinator, Exception):
            raise self.coordinator
        return FindCoordinatorResponse(node_id=self.coordinator, host=f"host-{self.coordinator}", port=9092)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            partitions=tuple(
                ListOffsetsPartitionResponse(
                    topic=item.topic, partition=item.partition, offset=100 * self.node_id + item.partition
                )
                for item in request.partitions
            )
        )

    def _unread(self, request: UnreadRequest) -> UnreadResponse:
        return UnreadResponse(
            partitions=tuple(
                UnreadPartitionResponse(
                    topic=item.topic, partition=item.partition, log_end_offset=100 * self.node_id + item.offset
                )
                for item in request.partitions
            )
        )

    def _groups(self) -> tuple[ListedGroup, ...]:
        names = (f"z-{self.node_id}", f"a-{self.node_id}")
        return tuple(ListedGroup(group_id=name, state="Stable", protocol="consumer", member_count=1) for name in names)


class World:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        services = SimpleNamespace(metadata=shell.metadata, config=SimpleNamespace(auto_create_topics_enable=True))
        self.nodes = [Node(node_id, services) for node_id in range(3)]
        self.broker = SimpleNamespace(
            node_id=0,
            metadata=shell.metadata,
            config=SimpleNamespace(inter_broker_listener=lambda: LISTENER),
            dispatcher=self.nodes[0].dispatcher,
            pool=shell.pool,
            ports=SimpleNamespace(clock=shell.clock, rng=Random(4)),
            controller=shell.controller,
            shutdown_requested=asyncio.Event(),
            lifecycle=SimpleNamespace(unfenced=asyncio.Event()),
            logs=SimpleNamespace(offline_folders={}),
        )
        self.backend = BrokerBackend(cast(Any, self.broker))

    @classmethod
    async def start(cls, *, fenced: int = -1) -> "World":
        world = cls(await Shell.start())
        for node in world.nodes[1:]:
            server = Server(world.shell.world.node(f"host-{node.node_id}"), node.dispatcher, listener_name=LISTENER)
            await server.start(f"host-{node.node_id}", 9092)
        brokers = [broker(node_id, fenced=node_id == fenced) for node_id in range(3)]
        world.shell.source.publish(image_of(*brokers, topics=[T]))
        return world

    def admin(self) -> Admin:
        return self.backend.admin()

    @property
    def asked(self) -> list[int]:
        """How many requests each node got, without those that only look for the others."""
        return [len(node.requests) for node in self.nodes]


def places(*numbers: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): -1 for number in numbers}


@simulated
async def test_what_belongs_nowhere_else_is_answered_here() -> None:
    world = await World.start()
    async with world.admin() as admin:
        assert (await admin.describe_cluster()).cluster_id == "of-0"
    assert world.asked == [1, 0, 0]
    context = world.nodes[0].contexts[0]
    assert (context.client_host, context.client_id, context.listener_name) == ("127.0.0.1", "admin-api", LISTENER)


@simulated
async def test_this_broker_is_asked_before_the_cluster_knows_it_and_after_it_was_fenced() -> None:
    world = await World.start(fenced=0)
    async with world.admin() as admin:
        assert (await admin.describe_storage(0)).node_id == 0
        world.shell.source.publish(image_of())
        assert (await admin.describe_storage(0)).node_id == 0


@simulated
async def test_changes_are_handed_to_this_broker_which_shows_them_when_it_answers() -> None:
    world = await World.start()
    world.shell.source.publish(image_of(*(broker(node_id) for node_id in range(3)), topics=[T], offset=11))
    async with world.admin() as admin:
        created = await admin.create_topic("new", partitions=1)
    assert world.asked == [1, 0, 0]
    assert created.topic_id  # so that the request can be repeated


@simulated
async def test_offsets_are_asked_of_each_leader() -> None:
    world = await World.start()
    async with world.admin() as admin:
        found = await admin.find_offsets(places(1, 0, 2, 3))
    assert [found[place].offset for place in sorted(found)] == [0, 101, 202, 3]
    assert world.asked == [1, 1, 1]


@simulated
async def test_what_is_unread_is_asked_once_and_what_cannot_be_asked_is_left_out() -> None:
    world = await World.start()
    world.nodes[1].errors.append(InvalidRequestError("no"))
    asked = [(place, 7) for place in places(0, 1, 2, 4, 9)] + [(TopicPartition("none", 0), 7)]
    async with world.admin() as admin:
        found = await unread_now(admin.client, asked)
    ends = {place.partition: item.log_end_offset for (place, _), item in found.items()}
    assert ends == {0: 7, 2: 207}
    assert now_ms() < 20  # no retry: only the time on the way


@simulated
async def test_a_leader_that_refuses_for_good_is_the_answer() -> None:
    world = await World.start()
    world.nodes[1].errors.append(InvalidRequestError("no"))
    async with world.admin() as admin:
        with pytest.raises(InvalidRequestError, match="^no$"):
            await admin.find_offsets(places(0, 1))


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@simulated
async def test_a_request_about_one_partition_goes_to_its_leader(number: int) -> None:
    world = await World.start()
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1,
        partitions=(FetchPartition(topic="t", partition=number, fetch_offset=0, max_bytes=1),),
    )
    async with world.admin() as admin:
        admin.client.want_topic("t")
        await admin.client.refresh()
        assert await admin.client.call_leader(TopicPartition("t", number), fetch) == FetchResponse(partitions=())
        with pytest.raises(LeaderNotAvailableError, match="t-4"):
            await admin.client.call_leader(TopicPartition("t", 4), fetch)
    leader = {0: 0, 3: 0, 1: 1, 2: 2}[number]
    assert world.asked == [int(node_id == leader) for node_id in range(3)]


@simulated
async def test_records_are_deleted_by_the_leader() -> None:
    world = await World.start()
    async with world.admin() as admin:
        assert await admin.delete_records("t", 2, before_offset=5) == 2
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.delete_records("t", 9)


@pytest.mark.parametrize("coordinator", [0, 1])
@simulated
async def test_a_group_is_asked_for_at_its_coordinator(coordinator: int) -> None:
    world = await World.start()
    world.nodes[0].coordinator = coordinator
    async with world.admin() as admin:
        await admin.delete_group("g")
    assert world.asked == [int(node_id == coordinator) for node_id in range(3)]


@simulated
async def test_a_coordinator_that_moves_is_found_and_one_that_is_not_there_is_waited_for() -> None:
    world = await World.start()
    world.nodes[0].errors.append(CoordinatorNotAvailableError("it moves"))
    async with world.admin() as admin:
        await admin.delete_group("g")
        assert world.asked == [2, 0, 0]
        world.nodes[0].coordinator = CoordinatorNotAvailableError("nobody")
        began_ms = now_ms()
        with pytest.raises(CoordinatorNotAvailableError, match="nobody"):
            await admin.delete_group("other")
    assert CALL_TIMEOUT_MS - 2_000 < now_ms() - began_ms <= CALL_TIMEOUT_MS


@simulated
async def test_groups_of_all_brokers_that_live_are_listed_as_one() -> None:
    world = await World.start(fenced=2)
    async with world.admin() as admin:
        assert [group.group_id for group in await admin.list_groups()] == ["a-0", "a-1", "z-0", "z-1"]
        world.nodes[1].errors.append(InvalidRequestError("no"))
        with pytest.raises(InvalidRequestError):
            await admin.list_groups()


@pytest.mark.parametrize(("resource", "node_id"), [("0", 0), ("1", 1), ("", 0)])
@simulated
async def test_a_brokers_configuration_is_asked_of_that_broker(resource: str, node_id: int) -> None:
    world = await World.start()
    async with world.admin() as admin:
        assert await admin.describe_configs(resource, resource_type=BROKER) == []
    (request,) = world.nodes[node_id].requests
    assert request.resource == resource


@simulated
async def test_a_topics_configuration_is_known_here() -> None:
    world = await World.start()
    async with world.admin() as admin:
        await admin.describe_configs("1")
    assert world.asked == [1, 0, 0]


@simulated
async def test_a_broker_that_cannot_be_reached_is_an_answer_too() -> None:
    world = await World.start()
    world.shell.world.kill("host-1")
    async with world.admin() as admin:
        with pytest.raises(BarnabasError) as caught:
            await admin.describe_storage(1)
        assert caught.value.retriable
        with pytest.raises(BrokerNotAvailableError):
            await admin.describe_storage(7)


@simulated
async def test_a_handler_that_never_answers_is_given_up() -> None:
    world = await World.start()
    silent = Dispatcher({ApiKey.DESCRIBE_CLUSTER: lambda request, context, reply: None})
    world.broker.dispatcher = silent
    here = BrokerBackend(cast(Any, world.broker)).here
    with pytest.raises(RequestTimedOutError, match="within 500 ms"):
        await here.call(DescribeClusterRequest(), timeout_ms=500)
    assert now_ms() == 500 and here.in_flight == 0


@simulated
async def test_readiness_says_what_is_missing() -> None:
    world = await World.start()
    assert world.backend.is_ready() == (False, "the broker is not registered yet, or the controller has fenced it")
    world.broker.lifecycle.unfenced.set()
    assert world.backend.is_ready() == (True, "serving")
    world.broker.logs.offline_folders["/bad"] = "EIO"
    assert world.backend.is_ready() == (True, "serving without the data folders /bad")
    world.shell.source.publish(leader=None)
    assert world.backend.is_ready() == (False, "the quorum has no leader")
    world.broker.shutdown_requested.set()
    assert world.backend.is_ready() == (False, "the broker is stopping")
