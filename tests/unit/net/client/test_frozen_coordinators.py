"""A close while the coordinator of the group stands still, has a successor after a while, or was never reached."""

import asyncio
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, consumer, filled, read
from unit.net.client.fake_cluster import HANG, SILENCE_S, FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.consumer.consumer_config import CLOSE_TIMEOUT_MS
from barnabas.net.client.group.session import LEAVE_TIMEOUT_MS
from barnabas.net.client.share.share_consumer import ShareConsumer
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.group_responses import FindCoordinatorResponse
from barnabas.net.wire.protocol.requests import OffsetCommitRequest
from barnabas.net.wire.protocol.responses import ErrorResponse

SUCCESSION_S = 9.0  # until the brokers fence one that stands still, and another one has its groups
PROTOCOLS = pytest.mark.parametrize("protocol", ["consumer", "classic"])


def now() -> float:
    return asyncio.get_running_loop().time()


class World:
    """Broker 0 coordinates the group, leads the partition, and has the connections."""

    def __init__(self, *, brokers: int = 2) -> None:
        self.cluster = filled(10, brokers=brokers)
        self.groups = FakeGroups(self.cluster)
        self.succeeds_at = float("inf")
        self.cluster.answers[ApiKey.FIND_COORDINATOR] = self._coordinator

    def _coordinator(self, node_id: int, request: Any) -> FindCoordinatorResponse:
        coordinator = 1 if now() >= self.succeeds_at else 0
        host, port = self.cluster.nodes[coordinator]
        return FindCoordinatorResponse(node_id=coordinator, host=host, port=port)

    async def reader(self, **options: Any) -> Consumer:
        """It has read all, and committed nothing."""
        reader = consumer(self.cluster, "t", group="g", auto_commit_interval_ms=600_000, **options)
        await reader.start()
        await read(reader, 10)
        await reader.poll(timeout_ms=10)
        assert self.member_count == 1
        return reader

    def freeze(self) -> None:
        self.cluster.frozen.add(0)
        self.succeeds_at = now() + SUCCESSION_S

    @property
    def member_count(self) -> int:
        return len(self.groups.machine("g").view.presence("g"))

    async def committed(self) -> int | None:
        self.cluster.frozen.clear()
        async with consumer(self.cluster, group="g") as other:
            return (await other.committed(T0)).get(T0)


async def seconds_of_close(reader: Consumer | ShareConsumer) -> float:
    begin = now()
    await reader.close()
    return now() - begin


@PROTOCOLS
@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_close_reaches_the_successor_of_a_frozen_coordinator(protocol: str, auto_commit: bool) -> None:
    async def main() -> None:
        world = World()
        reader = await world.reader(group_protocol=protocol, auto_commit=auto_commit)
        world.freeze()
        assert await seconds_of_close(reader) < SUCCESSION_S + 1
        assert world.member_count == 0, "the other members wait for its session to end"
        assert await world.committed() == (10 if auto_commit else None)

    run(main())


@PROTOCOLS
@pytest.mark.parametrize("is_connected", [True, False])
def test_a_close_reaches_the_successor_while_another_broker_stands_still_too(protocol: str, is_connected: bool) -> None:
    """Three of five answer; the client may have an open connection to the one that does not."""

    async def main() -> None:
        for seed in range(5):
            world = World(brokers=5)
            reader = await world.reader(group_protocol=protocol, auto_commit=False)
            reader._client.rng.seed(seed)
            if is_connected:
                await reader._client.connect(2)
            world.freeze()
            world.cluster.frozen.add(2)
            assert await seconds_of_close(reader) < SUCCESSION_S + SILENCE_S
            assert world.member_count == 0, "the other members wait for its session to end"

    run(main())


@PROTOCOLS
def test_a_member_leaves_though_its_commit_is_never_answered(protocol: str) -> None:
    async def main() -> None:
        world = World()
        reader = await world.reader(group_protocol=protocol)
        world.cluster.script(ApiKey.OFFSET_COMMIT, lambda *_: HANG, forever=True)
        under_way = reader.commit_nowait({T0: 5})
        took_s = await seconds_of_close(reader)
        assert took_s <= (CLOSE_TIMEOUT_MS - LEAVE_TIMEOUT_MS) / 1000 + 1, "commits and the last one have one limit"
        assert world.member_count == 0
        assert under_way.exception() is not None
        assert world.cluster.sent(OffsetCommitRequest)

    run(main())


@pytest.mark.parametrize(("auto_commit", "limit_s"), [(True, CLOSE_TIMEOUT_MS / 1000), (False, 4.1)])
def test_a_close_does_not_wait_for_a_cluster_that_stands_still(auto_commit: bool, limit_s: float) -> None:
    """If no broker answers, there is no successor to wait for."""

    async def main() -> None:
        world = World(brokers=1)
        reader = await world.reader(auto_commit=auto_commit)
        world.freeze()
        assert await seconds_of_close(reader) <= limit_s + 0.1

    run(main())


@PROTOCOLS
def test_a_close_ends_in_time_if_there_is_never_a_successor(protocol: str) -> None:
    """Another broker answers, so the leave is tried a second time: for what is left of its time."""

    async def main() -> None:
        world = World()
        reader = await world.reader(group_protocol=protocol, auto_commit=False)
        world.cluster.frozen.add(0)
        took_s = await seconds_of_close(reader)
        assert LEAVE_TIMEOUT_MS / 1000 < took_s <= CLOSE_TIMEOUT_MS / 1000

    run(main())


@PROTOCOLS
def test_a_leave_that_is_refused_for_good_is_not_repeated(protocol: str) -> None:
    async def main() -> None:
        world = World()
        reader = await world.reader(group_protocol=protocol, auto_commit=False)
        refusals: list[Any] = []

        def refuse(_: int, request: Any) -> ErrorResponse:
            refusals.append(request)
            return ErrorResponse(error=int(ErrorCode.GROUP_AUTHORIZATION_FAILED), message="not yours")

        for api in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.LEAVE_GROUP):
            world.cluster.script(api, refuse, forever=True)
        assert await seconds_of_close(reader) < 0.1
        assert len(refusals) == 1

    run(main())


@pytest.mark.parametrize("kind", ["consumer", "classic", "share"])
@pytest.mark.parametrize("cause", ["no broker names it", "it accepts no connection"])
def test_a_close_is_at_once_if_the_coordinator_was_never_reached(kind: str, cause: str) -> None:
    async def main() -> None:
        cluster: FakeCluster = World().cluster
        if cause == "no broker names it":
            cluster.script(ApiKey.FIND_COORDINATOR, lambda *_: HANG, forever=True)
        else:
            host, _ = cluster.nodes[0]
            silent = FindCoordinatorResponse(node_id=7, host=host, port=9007)
            cluster.nodes[7] = (host, 9007)
            cluster.frozen.add(7)
            cluster.script(ApiKey.FIND_COORDINATOR, lambda *_: silent, forever=True)
        reader: Consumer | ShareConsumer
        if kind == "share":
            reader = ShareConsumer("t", group="g", client=cluster.client())
        else:
            reader = consumer(cluster, "t", group="g", group_protocol=kind)
        await reader.start()
        await reader.poll(timeout_ms=1_000)
        assert await seconds_of_close(reader) < 0.1

    run(main())
