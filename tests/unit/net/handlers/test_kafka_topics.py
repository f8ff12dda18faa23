"""Topics as Kafka's clients change them: every version's shape, an error for each topic, and what the controller is asked."""

from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made, versions_of
from unit.net.shell_world import partition, simulated, topic

from barnabas.kraft.metadata.requests import ControllerRequest, CreateTopic, DeleteTopic, Done, TopicCreated
from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    InvalidPartitionsError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.handlers.kafka.topics import KafkaTopicHandlers
from barnabas.net.handlers.own.topics import TopicHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.kafka.apis import KafkaApi

CREATE, DELETE, GROW = 19, 20, 37
T_ID, NEW_ID = "0a" * 16, "0b" * 16
T = topic("t", partition(0), topic_id=T_ID)


def client_of(world: HandlerWorld) -> KafkaClient:
    handlers = KafkaTopicHandlers(world.services, TopicHandlers(world.services))
    return KafkaClient(
        Dispatcher(
            {
                KafkaApi.CREATE_TOPICS: answering(handlers.create),
                KafkaApi.DELETE_TOPICS: answering(handlers.delete),
                KafkaApi.CREATE_PARTITIONS: answering(handlers.add_partitions),
            }
        )
    )


async def started(answers: dict[str, object], **settings: str) -> tuple[HandlerWorld, KafkaClient]:
    """`answers` are the controller's, by topic name or id."""
    world = await HandlerWorld.start(T, **settings)

    def decide(request: ControllerRequest) -> object:
        assert isinstance(request, CreateTopic | DeleteTopic | AddPartitionsRequest)
        return answers[request.name or getattr(request, "topic_id", "")]

    world.source.decide = decide
    return world, client_of(world)


def created(name: str) -> TopicCreated:
    return TopicCreated(name=name, topic_id=NEW_ID, partition_count=3, replication_factor=2, offset=10)


def new_topic(name: str, partitions: int = 3, replicas: int = 2, **fields: Any) -> Any:
    return made(
        "CreateTopicsRequest",
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        **{"assignments": [], "configs": [], **fields},
    )


def assigned(number: int, *replicas: int) -> Any:
    return made("CreateTopicsRequest", "CreatableReplicaAssignment", partition_index=number, broker_ids=list(replicas))


def config(name: str, value: str | None) -> Any:
    return made("CreateTopicsRequest", "CreatableTopicConfig", name=name, value=value)


def creation(*topics: Any, **fields: Any) -> Any:
    return made("CreateTopicsRequest", topics=list(topics), **{"timeout_ms": 1_000, **fields})


@pytest.mark.parametrize("version", versions_of(CREATE))
@simulated
async def test_topics_are_created_each_with_its_own_error(version: int) -> None:
    world, client = await started({"a": created("a"), "b": TopicAlreadyExistsError("b is there")})
    validate = version >= 1
    wanted = new_topic("a", configs=[config("retention.ms", "5")])
    answer = await client.ask(CREATE, version, creation(wanted, new_topic("b"), validate_only=validate))
    good, bad = answer.topics
    assert (good.name, good.error_code, bad.name, bad.error_code) == ("a", 0, "b", ErrorCode.TOPIC_ALREADY_EXISTS)
    asked = world.source.asked(CreateTopic)
    assert [(item.name, item.partition_count, item.replication_factor) for item in asked] == [("a", 3, 2), ("b", 3, 2)]
    assert asked[0].configs == {"retention.ms": "5"}
    assert {item.validate_only for item in asked} == {validate}
    if version >= 1:
        assert (good.error_message, bad.error_message) == (None, "b is there")
    if version >= 5:
        assert (good.num_partitions, good.replication_factor) == (3, 2)
        shown = {item.name: (item.value, item.config_source) for item in good.configs}
        assert set(shown) == set(TOPIC_KEYS)
        assert shown["retention.ms"] == ("5", 1)
        assert shown["cleanup.policy"] == ("delete", 5)
        assert bad.configs == []
    if version >= 7:
        assert good.topic_id == bytes.fromhex(NEW_ID)


@simulated
async def test_what_the_broker_says_for_topics_is_shown_of_a_new_one() -> None:
    _, client = await started({"a": created("a")}, log_retention_ms="77")
    answer = await client.ask(CREATE, 7, creation(new_topic("a")))
    assert {item.name: (item.value, item.config_source) for item in answer.topics[0].configs}["retention.ms"] == (
        "77",
        4,
    )


@simulated
async def test_an_assignment_stands_alone_and_names_every_partition() -> None:
    world, client = await started({"a": created("a")})
    good = new_topic("a", -1, -1, assignments=[assigned(1, 1, 0), assigned(0, 0, 1)])
    answer = await client.ask(CREATE, 7, creation(good))
    assert answer.topics[0].error_code == 0
    assert world.source.asked(CreateTopic)[0].assignment == ((0, 1), (1, 0))
    refused = (
        (new_topic("a", 1, -1, assignments=[assigned(0, 0)]), ErrorCode.INVALID_REQUEST),
        (new_topic("a", -1, 1, assignments=[assigned(0, 0)]), ErrorCode.INVALID_REQUEST),
        (new_topic("a", -1, -1, assignments=[assigned(1, 0)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", -1, -1, assignments=[assigned(0, 0), assigned(0, 1)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", configs=[config("retention.ms", None)]), ErrorCode.INVALID_CONFIG),
    )
    for wanted, error in refused:
        answer = await client.ask(CREATE, 7, creation(wanted))
        assert answer.topics[0].error_code == error
    assert len(world.source.requests) == 1, "what is refused here is not asked for"


@simulated
async def test_a_topic_that_is_named_twice_is_not_done_at_all() -> None:
    world, client = await started({})
    answers = [
        (await client.ask(CREATE, 7, creation(new_topic("a"), new_topic("a")))).topics,
        (await client.ask(DELETE, 6, deletion(6, ("t", ""), ("", T_ID)))).responses,
        (await client.ask(GROW, 3, growth(("t", 3), ("t", 4)))).results,
    ]
    # By its name and by its id is twice too.
    assert [[(item.name, item.error_code) for item in items] for items in answers] == [
        [("a", ErrorCode.INVALID_REQUEST)],
        [("t", ErrorCode.INVALID_REQUEST)],
        [("t", ErrorCode.INVALID_REQUEST)],
    ]
    assert not world.source.requests


@simulated
async def test_a_controller_that_does_not_answer_in_time_is_told_of_each_topic() -> None:
    _, client = await started({"a": NotControllerError("another one"), "b": created("b")})
    answer = await client.ask(CREATE, 7, creation(new_topic("a"), new_topic("b"), timeout_ms=200))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.REQUEST_TIMED_OUT, 0]


# --- delete -----------------------------------------------------------------------------------------------------------


def deletion(version: int, *topics: tuple[str, str]) -> Any:
    """Topics as (name, id): either may be ""."""
    if version < 6:
        return made("DeleteTopicsRequest", topic_names=[name for name, _ in topics], timeout_ms=1_000)
    states = [
        made(
            "DeleteTopicsRequest",
            "DeleteTopicState",
            name=name or None,
            topic_id=bytes.fromhex(topic_id) if topic_id else bytes(16),
        )
        for name, topic_id in topics
    ]
    return made("DeleteTopicsRequest", topics=states, timeout_ms=1_000)


@pytest.mark.parametrize("version", versions_of(DELETE))
@simulated
async def test_topics_are_deleted_each_with_its_own_error(version: int) -> None:
    world, client = await started({"t": Done(offset=10), "u": UnknownTopicOrPartitionError("no u")})
    good, bad = (await client.ask(DELETE, version, deletion(version, ("t", ""), ("u", "")))).responses
    assert (good.name, good.error_code) == ("t", 0)
    assert (bad.name, bad.error_code) == ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert world.source.requests == [DeleteTopic(name="t"), DeleteTopic(name="u")]
    if version >= 5:
        assert (good.error_message, bad.error_message) == (None, "no u")
    if version >= 6:
        assert (good.topic_id, bad.topic_id) == (bytes.fromhex(T_ID), bytes(16))


@simulated
async def test_by_its_id_the_controller_finds_the_topic_itself() -> None:
    answers = {T_ID: Done(offset=10), NEW_ID: UnknownTopicIdError("no such id")}
    world, client = await started(answers)
    good, bad = (await client.ask(DELETE, 6, deletion(6, ("", T_ID), ("", NEW_ID)))).responses
    assert (good.name, good.topic_id.hex(), good.error_code) == ("t", T_ID, 0)
    assert (bad.name, bad.topic_id.hex(), bad.error_code) == (None, NEW_ID, ErrorCode.UNKNOWN_TOPIC_ID)
    assert world.source.requests == [DeleteTopic(name="", topic_id=T_ID), DeleteTopic(name="", topic_id=NEW_ID)]


@simulated
async def test_a_deletion_names_a_topic_in_one_way() -> None:
    world, client = await started({})
    for both in (("t", T_ID), ("", "")):
        (answer,) = (await client.ask(DELETE, 6, deletion(6, both))).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert not world.source.requests


@simulated
async def test_deletions_may_be_forbidden() -> None:
    _, client = await started({}, delete_topic_enable="false")
    (answer,) = (await client.ask(DELETE, 6, deletion(6, ("t", "")))).responses
    assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert "delete.topic.enable" in answer.error_message


# --- grow -------------------------------------------------------------------------------------------------------------


def growth(*topics: tuple[str, int], assignments: list[list[int]] | None = None, **fields: Any) -> Any:
    message = "CreatePartitionsRequest"
    named = [
        made(
            message,
            "CreatePartitionsTopic",
            name=name,
            count=count,
            assignments=assignments
            and [made(message, "CreatePartitionsAssignment", broker_ids=item) for item in assignments],
        )
        for name, count in topics
    ]
    return made(message, topics=named, **{"timeout_ms": 1_000, **fields})


@pytest.mark.parametrize("version", versions_of(GROW))
@simulated
async def test_partitions_are_added_each_topic_with_its_own_error(version: int) -> None:
    world, client = await started({"t": Done(offset=10), "u": InvalidPartitionsError("u has more")})
    good, bad = (await client.ask(GROW, version, growth(("t", 3), ("u", 2), validate_only=True))).results
    assert (good.name, good.error_code, good.error_message) == ("t", 0, None)
    assert (bad.name, bad.error_code, bad.error_message) == ("u", ErrorCode.INVALID_PARTITIONS, "u has more")
    assert world.source.requests == [
        AddPartitionsRequest(name="t", total_count=3, validate_only=True),
        AddPartitionsRequest(name="u", total_count=2, validate_only=True),
    ]


@simulated
async def test_new_partitions_may_come_with_their_replicas() -> None:
    world, client = await started({"t": Done(offset=10)})
    await client.ask(GROW, 3, growth(("t", 3), assignments=[[1, 0], [0, 1]]))
    assert world.source.requests == [AddPartitionsRequest(name="t", total_count=3, assignment=((1, 0), (0, 1)))]
