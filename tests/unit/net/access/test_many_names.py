"""Requests with more names, or longer ones, than a client needs: what they cost the broker's loop and its memory."""

from __future__ import annotations

from typing import Any

import pytest
from unit.net.access.access_world import AccessWorld, allow

from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest, TopicPartitions
from barnabas.net.base.limits import MAX_DATA_ITEMS
from barnabas.net.server.access.access import MAX_REMEMBERED_LENGTH
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol import responses as r

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
MANY = tuple(f"{number}" for number in range(MAX_DATA_ITEMS + 1))
PRODUCED = tuple(q.ProducePartition(topic=name, partition=0, records=b"") for name in MANY)
FETCHED = tuple(q.FetchPartition(topic=name, partition=0, fetch_offset=0, max_bytes=1) for name in MANY)


def test_long_names_are_not_remembered() -> None:
    """100,000 of them would be gigabytes: a name in a request may be as long as the request."""
    world = AccessWorld(allow(Operation.READ, TOPIC, "t"))
    access = world.control.of(world.client())
    for name in ("a" * MAX_REMEMBERED_LENGTH, "a" * (MAX_REMEMBERED_LENGTH + 1), "a" * 10_000):
        assert not access.may_topic(Operation.READ, name)
    assert access.remembered == 1


@pytest.mark.parametrize(
    "request_",
    [
        q.MetadataRequest(topics=MANY),
        q.MetadataRequest(topics=(), topic_ids=MANY),
        q.ProduceRequest(acks=1, timeout_ms=1, partitions=PRODUCED),
        q.FetchRequest(max_wait_ms=9, min_bytes=1, max_bytes=1, partitions=FETCHED),
        q.OffsetFetchRequest(
            group_id="g", partitions=tuple(TopicPartitions(topic=name, partitions=(0,)) for name in MANY)
        ),
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topics=MANY),
    ],
    ids=lambda request: type(request).__name__,
)
def test_requests_with_too_many_names_are_not_walked_through(request_: Any) -> None:
    """A refusal takes 20 us: 90,000 of them kept the loop for seconds, in which other clients gave the broker up."""
    world = AccessWorld(allow(Operation.READ, GROUP))
    answer = world.ask(request_).answer()
    assert isinstance(answer, r.ErrorResponse) and answer.error == ErrorCode.INVALID_REQUEST
    assert not world.audit.denials and not world.reached
