"""Where a request of the admin API goes: this broker, a partition's leader, a group's coordinator, or all brokers."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from unit.net.shell_world import LISTENER, Shell, broker, image_of, partition, simulated, topic

from barnabas.kraft.metadata.image import NO_LEADER
from barnabas.log.vocabulary.errors import CoordinatorNotAvailableError, ErrorCode, InvalidRequestError
from barnabas.net.broker.admin_backend import BrokerBackend
from barnabas.net.protocol.api_keys import ApiKey
from barnabas.net.protocol.group_responses import ListedGroup, ListGroupsResponse
from barnabas.net.protocol.requests import (
    DeleteGroupRequest,
    DeleteRecordsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FetchPartition,
    FetchRequest,
    ListGroupsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    Request,
)
from barnabas.net.protocol.responses import (
    DeleteRecordsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    EmptyResponse,
    ErrorResponse,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    Response,
)
from barnabas.net.server.dispatcher import Dispatcher, Reply, RequestContext
from barnabas.net.server.server import Server

T = topic("t", partition(0), partition(1), partition(2), partition(0), partition(NO_LEADER))


class Node:
    """One broker's handlers: every request is noted and answered in a way that shows who did."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.requests: list[Any] = []
        self.contexts: list[RequestContext] = []
        self.error: Exception | None = None
        answers: dict[ApiKey, Callable[[Any], Response]] = {
            ApiKey.LIST_OFFSETS: self._offsets,
            ApiKey.LIST_GROUPS: lambda request: ListGroupsResponse(groups=self._groups()),
            ApiKey.DELETE_GROUP: lambda request: EmptyResponse(),
            ApiKey.DELETE_RECORDS: lambda request: DeleteRecordsResponse(log_start_offset=node_id),
            ApiKey.FETCH: lambda request: FetchResponse(partitions=()),
            ApiKey.DESCRIBE_CONFIGS: lambda request: DescribeConfigsResponse(entries=()),
            ApiKey.DESCRIBE_CLUSTER: lambda request: DescribeClusterResponse(
                cluster_id=f"of-{node_id}", controller_id=0, offset=0, brokers=()
            ),
        }
        self.dispatcher = Dispatcher({key: self._handler(answer) for key, answer in answers.items()})

    def _handler(self, answer: Callable[[Any], Response]) -> Callable[[Any, RequestContext, Reply], None]:
        def handle(request: Any, context: RequestContext, reply: Reply) -> None:
            self.requests.append(request)
            self.contexts.append(context)
            if self.error is not None:
                raise self.error
            reply(answer(request))

        return handle

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            partitions=tuple(
                ListOffsetsPartitionResponse(
                    topic=item.topic, partition=item.partition, offset=100 * self.node_id + item.partition
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
        self.nodes = [Node(node_id) for node_id in range(3)]
        self.coordinator: int | Exception = 0
        self.broker = SimpleNamespace(
            node_id=0,
            metadata=shell.metadata,
            config=SimpleNamespace(inter_broker_listener=lambda: LISTENER),
            dispatcher=self.nodes[0].dispatcher,
            pool=shell.pool,
            controller=shell.controller,
            groups=SimpleNamespace(coordinator_of=self._coordinator_of),
            shutdown_requested=asyncio.Event(),
            lifecycle=SimpleNamespace(unfenced=asyncio.Event()),
            logs=SimpleNamespace(offline_folders={}),
        )
        self.backend = BrokerBackend(cast(Any, self.broker))

    def _coordinator_of(self, group_id: str) -> int:
        if isinstance(self.coordinator, Exception):
            raise self.coordinator
        return self.coordinator

    @classmethod
    async def start(cls, *, third_is_fenced: bool = False) -> "World":
        world = cls(await Shell.start())
        for node in world.nodes[1:]:
            server = Server(world.shell.world.node(f"host-{node.node_id}"), node.dispatcher, listener_name=LISTENER)
            await server.start(f"host-{node.node_id}", 9092)
        world.shell.source.publish(image_of(broker(0), broker(1), broker(2, fenced=third_is_fenced), topics=[T]))
        return world

    async def handle(self, request: Request) -> Any:
        return await self.backend.handle(request)

    @property
    def asked(self) -> list[int]:
        """How many requests each node got."""
        return [len(node.requests) for node in self.nodes]


def offsets_of(*numbers: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        partitions=tuple(ListOffsetsPartition(topic="t", partition=number, timestamp_ms=-1) for number in numbers),
        isolation_level=1,
    )


def fetch_of(*numbers: int) -> FetchRequest:
    positions = (FetchPartition(topic="t", partition=number, fetch_offset=0, max_bytes=1) for number in numbers)
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, partitions=tuple(positions))


@simulated
async def test_what_belongs_nowhere_else_is_answered_here() -> None:
    world = await World.start()
    assert (await world.handle(DescribeClusterRequest())).cluster_id == "of-0"
    assert world.asked == [1, 0, 0]
    context = world.nodes[0].contexts[0]
    assert (context.client_host, context.listener_name, context.is_connected) == ("127.0.0.1", LISTENER, True)


@simulated
async def test_offsets_are_asked_of_each_leader_and_put_together_in_the_order_of_the_question() -> None:
    world = await World.start()
    response = await world.handle(offsets_of(1, 0, 2, 3))
    assert [item.offset for item in response.partitions] == [101, 0, 202, 3]
    assert world.asked == [1, 1, 1]
    assert [item.partition for item in world.nodes[0].requests[0].partitions] == [0, 3]
    assert world.nodes[1].requests[0].isolation_level == 1


@simulated
async def test_a_leader_that_refuses_is_the_answer() -> None:
    world = await World.start()
    world.nodes[1].error = InvalidRequestError("no")
    assert await world.handle(offsets_of(0, 1)) == ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no")


@pytest.mark.parametrize("numbers", [(0,), (0, 3), (1,), (2,)])
@simulated
async def test_reading_goes_to_the_leader(numbers: tuple[int, ...]) -> None:
    world = await World.start()
    assert await world.handle(fetch_of(*numbers)) == FetchResponse(partitions=())
    leader = {0: 0, 3: 0, 1: 1, 2: 2}[numbers[0]]
    assert world.asked == [int(node_id == leader) for node_id in range(3)]


@simulated
async def test_partitions_of_two_leaders_cannot_be_read_at_once() -> None:
    world = await World.start()
    response = await world.handle(fetch_of(0, 1))
    assert response.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and world.asked == [0, 0, 0]


@simulated
async def test_records_are_deleted_by_the_leader() -> None:
    world = await World.start()
    request = DeleteRecordsRequest(topic="t", partition=2, before_offset=5)
    assert await world.handle(request) == DeleteRecordsResponse(log_start_offset=2)


@simulated
async def test_what_has_no_leader_or_does_not_exist_is_said_so() -> None:
    world = await World.start()
    assert (await world.handle(fetch_of(9))).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for request in (fetch_of(4), offsets_of(0, 4)):
        response = await world.handle(request)
        assert response.error == ErrorCode.LEADER_NOT_AVAILABLE and "partition 4 of topic 't'" in response.message


@pytest.mark.parametrize("coordinator", [0, 1])
@simulated
async def test_a_group_is_asked_for_at_its_coordinator(coordinator: int) -> None:
    world = await World.start()
    world.coordinator = coordinator
    assert await world.handle(DeleteGroupRequest(group_id="g")) == EmptyResponse()
    assert world.asked == [int(node_id == coordinator) for node_id in range(3)]
    world.coordinator = CoordinatorNotAvailableError("nobody")
    assert (await world.handle(DeleteGroupRequest(group_id="g"))).error == ErrorCode.COORDINATOR_NOT_AVAILABLE


@simulated
async def test_groups_of_all_brokers_that_live_are_listed_as_one() -> None:
    world = await World.start(third_is_fenced=True)
    response = await world.handle(ListGroupsRequest())
    assert [group.group_id for group in response.groups] == ["a-0", "a-1", "z-0", "z-1"]
    world.nodes[1].error = InvalidRequestError("no")
    assert (await world.handle(ListGroupsRequest())).error == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("resource", "node_id"), [("0", 0), ("1", 1), ("", 0)])
@simulated
async def test_a_brokers_configuration_is_asked_of_that_broker(resource: str, node_id: int) -> None:
    world = await World.start()
    request = DescribeConfigsRequest(resource_type=4, resource=resource)
    assert await world.handle(request) == DescribeConfigsResponse(entries=())
    assert world.nodes[node_id].requests == [request]


@simulated
async def test_a_topics_configuration_is_known_here() -> None:
    world = await World.start()
    await world.handle(DescribeConfigsRequest(resource_type=2, resource="1"))
    assert world.asked == [1, 0, 0]


@simulated
async def test_a_broker_that_cannot_be_reached_is_an_answer_too() -> None:
    world = await World.start()
    world.shell.world.kill("host-1")
    assert (await world.handle(fetch_of(1))).error == ErrorCode.NETWORK_EXCEPTION
    assert (await world.handle(ListGroupsRequest())).error == ErrorCode.NETWORK_EXCEPTION


@simulated
async def test_readiness_says_what_is_missing() -> None:
    world = await World.start()
    assert world.backend.is_ready() == (False, "the broker is not registered yet, or fenced by the controller")
    world.broker.lifecycle.unfenced.set()
    assert world.backend.is_ready() == (True, "serving")
    world.broker.logs.offline_folders["/bad"] = "EIO"
    assert world.backend.is_ready() == (True, "serving without the data folders /bad")
    world.shell.source.publish(leader=None)
    assert world.backend.is_ready() == (False, "the quorum has no leader")
    world.broker.shutdown_requested.set()
    assert world.backend.is_ready() == (False, "the broker is stopping")
