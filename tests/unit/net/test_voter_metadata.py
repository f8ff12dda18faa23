"""A voter's metadata: real nodes and controllers over a quorum in memory, on the broker's own loop."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from unit.net.shell_world import simulated, turns

from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.image import Endpoint
from barnabas.kraft.metadata.requests import BrokerHeartbeat, CreateTopic, RegisterBroker, Registered
from barnabas.kraft.node.metadata_node import MetadataNode, MetadataPublication
from barnabas.kraft.quorum.memory_quorum import InMemoryNode, InMemoryQuorum
from barnabas.kraft.quorum.quorum import AppendOutcome
from barnabas.kraft.quorum.voters import VoterSet
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    InvalidReplicationFactorError,
    NotControllerError,
    RequestTimedOutError,
)
from barnabas.net.metadata.metadata_service import Subscriber
from barnabas.net.metadata.quorum_source import SameLoopHost, VoterMetadata, decode_address, encode_address

LOOP_LIMIT_MS = 2_000


class Host(SameLoopHost):
    """The broker's loop can be made to stand still while the quorum goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.stands_still = False
        self._parked: list[Callable[[], object]] = []

    def post_back(self, work: Callable[[], object]) -> None:
        self._parked.append(work)
        if not self.stands_still:
            self.go_on()

    def go_on(self) -> None:
        self.stands_still = False
        parked, self._parked = self._parked, []
        for work in parked:
            super().post_back(work)


class StandingQuorum:
    """An `InMemoryNode` with the life of a RaftQuorum round it."""

    def __init__(self, node: InMemoryNode) -> None:
        self._node = node
        self.append = node.append
        self.is_started = self.is_closed = False
        self.may_lead = True
        self.endpoints: dict[int, bytes] = {}
        self.cluster_id = ""

    @property
    def committed_index(self) -> int:
        return self._node.committed_index

    async def start(self) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_closed = True

    def set_may_lead(self, may_lead: bool) -> None:
        self.may_lead = may_lead

    def set_cluster_id(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id

    @property
    def voters(self) -> VoterSet:
        return VoterSet(voters=())

    def broker_endpoint_of(self, node_id: int) -> bytes | None:
        return self.endpoints.get(node_id)


class World:
    """Voters of one quorum. Nothing is committed unless the test lets it (`quorum.step`)."""

    def __init__(self, count: int = 1) -> None:
        self.quorum = InMemoryQuorum()
        self.standing: list[StandingQuorum] = []
        self.nodes: list[MetadataNode] = []
        self.published: list[list[MetadataPublication]] = [[] for _ in range(count)]
        self.fatal: list[str] = []
        self.host = Host()
        self.sources = [self._source(node_id) for node_id in range(count)]

    @classmethod
    async def start(cls, count: int = 1) -> "World":
        world = cls(count)
        for source, published in zip(world.sources, world.published, strict=True):
            await source.start(published.append)
        return world

    @classmethod
    async def led(cls, count: int = 1) -> "World":
        """Node 0 is the active controller."""
        world = await cls.start(count)
        world.quorum.elect(0)
        world.quorum.run()
        await turns()
        return world

    def _source(self, node_id: int) -> VoterMetadata:
        def build_node(publish: Subscriber) -> MetadataNode:
            node = MetadataNode(
                node_id=node_id,
                controller=Controller(settings=ControllerSettings(session_timeout_ms=3_000), rng=Random(1)),
                new_groups=cast(Any, GroupSlots),
                publish=publish,
                fatal=self.fatal.append,
                rng=Random(2),
            )
            self.nodes.append(node)
            return node

        def build_quorum(loop: asyncio.AbstractEventLoop, node: MetadataNode) -> Any:
            self.standing.append(StandingQuorum(self.quorum.add_node(node_id, node)))
            return self.standing[-1]

        return VoterMetadata(
            node_id=node_id,
            host=self.host,
            build_node=build_node,
            build_quorum=build_quorum,
            fatal=self.fatal.append,
            loop_limit_ms=LOOP_LIMIT_MS,
        )

    def submit(self, request: Any, node_id: int = 0) -> "asyncio.Task[object]":
        return asyncio.create_task(self.sources[node_id].submit(request))


REGISTRATION = RegisterBroker(
    node_id=0, incarnation="i", cluster_id="", endpoints=(Endpoint(listener="PLAINTEXT", host="h", port=1),)
)


@simulated
async def test_what_is_committed_is_published_in_order_on_every_voter() -> None:
    world = await World.led(2)
    registered = world.submit(REGISTRATION)
    await turns()
    world.quorum.run()
    assert isinstance(await registered, Registered)
    for published in world.published:
        offsets = [publication.image.offset for publication in published]
        assert offsets == sorted(offsets) and offsets[-1] == world.quorum.log[-1].index
        assert published[-1].leader.leader_id == 0
    assert world.published[0][-1].is_active_controller and not world.published[1][-1].is_active_controller
    assert world.published[0][-1].image == world.published[1][-1].image and 0 in world.published[1][-1].image.brokers


@simulated
async def test_an_answer_comes_after_the_commit_and_after_the_publication_that_shows_it() -> None:
    world = await World.led()
    registered = world.submit(REGISTRATION)
    await turns(50)
    assert not registered.done()
    seen: list[bool] = []
    registered.add_done_callback(lambda _: seen.append(0 in world.published[0][-1].image.brokers))
    world.quorum.run()
    await registered
    await turns()
    assert seen == [True]


@simulated
async def test_refusals_and_other_nodes_answer_with_their_error() -> None:
    world = await World.led(2)
    await_refusal = world.submit(CreateTopic(name="t", replication_factor=3))
    await turns()
    world.quorum.run()  # the settings of the cluster, on which the refusal stands
    with pytest.raises(BarnabasError) as refusal:
        await await_refusal
    assert isinstance(refusal.value, InvalidReplicationFactorError)
    with pytest.raises(NotControllerError, match="broker 0 leads the quorum"):
        await world.submit(REGISTRATION, node_id=1)


@simulated
async def test_a_lost_leadership_leaves_the_outcome_unknown() -> None:
    world = await World.led()
    registered = world.submit(REGISTRATION)
    await turns()
    world.quorum.lose_leadership()
    with pytest.raises(RequestTimedOutError, match="may or may not"):
        await registered
    await turns()
    assert world.published[0][-1].leader.leader_id is None and not world.published[0][-1].is_active_controller


@simulated
async def test_a_claim_that_was_lost_is_made_again_by_the_clock() -> None:
    world = await World.start()
    world.quorum.inject(AppendOutcome.UNKNOWN)
    world.quorum.elect(0)
    world.quorum.run()
    await turns()
    assert not world.published[0][-1].is_active_controller
    await asyncio.sleep(0.3)
    world.quorum.run()
    await turns()
    assert world.published[0][-1].is_active_controller


@simulated
async def test_the_controller_fences_a_silent_broker_by_the_clock() -> None:
    world = await World.led()
    registered = world.submit(REGISTRATION)
    await turns()
    world.quorum.run()
    answer = await registered
    assert isinstance(answer, Registered)
    offset = world.published[0][-1].image.offset
    beat = world.submit(BrokerHeartbeat(node_id=0, broker_epoch=answer.broker_epoch, metadata_offset=offset))
    await turns()
    world.quorum.run()
    await beat
    await turns()
    assert not world.published[0][-1].image.brokers[0].fenced
    await asyncio.sleep(4)
    world.quorum.run()
    await turns()
    assert world.published[0][-1].image.brokers[0].fenced


@simulated
async def test_slots_and_the_feed_are_asked_in_order_with_what_was_submitted() -> None:
    world = await World.led(2)
    offset, records = await world.sources[1].slot_snapshot(3)
    assert (offset, list(records)) == (world.nodes[1].image.offset, [])
    feed = await world.sources[1].feed(0, 1 << 20)
    assert [command.index for command in feed.commands] == [command.index for command in world.quorum.log]
    assert (await world.sources[1].feed(offset, 1 << 20)).commands == ()


@simulated
async def test_a_snapshot_for_an_observer_is_packed_in_another_thread_than_the_quorums() -> None:
    world = await World.led()
    node = world.nodes[0]
    node._feed.restart(node.image.offset)
    loop = asyncio.get_running_loop()
    genuine, packed = loop.run_in_executor, []

    def run(executor: Any, work: Any, *args: Any) -> Any:
        packed.append(work)
        return genuine(executor, work, *args)

    loop.run_in_executor = run  # type: ignore[method-assign]
    feed = await world.sources[0].feed(0, 1 << 20)
    assert feed.snapshot_index == node.image.offset and len(packed) == 1


@simulated
async def test_voters_tell_where_their_brokers_are_and_the_quorum_hears_its_name() -> None:
    world = await World.led()
    world.standing[0].endpoints = {1: encode_address("host-1", 9092), 2: b"nonsense"}
    source = world.sources[0]
    assert [source.broker_address(node_id) for node_id in (1, 2, 3)] == [("host-1", 9092), None, None]
    assert decode_address(encode_address("::1", 7)) == ("::1", 7)
    assert world.standing[0].cluster_id == world.published[0][-1].image.cluster_id != ""


@simulated
async def test_a_closed_source_publishes_and_ticks_no_more() -> None:
    world = await World.start()
    await world.sources[0].close()
    assert world.standing[0].is_started and world.standing[0].is_closed
    world.quorum.elect(0)
    world.quorum.run()
    await asyncio.sleep(1)
    assert world.published[0] == [] and world.fatal == []


@simulated
async def test_a_voter_whose_loop_stands_still_must_not_lead_until_it_answers() -> None:
    world = await World.led()
    quorum = world.standing[0]
    await asyncio.sleep(30)
    assert quorum.may_lead
    world.host.stands_still = True
    await asyncio.sleep(LOOP_LIMIT_MS / 1000 - 0.3)
    assert quorum.may_lead
    await asyncio.sleep(0.6)
    assert not quorum.may_lead
    world.host.go_on()
    await asyncio.sleep(0.3)
    assert quorum.may_lead
    await world.sources[0].close()
