"""Produce: who is answered when, and what of a request is refused while the rest of it is appended."""

import asyncio

import pytest
from unit.net.handlers.handler_world import HandlerWorld, answer_of, produce, soon
from unit.net.shell_world import Client, partition, simulated, topic, turns

from barnabas.kraft.metadata.image import TopicImage
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import ErrorCode, InvalidRequiredAcksError
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.wire.protocol.requests import ProduceRequest
from barnabas.net.wire.protocol.responses import ProducePartitionResponse, ProduceResponse

ALONE = topic("t", partition(0, replicas=(0,)), partition(0, replicas=(0,)))
REPLICATED = topic("t", partition(0), partition(0))


class World(HandlerWorld):
    def send(self, request: ProduceRequest) -> Client:
        client = Client()
        ProduceHandler(self.services)(request, client, client.reply)  # type: ignore[arg-type]
        return client


def outcomes(response: object) -> list[tuple[int, int]]:
    """Error and base offset of each partition."""
    assert isinstance(response, ProduceResponse)
    return [(item.error, item.base_offset) for item in response.partitions]


async def world_of(*topics: TopicImage, **settings: str) -> World:
    world = await World.start(*topics, **settings)
    assert isinstance(world, World)
    return world


def first(response: object) -> ProducePartitionResponse:
    assert isinstance(response, ProduceResponse)
    return response.partitions[0]


@simulated
async def test_acks_1_is_answered_by_the_leaders_append() -> None:
    world = await world_of(REPLICATED)
    client = world.send(produce(world.batch(b"a", b"b")))
    assert outcomes(client.answer()) == [(0, 0)]
    assert outcomes(world.send(produce(world.batch(b"c"))).answer()) == [(0, 2)]
    assert (world.log().log_end_offset, world.log().high_watermark) == (3, 0)


async def flushing_world() -> World:
    return await world_of(REPLICATED, **{"log.flush.interval.messages": "1"})


@simulated
async def test_with_flush_messages_1_even_acks_1_waits_for_the_leaders_disk() -> None:
    world = await flushing_world()
    client = world.send(produce(world.batch(b"a"), ("t", 1, world.batch(b"b"))))
    assert client.replies == [] and world.log().recovery_point == 0
    assert outcomes(await soon(client)) == [(0, 0), (0, 0)]
    assert world.log().recovery_point == 1 and world.log().high_watermark == 0


@simulated
async def test_with_flush_messages_1_acks_all_waits_for_the_leaders_disk_as_well() -> None:
    world = await flushing_world()
    world.disk.fail_next("flush", "*.log")
    client = world.send(produce(world.batch(b"a"), acks=-1))
    world.follower_has(1)
    assert client.replies == [] and world.log().high_watermark == 0
    assert outcomes(await soon(client)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]  # the second flush would lie
    assert world.log().failed and world.log().high_watermark == 0


@simulated
async def test_acks_0_is_appended_and_never_answered() -> None:
    world = await world_of(REPLICATED)
    good, bad = (
        world.send(produce(world.batch(b"a"), acks=0)),
        world.send(produce(("nope", 0, world.batch(b"a")), acks=0)),
    )
    assert good.wants_no_reply and good.replies == bad.replies == []
    assert bad.is_hung_up and not good.is_hung_up  # an error ends the connection: there is no other way to tell
    assert world.log().log_end_offset == 1


@simulated
async def test_acks_all_waits_for_every_partition_of_the_request() -> None:
    world = await world_of(REPLICATED)
    client = world.send(produce(world.batch(b"a"), ("t", 1, world.batch(b"b")), acks=-1))
    world.follower_has(1)
    await asyncio.sleep(0.1)
    assert client.replies == []
    world.follower_has(1, number=1)
    assert outcomes(await soon(client)) == [(0, 0), (0, 0)]


@simulated
async def test_acks_all_of_a_single_replica_is_answered_at_once() -> None:
    world = await world_of(ALONE)
    assert outcomes(world.send(produce(world.batch(b"a"), acks=-1, timeout_ms=0)).answer()) == [(0, 0)]


@simulated
async def test_unknown_acks_are_refused_before_anything_is_appended() -> None:
    world = await world_of(ALONE)
    with pytest.raises(InvalidRequiredAcksError, match="acks=2"):
        world.send(produce(world.batch(b"a"), acks=2))
    assert world.log().log_end_offset == 0


@simulated
async def test_the_trouble_of_one_partition_is_told_beside_the_success_of_another() -> None:
    world = await world_of(ALONE, topic("led.elsewhere", partition(1, epoch=7)))
    corrupt = world.batch(b"b")
    corrupt[-1] ^= 1
    request = produce(
        world.batch(b"a"),
        ("t", 1, corrupt),
        ("t", 9, world.batch(b"c")),
        ("led.elsewhere", 0, world.batch(b"d")),
        (CONSUMER_OFFSETS_TOPIC, 3, world.batch(b"e")),
        acks=-1,
    )
    response = world.send(request).answer()
    assert outcomes(response) == [
        (0, 0),
        (ErrorCode.CORRUPT_MESSAGE, -1),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
    ]
    assert isinstance(response, ProduceResponse)
    elsewhere = response.partitions[3]
    assert (elsewhere.leader_id, elsewhere.leader_epoch) == (1, 7)
    assert all(item.message for item in response.partitions[1:])
    assert world.log(number=1).log_end_offset == 0


@simulated
async def test_too_few_replicas_refuse_acks_all_and_nothing_else() -> None:
    world = await world_of(topic("t", partition(0, isr=(0,))))
    world.show(topic("t", partition(0, isr=(0,))), offset=11, topic_configs={"t": {"min.insync.replicas": "2"}})
    refused = first(world.send(produce(world.batch(b"a"), acks=-1)).answer())
    assert refused.error == ErrorCode.NOT_ENOUGH_REPLICAS and world.log().log_end_offset == 0
    assert outcomes(world.send(produce(world.batch(b"a"), acks=1)).answer()) == [(0, 0)]


@simulated
async def test_a_repeated_batch_gets_its_first_offset_and_waits_like_the_first() -> None:
    world = await world_of(REPLICATED)
    producer = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=0)
    once = world.send(produce(world.batch(b"a", b"b", producer=producer), acks=-1))
    again = world.send(produce(world.batch(b"a", b"b", producer=producer), acks=-1))
    assert world.log().log_end_offset == 2 and once.replies == again.replies == []
    world.follower_has(2)
    assert outcomes(await soon(once)) == outcomes(await soon(again)) == [(0, 0)]


@simulated
async def test_a_gap_in_the_sequence_is_refused() -> None:
    world = await world_of(ALONE)
    for sequence, error in ((0, 0), (5, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)):
        producer = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=sequence)
        assert first(world.send(produce(world.batch(b"a", producer=producer))).answer()).error == error


@simulated
async def test_a_partition_may_stand_only_once_in_a_request_that_waits() -> None:
    world = await world_of(REPLICATED)
    client = world.send(produce(world.batch(b"a"), world.batch(b"b"), acks=-1))
    world.follower_has(1)
    response = await soon(client)
    assert outcomes(response) == [(0, 0), (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)]
    assert world.log().log_end_offset == 1


@simulated
async def test_a_refusal_is_told_also_when_the_others_run_out_of_time() -> None:
    world = await world_of(REPLICATED)
    client = world.send(produce(world.batch(b"a"), ("nope", 0, world.batch(b"b")), acks=-1, timeout_ms=500))
    await asyncio.sleep(0.499)
    world.replication.expire()
    assert client.replies == []
    await asyncio.sleep(0.002)
    world.replication.expire()
    response = client.answer()
    assert outcomes(response) == [(ErrorCode.REQUEST_TIMED_OUT, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert "send it again" in first(response).message


@simulated
async def test_a_leader_that_falls_says_that_the_outcome_is_not_known() -> None:
    world = await world_of(REPLICATED)
    client = world.send(produce(world.batch(b"a"), acks=-1))
    world.show(topic("t", partition(1, epoch=2), partition(0)), offset=11)
    assert first(await soon(client)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (first(client.answer()).leader_id, first(client.answer()).leader_epoch) == (1, 2)  # KIP-951


@simulated
async def test_a_client_that_goes_is_forgotten_and_its_batch_stays() -> None:
    world = await world_of(REPLICATED)
    client = world.send(produce(world.batch(b"a"), acks=-1))
    client.disconnect()
    world.follower_has(1)
    await asyncio.sleep(0.1)
    assert client.replies == [] and len(world.replication.purgatory) == 0
    assert world.log().high_watermark == 1


@simulated
async def test_a_full_disk_is_told_and_does_not_end_the_leadership() -> None:
    world = await world_of(ALONE)
    await turns()
    world.disk.capacity_bytes = world.disk.used_bytes
    refused = first(world.send(produce(world.batch(b"a" * 100))).answer())
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR and "No space left" in refused.message


@simulated
async def test_a_batch_above_the_topics_limit_is_refused() -> None:
    world = await world_of(ALONE)
    world.show(ALONE, offset=11, topic_configs={"t": {"max.message.bytes": "100"}})
    assert first(world.send(produce(world.batch(b"x" * 200))).answer()).error == ErrorCode.MESSAGE_TOO_LARGE


@simulated
async def test_an_empty_request_is_answered() -> None:
    world = await world_of(ALONE)
    assert answer_of(ProduceHandler(world.services), produce(acks=-1)) == ProduceResponse(partitions=())


@simulated
async def test_a_partition_without_a_replica_here_has_another_leader() -> None:
    world = await world_of(topic("t", partition(1, epoch=7, replicas=(1,))))
    response = world.send(produce(world.batch(b"a"), acks=1)).answer()
    assert outcomes(response) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert (first(response).leader_id, first(response).leader_epoch) == (1, 7)


@simulated
async def test_a_batch_that_is_sent_again_is_confirmed_no_sooner_than_the_first_time() -> None:
    """With acks=all, its last record too must be in every in-sync replica."""
    world = await HandlerWorld.start(topic("t", partition(0, replicas=(0,))))
    again = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=0)
    for is_duplicate in (False, True):
        records = world.batch(b"a", b"b", producer=again)
        info, required_offset = world.replication.append(world.partition(), records, acks=-1)
        assert (info.duplicate, info.last_offset, required_offset) == (is_duplicate, 1, 2)
