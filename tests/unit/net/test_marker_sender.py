"""Markers on their way: repeated until everything has answered, to whoever is in charge, and only as long as the slot is here."""

import asyncio
from typing import Any, cast

from unit.net.shell_world import broker, image_of, partition, simulated, topic, turns

from barnabas.kraft.group_state.group_slots import slot_of
from barnabas.kraft.metadata.image import MetadataImage, SlotImage
from barnabas.kraft.metadata.records import TransactionRecord
from barnabas.log.vocabulary.errors import BrokerNotAvailableError, ErrorCode
from barnabas.log.vocabulary.group_messages import PartitionOutcome
from barnabas.log.vocabulary.transaction_messages import GroupOutcome, TransactionMarker, TransactionTopic
from barnabas.net.coordination.transactions.marker_sender import MAX_MARKERS_PER_REQUEST, RETRY_MS, MarkerSender
from barnabas.net.wire.protocol.requests import WriteMarkersRequest
from barnabas.net.wire.protocol.responses import MarkerOutcomes, WriteMarkersResponse

GROUP = "g"


def decided(name: str = "tx", *, state: str = "PrepareCommit", groups: tuple[str, ...] = ()) -> TransactionRecord:
    return TransactionRecord(
        slot=0,
        coordinator_epoch=0,
        transactional_id=name,
        producer_id=5,
        producer_epoch=2,
        last_producer_epoch=-1,
        previous_producer_id=-1,
        next_producer_id=-1,
        timeout_ms=1,
        state=state,
        partitions=(TransactionTopic(topic="t", topic_id="id-t", partitions=(0, 1)),),
        offset_groups=groups,
        started_ms=1,
        updated_ms=1,
    )


class Slot:
    """What the sender knows of a hosted slot."""

    def __init__(self) -> None:
        self.is_released = False
        self.machine: object | None = object()
        self.coordinator_epoch = 7
        self.committed_offset = 1
        self.done = 0

    def decide_later(self, decision: object) -> None:
        self.done += 1


class World:
    def __init__(self, *leaders: int) -> None:
        self.slot = Slot()
        self.show(*leaders)
        self.asked: list[tuple[int, tuple[TransactionMarker, ...]]] = []
        self.refused: dict[int, ErrorCode] = {}  # by partition
        self.silent: set[int] = set()  # brokers
        self.sender = MarkerSender(
            image=lambda: self.image,
            ask=self.ask,
            now_ms=lambda: 0,
            spawn=asyncio.get_running_loop().create_task,
            completed=lambda transactional_id: None,
        )

    def show(self, *leaders: int, offset: int = 1) -> MetadataImage:
        topics = (topic("t", *(partition(leader) for leader in leaders)),) if leaders else ()
        slots = {slot_of(GROUP): SlotImage(coordinator=1, coordinator_epoch=1)}
        self.image = image_of(broker(0), broker(1), topics=topics, slots=slots, offset=offset)
        return self.image

    async def ask(self, node_id: int, request: WriteMarkersRequest) -> WriteMarkersResponse:
        self.asked.append((node_id, request.markers))
        if node_id in self.silent:
            raise BrokerNotAvailableError("no answer")
        return WriteMarkersResponse(outcomes=tuple(self.outcomes(marker) for marker in request.markers))

    def outcomes(self, marker: TransactionMarker) -> MarkerOutcomes:
        return MarkerOutcomes(
            partitions=tuple(
                PartitionOutcome(topic=item.topic, partition=number, error=self.refused.get(number, 0))
                for item in marker.topics
                for number in item.partitions
            ),
            groups=tuple(GroupOutcome(group_id=group_id) for group_id in marker.groups),
        )

    def begin(self, *records: TransactionRecord) -> None:
        self.sender.settled(cast(Any, self.slot), records)

    def sent(self) -> list[tuple[int, tuple[int, ...]]]:
        """(broker, partitions) of every request since the last look."""
        asked, self.asked = self.asked, []
        return [
            (node_id, tuple(number for marker in markers for item in marker.topics for number in item.partitions))
            for node_id, markers in asked
        ]


@simulated
async def test_each_broker_gets_its_partitions_and_groups_and_the_transaction_is_complete_when_all_have_answered() -> (
    None
):
    world = World(0, 1)
    world.begin(decided(groups=(GROUP,)))
    await turns()
    (first, second) = sorted(world.asked, key=lambda item: item[0])
    assert (first[0], second[0]) == (0, 1)
    (marker,) = second[1]
    assert (marker.groups, marker.is_commit, marker.coordinator_epoch) == ((GROUP,), True, 7)
    assert marker.topics == (TransactionTopic(topic="t", topic_id="id-t", partitions=(1,)),)
    assert first[1][0].groups == ()
    assert world.slot.done == 1


@simulated
async def test_what_is_refused_goes_to_the_new_leader_and_nothing_else_is_repeated() -> None:
    world = World(0, 1)
    world.refused[1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.begin(decided())
    await turns()
    assert sorted(world.sent()) == [(0, (0,)), (1, (1,))] and world.slot.done == 0
    world.show(1, 0)
    world.refused.clear()
    await asyncio.sleep(RETRY_MS / 1000)
    await turns()
    assert world.sent() == [(0, (1,))] and world.slot.done == 1


@simulated
async def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    world = World(0, 1)
    world.silent = {1}
    world.begin(decided())
    await asyncio.sleep(10 * RETRY_MS / 1000)
    sent = world.sent()
    assert sent.count((0, (0,))) == 1 and sent.count((1, (1,))) > 5 and world.slot.done == 0
    world.silent = set()
    await asyncio.sleep(2 * RETRY_MS / 1000)
    assert world.slot.done == 1


@simulated
async def test_repetitions_to_several_brokers_do_not_multiply_and_the_end_is_reported_once() -> None:
    world = World(0, 1)
    world.silent = {0, 1}
    world.begin(decided(groups=(GROUP,)))
    await asyncio.sleep(20 * RETRY_MS / 1000)
    sent = world.sent()
    assert len(sent) <= 2 * 22, "one request to each broker for each attempt"
    world.silent = set()
    await asyncio.sleep(5 * RETRY_MS / 1000)
    assert world.slot.done == 1 and len(world.sent()) == 2


@simulated
async def test_partitions_of_deleted_topics_and_superseded_markers_count_as_answered() -> None:
    world = World(-1, 1)
    world.refused[1] = ErrorCode.INVALID_PRODUCER_EPOCH
    world.begin(decided())
    await turns()
    assert world.sent() == [(1, (1,))] and world.slot.done == 0, "partition 0 has no leader"
    world.show()
    await asyncio.sleep(RETRY_MS / 1000)
    await turns()
    assert world.sent() == [] and world.slot.done == 1


@simulated
async def test_a_topic_that_is_newer_than_the_metadata_here_is_not_a_deleted_one() -> None:
    """Its leader knew it, and made it part of the transaction."""
    world = World()
    world.slot.committed_offset = 5
    world.begin(decided())
    await asyncio.sleep(3 * RETRY_MS / 1000)
    assert world.sent() == [] and world.slot.done == 0
    world.show(0, 1, offset=4)
    await asyncio.sleep(2 * RETRY_MS / 1000)
    assert sorted(world.sent()) == [(0, (0,)), (1, (1,))] and world.slot.done == 1


@simulated
async def test_nothing_is_sent_for_a_slot_that_has_gone_and_for_what_is_not_decided() -> None:
    world = World(0, 1)
    world.begin(decided(state="Ongoing"), decided(state="CompleteCommit"))
    world.silent = {0, 1}
    world.begin(decided())
    await turns()
    assert len(world.sent()) == 2
    world.slot.is_released = True
    await asyncio.sleep(10 * RETRY_MS / 1000)
    assert world.sent() == [] and world.slot.done == 0


@simulated
async def test_markers_of_many_transactions_share_requests_of_limited_size() -> None:
    world = World(0, 0)
    world.begin(*(decided(f"tx-{number}") for number in range(MAX_MARKERS_PER_REQUEST + 5)))
    await turns()
    assert [len(markers) for _, markers in world.asked] == [MAX_MARKERS_PER_REQUEST, 5]
    assert world.slot.done == MAX_MARKERS_PER_REQUEST + 5
