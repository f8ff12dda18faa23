"""What a handler hands to the coordinator of a group: every field that the client has sent, in its own protocol or in Kafka's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from msgspec import structs
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import partition, simulated, topic

from barnabas.consumer_groups.model.classic_messages import LeaveOutcome
from barnabas.log.vocabulary.group_messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicPartitions,
)
from barnabas.net.handlers.common.services import Services
from barnabas.net.handlers.kafka.groups import KafkaGroupHandlers
from barnabas.net.handlers.own.classic_groups import ClassicGroupHandlers
from barnabas.net.handlers.own.groups import GroupHandlers
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest
from barnabas.net.wire.protocol.requests import OffsetCommitRequest

T = structs.replace(topic("t", partition(0)), topic_id="ab" * 16)
HOST, CLIENT = "10.0.0.9", "tester"  # of the context that `ask` gives
JOINED = JoinGroupResponse(member_id="m", generation=4, protocol_name="range", leader_id="m")
SYNCED = SyncGroupResponse(protocol_name="range", assignment=b"mine")
BEATEN = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=3, heartbeat_interval_ms=500)
JOIN = JoinGroupRequest(
    group_id="g",
    member_id="m",
    instance_id="i",
    client_id=CLIENT,
    session_timeout_ms=7_000,
    rebalance_timeout_ms=9_000,
    protocol_type="consumer",
    protocols=(GroupProtocol(name="range", metadata=b"r"), GroupProtocol(name="sticky", metadata=b"s")),
    reason="why",
)
SYNC = SyncGroupRequest(
    group_id="g",
    generation=4,
    member_id="m",
    instance_id="i",
    protocol_type="consumer",
    protocol_name="range",
    assignments=(MemberAssignment(member_id="n", assignment=b"yours"),),
)
BEAT = ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    member_epoch=2,
    instance_id="i",
    rack="r",
    client_id=CLIENT,
    subscribed_topics=("s", "t"),
    subscribed_pattern="t.*",
    rebalance_timeout_ms=9_000,
    assignor="range",
    owned=(TopicPartitions(topic="t", partitions=(0, 2)),),
    wants_offsets=True,
)


class Groups:
    """A GroupService whose machine notes what it is asked, and whose answers are given."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: self.asked.append((name, arguments, named))

    topic_ids: dict[str, str] = {"t": "id"}

    def now_ms(self) -> int:
        return 77

    def has_room_to_park(self, group_id: str) -> bool:
        return group_id == "g"

    async def handle(self, group_id: str, decide: Callable[[Any], object]) -> object:
        assert group_id == "g"
        decide(self)
        return self._answer

    async def handle_parked(self, group_id: str, decide: Callable[[Any, int], object]) -> object:
        assert group_id == "g"
        decide(self, 5)
        return self._answer


async def services_with(groups: Groups) -> Services:
    return replace((await HandlerWorld.start(T)).services, groups=cast(Any, groups))


def kafka(services: Services) -> KafkaGroupHandlers:
    return KafkaGroupHandlers(services, GroupHandlers(services), ClassicGroupHandlers(services))


def of_kafka(key: int, version: int, body: object) -> Any:
    return KafkaRequest(api_key=cast(Any, key), version=version, body=body)


@simulated
async def test_a_join() -> None:
    groups = Groups(JOINED)
    services = await services_with(groups)
    await ask(ClassicGroupHandlers(services).join, JOIN)
    await ask(ClassicGroupHandlers(services).join, JoinGroupRequest(**fields_of(JOIN) | {"client_id": ""}))
    protocol = bodies.JoinGroupRequest.JoinGroupRequestProtocol
    body = bodies.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=7_000,
        rebalance_timeout_ms=9_000,
        member_id="m",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[protocol(name="range", metadata=b"r"), protocol(name="sticky", metadata=b"s")],
        reason="why",
    )
    await ask(kafka(services).join, of_kafka(11, 9, body))
    await ask(kafka(services).join, of_kafka(11, 3, body))
    expected = ("join_group", (JOIN, 5, 77), {"client_host": HOST, "needs_known_id": True})
    too_old = ("join_group", (JOIN, 5, 77), {"client_host": HOST, "needs_known_id": False})
    assert groups.asked == [expected, expected, expected, too_old]


@simulated
async def test_a_join_before_rebalances_had_a_timeout() -> None:
    """Version 0 has none: Kafka's default of the field is -1, and the session's stands in."""
    groups = Groups(JOINED)
    body = bodies.JoinGroupRequest(group_id="g", session_timeout_ms=7_000, protocol_type="consumer")
    await ask(kafka(await services_with(groups)).join, of_kafka(11, 0, body))
    assert groups.asked[0][1][0].rebalance_timeout_ms == 7_000


@simulated
async def test_a_sync() -> None:
    groups = Groups(SYNCED)
    services = await services_with(groups)
    await ask(ClassicGroupHandlers(services).sync, SYNC)
    body = bodies.SyncGroupRequest(
        group_id="g",
        generation_id=4,
        member_id="m",
        group_instance_id="i",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[bodies.SyncGroupRequest.SyncGroupRequestAssignment(member_id="n", assignment=b"yours")],
    )
    await ask(kafka(services).sync, of_kafka(14, 5, body))
    assert groups.asked == [("sync_group", (SYNC, 5, 77), {})] * 2


@simulated
async def test_a_leave() -> None:
    leaving = LeaveGroupRequest(group_id="g", member_id="m", instance_id="i", reason="why")
    groups = Groups((LeaveOutcome(member_id="m", instance_id="i"),))
    services = await services_with(groups)
    await ask(ClassicGroupHandlers(services).leave, leaving)
    member = bodies.LeaveGroupRequest.MemberIdentity(member_id="m", group_instance_id="i", reason="why")
    await ask(kafka(services).leave, of_kafka(13, 5, bodies.LeaveGroupRequest(group_id="g", members=[member])))
    assert groups.asked == [("leave_group", (), {"group_id": "g", "leaving": (leaving,), "now_ms": 77})] * 2


@simulated
async def test_a_heartbeat_of_a_classic_member() -> None:
    groups = Groups(None)
    request = HeartbeatRequest(group_id="g", generation=4, member_id="m", instance_id="i")
    await ask(ClassicGroupHandlers(await services_with(groups)).heartbeat, request)
    assert groups.asked == [("heartbeat_classic", (request, 77), {})]


@simulated
async def test_a_heartbeat_of_a_member_whose_coordinator_assigns() -> None:
    groups = Groups(BEATEN)
    services = await services_with(groups)
    usual = services.group_times("g").heartbeat_interval_ms
    await ask(GroupHandlers(services).heartbeat, BEAT)
    waiting = ConsumerGroupHeartbeatRequest(**fields_of(BEAT) | {"max_wait_ms": 300})
    await ask(GroupHandlers(services).heartbeat, waiting)
    told = {"client_host": HOST, "interval_ms": usual, "topic_ids": Groups.topic_ids}
    assert groups.asked == [("heartbeat", (BEAT, 77), told), ("poll_heartbeat", (waiting, 5, 77), told)]


@simulated
async def test_a_heartbeat_of_kafkas_members() -> None:
    groups = Groups(BEATEN)
    services = await services_with(groups)
    body = bodies.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=2,
        instance_id="i",
        rack_id="r",
        rebalance_timeout_ms=9_000,
        subscribed_topic_names=["t", "s"],
        subscribed_topic_regex="t.*",
        server_assignor="range",
        topic_partitions=[
            bodies.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=bytes.fromhex(T.topic_id), partitions=[2, 0])
        ],
    )
    await ask(kafka(services).consumer_heartbeat, of_kafka(68, 1, body))
    asked = groups.asked[0][1][0]
    told = {"session_timeout_ms": asked.session_timeout_ms, "wants_offsets": False}
    assert asked == ConsumerGroupHeartbeatRequest(**fields_of(BEAT) | told)
    assert asked.session_timeout_ms == services.config.group_consumer_session_timeout_ms


@simulated
async def test_a_commit() -> None:
    groups = Groups(())
    offset = OffsetToCommit(topic="t", partition=0, offset=9, leader_epoch=2, metadata="x", topic_id="id")
    request = OffsetCommitRequest(group_id="g", member_id="m", member_epoch=3, partitions=(offset,), instance_id="i")
    await ask(GroupHandlers(await services_with(groups)).commit_offsets, request)
    ((name, _, named),) = groups.asked
    assert name == "commit_offsets"
    assert named == {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 3,
        "offsets": (offset,),
        "now_ms": 77,
        "instance_id": "i",
        "place": None,
        "topic_ids": groups.topic_ids,
    }


def fields_of(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}
