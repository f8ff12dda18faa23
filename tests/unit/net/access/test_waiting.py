"""Permissions that end while a request waits, and requests whose topics are known only when they are answered."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.access.access_world import TOPICS, AccessWorld, allow, everything

from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    UndoneOffset,
    UndoOffsetResetResponse,
)
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.event_messages import EventsRequest, EventsResponse

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
READ_T = allow(Operation.READ, ResourceKind.TOPIC, "t")
FETCH = q.FetchRequest(
    max_wait_ms=30_000,
    min_bytes=1,
    max_bytes=1,
    partitions=(q.FetchPartition(topic="t", partition=0, fetch_offset=0, max_bytes=1),),
)


def test_a_decision_is_by_the_newest_permissions_however_old_the_request_is() -> None:
    """A handler that has waited needs not ask for them."""
    world = AccessWorld(READ_T)
    access = world.control.of(world.client())
    assert access.may_topic(Operation.READ, "t") and access.may_any(Operation.READ, ResourceKind.TOPIC)
    world.set()
    assert not access.may_topic(Operation.READ, "t") and not access.may_any(Operation.READ, ResourceKind.TOPIC)
    world.set(READ_T)
    assert access.may_topic(Operation.READ, "t")


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (
            "fetch",
            r.FetchResponse(partitions=(r.FetchPartitionResponse(topic="t", partition=0, records=b"x"),)),
        ),
        ("events", EventsResponse(node_id=0, events=(), last=0)),
    ],
)
def test_an_answer_that_was_waited_for_needs_the_permission_too(request_: str, answer: Any) -> None:
    """It ends while the request waits: what is written afterwards is not for this client."""
    requests = {"fetch": FETCH, "events": EventsRequest(max_wait_ms=30_000)}

    def revoke(request: Any) -> Any:
        world.set()
        return answer

    for given in (everything(), (READ_T, allow(Operation.DESCRIBE, ResourceKind.CLUSTER))):
        world = AccessWorld(*given, respond=revoke)
        told = world.ask(requests[request_]).answer()
        assert len(world.reached) == 1
        codes = [item.error for item in told.partitions] if request_ == "fetch" else [told.error]
        assert codes == [DENIED if request_ == "fetch" else ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_an_assignment_that_was_waited_for_needs_the_permission_too() -> None:
    told = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=1, heartbeat_interval_ms=1)

    def revoke(request: Any) -> Any:
        world.set()
        return told

    for wait_ms in (0, 30_000):
        world = AccessWorld(*everything(), respond=revoke)
        beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, max_wait_ms=wait_ms)
        answer = world.ask(beat).answer()
        assert (answer == told) == (wait_ms == 0)
        assert answer == told or answer.error == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_offsets_come_with_an_assignment_for_topics_that_may_be_described() -> None:
    """A short heartbeat names no topics: the permission for one may be gone, and a fetch of its offsets would be refused."""
    found = tuple(CommittedOffset(topic=name, partition=0, offset=7, topic_id=TOPICS[name]) for name in ("t", "secret"))
    told = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=2, heartbeat_interval_ms=1, offsets=found)
    acls = (allow(Operation.READ, ResourceKind.GROUP, "g"), READ_T)
    for wait_ms in (0, 30_000):
        beat = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=1, max_wait_ms=wait_ms, wants_offsets=True
        )
        answer: Any = AccessWorld(*acls, respond=lambda _: told).ask(beat).answer()
        assert answer == replace(told, offsets=found[:1])
        assert AccessWorld(*everything(), respond=lambda _: told).ask(beat).answer() == told


def test_metadata_that_was_waited_for_names_no_topic_that_may_not_be_described_any_more() -> None:
    found = tuple(r.TopicMetadata(error=0, name=name, topic_id=TOPICS[name]) for name in ("t", "secret"))

    def revoke(request: Any) -> Any:
        world.set(allow(Operation.DESCRIBE, ResourceKind.TOPIC, "t"))
        return r.MetadataResponse(cluster_id="c", controller_id=0, offset=1, brokers=(), topics=found)

    asked = q.MetadataRequest(topics=("t", "secret"), known_offset=1, max_wait_ms=30_000)
    for request, codes in (
        (asked, {"t": 0, "secret": DENIED}),
        (replace(asked, topics=("t",), topic_ids=(TOPICS["secret"],)), {"t": 0, "": ErrorCode.UNKNOWN_TOPIC_ID}),
        (replace(asked, topics=None), {"t": 0}),
    ):
        world = AccessWorld(*everything(), respond=revoke)
        answer: Any = world.ask(request).answer()
        assert {item.name: item.error for item in answer.topics} == codes


def test_an_undo_needs_the_topics_that_the_last_reset_has_moved() -> None:
    read_g = allow(Operation.READ, ResourceKind.GROUP, "g")
    undo = q.UndoOffsetResetRequest(group_id="g")
    moved = UndoOffsetResetResponse(
        reset_id=1, at_ms=0, by="", offsets=(UndoneOffset(topic="t", partition=0, before=1, after=2),)
    )

    def asked(request: q.UndoOffsetResetRequest, *acls: Any) -> Any:
        return AccessWorld(*acls, respond=lambda _: moved).ask(request).answer()

    for request in (undo, replace(undo, topics=("t",)), replace(undo, validate_only=True)):
        told = asked(request, read_g)
        assert isinstance(told, r.ErrorResponse) and told.error == DENIED, request
    told = asked(replace(undo, topics=("t",), validate_only=True), read_g)
    assert isinstance(told, r.ErrorResponse), "a preview answers what the reset has moved, whatever it names"
    assert asked(replace(undo, topics=("t",)), read_g, READ_T) == moved
    assert asked(replace(undo, validate_only=True), read_g, READ_T) == moved
    assert isinstance(asked(undo, read_g, READ_T), r.ErrorResponse), "without names, all topics are meant"
    assert asked(undo, read_g, allow(Operation.READ, ResourceKind.TOPIC)) == moved
