"""Configurations as Kafka's clients ask for them: many resources in one request, each with its own answer."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.kraft.metadata.requests import AlterConfig, ConfigChange, ConfigOperation, Done
from barnabas.log.settings.table import ALL_TOPIC_KEYS, BROKER_KEYS
from barnabas.log.vocabulary.errors import ErrorCode, InvalidConfigError, InvalidRequestError, UnsupportedVersionError
from barnabas.net.handlers.kafka.configs import MAX_RESOURCES, RESOURCES_ON_THE_LOOP, KafkaConfigHandlers
from barnabas.net.wire.protocol.kafka.apis import SERVED, KafkaApi, KafkaRequest
from barnabas.net.wire.protocol.kafka.compiler import decoder, encoder
from barnabas.net.wire.protocol.kafka.message_classes import types_of

T = topic("t", partition(0))
TOPIC, BROKER = 2, 4
DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74


def request(key: int, version: int, **values: Any) -> KafkaRequest[Any]:
    """As it comes from the wire."""
    name = f"{SERVED[key].name}Request"
    chunks: list[Any] = []
    encoder(name, version)(types_of(name)[name](**values), chunks)
    body, _ = decoder(name, version)(memoryview(b"".join(chunks)), 0)
    return KafkaRequest(api_key=KafkaApi.of(key), version=version, body=body)


async def ask(world: HandlerWorld, asked: KafkaRequest[Any]) -> Any:
    """The answer, once it has been over the wire in the request's version."""
    handlers = KafkaConfigHandlers(world.services)
    handler = {
        KafkaApi.DESCRIBE_CONFIGS: handlers.describe,
        KafkaApi.ALTER_CONFIGS: handlers.alter,
        KafkaApi.INCREMENTAL_ALTER_CONFIGS: handlers.alter_incrementally,
        KafkaApi.LIST_CONFIG_RESOURCES: handlers.list_resources,
    }[asked.api_key]
    response = await handler(asked, Client())
    name = f"{SERVED[asked.api_key - 2000].name}Response"
    chunks: list[Any] = [response.body]
    if not isinstance(response.body, bytes):
        encoder(name, asked.version)(chunks.pop(), chunks)
    body, _ = decoder(name, asked.version)(memoryview(b"".join(chunks)), 0)
    return body


def described(*resources: tuple[int, str, list[str] | None], version: int = 4, **values: Any) -> KafkaRequest[Any]:
    make = types_of("DescribeConfigsRequest")["DescribeConfigsResource"]
    asked = [make(resource_type=kind, resource_name=name, configuration_keys=keys) for kind, name, keys in resources]
    return request(DESCRIBE, version, resources=asked, **values)


def altered(key: int, *resources: tuple[int, str, list[Any]], version: int = 1, **values: Any) -> KafkaRequest[Any]:
    types = types_of(f"{SERVED[key].name}Request")
    asked = []
    for kind, name, changes in resources:
        configs = []
        for change in changes:
            config = types["AlterableConfig"](name=change[0], value=change[1])
            if len(change) > 2:
                config.config_operation = change[2]
            configs.append(config)
        asked.append(types["AlterConfigsResource"](resource_type=kind, resource_name=name, configs=configs))
    return request(key, version, resources=asked, **values)


# --- describe ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
@simulated
async def test_every_version_lists_every_key_of_topics_and_brokers(version: int) -> None:
    world = await HandlerWorld.start(T, num_partitions="7")
    world.show(T, offset=11, topic_configs={"t": {"retention.ms": "5"}})
    values = {"include_synonyms": True} if version >= 1 else {}
    if version >= 3:
        values["include_documentation"] = True
    answer = await ask(world, described((TOPIC, "t", None), (BROKER, "0", []), version=version, **values))
    of_topic, of_broker = ({item.name: item for item in result.configs} for result in answer.results)
    assert set(of_topic) == set(ALL_TOPIC_KEYS)
    assert set(of_broker) == set(BROKER_KEYS)
    assert [result.error_message for result in answer.results] == [None, None]
    retention, partitions = of_topic["retention.ms"], of_broker["num.partitions"]
    assert (retention.value, retention.read_only, partitions.value, partitions.read_only) == ("5", False, "7", True)
    if version == 0:
        assert (retention.is_default, of_topic["segment.ms"].is_default) == (False, True)
    else:
        assert (retention.config_source, partitions.config_source) == (1, 4)
        assert [item.source for item in retention.synonyms] == [1, 5]
    if version >= 3:
        assert all(item.documentation and item.config_type for item in (*of_topic.values(), *of_broker.values()))
        assert (retention.config_type, of_topic["cleanup.policy"].config_type) == (5, 7)


@simulated
async def test_only_named_keys_without_what_was_not_asked_for() -> None:
    world = await HandlerWorld.start(T)
    answer = await ask(world, described((TOPIC, "t", ["retention.ms", "no.such.key"])))
    (found,) = answer.results[0].configs
    assert (found.name, found.synonyms, found.documentation) == ("retention.ms", [], None)


@simulated
async def test_all_brokers_together_have_what_was_set_for_them() -> None:
    world = await HandlerWorld.start(T)
    answer = await ask(world, described((BROKER, "", None)))
    assert (answer.results[0].error_code, answer.results[0].configs) == (0, [])


@simulated
async def test_each_resource_has_its_own_error() -> None:
    world = await HandlerWorld.start(T)
    asked = [
        (TOPIC, "nope"),
        (TOPIC, "ill/egal"),
        (BROKER, "1"),
        (8, "1"),
        (16, "m"),
        (32, ""),
        (99, "x"),
        (TOPIC, "t"),
    ]
    answer = await ask(world, described(*((kind, name, None) for kind, name in asked)))
    assert [(item.resource_type, item.resource_name) for item in answer.results] == asked
    refused = ErrorCode.INVALID_REQUEST
    assert [item.error_code for item in answer.results] == [3, 17, refused, refused, refused, refused, refused, 0]
    assert all(item.error_message for item in answer.results[:-1])
    assert "broker 0" in answer.results[2].error_message


@simulated
async def test_all_topics_at_once_are_described_off_the_loop_each_as_it_is() -> None:
    count = 3 * RESOURCES_ON_THE_LOOP
    topics = [topic(f"t{number}", partition(0)) for number in range(count)]
    world = await HandlerWorld.start(*topics)
    own = {f"t{number}": {"retention.ms": str(number % 3)} for number in range(count)}
    world.show(*topics, offset=11, topic_configs=own)
    answer = await ask(world, described(*((TOPIC, name, ["retention.ms"]) for name in own)))
    found = {result.resource_name: [item.value for item in result.configs] for result in answer.results}
    assert found == {name: [configs["retention.ms"]] for name, configs in own.items()}


@simulated
async def test_a_small_request_cannot_ask_for_an_answer_without_bound() -> None:
    world = await HandlerWorld.start(T)
    answer = await ask(world, described((BROKER, "0", None), (BROKER, "0", None), (TOPIC, "t", None)))
    assert [item.error_code for item in answer.results] == [42, 42, 0]
    assert "appears 2 times" in answer.results[0].error_message
    with pytest.raises(InvalidRequestError, match="too many"):
        await ask(world, described(*[(TOPIC, "t", None)] * (MAX_RESOURCES + 1)))


# --- changes ----------------------------------------------------------------------------------------------------------


@simulated
async def test_each_operation_reaches_the_controller() -> None:
    world = await HandlerWorld.start(T)
    world.source.script(Done(offset=10))
    changes = [("a", "1", 0), ("b", "ignored", 1), ("c", "x", 2), ("d", "y", 3)]
    answer = await ask(world, altered(INCREMENTAL, (TOPIC, "t", changes), validate_only=True))
    assert [(item.error_code, item.error_message) for item in answer.responses] == [(0, None)]
    assert world.source.asked(AlterConfig) == [
        AlterConfig(
            resource_type=TOPIC,
            resource="t",
            changes=(
                ConfigChange(key="a", value="1"),
                ConfigChange(key="b", value=None),
                ConfigChange(key="c", value="x", operation=ConfigOperation.APPEND),
                ConfigChange(key="d", value="y", operation=ConfigOperation.SUBTRACT),
            ),
            validate_only=True,
        )
    ]


@simulated
async def test_the_older_request_replaces_all() -> None:
    world = await HandlerWorld.start(T)
    world.source.script(Done(offset=10))
    await ask(world, altered(ALTER, (BROKER, "1", [("a", "1")])))
    (asked,) = world.source.asked(AlterConfig)
    assert asked.replaces_all and (asked.resource_type, asked.resource) == (BROKER, "1")


@simulated
async def test_a_refused_resource_leaves_the_others_their_change() -> None:
    world = await HandlerWorld.start(T)
    world.source.script(InvalidConfigError("a=x: no"), Done(offset=10))
    bad = [("a", None, 0)], [("a", "1", 9)]
    asked = (
        (TOPIC, "t", [("a", "x", 0)]),
        (TOPIC, "u", bad[0]),
        (TOPIC, "v", bad[1]),
        (8, "1", []),
        (TOPIC, "w", []),
        (TOPIC, "w", []),
        (TOPIC, "x", [("a", "1", 0)]),
    )
    answer = await ask(world, altered(INCREMENTAL, *asked))
    assert [item.resource_name for item in answer.responses] == [name for _, name, _ in asked]
    assert [item.error_code for item in answer.responses] == [40, 42, 42, 42, 42, 42, 0]
    assert len(world.source.asked(AlterConfig)) == 2


# --- what there is ----------------------------------------------------------------------------------------------------


@simulated
async def test_resources_are_listed_by_type() -> None:
    world = await HandlerWorld.start(T)
    for version, types, expected in (
        (0, None, []),
        (1, [], [(TOPIC, "t"), (BROKER, "0"), (BROKER, "1"), (8, "0"), (8, "1")]),
        (1, [TOPIC, 16, 32], [(TOPIC, "t")]),
    ):
        values = {} if types is None else {"resource_types": types}
        answer = await ask(world, request(LIST, version, **values))
        kind = (lambda item: item.resource_type) if version else (lambda item: TOPIC)
        assert [(kind(item), item.resource_name) for item in answer.config_resources] == expected
    with pytest.raises(UnsupportedVersionError):
        await ask(world, request(LIST, 1, resource_types=[3]))


# --- loggers ----------------------------------------------------------------------------------------------------------

LOGGER = 8
SET, REMOVE, APPEND = 0, 1, 2


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("barnabas.levels_under_test")
    made.setLevel(logging.WARNING)
    root = logging.root.level
    yield made
    made.setLevel(logging.NOTSET)
    logging.root.setLevel(root)


async def levels_of(world: HandlerWorld) -> dict[str, str]:
    answer = await ask(world, described((LOGGER, "0", None)))
    (result,) = answer.results
    assert result.error_code == 0
    assert {(item.config_source, item.read_only) for item in result.configs} == {(6, False)}
    return {item.name: item.value for item in result.configs}


async def set_levels(world: HandlerWorld, *changes: Any, name: str = "0", **more: Any) -> tuple[int, str]:
    answer = await ask(world, altered(INCREMENTAL, (LOGGER, name, list(changes)), **more))
    (response,) = answer.responses
    return response.error_code, response.error_message


@simulated
async def test_levels_of_loggers_are_really_set(logger: logging.Logger) -> None:
    world = await HandlerWorld.start(T)
    before = await levels_of(world)
    assert before[logger.name] == "WARN" and "root" in before
    assert await set_levels(world, (logger.name, "DEBUG", SET), ("root", "ERROR", SET)) == (0, None)
    assert (logger.level, logging.root.level) == (logging.DEBUG, logging.ERROR)
    assert (await levels_of(world))[logger.name] == "DEBUG"
    assert await set_levels(world, (logger.name, None, REMOVE)) == (0, None)
    assert logger.level == logging.NOTSET and (await levels_of(world))[logger.name] == "ERROR", "the root's now"
    for level in ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"):
        assert await set_levels(world, (logger.name, level, SET)) == (0, None)
        assert (await levels_of(world))[logger.name] == level
    assert world.source.asked(AlterConfig) == [], "no business of the controller's"


@simulated
async def test_levels_that_cannot_be_set_change_nothing(logger: logging.Logger) -> None:
    world = await HandlerWorld.start(T)
    good = (logger.name, "DEBUG", SET)
    for wrong, code in (
        (("barnabas.nobody", "INFO", SET), ErrorCode.INVALID_CONFIG),
        (("root", "LOUD", SET), ErrorCode.INVALID_CONFIG),
        (("root", None, REMOVE), ErrorCode.INVALID_REQUEST),
        (("root", "INFO", APPEND), ErrorCode.INVALID_REQUEST),
    ):
        error, message = await set_levels(world, good, wrong)
        assert error == code and message
    assert (await set_levels(world, good, validate_only=True))[0] == 0
    for name in ("1", ""):
        assert (await set_levels(world, good, name=name))[0] == ErrorCode.INVALID_REQUEST
    answer = await ask(world, altered(ALTER, (LOGGER, "0", [good[:2]])))
    assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST, "it would reset all others"
    assert logger.level == logging.WARNING


# --- groups -----------------------------------------------------------------------------------------------------------

GROUP = 32
SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@simulated
async def test_a_groups_configuration_is_described_altered_and_listed() -> None:
    world = await HandlerWorld.start(T, group_consumer_session_timeout_ms="30000")
    world.show(T, offset=11, group_configs={"g": {INTERVAL: "700"}})
    answer = await ask(world, described((GROUP, "g", None), (GROUP, "new", None), include_synonyms=True))
    ours, new = (
        {item.name: item for item in result.configs if not item.name.startswith("share.")} for result in answer.results
    )
    assert {name: (item.value, item.config_source) for name, item in ours.items()} == {
        INTERVAL: ("700", 8),
        SESSION: ("30000", 4),
    }
    assert [(item.name, item.value, item.source) for item in ours[INTERVAL].synonyms] == [
        (INTERVAL, "700", 8),
        ("group.consumer.heartbeat.interval.ms", "5000", 5),
    ]
    assert (new[INTERVAL].value, new[INTERVAL].config_source) == ("5000", 5), "a group may be configured beforehand"
    answer = await ask(world, request(LIST, 1, resource_types=[GROUP]))
    assert [(item.resource_type, item.resource_name) for item in answer.config_resources] == [(GROUP, "g")]
    world.source.script(Done(offset=11))
    answer = await ask(world, altered(INCREMENTAL, (GROUP, "g", [(SESSION, "9000", SET), (INTERVAL, None, REMOVE)])))
    assert answer.responses[0].error_code == 0
    assert world.source.asked(AlterConfig) == [
        AlterConfig(
            resource_type=GROUP,
            resource="g",
            changes=(ConfigChange(key=SESSION, value="9000"), ConfigChange(key=INTERVAL, value=None)),
        )
    ]
