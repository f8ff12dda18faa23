"""Moves as they are described, and brokers that may not leave."""

from typing import Any, cast

import pytest
from msgspec.structs import replace
from unit.net.handlers.handler_world import HandlerWorld, ask
from unit.net.shell_world import broker, partition, simulated, topic

from barnabas.kraft.metadata.requests import Done
from barnabas.log.vocabulary.cluster_changes import (
    DecommissionBrokerRequest,
    FillBrokerRequest,
    FillBrokerResponse,
    MovesBegun,
)
from barnabas.log.vocabulary.errors import InvalidReplicationFactorError
from barnabas.net.handlers.common.changes import ForwardingHandler
from barnabas.net.handlers.own.moves import MoveHandlers
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import AlterVotersRequest, DescribeMovesRequest, DescribeQuorumRequest
from barnabas.net.wire.protocol.responses import AlterVotersResponse, CatchingUp, DescribeQuorumResponse

MOVING = topic(
    "t",
    partition(0),
    replace(partition(0, isr=(0,)), adding_replicas=(1,), removing_replicas=(0,)),
    replace(partition(1, isr=(1,)), adding_replicas=(0,)),
)


@simulated
async def test_a_leader_knows_what_is_left_and_others_say_that_they_do_not() -> None:
    world = await HandlerWorld.start(MOVING)
    for _ in range(4):
        world.append(b"x" * 100, number=1)
    world.follower_has(1, number=1)
    described = await ask(MoveHandlers(world.services, cast(Any, Voters())).describe, DescribeMovesRequest())
    led, other = described.moves
    size = world.log(number=1).size_bytes
    assert (led.partition, led.adding, led.removing, led.leader) == (1, (1,), (0,), 0)
    assert led.catching_up == (CatchingUp(node_id=1, records_left=3, bytes_left=size * 3 // 4),)
    assert (other.partition, other.catching_up) == (2, (CatchingUp(node_id=0),))
    assert described.throttle_bytes_per_s == 0


class Voters:
    """Stands for the handlers that change the quorum."""

    def __init__(self) -> None:
        self.removed: list[int] = []

    async def alter(self, request: AlterVotersRequest, context: RequestContext) -> AlterVotersResponse:
        assert not request.add
        self.removed.append(request.node_id)
        return AlterVotersResponse(state="done")

    async def describe(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        return DescribeQuorumResponse(leader_id=0, term=1, committed_index=1, voters=(0,))


@simulated
async def test_a_voter_that_leaves_loses_its_vote_once_the_controller_has_agreed() -> None:
    world = await HandlerWorld.start(brokers=(broker(0), broker(1)), controller_quorum_voters="0@h:1")
    voters = Voters()
    handlers = MoveHandlers(world.services, cast(Any, voters))
    world.source.script(
        InvalidReplicationFactorError("too few brokers would remain"), Done(), Done(), Done(), MovesBegun(move_count=3)
    )
    with pytest.raises(InvalidReplicationFactorError):
        await ask(handlers.decommission, DecommissionBrokerRequest(node_id=0))
    assert voters.removed == []
    await ask(handlers.decommission, DecommissionBrokerRequest(node_id=0))
    assert voters.removed == [0]
    await ask(handlers.decommission, DecommissionBrokerRequest(node_id=0, cancel=True))
    await ask(handlers.decommission, DecommissionBrokerRequest(node_id=1, throttle_bytes_per_s=9))
    assert voters.removed == [0]
    filled = await ask(ForwardingHandler(world.services), FillBrokerRequest(node_id=1))
    assert filled == FillBrokerResponse(move_count=3)
    assert world.source.requests[-3:] == [
        DecommissionBrokerRequest(node_id=0, cancel=True),
        DecommissionBrokerRequest(node_id=1, throttle_bytes_per_s=9),
        FillBrokerRequest(node_id=1),
    ]
