"""`__consumer_offsets` as any broker serves it: the tail as it came, older values from the state, waiting for news."""

import asyncio

import pytest
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.shell_world import Client, turns

from barnabas.consumer_groups.offsets.offsets_topic import decoded
from barnabas.kraft.group_state.group_slots import GroupSlots
from barnabas.kraft.group_state.offsets_log import MAX_TAIL_RECORDS, first_log_offset
from barnabas.kraft.metadata.records import OffsetCommitRecord, RemoveOffsetRecord
from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import iter_records
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.log.vocabulary.topic_partition import CONSUMER_OFFSETS_TOPIC
from barnabas.net.coordination.groups.offsets_topic import MAX_RECORDS_PER_READ
from barnabas.net.handlers.own.offsets import OffsetHandlers
from barnabas.net.handlers.records.fetch import FetchHandler
from barnabas.net.wire.protocol.requests import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from barnabas.net.wire.protocol.responses import FetchResponse, ListOffsetsResponse, Response

SLOT = 7
LARGE = 1 << 20


def commit(partition: int, offset: int = 1) -> OffsetCommitRecord:
    return OffsetCommitRecord(
        slot=SLOT, coordinator_epoch=1, group_id="g", topic="t", partition=partition, offset=offset, leader_epoch=-1,
        metadata="", commit_timestamp_ms=1_000 + offset,
    )  # fmt: skip


class World:
    """The handlers of a broker over a slot that the test fills."""

    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        self.slots = GroupSlots()

        async def slot_log(slot: int, log_offset: int, limit: int) -> object:
            return self.slots.read_log(slot, log_offset, limit)

        world.source.slot_log = slot_log  # type: ignore[attr-defined]
        self.fetch_handler = FetchHandler(world.services)
        self.offsets = OffsetHandlers(world.services)

    @classmethod
    async def start(cls) -> "World":
        return cls(await HandlerWorld.start())

    def put(self, *records: OffsetCommitRecord | RemoveOffsetRecord) -> None:
        for record in records:
            self.slots.replay(record, self.slots.index + 1)

    def send(self, offset: int, *, max_wait_ms: int = 0, max_bytes: int = LARGE, partition: int = SLOT) -> "Reader":
        client = Reader()
        item = FetchPartition(
            topic=CONSUMER_OFFSETS_TOPIC, partition=partition, fetch_offset=offset, max_bytes=max_bytes
        )
        request = FetchRequest(partitions=(item,), max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes)
        self.fetch_handler(request, client, client.reply)  # type: ignore[arg-type]
        return client

    async def read(self, offset: int = 0, **options: int) -> list[tuple[int, int, int | None]]:
        """(log offset, partition, committed offset or None for a tombstone) of one fetch."""
        response = await answered(self.send(offset, **options))
        assert isinstance(response, FetchResponse)
        (item,) = response.partitions
        assert item.error == ErrorCode.NONE
        found = []
        data = bytes(item.records)  # type: ignore[arg-type]
        for header in iter_headers(data, verify_crc=True):
            batch = data[header.position : header.position + header.size_bytes]
            for record in iter_records(batch, check=True):
                told = decoded(record.key, record.value)
                value = told["value"]
                committed = value["offset"] if isinstance(value, dict) else None
                found.append((header.base_offset + record.offset - header.base_offset, told["partition"], committed))
        return found  # type: ignore[return-value]

    async def read_all(self, offset: int = 0) -> list[tuple[int, int, int | None]]:
        found: list[tuple[int, int, int | None]] = []
        while some := await self.read(offset):
            found += some
            offset = some[-1][0] + 1
        return found

    async def list(self, timestamp_ms: int, partition: int = SLOT) -> tuple[int, int, int]:
        client = Reader()
        item = ListOffsetsPartition(topic=CONSUMER_OFFSETS_TOPIC, partition=partition, timestamp_ms=timestamp_ms)
        self.offsets.list_offsets(ListOffsetsRequest(partitions=(item,)), client, client.reply)  # type: ignore[arg-type]
        response = await answered(client)
        assert isinstance(response, ListOffsetsResponse)
        (found,) = response.partitions
        return found.error, found.offset, found.timestamp_ms


class Reader(Client):
    """A client whose answer can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.has_answer = asyncio.Event()

    def reply(self, response: Response) -> None:
        super().reply(response)
        self.has_answer.set()


async def answered(client: Reader) -> object:
    await asyncio.wait_for(client.has_answer.wait(), 20)
    return client.answer()


async def test_the_tail_is_served_as_it_came_with_its_tombstones() -> None:
    world = await World.start()
    removal = RemoveOffsetRecord(slot=SLOT, coordinator_epoch=1, group_id="g", topic="t", partition=0)
    world.put(commit(0, 1), commit(0, 2), removal, commit(1, 5))
    assert await world.read() == [
        (first_log_offset(1), 0, 1), (first_log_offset(2), 0, 2), (first_log_offset(3), 0, None),
        (first_log_offset(4), 1, 5),
    ]  # fmt: skip
    assert await world.read(first_log_offset(3) + 1) == [(first_log_offset(4), 1, 5)]
    assert await world.read(first_log_offset(4) + 1) == []
    assert await world.list(EARLIEST_TIMESTAMP) == (0, 0, -1)
    assert await world.list(LATEST_TIMESTAMP) == (0, first_log_offset(4) + 1, -1)
    assert await world.list(1_002) == (0, first_log_offset(2), 1_002)
    assert await world.list(9_000) == (0, -1, -1)


async def test_what_is_older_than_the_tail_is_served_by_its_current_values() -> None:
    world = await World.start()
    world.put(*(commit(number % 10, number) for number in range(50)))
    world.put(*(commit(10 + number, 99) for number in range(MAX_TAIL_RECORDS)))
    found = await world.read_all()
    assert [item[1:] for item in found[:10]] == [(number, 40 + number) for number in range(10)]
    assert [item[1:] for item in found[10:]] == [(10 + number, 99) for number in range(MAX_TAIL_RECORDS)]
    assert [item[0] for item in found] == sorted({item[0] for item in found})


async def test_a_scan_that_is_overtaken_by_the_tail_misses_no_value() -> None:
    world = await World.start()
    count = MAX_RECORDS_PER_READ + 500
    world.put(*(commit(number, 1) for number in range(count + MAX_TAIL_RECORDS)))
    begun = await world.read()
    world.put(*(commit(number, 2) for number in range(2 * MAX_TAIL_RECORDS)))
    rest = await world.read_all(begun[-1][0] + 1)
    last = {partition: committed for _, partition, committed in [*begun, *rest]}
    expected = {number: 2 if number < 2 * MAX_TAIL_RECORDS else 1 for number in range(count + MAX_TAIL_RECORDS)}
    assert last == expected


async def test_an_answer_is_bounded_and_brings_at_least_one_record() -> None:
    world = await World.start()
    world.put(*(commit(number) for number in range(100)))
    assert len(await world.read(max_bytes=1)) == 1
    assert 1 < len(await world.read(max_bytes=1_000)) < 20


async def test_a_fetch_at_the_end_waits_for_news() -> None:
    world = await World.start()
    world.put(commit(0))
    client = world.send(first_log_offset(1) + 1, max_wait_ms=5_000)
    await turns()
    assert not client.has_answer.is_set()
    world.put(commit(1))
    source = world.world.source
    source.publish_group_records(((2, commit(1)),))
    response = await answered(client)
    assert isinstance(response, FetchResponse) and response.partitions[0].records


@pytest.mark.parametrize(
    ("partition", "offset", "error"),
    [(50, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (SLOT, -5, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
async def test_what_is_not_there_is_said_so(partition: int, offset: int, error: ErrorCode) -> None:
    world = await World.start()
    response = await answered(world.send(offset, partition=partition))
    assert isinstance(response, FetchResponse) and response.partitions[0].error == error
    if partition != SLOT:
        assert (await world.list(LATEST_TIMESTAMP, partition))[0] == error
