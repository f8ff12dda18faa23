"""An observer lives on the feed of any voter, and on that of another one when the first fails."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from unit.net.shell_world import LISTENER, now_ms, simulated

from barnabas.kraft.controller.controller import Controller
from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.metadata.controller_settings import ControllerSettings
from barnabas.kraft.metadata.records import (
    ClusterRecord,
    ControllerRecord,
    FeatureLevelRecord,
    Record,
    RecordBatch,
    encode_batch,
)
from barnabas.kraft.metadata.requests import DeleteTopic
from barnabas.kraft.node.metadata_node import MetadataNode, MetadataPublication
from barnabas.log.vocabulary.errors import InvalidRequestError, NotControllerError
from barnabas.log.vocabulary.metadata_position import MetadataPosition
from barnabas.log.vocabulary.quorum import CommittedCommand
from barnabas.net.metadata.metadata_observer import MetadataObserver
from barnabas.net.metadata.metadata_service import Subscriber
from barnabas.net.server.dispatcher import Dispatcher, Reply, RequestContext
from barnabas.net.server.server import Server
from barnabas.net.testing.simulation.network import SimulatedNetwork
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import MetadataFeedRequest
from barnabas.net.wire.protocol.responses import MetadataFeedResponse
from barnabas.net.wire.rpc import RpcPool

TERM = 3
NO_NEWS = object()  # a long poll that ends empty


def entry(index: int, *records: Record) -> CommittedCommand:
    batch = RecordBatch(controller_epoch=TERM, records=records or (FeatureLevelRecord(feature_level=index),))
    return CommittedCommand(index=index, term=TERM, command=encode_batch(batch))


def answer(*entries: CommittedCommand, leader_id: int = 0, **more: Any) -> MetadataFeedResponse:
    return MetadataFeedResponse(leader_id=leader_id, term=TERM, entries=entries, **more)


class Voter:
    """Answers the feed with what `decide` returns; an exception is an error, None is silence."""

    def __init__(self, world: SimulatedNetwork, node_id: int) -> None:
        self.address = (f"host-{node_id}", 9092)
        self.requests: list[MetadataFeedRequest] = []
        self.decide: Callable[[MetadataFeedRequest], object] = lambda request: None
        self.server = Server(
            world.node(self.address[0]), Dispatcher({ApiKey.METADATA_FEED: self._feed}), listener_name=LISTENER
        )

    def _feed(self, request: MetadataFeedRequest, context: RequestContext, reply: Reply) -> None:
        self.requests.append(request)
        told = self.decide(request)
        if isinstance(told, Exception):
            raise told
        if told is NO_NEWS:
            asyncio.get_running_loop().call_later(request.max_wait_ms / 1000, reply, answer())
        elif told is not None:
            reply(cast(MetadataFeedResponse, told))

    def has(self, *entries: CommittedCommand) -> None:
        """Feed what is behind the observer's offset."""

        def decide(request: MetadataFeedRequest) -> object:
            news = [item for item in entries if item.index > request.after_offset]
            return answer(*news) if news else NO_NEWS

        self.decide = decide


class Directory:
    """Whom the quorum ports tell of."""

    def __init__(self) -> None:
        self.told: dict[int, tuple[str, int]] = {}
        self.questions = 0

    async def addresses(self) -> list[tuple[str, int]]:
        self.questions += 1
        return list(self.told.values())

    def known(self, node_id: int) -> tuple[str, int] | None:
        return self.told.get(node_id)


class World:
    def __init__(self) -> None:
        self.network = SimulatedNetwork(asyncio.get_running_loop(), Random(1))
        self.voters = [Voter(self.network, node_id) for node_id in range(2)]
        self.directory = Directory()
        self.published: list[MetadataPublication] = []
        self.fatal: list[str] = []
        self.observer = MetadataObserver(
            node_id=5,
            build_node=self._node,
            directory=cast(Any, self.directory),
            pool=RpcPool(self.network.node("observer"), client_id="broker-5", random=Random(2)),
            rng=Random(3),
            fatal=self.fatal.append,
        )

    def _node(self, publish: Subscriber) -> MetadataNode:
        return MetadataNode(
            node_id=5,
            controller=Controller(settings=ControllerSettings(), rng=Random(4)),
            new_groups=cast(Any, GroupSlots),
            publish=publish,
            fatal=self.fatal.append,
            rng=Random(5),
        )

    @classmethod
    async def start(cls, *known: int) -> "World":
        """An observer that is told of these voters."""
        world = cls()
        for voter in world.voters:
            await voter.server.start(*voter.address)
        world.directory.told = {node_id: world.voters[node_id].address for node_id in known}
        await world.observer.start(world.published.append)
        return world

    @property
    def offset(self) -> int:
        return self.published[-1].image.offset if self.published else 0


@simulated
async def test_commands_are_followed_from_offset_to_offset() -> None:
    world = await World.start(0)
    voter = world.voters[0]
    voter.has(entry(4, ClusterRecord(cluster_id="c")), entry(6))
    await asyncio.sleep(0.1)
    assert (world.offset, world.published[-1].image.cluster_id, world.published[-1].image.feature_level) == (6, "c", 6)
    await asyncio.sleep(1)
    assert [request.after_offset for request in voter.requests][:3] == [0, 6, 6]
    request = voter.requests[0]
    assert request.node_id == 5 and request.max_wait_ms > 0 and request.max_bytes > 0
    assert not world.published[-1].is_active_controller


@simulated
async def test_an_answer_that_repeats_what_is_known_does_no_harm() -> None:
    world = await World.start(0)
    answers = [answer(entry(4), entry(6)), answer(entry(4), entry(6), entry(7))]
    world.voters[0].decide = lambda request: answers.pop(0) if answers else None
    await asyncio.sleep(0.1)
    assert [publication.image.offset for publication in world.published][-2:] == [6, 7]


@simulated
async def test_a_snapshot_replaces_everything_and_commands_go_on_behind_it() -> None:
    source = await World.start(0)
    source.voters[0].has(entry(4, ClusterRecord(cluster_id="c")), entry(40))
    await asyncio.sleep(0.1)
    chunks = tuple(source.observer._node.snapshot()())
    world = await World.start(0)
    answers = [answer(snapshot_offset=40, snapshot_chunks=chunks), answer(entry(41))]
    world.voters[0].decide = lambda request: answers.pop(0) if answers else None
    await asyncio.sleep(0.1)
    assert [item.restored for item in world.published if item.image.offset] == [True, False, False]  # and who leads
    assert (world.offset, world.published[-1].image.cluster_id, world.published[-1].image.feature_level) == (
        41,
        "c",
        41,
    )
    assert [request.after_offset for request in world.voters[0].requests] == [0, 40, 41]


@pytest.mark.parametrize("trouble", ["dies", "refuses", "is silent", "knows no leader"])
@simulated
async def test_another_voter_is_followed_when_the_first_fails(trouble: str) -> None:
    world = await World.start(0, 1)
    for voter in world.voters:
        voter.has(entry(4))
    await asyncio.sleep(0.1)
    followed = next(voter for voter in world.voters if voter.requests)
    other = world.voters[1 - world.voters.index(followed)]
    other.has(entry(4), entry(5))
    if trouble == "dies":
        world.network.kill(followed.address[0])
    elif trouble == "refuses":
        followed.decide = lambda request: InvalidRequestError("?")
    elif trouble == "is silent":
        followed.decide = lambda request: None
    else:
        followed.decide = lambda request: answer(leader_id=-1)
    await asyncio.sleep(7 if trouble == "is silent" else 1.5)
    assert world.offset == 5 and world.fatal == []


@pytest.mark.parametrize("trouble", ["die", "know no leader"])
@simulated
async def test_without_a_voter_that_knows_it_the_leader_is_unknown(trouble: str) -> None:
    """Otherwise a broker that shuts down waits for a controller that stopped long ago."""
    world = await World.start(0, 1)
    for voter in world.voters:
        voter.has(entry(4, ControllerRecord(controller_id=0, controller_epoch=TERM, claim=17)))
    await asyncio.sleep(0.1)
    assert world.published[-1].leader.leader_id == 0
    for voter in world.voters:
        if trouble == "die":
            world.network.kill(voter.address[0])
        voter.decide = lambda request: answer(leader_id=-1)
    await asyncio.sleep(1.5)
    assert (world.published[-1].leader.leader_id, world.published[-1].leader.term) == (None, TERM)
    published = len(world.published)
    await asyncio.sleep(3)
    assert len(world.published) == published  # not repeated
    if trouble == "know no leader":
        for voter in world.voters:
            voter.decide = lambda request: answer(leader_id=0)
        await asyncio.sleep(0.2)
        assert world.published[-1].leader.leader_id == 0


@simulated
async def test_a_lost_leader_is_learned_of_also_where_every_answer_has_commands() -> None:
    """A busy cluster has no others; the broker would send nothing to its controller, as long as it is busy."""
    world = await World.start(0)
    voter = world.voters[0]
    voter.has(entry(4, ControllerRecord(controller_id=0, controller_epoch=TERM, claim=17)))
    await asyncio.sleep(0.1)
    voter.decide = lambda request: answer(leader_id=-1)
    await asyncio.sleep(1.5)
    assert world.published[-1].leader.leader_id is None
    # One answer, and then silence.
    voter.decide = lambda request: answer(entry(5), leader_id=0) if request.after_offset < 5 else None
    await asyncio.sleep(0.2)
    assert (world.published[-1].leader.leader_id, world.published[-1].leader.term) == (0, TERM)


@simulated
async def test_voters_of_another_history_are_asked_now_and_then_and_their_controller_hears_of_this_broker() -> None:
    world = await World.start(0, 1)
    for voter in world.voters:
        voter.has(entry(4, ControllerRecord(controller_id=0, controller_epoch=TERM, claim=17)))
    await asyncio.sleep(0.1)
    for voter in world.voters:
        voter.requests.clear()
        voter.decide = lambda request: answer(leader_id=1, contradiction="it knows more")
    await asyncio.sleep(2)
    asked = world.voters[0].requests + world.voters[1].requests
    assert 20 <= len(asked) <= 44
    assert {request.applied for request in asked} == {MetadataPosition(controller_epoch=TERM, claim=17, offset=4)}
    assert (world.offset, world.published[-1].leader.leader_id, world.fatal) == (4, 1, [])


@simulated
async def test_a_voter_that_answers_is_not_left() -> None:
    world = await World.start(0, 1)
    for voter in world.voters:
        voter.has(entry(4))
    await asyncio.sleep(20)
    assert sorted(bool(voter.requests) for voter in world.voters) == [False, True] and world.directory.questions == 1


@simulated
async def test_voters_that_are_not_known_yet_are_asked_for_again() -> None:
    world = await World.start()
    await asyncio.sleep(1)
    assert 5 <= world.directory.questions <= 11 and world.published == []
    world.voters[1].has(entry(4))
    world.directory.told = {1: world.voters[1].address}
    await asyncio.sleep(0.2)
    assert world.offset == 4


@simulated
async def test_an_observer_decides_nothing_and_feeds_nobody() -> None:
    world = await World.start(0)
    world.voters[0].has(entry(4))
    await asyncio.sleep(0.1)
    with pytest.raises(NotControllerError):
        await world.observer.submit(DeleteTopic(name="t"))
    with pytest.raises(NotControllerError):
        await world.observer.feed(0, 100)
    offset, records = await world.observer.slot_snapshot(3)
    assert (offset, list(records)) == (4, [])
    assert world.observer.broker_address(0) == ("host-0", 9092) and world.observer.broker_address(1) is None


@simulated
async def test_a_command_that_cannot_be_applied_stops_the_broker() -> None:
    world = await World.start(0)
    world.voters[0].decide = lambda request: (
        answer(CommittedCommand(index=4, term=TERM, command=b"\xff")) if not world.fatal else None
    )
    await asyncio.sleep(0.1)
    assert len(world.fatal) == 1 and "index 4" in world.fatal[0]


@simulated
async def test_a_closed_observer_asks_no_more() -> None:
    world = await World.start(0)
    world.voters[0].has(entry(4))
    await asyncio.sleep(0.1)
    await world.observer.close()
    asked = len(world.voters[0].requests)
    await asyncio.sleep(20)
    assert len(world.voters[0].requests) == asked and now_ms() > 20_000
