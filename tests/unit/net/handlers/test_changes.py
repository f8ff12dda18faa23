"""Topics, configurations and the cluster: what is asked of the controller, and that the answer waits for our own image."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import broker, now_ms, partition, simulated, topic

from barnabas.kraft.metadata.requests import (
    AlterConfig,
    ConfigChange,
    ControllerRequest,
    CreateTopic,
    DeleteTopic,
    Done,
    TopicCreated,
)
from barnabas.log.settings.table import ALL_TOPIC_KEYS, BROKER_KEYS, DYNAMIC_KEYS
from barnabas.log.vocabulary.cluster_changes import (
    AddPartitionsRequest,
    AlterConfigRequest,
    AssignReplicasRequest,
    ConfigEntryChange,
    CreateTopicResponse,
    ElectLeaderRequest,
    NoReassignmentInProgressError,
    UnregisterBrokerRequest,
)
from barnabas.log.vocabulary.errors import (
    InvalidConfigError,
    InvalidRequestError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.handlers.own.cluster import ClusterHandlers
from barnabas.net.handlers.own.configs import ConfigHandlers
from barnabas.net.handlers.own.topics import TopicHandlers
from barnabas.net.handlers.own.voters import VoterHandlers
from barnabas.net.wire.protocol.requests import (
    BrokerShutdownRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    Request,
)
from barnabas.net.wire.protocol.responses import EmptyResponse

T = topic("t", partition(0))
TOPIC, BROKER = 2, 4
CREATED = TopicCreated(name="t", topic_id="id-t", partition_count=3, replication_factor=2, offset=20)

CHANGES: list[tuple[Callable[[HandlerWorld], Any], Request, ControllerRequest]] = [
    (lambda world: TopicHandlers(world.services).delete, DeleteTopicRequest(name="t"), DeleteTopic(name="t")),
    (
        lambda world: TopicHandlers(world.services).add_partitions,
        AddPartitionsRequest(name="t", total_count=4, assignment=((1, 0),), validate_only=True),
        AddPartitionsRequest(name="t", total_count=4, assignment=((1, 0),), validate_only=True),
    ),
    (
        lambda world: TopicHandlers(world.services).assign_replicas,
        AssignReplicasRequest(topic="t", partition=2, replicas=(1, 2)),
        AssignReplicasRequest(topic="t", partition=2, replicas=(1, 2)),
    ),
    (
        lambda world: TopicHandlers(world.services).elect_leader,
        ElectLeaderRequest(topic="t", partition=2, target=1, unclean=True),
        ElectLeaderRequest(topic="t", partition=2, target=1, unclean=True),
    ),
    (
        lambda world: ConfigHandlers(world.services).alter,
        AlterConfigRequest(
            resource_type=TOPIC,
            resource="t",
            changes=(ConfigEntryChange(key="retention.ms", value="5"), ConfigEntryChange(key="segment.ms", value=None)),
        ),
        AlterConfig(
            resource_type=TOPIC,
            resource="t",
            changes=(ConfigChange(key="retention.ms", value="5"), ConfigChange(key="segment.ms", value=None)),
        ),
    ),
    (
        lambda world: ClusterHandlers(world.services, shut_down=lambda: None).unregister,
        UnregisterBrokerRequest(node_id=1),
        UnregisterBrokerRequest(node_id=1),
    ),
]


@pytest.mark.parametrize("change", range(len(CHANGES)))
@simulated
async def test_a_change_is_handed_on_and_answered_when_this_broker_shows_it(change: int) -> None:
    handler, request, expected = CHANGES[change]
    world = await HandlerWorld.start(T)
    world.source.script(Done(offset=15))
    asked = asyncio.create_task(ask(handler(world), request))
    await asyncio.sleep(1)
    assert world.source.requests == [expected] and not asked.done()
    world.show(T, offset=14)
    await asyncio.sleep(1)
    assert not asked.done()
    world.show(T, offset=15)
    assert await asked == EmptyResponse()


@pytest.mark.parametrize("change", range(len(CHANGES)))
@simulated
async def test_a_refusal_of_the_controller_reaches_the_client(change: int) -> None:
    handler, request, _ = CHANGES[change]
    world = await HandlerWorld.start(T)
    world.source.script(InvalidRequestError("no"))
    with pytest.raises(InvalidRequestError, match="no"):
        await ask(handler(world), request)
    assert len(world.source.requests) == 1


@simulated
async def test_a_cancellation_whose_first_answer_was_lost_is_done() -> None:
    """The second copy is refused because the first one has ended the move; Kafka's clients were told so before."""
    world = await HandlerWorld.start(T)
    world.source.script(RequestTimedOutError("lost"), NoReassignmentInProgressError("it stands still"))
    request = AssignReplicasRequest(topic="t", partition=0, replicas=())
    assert await ask(TopicHandlers(world.services).assign_replicas, request) == EmptyResponse()
    assert world.source.requests == [AssignReplicasRequest(topic="t", partition=0, replicas=())] * 2


# --- topics -----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_topic_is_created_as_it_was_asked_for() -> None:
    world = await HandlerWorld.start()
    world.source.script(CREATED)
    request = CreateTopicRequest(
        name="t", partition_count=3, replication_factor=2, configs={"retention.ms": "5"}, assignment=((0, 1),)
    )
    asked = asyncio.create_task(ask(TopicHandlers(world.services).create, request))
    await asyncio.sleep(0.1)
    assert not asked.done()
    (sent,) = world.source.asked(CreateTopic)
    assert (sent.name, sent.partition_count, sent.replication_factor) == ("t", 3, 2)
    assert (sent.configs, sent.assignment, sent.validate_only) == ({"retention.ms": "5"}, ((0, 1),), False)
    world.show(T, offset=20)
    assert await asked == CreateTopicResponse(name="t", topic_id="id-t", partition_count=3, replication_factor=2)


@simulated
async def test_a_check_of_a_topic_waits_for_nothing() -> None:
    world = await HandlerWorld.start()
    world.source.script(CREATED)
    await ask(TopicHandlers(world.services).create, CreateTopicRequest(name="t", validate_only=True))
    assert world.source.asked(CreateTopic)[0].validate_only and now_ms() == 0


@simulated
async def test_a_deletion_takes_no_longer_than_the_client_wants() -> None:
    world = await HandlerWorld.start()
    world.source.publish(leader=None)
    with pytest.raises(RequestTimedOutError):
        await ask(TopicHandlers(world.services).delete, DeleteTopicRequest(name="t", timeout_ms=700))
    assert now_ms() <= 702


@simulated
async def test_a_creation_takes_no_longer_than_the_client_wants() -> None:
    world = await HandlerWorld.start()
    world.source.publish(leader=None)
    with pytest.raises(RequestTimedOutError):
        await ask(TopicHandlers(world.services).create, CreateTopicRequest(name="t", timeout_ms=700))
    assert now_ms() <= 702
    world.source.publish(leader=0)
    world.source.script(TopicAlreadyExistsError("t exists"))
    with pytest.raises(TopicAlreadyExistsError, match="t exists"):
        await ask(TopicHandlers(world.services).create, CreateTopicRequest(name="t"))


# --- configurations ---------------------------------------------------------------------------------------------------


@simulated
async def test_every_key_of_a_topic_is_listed_with_its_value_where_it_comes_from_and_its_meaning() -> None:
    world = await HandlerWorld.start(T, log_segment_bytes="4096", log_retention_hours="2")
    world.show(T, offset=11, topic_configs={"t": {"retention.ms": "5"}})
    response = await ask(
        ConfigHandlers(world.services).describe, DescribeConfigsRequest(resource_type=TOPIC, resource="t")
    )
    entries = {entry.key: entry for entry in response.entries}
    assert set(entries) == set(ALL_TOPIC_KEYS)
    assert all(entry.documentation and not entry.read_only for entry in entries.values())
    shown = [entries[key] for key in ("retention.ms", "segment.bytes", "min.insync.replicas")]
    assert [(entry.value, entry.source) for entry in shown] == [("5", "topic"), ("4096", "broker"), ("1", "default")]
    assert entries["segment.bytes"].default == "1073741824"


@simulated
async def test_every_key_of_a_broker_is_listed_and_says_whether_it_can_be_changed() -> None:
    world = await HandlerWorld.start(num_partitions="7")
    response = await ask(
        ConfigHandlers(world.services).describe, DescribeConfigsRequest(resource_type=BROKER, resource="0")
    )
    entries = {entry.key: entry for entry in response.entries}
    assert set(entries) == set(BROKER_KEYS)
    assert all(entry.documentation for entry in entries.values())
    assert {key for key, entry in entries.items() if not entry.read_only} == DYNAMIC_KEYS
    assert (entries["num.partitions"].value, entries["num.partitions"].source) == ("7", "broker")
    assert entries["default.replication.factor"].source == "default"


@simulated
async def test_a_broker_does_not_pass_off_its_own_configuration_as_that_of_another() -> None:
    world = await HandlerWorld.start()
    with pytest.raises(InvalidRequestError, match="broker 0"):
        await ask(ConfigHandlers(world.services).describe, DescribeConfigsRequest(resource_type=BROKER, resource="1"))


@pytest.mark.parametrize(
    ("resource_type", "resource", "error"),
    [(TOPIC, "nope", UnknownTopicOrPartitionError), (3, "t", InvalidRequestError)],
)
@simulated
async def test_what_has_no_configuration(resource_type: int, resource: str, error: type[Exception]) -> None:
    world = await HandlerWorld.start(T)
    request = DescribeConfigsRequest(resource_type=resource_type, resource=resource)
    with pytest.raises(error):
        await ask(ConfigHandlers(world.services).describe, request)


@simulated
async def test_a_wrong_value_is_the_controllers_word() -> None:
    world = await HandlerWorld.start(T)
    world.source.script(InvalidConfigError("retention.ms=x"))
    change = ConfigEntryChange(key="retention.ms", value="x")
    request = AlterConfigRequest(resource_type=TOPIC, resource="t", changes=(change,), validate_only=True)
    with pytest.raises(InvalidConfigError):
        await ask(ConfigHandlers(world.services).alter, request)
    assert world.source.asked(AlterConfig)[0].validate_only


# --- the cluster ------------------------------------------------------------------------------------------------------


@simulated
async def test_the_cluster_with_all_its_brokers_in_order() -> None:
    world = await HandlerWorld.start(brokers=(broker(2), broker(0), broker(1, fenced=True)))
    handlers = ClusterHandlers(world.services, shut_down=lambda: None)
    response = await ask(handlers.describe_cluster, DescribeClusterRequest(), listener="CLIENTS")
    assert (response.cluster_id, response.controller_id, response.offset) == ("cluster", 0, 10)
    assert [(item.node_id, item.host, item.port, item.fenced, item.broker_epoch) for item in response.brokers] == [
        (0, "public-0", 19092, False, 100),
        (1, "public-1", 19092, True, 101),
        (2, "public-2", 19092, False, 102),
    ]
    assert (response.brokers[0].admin_host, response.brokers[0].admin_port) == ("", -1)


@simulated
async def test_the_quorum_with_voters_and_observers() -> None:
    voters = "1@b:1,0@a:1"
    world = await HandlerWorld.start(brokers=(broker(0), broker(1), broker(5)), controller_quorum_voters=voters)
    handlers = VoterHandlers(world.services)
    world.source.publish(leader=1, term=8)
    response = await ask(handlers.describe, DescribeQuorumRequest())
    assert (response.leader_id, response.term, response.committed_index) == (1, 8, 10)
    assert (response.voters, response.observers) == ((0, 1), (5,))
    world.source.publish(leader=None)
    await asyncio.sleep(7)
    lost = await ask(handlers.describe, DescribeQuorumRequest())
    assert (lost.leader_id, lost.unreachable_voters) == (-1, (1,))
    assert 6_900 < lost.unconfirmed_ms < 8_100


@simulated
async def test_only_the_broker_that_is_meant_shuts_down() -> None:
    world = await HandlerWorld.start()
    stopped: list[bool] = []
    handlers = ClusterHandlers(world.services, shut_down=lambda: stopped.append(True))
    with pytest.raises(InvalidRequestError, match="this is broker 0, not 1"):
        await ask(handlers.shut_down, BrokerShutdownRequest(node_id=1))
    assert stopped == []
    assert await ask(handlers.shut_down, BrokerShutdownRequest(node_id=0)) == EmptyResponse()
    assert stopped == [True]
