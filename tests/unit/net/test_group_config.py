"""Configurations of single groups: which there are, their ranges, and what a member's heartbeats are told of them."""

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import partition, simulated, topic, turns

from barnabas.consumer_groups.share.settings import ShareSettings
from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.requests import GroupRecordsAppended
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest
from barnabas.net.base.settings.config import load
from barnabas.net.base.settings.group_config import (
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    GroupTimes,
    check_group_value,
    default_session_ms,
    share_config_of,
    times_of,
)
from barnabas.net.handlers.kafka.groups import KafkaGroupHandlers
from barnabas.net.handlers.own.classic_groups import ClassicGroupHandlers
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.server.dispatcher import Dispatcher, answering
from barnabas.net.wire.protocol.kafka.apis import KafkaApi

CONFIG = load(None, {}, {})
T = replace(topic("t", partition(0)), topic_id="1" * 32)
SLOT = slot_of("g")


@pytest.mark.parametrize(("key", "value"), [(SESSION_TIMEOUT, "1000"), (HEARTBEAT_INTERVAL, "100")])
def test_what_a_group_may_set(key: str, value: str) -> None:
    check_group_value(CONFIG, key, value)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (SESSION_TIMEOUT, "999", f"{SESSION_TIMEOUT} must be an integer between 1000 and 1800000, not '999'"),
        (SESSION_TIMEOUT, "soon", f"{SESSION_TIMEOUT} must be .*, not 'soon'"),
        (HEARTBEAT_INTERVAL, "99", f"{HEARTBEAT_INTERVAL} must be an integer between 100 and 60000, not '99'"),
        (HEARTBEAT_INTERVAL, "60001", f"{HEARTBEAT_INTERVAL} must be .*, not '60001'"),
        ("share.auto.offset.reset", "none", "one of latest, earliest"),
        ("share.delivery.count.limit", "0", "between 1 and 100"),
        ("share.renew.acknowledge.enable", "true", "groups have"),
        ("streams.heartbeat.interval.ms", "5000", "streams groups are not supported"),
        ("session.timeout.ms", "45000", "groups have"),
    ],
)
def test_what_a_group_may_not_set(key: str, value: str, told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        check_group_value(CONFIG, key, value)


def test_a_share_group_has_its_own_settings_and_those_of_the_broker() -> None:
    usual = share_config_of(CONFIG, {})
    assert usual.settings == ShareSettings() and not (usual.begins_at_earliest or usual.reads_committed)
    changed = share_config_of(
        CONFIG,
        {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",
            "share.record.lock.duration.ms": "500",
            "share.delivery.count.limit": "2",
            "share.partition.max.record.locks": "many",
        },
    )
    assert changed.begins_at_earliest and changed.reads_committed
    assert changed.settings == ShareSettings(record_lock_duration_ms=500, delivery_count_limit=2)
    for key in ("share.auto.offset.reset", "share.isolation.level"):
        check_group_value(CONFIG, key, {"share.auto.offset.reset": "latest"}.get(key, "read_uncommitted"))


def test_what_another_version_has_set_counts_as_nothing() -> None:
    assert times_of({SESSION_TIMEOUT: "never", HEARTBEAT_INTERVAL: ""}) == GroupTimes()
    assert default_session_ms(CONFIG) == 45_000
    assert default_session_ms(load(None, {"group.consumer.session.timeout.ms": "10"}, {})) == -1


async def started() -> tuple[HandlerWorld, KafkaClient]:
    world = await HandlerWorld.start(T, slots=(SLOT,))
    world.source.script(GroupRecordsAppended())
    await turns()
    groups = KafkaGroupHandlers(world.services, GroupHandlers(world.services), ClassicGroupHandlers(world.services))
    return world, KafkaClient(Dispatcher({KafkaApi.CONSUMER_GROUP_HEARTBEAT: answering(groups.consumer_heartbeat)}))


def session_of(world: HandlerWorld) -> int:
    (machine,) = world.groups.machines()
    (member,) = machine.state.groups["g"].members.values()
    return member.session_timeout_ms


@simulated
async def test_a_groups_times_hold_from_the_next_heartbeat_of_a_kafka_client_and_end_with_their_removal() -> None:
    world, client = await started()

    async def beat(member_id: str, epoch: int) -> tuple[str, int, int, int]:
        joining = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 60_000, "topic_partitions": []}
        asked = made(
            "ConsumerGroupHeartbeatRequest",
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            **({} if epoch else joining),
        )
        told = await client.ask(68, 1, asked)
        assert told.error_code == 0
        return told.member_id, told.member_epoch, told.heartbeat_interval_ms, session_of(world)

    member_id, epoch, interval_ms, session_ms = await beat("m", 0)
    assert (interval_ms, session_ms) == (5_000, 45_000)
    for offset, configs, expected in (
        (11, {HEARTBEAT_INTERVAL: "700"}, (700, 45_000)),
        (12, {HEARTBEAT_INTERVAL: "700", SESSION_TIMEOUT: "9000"}, (700, 9_000)),
        (13, {SESSION_TIMEOUT: "9000"}, (3_000, 9_000)),  # three tries in a session
        (14, {}, (5_000, 45_000)),
    ):
        world.show(T, slots=(SLOT,), offset=offset, group_configs={"g": configs})
        assert (await beat(member_id, epoch))[2:] == expected


@simulated
async def test_a_groups_times_stand_before_what_a_member_of_ours_asks_for() -> None:
    world, _ = await started()
    handlers = GroupHandlers(world.services)

    async def beat(member_id: str, epoch: int, session_ms: int = -1) -> tuple[str, int, int, int]:
        joining = {"subscribed_topics": ("t",), "rebalance_timeout_ms": 60_000, "owned": ()} if epoch == 0 else {}
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, session_timeout_ms=session_ms, **joining
        )
        told = await ask(handlers.heartbeat, request)
        return told.member_id, told.member_epoch, told.heartbeat_interval_ms, session_of(world)

    member_id, epoch, interval_ms, session_ms = await beat("", 0, 6_000)
    assert (interval_ms, session_ms) == (2_000, 6_000)
    configs = {SESSION_TIMEOUT: "9000", HEARTBEAT_INTERVAL: "100"}
    world.show(T, slots=(SLOT,), offset=11, group_configs={"g": configs})
    assert (await beat(member_id, epoch))[2:] == (100, 9_000)
    world.show(T, slots=(SLOT,), offset=12)
    assert (await beat(member_id, epoch))[2:] == (3_000, 9_000), "until it joins anew"
