"""The seam between a broker's loop and its quorum."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.requests import DeleteTopic
from barnabas.kraft.node.metadata_node import MetadataPublication
from barnabas.kraft.quorum.quorum import Leadership
from barnabas.net.metadata.metadata_service import Subscriber
from barnabas.net.metadata.quorum_source import QuorumHost, VoterMetadata, decode_address

NOBODY = Leadership(leader_id=None, term=0, is_self=False)


def publication(cluster_id: str) -> MetadataPublication:
    return MetadataPublication(
        image=MetadataImage(cluster_id=cluster_id),
        changes=cast(Any, None),
        group_records=(),
        leader=NOBODY,
        is_active_controller=False,
    )


class Node:
    """A metadata node in which everything fails that can fail."""

    is_active_controller = False

    def __init__(self, publish: Subscriber, *, tick_fails: bool) -> None:
        self.publish = publish
        self._tick_fails = tick_fails

    def attach(self, quorum: object) -> None:
        self.publish(publication(""))

    def tick(self, now_ms: int) -> None:
        if self._tick_fails:
            raise ZeroDivisionError

    def next_deadline_ms(self, now_ms: int) -> int | None:
        return None

    def submit(self, request: object, now_ms: int, answer: object) -> None:
        raise ZeroDivisionError

    @property
    def state(self) -> object:
        raise ZeroDivisionError


class Quorum:
    may_lead = True

    def __init__(self) -> None:
        self.cluster_ids: list[str] = []

    def set_cluster_id(self, cluster_id: str) -> None:
        self.cluster_ids.append(cluster_id)


class Host:
    async def start(self, build: Callable[[asyncio.AbstractEventLoop], object]) -> None:
        build(asyncio.get_running_loop())

    def post(self, work: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(work)

    post_back = post

    async def stop(self) -> None:
        """Nothing runs."""


class World:
    def __init__(self, *, tick_fails: bool = False) -> None:
        self.quorum = Quorum()
        self.fatal: list[str] = []
        self.published: list[MetadataPublication] = []
        self.node: Node
        self._tick_fails = tick_fails
        self.source = VoterMetadata(
            node_id=0,
            host=cast(QuorumHost, Host()),
            build_node=lambda publish: cast(Any, self._build_node(publish)),
            build_quorum=lambda loop, node: cast(Any, self.quorum),
            fatal=self.fatal.append,
            loop_limit_ms=2_000,
        )

    def _build_node(self, publish: Subscriber) -> Node:
        self.node = Node(publish, tick_fails=self._tick_fails)
        return self.node


async def test_a_committed_cluster_id_is_told_to_the_quorum() -> None:
    world = World()
    await world.source.start(world.published.append)
    world.node.publish(publication("mine"))
    for _ in range(3):  # turns of the loop: one for each publication, one for the hop
        await asyncio.sleep(0)
    assert world.quorum.cluster_ids == ["mine"]
    assert [item.image.cluster_id for item in world.published] == ["", "mine"]
    await world.source.close()


async def test_whoever_asks_hears_of_a_bug_instead_of_waiting_for_ever() -> None:
    world = World()
    await world.source.start(world.published.append)
    async with asyncio.timeout(5):
        with pytest.raises(ZeroDivisionError):
            await world.source.submit(DeleteTopic(name="t"))
        with pytest.raises(ZeroDivisionError):
            await world.source.slot_snapshot(0)
    assert world.fatal == []
    await world.source.close()


async def test_a_controller_whose_maintenance_fails_stops_the_broker() -> None:
    world = World(tick_fails=True)
    await world.source.start(world.published.append)
    await asyncio.sleep(0.01)
    assert len(world.fatal) == 1 and "ZeroDivisionError" in world.fatal[0]
    await world.source.close()


@pytest.mark.parametrize("told", [b"", b"host", b"host:", b":1", b"host:x", "host:²".encode(), b"\xff"])
def test_what_a_peer_tells_may_be_no_address(told: bytes) -> None:
    assert decode_address(told) is None
