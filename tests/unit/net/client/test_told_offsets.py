"""A member begins at the offsets that came with its assignment, and asks for those that did not."""

from typing import Any

import pytest
from msgspec.structs import replace
from unit.net.client.consumer_world import T0, T1, consumer, filled, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.group_messages import (
    CommittedOffset,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.group.group_membership import GroupMembership
from barnabas.net.client.group.ownership import Subscription
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import OffsetFetchRequest


def grouped(offset: int | None = None) -> FakeCluster:
    """A cluster with 100 records in one partition, of which the group has committed some."""
    cluster = filled(100)
    FakeGroups(cluster)
    if offset is not None:
        run(_commit(cluster, offset))
    return cluster


async def _commit(cluster: FakeCluster, offset: int) -> None:
    async with consumer(cluster, group="g", auto_commit=False) as reader:
        reader.assign([T0])
        await reader.commit({T0: offset})


async def first_of(reader: Consumer) -> int:
    (record,) = await read(reader, 1)
    return record.offset


@pytest.mark.parametrize(("offset", "first"), [(40, 40), (None, 0)])
def test_no_question_follows_an_assignment_that_brings_its_offsets(offset: int | None, first: int) -> None:
    cluster = grouped(offset)
    before = len(cluster.sent(OffsetFetchRequest))

    async def main() -> None:
        async with consumer(cluster, "t", group="g") as reader:
            assert await first_of(reader) == first

    run(main())
    assert len(cluster.sent(OffsetFetchRequest)) == before


def test_a_listener_may_commit_before_positions_are_looked_up() -> None:
    cluster = grouped()

    async def main() -> None:
        async def assigned(_: object) -> None:
            await reader.commit({T0: 70})

        reader = consumer(cluster, "t", group="g", on_assigned=assigned)
        async with reader:
            assert await first_of(reader) == 70

    run(main())
    assert cluster.sent(OffsetFetchRequest)


def without_offsets(answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
    """That of an older broker."""
    return replace(answer, offsets=())


def of_an_older_topic(answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
    return replace(answer, offsets=tuple(replace(item, offset=90, topic_id="older") for item in answer.offsets))


@pytest.mark.parametrize("changed", [without_offsets, of_an_older_topic])
def test_the_member_asks_for_what_did_not_come_or_is_of_another_topic(changed: Any) -> None:
    cluster = grouped(40)
    genuine: Any = cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT]

    async def heartbeat(node: Any, request: Any) -> Any:
        answer = await genuine(node, request)
        return changed(answer) if isinstance(answer, ConsumerGroupHeartbeatResponse) else answer

    async def main() -> None:
        cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT] = heartbeat
        async with consumer(cluster, "t", group="g") as reader:
            assert await first_of(reader) == 40

    before = len(cluster.sent(OffsetFetchRequest))
    run(main())
    assert len(cluster.sent(OffsetFetchRequest)) == before + 1


def test_offsets_that_came_and_those_that_were_asked_for_are_used_together() -> None:
    cluster = filled(100, partitions=2)
    FakeGroups(cluster)
    genuine: Any = cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT]

    async def heartbeat(node: Any, request: Any) -> Any:
        answer = await genuine(node, request)
        if not isinstance(answer, ConsumerGroupHeartbeatResponse):
            return answer
        return replace(answer, offsets=tuple(item for item in answer.offsets if item.partition == 0))

    async def main() -> None:
        async with consumer(cluster, group="g", auto_commit=False) as reader:
            reader.assign([T0, T1])
            await reader.commit({T0: 40, T1: 60})
        cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT] = heartbeat
        async with consumer(cluster, "t", group="g") as reader:
            records = await read(reader, 100)
            assert min(item.offset for item in records if item.partition == 0) == 40
            assert min(item.offset for item in records if item.partition == 1) == 60

    run(main())
    assert [len(item.partitions) for item in cluster.sent(OffsetFetchRequest)][-1] == 1


def assigned(*partitions: int, told: int | None = None) -> ConsumerGroupHeartbeatResponse:
    offsets = () if told is None else (CommittedOffset(topic="t", partition=told, offset=5, topic_id="t"),)
    return ConsumerGroupHeartbeatResponse(
        member_id="m",
        member_epoch=1,
        heartbeat_interval_ms=1_000,
        assignment=(TopicPartitions(topic="t", partitions=partitions),),
        offsets=offsets,
    )


def test_what_came_with_an_assignment_is_used_once_and_not_after_the_next() -> None:
    machine = GroupMembership("g", "m", Subscription(topics=("t",)))
    assert machine.heartbeat().wants_offsets
    machine.answered(assigned(0))
    machine.adopted([T0])
    machine.heartbeat()
    machine.answered(assigned(0))
    assert not machine.must_tell and machine.heartbeat().wants_offsets, (
        "a heartbeat without news brings assignments, too"
    )
    machine.answered(assigned(0, told=0))
    machine.answered(assigned(0, 1, told=1))
    assert not machine.take_told([T0]), "a newer assignment"
    assert machine.take_told([T0, T1]).keys() == {T1}
    assert not machine.take_told([T1]), "handed out once"
    machine.answered(assigned(0, told=0))
    machine.fence()
    assert not machine.take_told([T0])
