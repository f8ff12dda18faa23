"""Metadata as Kafka's clients ask for it: every version's shape, topics by name and by id, the controller, automatic creation."""

from typing import Any, cast

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made, versions_of
from unit.net.shell_world import broker, partition, simulated, topic

from barnabas.kraft.metadata.requests import CreateTopic, TopicCreated
from barnabas.log.vocabulary.errors import ErrorCode, InvalidRequestError, NotControllerError, TopicAlreadyExistsError
from barnabas.net.handlers.registry import build_handlers
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.wire.protocol.kafka.metadata_api import metadata_request

METADATA = 3
T_ID, NOBODY = "0a" * 16, "0c" * 16
T = topic("t", partition(1, epoch=4), topic_id=T_ID)


async def started(**settings: str) -> tuple[HandlerWorld, KafkaClient]:
    world = await HandlerWorld.start(T, **settings)
    no_disks = cast(Any, None)
    return world, KafkaClient(Dispatcher(build_handlers(world.services, shut_down=lambda: None, storage=no_disks)))


def asked(*names: str, ids: dict[str, str | None] | None = None, creates: bool = False) -> Any:
    """`ids`: the names that stand beside them."""
    message = "MetadataRequest"
    topics = [made(message, "MetadataRequestTopic", name=name) for name in names] + [
        made(message, "MetadataRequestTopic", topic_id=bytes.fromhex(topic_id), name=name)
        for topic_id, name in (ids or {}).items()
    ]
    return made(message, topics=topics, allow_auto_topic_creation=creates)


@pytest.mark.parametrize("version", versions_of(METADATA))
@simulated
async def test_a_topic_is_described_in_every_version(version: int) -> None:
    _, client = await started(auto_create_topics_enable="false")
    answer = await client.ask(METADATA, version, asked("t", "nope"))
    found, unknown = answer.topics
    (part,) = found.partitions
    assert [(one.node_id, one.host) for one in answer.brokers] == [(0, "host-0"), (1, "host-1")]
    assert (found.error_code, found.name, part.leader_id, part.isr_nodes) == (0, "t", 1, (0, 1))
    assert (unknown.error_code, unknown.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nope")
    if version >= 1:
        assert answer.controller_id == 0
    if version >= 7:
        assert part.leader_epoch == 4
    if version >= 10:
        assert (found.topic_id.hex(), unknown.topic_id) == (T_ID, bytes(16))


@pytest.mark.parametrize("name", [None, ""])
@simulated
async def test_topics_are_found_by_id_whatever_the_name_beside_it(name: str | None) -> None:
    """librdkafka leaves the name null, Java empty."""
    _, client = await started()
    answer = await client.ask(METADATA, 12, asked("t", ids={T_ID: name, NOBODY: name}))
    assert [(one.error_code, one.name, one.topic_id.hex()) for one in answer.topics] == [
        (0, "t", T_ID),
        (0, "t", T_ID),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, NOBODY),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_before_their_time(version: int) -> None:
    with pytest.raises(InvalidRequestError):
        metadata_request(asked(ids={T_ID: ""}), version)


@simulated
async def test_the_controller_is_one_of_the_brokers_that_are_listed() -> None:
    """Clients look its address up; any broker takes what they ask of it."""
    world, client = await started()
    world.show(T, brokers=(broker(0, fenced=True), broker(1), broker(2)), offset=11)
    answer = await client.ask(METADATA, 12, asked("t"))
    assert [one.node_id for one in answer.brokers] == [1, 2]
    assert answer.controller_id == 1
    world.show(T, brokers=(broker(0, fenced=True),), offset=12)
    assert (await client.ask(METADATA, 12, asked("t"))).controller_id == -1


@simulated
async def test_a_topic_is_made_when_it_is_asked_for_and_both_sides_want_it() -> None:
    world, client = await started()
    made_topic = replace(T, name="new", topic_id=NOBODY)

    def decide(request: object) -> object:
        assert isinstance(request, CreateTopic)
        world.show(T, made_topic, offset=11)
        return TopicCreated(name="new", topic_id=NOBODY, partition_count=1, replication_factor=2, offset=11)

    world.source.decide = decide
    assert (await client.ask(METADATA, 12, asked("new"))).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not world.source.requests
    answer = await client.ask(METADATA, 12, asked("new", creates=True))
    assert (answer.topics[0].error_code, answer.topics[0].topic_id.hex()) == (0, NOBODY)
    assert (await client.ask(METADATA, 12, asked("a b", creates=True))).topics[0].error_code == 17
    forbids, client = await started(auto_create_topics_enable="false")
    assert (await client.ask(METADATA, 3, asked("new"))).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not forbids.source.requests


@pytest.mark.parametrize("failure", [TopicAlreadyExistsError("somebody was faster"), NotControllerError("moved")])
@simulated
async def test_a_topic_that_is_being_made_has_no_leader_yet(failure: Exception) -> None:
    """The one error that every client takes for "ask again soon"; it knows no other of a topic that it wants to write to."""
    world, client = await started()
    world.source.script(failure)
    answer = await client.ask(METADATA, 12, asked("new", creates=True))
    assert answer.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
