"""What may change between two slices of a request with many markers: leaders."""

from __future__ import annotations

import asyncio

from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import broker, partition, simulated, topic, turns

from barnabas.kraft.metadata.image import SLOT_COUNT, TopicImage
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.transaction_messages import TransactionMarker, TransactionTopic
from barnabas.net.base.slices import SLICE_STEPS
from barnabas.net.wire.protocol.requests import WriteMarkersRequest

PASSES = 12  # of the loop, while the markers in the middle are written
BROKERS = (broker(0), broker(1))


def led_by(leader: int, epoch: int) -> TopicImage:
    """Partition 0 in this epoch; broker 0 leads partition 1 all the time."""
    return topic("t", partition(leader, epoch=epoch, isr=(leader,)), partition(0, isr=(0,)))


def marker(producer_id: int, number: int) -> TransactionMarker:
    return TransactionMarker(
        transactional_id="tx",
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
        is_commit=True,
        topics=(TransactionTopic(topic="t", topic_id="id-t", partitions=(number,)),),
    )


@simulated
async def test_a_marker_of_an_earlier_leadership_does_not_count_with_a_later_one_of_the_same_request() -> None:
    """The leader between them may have truncated it: its transaction would be complete, and stay open in the partition."""
    world = await HandlerWorld.start(led_by(0, 1), brokers=BROKERS, slots=tuple(range(SLOT_COUNT)))
    await turns()
    between = [marker(100 + number, 1) for number in range(SLICE_STEPS * PASSES)]
    request = WriteMarkersRequest(markers=(marker(1, 0), *between, marker(2, 0)))
    leaderships = [world.partition().leadership]

    async def leader_changes() -> None:
        for offset, (leader, epoch) in ((11, (1, 2)), (12, (0, 3))):
            world.show(led_by(leader, epoch), brokers=BROKERS, slots=tuple(range(SLOT_COUNT)), offset=offset)
            await turns(3)
        leaderships.append(world.partition().leadership)

    answer, _ = await asyncio.gather(world.services.markers.write(request), leader_changes())
    assert leaderships == [1, 3], "both changes came between the two markers"
    first, *others, last = [outcome.partitions[0].error for outcome in answer.outcomes]
    assert set(others) == {0}
    assert first == last == ErrorCode.NOT_LEADER_OR_FOLLOWER, "both are sent again"
    answer = await world.services.markers.write(WriteMarkersRequest(markers=(marker(1, 0), marker(2, 0))))
    assert [outcome.partitions[0].error for outcome in answer.outcomes] == [0, 0]
