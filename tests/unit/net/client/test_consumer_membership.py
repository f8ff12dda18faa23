"""A consumer that is a member of a group: it commits, loses partitions, leaves, and follows its coordinator."""

import asyncio
import logging
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, T1, consumer, filled, read
from unit.net.client.fake_cluster import HANG, FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.group_messages import ConsumerGroupHeartbeatResponse, TopicPartitions
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    NotAssignedError,
)
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey


class Coordinator:
    """Gives all partitions that it is told to, and remembers what it heard."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.assignment: tuple[int, ...] = (0, 1)
        self.epoch = 1
        self.interval_ms = 1000
        self.heard: list[Any] = []
        cluster.answers[ApiKey.CONSUMER_GROUP_HEARTBEAT] = self.heartbeat

    def assign(self, *partitions: int) -> None:
        self.assignment = partitions
        self.epoch += 1

    def heartbeat(self, node_id: int, request: Any) -> Any:
        self.heard.append(request)
        is_news = request.member_epoch != self.epoch
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=self.epoch if request.member_epoch >= 0 else request.member_epoch,
            heartbeat_interval_ms=self.interval_ms,
            assignment=(TopicPartitions(topic="t", partitions=self.assignment),) if is_news else None,
        )


def test_a_member_reads_commits_and_leaves() -> None:
    async def main() -> None:
        cluster = filled(partitions=2)
        coordinator = Coordinator(cluster)
        told: list[tuple[str, list[TopicPartition]]] = []

        async def assigned(partitions: list[TopicPartition]) -> None:
            told.append(("assigned", partitions))

        async with consumer(
            cluster, "t", group="g", on_assigned=assigned, on_revoked=lambda gone: told.append(("revoked", gone))
        ) as reader:
            await read(reader, 150)
            assert told == [("assigned", [T0, T1])]
            coordinator.assign(0)
            await asyncio.sleep(1.5)
            assert told == [("assigned", [T0, T1])]  # Not behind the application's back.
            await reader.poll(timeout_ms=100)
            assert told[1:] == [("revoked", [T1])]
            assert reader.assignment == [T0]
            assert cluster.committed["g"][T1] > 0  # Committed before it was given up.
            await asyncio.sleep(0.1)
            said = [request.owned for request in coordinator.heard if request.owned is not None]
            assert said[-1] == (TopicPartitions(topic="t", partitions=(0,)),)
            await reader.commit()
        assert coordinator.heard[-1].member_epoch == -1
        async with consumer(cluster, group="g") as reader:
            assert (await reader.committed(T0))[T0] == cluster.committed["g"][T0]

    run(main())


def test_the_record_in_hand_is_not_committed() -> None:
    async def main() -> None:
        cluster = filled()
        Coordinator(cluster).assign(0)
        with pytest.raises(RuntimeError):
            async with consumer(cluster, "t", group="g") as reader:
                async for record in reader:
                    if record.offset == 33:
                        raise RuntimeError("the handler fails")
        assert cluster.committed["g"][T0] == 33
        async with consumer(cluster, "t", group="g") as reader:
            async for record in reader:
                assert record.offset == 33
                await reader.commit()
                break
        assert cluster.committed["g"][T0] == 34

    run(main())


def test_auto_commit_runs_in_the_background_and_lags_behind_the_handler() -> None:
    async def main() -> None:
        cluster = filled()
        Coordinator(cluster).assign(0)
        async with consumer(cluster, "t", group="g", auto_commit_interval_ms=1000) as reader:
            async for record in reader:
                await asyncio.sleep(0.3)
                if record.offset == 20:
                    break
            assert 15 <= cluster.committed["g"][T0] <= 20

    run(main())


def test_a_rebalance_ends_the_walk_behind_the_record_in_hand() -> None:
    async def main() -> None:
        cluster = filled(partitions=2)
        coordinator = Coordinator(cluster)
        seen = []
        async with consumer(cluster, "t", group="g", auto_commit=False) as reader:
            async for record in reader:
                seen.append((record.partition, record.offset))
                if len(seen) == 5:
                    coordinator.assign(1 - record.partition)
                    await asyncio.sleep(2)
                if len(seen) == 105:
                    break
        first = seen[0][0]
        assert seen[:5] == [(first, offset) for offset in range(5)]
        assert seen[5:] == [(1 - first, offset) for offset in range(100)]

    run(main())


def test_fenced_members_lose_everything_and_rejoin() -> None:
    async def main() -> None:
        cluster = filled(partitions=2)
        coordinator = Coordinator(cluster)
        told: list[tuple[str, int]] = []
        async with consumer(
            cluster,
            "t",
            group="g",
            auto_commit=False,
            on_assigned=lambda partitions: told.append(("assigned", len(partitions))),
            on_revoked=lambda partitions: told.append(("revoked", len(partitions))),
        ) as reader:
            await read(reader, 10)
            cluster.script(ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda *_: r.ErrorResponse(error=110, message="fenced"))
            await asyncio.sleep(3)
            await read(reader, 10)
            assert told == [("assigned", 2), ("revoked", 2), ("assigned", 2)]
            assert any(request.member_epoch == 0 for request in coordinator.heard[2:])

    run(main())


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, False),
        (ErrorCode.FENCED_INSTANCE_ID, False),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, True),
    ],
)
def test_a_leave_that_was_not_confirmed_is_in_the_log(
    error: ErrorCode, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not if the coordinator knows no such member: then it has left."""

    async def main() -> str:
        cluster = filled(10)
        coordinator = Coordinator(cluster)

        def refused(node_id: int, request: Any) -> Any:
            return r.ErrorResponse(error=int(error), message="no") if request.member_epoch < 0 else None

        cluster.script(ApiKey.CONSUMER_GROUP_HEARTBEAT, refused, forever=True)
        async with consumer(cluster, "t", group="g") as reader:
            await read(reader, 10)
        return str(coordinator.heard[-1].member_id)

    with caplog.at_level(logging.INFO, logger="barnabas.consumer"):
        member_id = run(main())
    told = [text for text in caplog.messages if text.startswith("leave not confirmed")]
    assert told == ([f"leave not confirmed group=g member={member_id} reason=no"] if is_told else [])


def test_an_application_that_does_not_poll_leaves_and_comes_back() -> None:
    async def main() -> None:
        cluster = filled(partitions=2)
        coordinator = Coordinator(cluster)
        async with consumer(cluster, "t", group="g", max_poll_interval_ms=5_000) as reader:
            await read(reader, 10)
            await asyncio.sleep(20)
            assert coordinator.heard[-1].member_epoch == -1
            assert coordinator.heard[-1].reason == "poll_interval_exceeded"
            await read(reader, 10)
            assert coordinator.heard[-1].member_epoch >= 1

    run(main())


def test_the_coordinator_moves() -> None:
    async def main() -> None:
        cluster = filled(partitions=2, brokers=2)
        Coordinator(cluster)
        cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: r.ErrorResponse(error=16, message="moved"))
        async with consumer(cluster, "t", group="g", auto_commit=False) as reader:
            await read(reader, 10)
            await reader.commit({T0: 7})
            await reader.commit_nowait({T1: 8})
        assert cluster.committed["g"] == {T0: 7, T1: 8}

    run(main())


def test_polling_without_a_timeout_lets_the_answers_in() -> None:
    async def main() -> None:
        async with consumer(filled(), "t") as reader:
            for _ in range(100):
                if await reader.poll(timeout_ms=0):
                    return
        pytest.fail("the loop was starved")

    run(main())


def test_closing_does_not_hang_on_a_coordinator_that_is_silent() -> None:
    async def main() -> None:
        cluster = filled(partitions=2)
        Coordinator(cluster)
        loop = asyncio.get_running_loop()
        async with consumer(cluster, "t", group="g") as reader:
            await read(reader, 10)
            cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: HANG, forever=True)
            cluster.script(ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda *_: HANG, forever=True)
            begin = loop.time()
        assert loop.time() - begin < 15

    run(main())


def test_a_position_that_is_looked_up_may_be_taken_away() -> None:
    async def main() -> None:
        cluster = filled()
        async with consumer(cluster) as reader:
            reader.assign([T0])
            lookup = asyncio.ensure_future(reader.position(T0))
            await asyncio.sleep(0)
            reader.assign([])
            with pytest.raises(NotAssignedError):
                await asyncio.wait_for(lookup, 5)

    run(main())


def test_a_member_that_waits_asks_again_as_soon_as_it_was_told_to() -> None:
    """The interval of an answer holds from this answer on, not from the next."""

    async def main() -> None:
        cluster = filled()
        coordinator = Coordinator(cluster)
        coordinator.assign()
        coordinator.interval_ms = 200
        async with consumer(cluster, "t", group="g") as reader:
            assert await reader.poll(timeout_ms=100) == {}
            coordinator.assign(0)
            begin = asyncio.get_running_loop().time()
            await read(reader, 10)
            assert asyncio.get_running_loop().time() - begin < 0.5

    run(main())
