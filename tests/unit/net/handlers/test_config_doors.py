"""Every key of the table is accepted and refused alike by every door through which it can be set, at its bounds and for nonsense.

The doors are server.properties, creation and alteration of a topic (own protocol and Kafka's), and alteration of one broker and
of all brokers. Requests go through the handlers and are decided by the real control with the rules of a real broker.
"""

import math
from collections.abc import Awaitable, Callable, Iterator
from functools import cache

import pytest
from unit.kraft.single_controller import SingleController
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.handler_world import ask as ask_own
from unit.net.handlers.test_kafka_configs import ALTER, INCREMENTAL, altered
from unit.net.handlers.test_kafka_configs import ask as ask_kafka
from unit.net.shell_world import partition, simulated, topic

from barnabas.kraft.controller.configuration_control import ConfigurationControl
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import AlterConfig, ControllerRequest, CreateTopic, Done, TopicCreated
from barnabas.log.settings.key import Change, ConfigKey
from barnabas.log.settings.kinds import ConfigType
from barnabas.log.settings.table import ALL_TOPIC_KEYS, BROKER_KEYS
from barnabas.log.settings.without_effect import BROKER_KEYS_WITHOUT_EFFECT
from barnabas.log.vocabulary.cluster_changes import AlterConfigRequest, ConfigEntryChange
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.net.base.settings.config import load
from barnabas.net.broker.core_settings import config_rules
from barnabas.net.handlers.own.configs import ConfigHandlers
from barnabas.net.handlers.own.topics import TopicHandlers
from barnabas.net.wire.protocol.requests import CreateTopicRequest

T = topic("t", partition(0))
TOPIC, BROKER = 2, 4
Door = Callable[[HandlerWorld, str, str], Awaitable[str]]
"""Returns the words of the refusal, "" for a value that is accepted."""


def texts_for(row: ConfigKey) -> Iterator[str]:
    """The value at each bound and the next one beyond it, the default, other spellings, and nonsense."""
    yield from ("nonsense", ",", "1_000", "\u0663", "nan", "TRUE", "false")
    if row.default is not None and row.default != ():
        yield from (row.kind.show(row.default), f" {row.kind.show(row.default)} ")
    for within, beyond in at_bounds(row):
        yield from (within, beyond)


def at_bounds(row: ConfigKey) -> Iterator[tuple[str, str]]:
    """The smallest and the largest value, each with the next one beyond it."""
    for bound, step in zip(row.kind.bounds or (), (-1, 1), strict=False):
        if row.kind.type is ConfigType.DOUBLE:
            beyond = math.nextafter(bound, step * math.inf)
            yield repr(float(bound)), repr(beyond) if math.isfinite(beyond) else "1e309"
        else:
            yield str(int(bound)), str(int(bound) + step)


def refusal_of_the_row(row: ConfigKey, text: str) -> str:
    try:
        row.check(text)
    except InvalidConfigError as error:
        return error.message
    return ""


@cache
def control_and_image() -> tuple[ConfigurationControl, MetadataImage]:
    """Of an active controller whose broker has the default configuration. Neither changes: nothing is replayed."""
    cluster = SingleController(1)
    cluster.topic(0)
    return ConfigurationControl(config_rules(load(None, {}, {}))), cluster.image


def decided(request: ControllerRequest) -> object:
    control, image = control_and_image()
    try:
        if isinstance(request, CreateTopic):
            control.check_new_topic(request.configs or {})
            return TopicCreated(name="t", topic_id="", partition_count=1, replication_factor=1, offset=10)
        assert isinstance(request, AlterConfig)
        control.alter(MetadataDelta(image), request)
        return Done(offset=10)
    except InvalidConfigError as error:
        return error


def test_a_value_at_a_bound_is_accepted_and_the_next_one_beyond_is_not() -> None:
    rows = [row for row in (*ALL_TOPIC_KEYS.values(), *BROKER_KEYS.values()) if row.kind.bounds is not None]
    assert len(rows) > 60
    for row in rows:
        for within, beyond in at_bounds(row):
            assert refusal_of_the_row(row, within) == "", (row.name, within)
            assert refusal_of_the_row(row, beyond) == f"{row.name} must be {row.kind.allowed}, not {beyond!r}"


async def create_topic(world: HandlerWorld, key: str, text: str) -> str:
    request = CreateTopicRequest(name="new", configs={key: text}, validate_only=True)
    return await told_by(ask_own(TopicHandlers(world.services).create, request))


def alter_own(resource_type: int, resource: str) -> Door:
    async def door(world: HandlerWorld, key: str, text: str) -> str:
        change = ConfigEntryChange(key=key, value=text)
        request = AlterConfigRequest(resource_type=resource_type, resource=resource, changes=(change,))
        return await told_by(ask_own(ConfigHandlers(world.services).alter, request))

    return door


def alter_kafka(api: int, resource_type: int, resource: str) -> Door:
    async def door(world: HandlerWorld, key: str, text: str) -> str:
        changes = (resource_type, resource, [(key, text)])
        (result,) = (await ask_kafka(world, altered(api, changes, validate_only=True))).responses
        return result.error_message or ""

    return door


async def told_by(asked: Awaitable[object]) -> str:
    try:
        await asked
    except InvalidConfigError as error:
        return error.message
    return ""


def doors_to(resource_type: int, resource: str) -> tuple[Door, ...]:
    return (
        alter_own(resource_type, resource),
        *(alter_kafka(api, resource_type, resource) for api in (ALTER, INCREMENTAL)),
    )


def told_by_the_file(key: str, text: str) -> str:
    try:
        load(None, {key: text}, {})
    except InvalidConfigError as error:
        return error.message
    return ""


async def opened() -> HandlerWorld:
    world = await HandlerWorld.start(T)
    world.source.decide = decided
    return world


@pytest.mark.parametrize("key", ALL_TOPIC_KEYS)
@simulated
async def test_a_topics_key_is_judged_by_every_door_as_by_its_row(key: str) -> None:
    world, row = await opened(), ALL_TOPIC_KEYS[key]
    for text in texts_for(row):
        expected = refusal_of_the_row(row, text)
        for door in (create_topic, *doors_to(TOPIC, "t")):
            assert await door(world, key, text) == expected, (key, text)
        if row.broker_key:
            assert told_by_the_file(row.broker_key, text) == expected.replace(key, row.broker_key, 1), (key, text)


@pytest.mark.parametrize("key", BROKER_KEYS)
@simulated
async def test_a_brokers_key_is_judged_by_every_door_as_by_its_row(key: str) -> None:
    world, row = await opened(), BROKER_KEYS[key]
    for text in texts_for(row):
        expected = refusal_of_the_row(row, text)
        told = told_by_the_file(key, text)
        # A value in the range may still be refused beside the defaults of other keys, e.g. a heartbeat longer than a session.
        assert told == expected if expected else f"{key} must be {row.kind.allowed}" not in told, (key, text)
        for door in doors_to(BROKER, "0"):
            told = await door(world, key, text)
            if row.change is Change.FOR_THE_CLUSTER:
                assert "one value for the whole cluster" in told, (key, text)
            else:
                assert told == (expected or only_at_start(row)), (key, text)
        for door in doors_to(BROKER, ""):
            assert await door(world, key, text) == (expected or only_at_start(row)), (key, text)


def only_at_start(row: ConfigKey) -> str:
    told = f"{row.name} cannot be changed while a broker runs: set it in server.properties and restart"
    return told if row.change is Change.AT_START else ""


@pytest.mark.parametrize("key", BROKER_KEYS_WITHOUT_EFFECT)
@simulated
async def test_a_key_without_effect_is_refused_while_brokers_run_with_the_reason(key: str) -> None:
    world, row = await opened(), BROKER_KEYS_WITHOUT_EFFECT[key]
    for door in (*doors_to(BROKER, "0"), *doors_to(BROKER, "")):
        assert await door(world, key, "1") == f"{key} has no effect here: {row.no_effect}"
