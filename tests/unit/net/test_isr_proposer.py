"""Proposals travel one request at a time; what is not known of an answer is told as not known."""

import asyncio

from unit.net.shell_world import Shell, simulated, turns

from barnabas.kraft.metadata.requests import AlterPartition, AlterPartitionAnswer, PartitionIsrAnswer
from barnabas.log.replication.effects import IsrMember, ProposeIsr
from barnabas.log.vocabulary.errors import ErrorCode, NetworkError, StaleBrokerEpochError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.isr_proposer import MAX_PROPOSALS_PER_REQUEST, PROPOSAL_TIMEOUT_MS, IsrProposer


def proposal(number: int = 0, *isr: int, proposal_id: int = 1, topic_id: str = "id-t") -> ProposeIsr:
    return ProposeIsr(
        topic_partition=TopicPartition("t", number),
        topic_id=topic_id,
        leader_epoch=3,
        partition_epoch=4,
        isr=tuple(IsrMember(node_id=node_id, broker_epoch=100 + node_id) for node_id in isr or (0, 1)),
        proposal_id=proposal_id,
    )


def answer(*numbers: int, error: int = 0) -> AlterPartitionAnswer:
    return AlterPartitionAnswer(
        partitions=tuple(
            PartitionIsrAnswer(topic_id="id-t", partition=number, error=error, partition_epoch=5) for number in numbers
        )
    )


class World:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.broker_epoch = 100
        self.answered: list[tuple[ProposeIsr, PartitionIsrAnswer | None]] = []
        self.proposer = IsrProposer(
            node_id=0,
            controller=shell.controller,
            broker_epoch=lambda: self.broker_epoch,
            answered=lambda proposed, told: self.answered.append((proposed, told)),
        )
        self.running = asyncio.create_task(self.proposer.run())

    @classmethod
    async def start(cls, *answers: object) -> "World":
        world = cls(await Shell.start())
        world.shell.source.script(*answers)
        return world

    @property
    def sent(self) -> list[tuple[int, ...]]:
        """The partitions of each request."""
        requests: list[AlterPartition] = self.shell.source.asked(AlterPartition)
        return [tuple(item.partition for item in request.partitions) for request in requests]


@simulated
async def test_proposals_of_one_moment_go_together_and_each_hears_its_own_answer() -> None:
    world = await World.start(answer(1, 0))
    one, other = proposal(0, 0, 2), proposal(1)
    world.proposer.propose([one, other])
    await turns()
    (request,) = world.shell.source.requests
    assert isinstance(request, AlterPartition)
    assert (request.node_id, request.broker_epoch) == (0, 100)
    first = request.partitions[0]
    assert (first.topic_id, first.partition, first.leader_epoch, first.partition_epoch) == ("id-t", 0, 3, 4)
    assert [(member.node_id, member.broker_epoch) for member in first.isr] == [(0, 100), (2, 102)]
    assert [(item, told and told.partition) for item, told in world.answered] == [(one, 0), (other, 1)]


@simulated
async def test_one_request_is_under_way_and_takes_with_the_next_what_has_gathered() -> None:
    held = asyncio.get_running_loop().create_future()
    world = await World.start(held, answer(1, 2))
    world.proposer.propose([proposal(0)])
    await turns()
    world.proposer.propose([proposal(1)])
    world.proposer.propose([proposal(2)])
    await asyncio.sleep(1)
    assert world.sent == [(0,)] and world.answered == []
    held.set_result(answer(0))
    await turns()
    assert world.sent == [(0,), (1, 2)]
    assert [item.topic_partition.partition for item, _ in world.answered] == [0, 1, 2]


@simulated
async def test_a_newer_proposal_replaces_one_that_has_not_been_sent() -> None:
    held = asyncio.get_running_loop().create_future()
    world = await World.start(held, answer(0))
    world.proposer.propose([proposal(0, proposal_id=1)])
    await turns()
    newer = [proposal(0, 0, proposal_id=2), proposal(0, 0, 1, proposal_id=3)]
    for item in newer:
        world.proposer.propose([item])
    held.set_result(answer(0))
    await turns()
    assert world.sent == [(0,), (0,)]
    assert [item.proposal_id for item, _ in world.answered] == [1, 3]


@simulated
async def test_partitions_of_a_topic_made_again_are_not_mixed_up() -> None:
    world = await World.start(answer(0))
    old, new = proposal(0, topic_id="id-old"), proposal(0)
    world.proposer.propose([old, new])
    await turns()
    assert world.sent == [(0, 0)]
    assert [(item.topic_id, told is None) for item, told in world.answered] == [("id-old", True), ("id-t", False)]


@simulated
async def test_an_error_of_the_controller_for_one_partition_is_an_answer() -> None:
    world = await World.start(answer(0, error=ErrorCode.INVALID_UPDATE_VERSION))
    world.proposer.propose([proposal(0)])
    await turns()
    assert world.answered[0][1] is not None and world.answered[0][1].error == ErrorCode.INVALID_UPDATE_VERSION


@simulated
async def test_silence_and_refusal_as_a_whole_leave_the_outcome_unknown_and_the_proposer_goes_on() -> None:
    world = await World.start(NetworkError("cut off"))
    world.proposer.propose([proposal(0), proposal(1)])
    await asyncio.sleep((PROPOSAL_TIMEOUT_MS + 1) / 1000)
    assert [told for _, told in world.answered] == [None, None]
    world.shell.source.script(StaleBrokerEpochError("old"), answer(0))
    world.proposer.propose([proposal(0)])
    await turns()
    assert [told for _, told in world.answered] == [None] * 3
    world.broker_epoch = 222
    world.proposer.propose([proposal(0)])
    await turns()
    assert world.shell.source.requests[-1].broker_epoch == 222  # type: ignore[attr-defined]
    assert world.answered[-1][1] is not None


@simulated
async def test_a_request_has_a_largest_size() -> None:
    world = await World.start(AlterPartitionAnswer(partitions=()))
    world.proposer.propose([proposal(number) for number in range(MAX_PROPOSALS_PER_REQUEST + 3)])
    await turns(30)
    assert [len(numbers) for numbers in world.sent] == [MAX_PROPOSALS_PER_REQUEST, 3]
    assert len(world.answered) == MAX_PROPOSALS_PER_REQUEST + 3


@simulated
async def test_a_cancelled_proposer_answers_nobody() -> None:
    world = await World.start(asyncio.get_running_loop().create_future())
    world.proposer.propose([proposal(0)])
    await turns()
    world.running.cancel()
    await asyncio.gather(world.running, return_exceptions=True)
    assert world.running.cancelled() and world.answered == []
