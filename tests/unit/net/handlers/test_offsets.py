"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: what a leader tells of its offsets."""

from typing import Any

import pytest
from unit.net.handlers.handler_world import HandlerWorld, answer_of, soon
from unit.net.shell_world import Client, partition, simulated, topic

from barnabas.log.format.compression import Compression
from barnabas.log.format.record_codec import ProducerFields, encode_batch
from barnabas.log.vocabulary.errors import (
    ErrorCode,
    InvalidRequestError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.limits import MAX_DATA_ITEMS
from barnabas.net.handlers.own.offsets import OffsetHandlers
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.handlers.records.produce import ProduceHandler
from barnabas.net.wire.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    DeleteRecordsRequest,
    EpochPartition,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProducePartition,
    ProduceRequest,
)
from barnabas.net.wire.protocol.responses import (
    DeleteRecordsResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
)

ALONE = topic("t", partition(0, replicas=(0,)))
REPLICATED = topic("t", partition(0))
LED_ELSEWHERE = topic("u", partition(1, epoch=7))


def listed(world: HandlerWorld, timestamp_ms: int, *, name: str = "t", **options: int) -> ListOffsetsPartitionResponse:
    epoch = options.pop("current_leader_epoch", -1)
    item = ListOffsetsPartition(topic=name, partition=0, timestamp_ms=timestamp_ms, current_leader_epoch=epoch)
    response = answer_of(OffsetHandlers(world.services).list_offsets, ListOffsetsRequest(partitions=(item,), **options))
    found: ListOffsetsPartitionResponse = response.partitions[0]
    assert (found.topic, found.partition) == (name, 0)
    return found


@simulated
async def test_the_ends_of_a_log_as_a_consumer_and_as_a_replica_see_them() -> None:
    world = await HandlerWorld.start(REPLICATED)
    for _ in range(4):
        world.append(b"a")
    world.follower_has(3)
    world.partition().leading.delete_records(2)
    assert listed(world, EARLIEST_TIMESTAMP).offset == 2
    latest = listed(world, LATEST_TIMESTAMP)
    assert (latest.offset, latest.leader_epoch, latest.error) == (3, 1, 0)
    assert listed(world, LATEST_TIMESTAMP, replica_id=1).offset == 4


@simulated
async def test_the_offsets_of_another_topic_of_the_name_are_not_told() -> None:
    world = await HandlerWorld.start(ALONE)
    world.append(b"a")
    for topic_id, error in (("", 0), (ALONE.topic_id, 0), ("f" * 32, ErrorCode.INCONSISTENT_TOPIC_ID)):
        item = ListOffsetsPartition(topic="t", partition=0, timestamp_ms=LATEST_TIMESTAMP, topic_id=topic_id)
        response = answer_of(OffsetHandlers(world.services).list_offsets, ListOffsetsRequest(partitions=(item,)))
        assert (response.partitions[0].error, response.partitions[0].offset) == (error, -1 if error else 1)


@simulated
async def test_the_first_record_at_or_after_a_time_and_the_newest_one() -> None:
    world = await HandlerWorld.start(ALONE)
    start_ms = world.shell.clock.wall_ms()
    for at_ms in (-3_000, -1_000, -2_000):
        world.append(b"a", at_ms=at_ms)
    found = listed(world, start_ms - 2_500)
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == (1, start_ms - 1_000, 1)
    assert listed(world, 0).offset == 0
    assert listed(world, start_ms).offset == -1
    newest = listed(world, MAX_TIMESTAMP)
    assert (newest.offset, newest.timestamp_ms) == (1, start_ms - 1_000)


@simulated
async def test_a_batch_that_is_long_or_packed_is_looked_into_off_the_loop() -> None:
    world = await HandlerWorld.start(ALONE)
    handlers = OffsetHandlers(world.services)
    values = [b"x" * 100] * 200  # more than MAX_AT_ONCE_BYTES
    for compression in (Compression.NONE, Compression.GZIP, Compression.ZSTD):
        stamps = list(range(1_000, 1_000 + len(values)))
        batch = encode_batch(values, timestamps_ms=stamps, compression=compression)
        world.replication.append(world.partition(), batch, acks=1)
    world.partition().leading.delete_records(50)
    client = Client()
    items = tuple(
        ListOffsetsPartition(topic="t", partition=0, timestamp_ms=at) for at in (0, 1_120, MAX_TIMESTAMP, 9_999)
    )
    handlers.list_offsets(ListOffsetsRequest(partitions=items), client, client.reply)  # type: ignore[arg-type]
    assert client.replies == [], "the loop has walked it"
    answer = await soon(client)
    assert isinstance(answer, ListOffsetsResponse)
    assert [(found.offset, found.timestamp_ms) for found in answer.partitions] == [
        (50, 1_050), (120, 1_120), (199, 1_199), (-1, -1)
    ]  # fmt: skip


@simulated
async def test_a_record_that_is_not_committed_is_not_found() -> None:
    world = await HandlerWorld.start(REPLICATED)
    world.append(b"a")
    assert listed(world, 0).error == ErrorCode.NONE and listed(world, 0).offset == -1
    world.follower_has(1)
    assert listed(world, 0).offset == 0


@simulated
async def test_the_end_before_an_open_transaction() -> None:
    world = await HandlerWorld.start(ALONE)
    world.append(b"a")
    producer = ProducerFields(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    world.replication.append(world.partition(), world.batch(b"b", producer=producer), acks=1)
    assert listed(world, LATEST_TIMESTAMP).offset == 2
    assert listed(world, LATEST_TIMESTAMP, isolation_level=READ_COMMITTED).offset == 1


@simulated
async def test_errors_belong_to_their_partition() -> None:
    world = await HandlerWorld.start(ALONE, LED_ELSEWHERE)
    assert listed(world, LATEST_TIMESTAMP, name="nope").error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert listed(world, LATEST_TIMESTAMP, name="u").error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert listed(world, LATEST_TIMESTAMP, current_leader_epoch=9).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert listed(world, LATEST_TIMESTAMP, current_leader_epoch=0).error == ErrorCode.FENCED_LEADER_EPOCH


@simulated
async def test_the_end_of_a_leader_epoch() -> None:
    world = await HandlerWorld.start(ALONE, LED_ELSEWHERE)
    world.append(b"a")
    world.append(b"b")
    world.show(topic("t", partition(0, epoch=4, replicas=(0,))), LED_ELSEWHERE, offset=11)
    world.append(b"c")

    def end(leader_epoch: int, name: str = "t", current: int = -1) -> tuple[int, int, int]:
        item = EpochPartition(topic=name, partition=0, leader_epoch=leader_epoch, current_leader_epoch=current)
        handler = OffsetHandlers(world.services).end_of_epoch
        found = answer_of(handler, OffsetForLeaderEpochRequest(partitions=(item,))).partitions[0]
        return found.error, found.leader_epoch, found.end_offset

    assert end(1) == (0, 1, 2)
    assert end(3) == (0, 1, 2)
    assert end(4) == (0, 4, 3)
    assert end(5) == (0, -1, -1)
    assert end(4, current=3)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert end(4, name="u")[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


@simulated
async def test_records_are_deleted_up_to_an_offset_or_to_the_high_watermark() -> None:
    world = await HandlerWorld.start(REPLICATED)
    for _ in range(4):
        world.append(b"a")
    world.follower_has(3)
    handler = OffsetHandlers(world.services).delete_records

    def delete(before_offset: int, name: str = "t") -> object:
        return answer_of(handler, DeleteRecordsRequest(topic=name, partition=0, before_offset=before_offset))

    assert delete(1) == DeleteRecordsResponse(log_start_offset=1)
    assert delete(0) == DeleteRecordsResponse(log_start_offset=1)
    for refused in (4, -2):
        with pytest.raises(OffsetOutOfRangeError):
            delete(refused)
    assert delete(-1) == DeleteRecordsResponse(log_start_offset=3)
    assert world.log().log_start_offset == 3
    with pytest.raises(UnknownTopicOrPartitionError):
        delete(0, "nope")


@simulated
async def test_only_the_leader_deletes() -> None:
    world = await HandlerWorld.start(LED_ELSEWHERE)
    with pytest.raises(NotLeaderOrFollowerError):
        answer_of(
            OffsetHandlers(world.services).delete_records,
            DeleteRecordsRequest(topic="u", partition=0, before_offset=0),
        )


@simulated
async def test_a_partition_without_a_replica_here_has_another_leader() -> None:
    world = await HandlerWorld.start(topic("t", partition(1, epoch=7, replicas=(1,))))
    assert listed(world, LATEST_TIMESTAMP).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


@simulated
async def test_the_earliest_local_offset_is_the_earliest() -> None:
    """Nothing is anywhere else (KIP-405)."""
    world = await HandlerWorld.start(ALONE)
    for _ in range(3):
        world.append(b"a")
    OffsetHandlers(world.services).delete_before(TopicPartition("t", 0), 2)
    assert listed(world, -4).offset == listed(world, EARLIEST_TIMESTAMP).offset == 2


@simulated
async def test_more_partitions_than_a_client_has_are_refused_before_they_are_looked_at() -> None:
    world = await HandlerWorld.start(ALONE)
    many = MAX_DATA_ITEMS + 1
    produced = ProducePartition(topic="u", partition=0, records=b"")
    fetched = FetchPartition(topic="u", partition=0, fetch_offset=0, max_bytes=1)
    listed_one = ListOffsetsPartition(topic="u", partition=0, timestamp_ms=LATEST_TIMESTAMP)
    epoch = EpochPartition(topic="u", partition=0, leader_epoch=0)
    offsets = OffsetHandlers(world.services)
    asked: list[tuple[Any, Any]] = [
        (ProduceHandler(world.services), ProduceRequest(acks=1, timeout_ms=1, partitions=(produced,) * many)),
        (
            FetchHandler(world.services),
            FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, partitions=(fetched,) * many),
        ),
        (offsets.list_offsets, ListOffsetsRequest(partitions=(listed_one,) * many)),
        (offsets.end_of_epoch, OffsetForLeaderEpochRequest(partitions=(epoch,) * many)),
    ]
    for handler, request in asked:
        with pytest.raises(InvalidRequestError, match=f"{many} partitions"):
            handler(request, None, None)
