"""What a consumer sends for its start: one heartbeat for what it has taken, and no connection that it does not need later."""

import asyncio
from typing import Any

from unit.net.client.consumer_world import T0, consumer, filled, read
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatRequest
from barnabas.net.client.group.group_membership import GroupMembership
from barnabas.net.client.group.ownership import Subscription
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import ListOffsetsRequest

from .test_told_offsets import assigned


def test_the_heartbeat_that_tells_of_taken_partitions_waits_for_news() -> None:
    async def main() -> None:
        cluster = filled(10)
        FakeGroups(cluster)
        async with consumer(cluster, "t", group="g") as reader:
            await read(reader, 10)
            await asyncio.sleep(0.5)
            joined, told = cluster.sent(ConsumerGroupHeartbeatRequest)
            assert (joined.member_epoch, joined.max_wait_ms) == (0, 0)
            assert told.owned and told.max_wait_ms > 0
            await reader.subscribe("t", "u")
            await asyncio.sleep(0.1)
            newer = cluster.sent(ConsumerGroupHeartbeatRequest)[2]
            assert newer.subscribed_topics == ("t", "u") and newer.owned, (
                "it does not wait for the answer to the last one"
            )

    run(main())


def test_a_heartbeat_under_way_is_given_up_only_for_what_it_does_not_contain() -> None:
    machine = GroupMembership("g", "m", Subscription(topics=("t",)))
    assert machine.has_more_to_tell
    machine.heartbeat()
    assert machine.must_tell and not machine.has_more_to_tell
    machine.answered(assigned(0))
    machine.adopted([T0])
    assert machine.has_more_to_tell
    assert machine.heartbeat().owned
    assert not machine.has_more_to_tell
    machine.revoked([T0])
    assert machine.has_more_to_tell
    machine.gave_up()
    assert machine.heartbeat().owned == ()
    machine.leave()
    assert not machine.has_more_to_tell


def test_a_consumer_that_closes_before_the_answer_to_its_join_leaves_the_group() -> None:
    """Otherwise it would keep its partitions for a whole session."""

    async def main() -> None:
        cluster = filled(10)
        groups = FakeGroups(cluster)
        joined = asyncio.Event()
        answer = cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT]

        async def lost(node: Any, request: ConsumerGroupHeartbeatRequest) -> Any:
            told = await answer(node, request)
            if request.member_epoch == 0:
                joined.set()
                await asyncio.Event().wait()
            return told

        cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT] = lost
        async with consumer(cluster, "t", group="g"):
            await joined.wait()
            assert groups.machine("g").state.groups["g"].members
        assert not groups.machine("g").state.groups["g"].members

    run(main())


def test_a_consumer_opens_one_connection_to_a_leader() -> None:
    async def main() -> None:
        cluster = filled(10, brokers=2)
        cluster.logs[T0].leader = 1
        async with consumer(cluster, "t") as reader:
            await read(reader, 10)
            assert [one.node_id for one in cluster.connections].count(1) == 1
        assert cluster.sent(ListOffsetsRequest)

    run(main())
