"""Readers of committed records leave out markers and the records of aborted transactions, in whatever form they read."""

from collections.abc import Iterable
from typing import Any

import pytest
from simulation.log_building import batch_of, marker, transactional
from unit.net.client.consumer_world import consumer
from unit.net.client.fake_cluster import FakeCluster, FakeLog
from unit.net.client.test_range_reader import reader, started
from unit.net.client.virtual_time import run

from barnabas.log.format.record_batch import iter_headers, patch, read_header
from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.vocabulary.errors import CorruptRecordError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import InvalidConfigError
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.consumer.range_reader import batches_of
from barnabas.net.client.positions.partition_state import PartitionState
from barnabas.net.wire.protocol.requests import FetchRequest, ListOffsetsRequest

T0 = TopicPartition("t", 0)
# Offsets: 0 plain, 1-2 of 7, 3 of 8, 4 abort of 7, 5 of 7, 6 commit of 8, 7 commit of 7, 8 plain
BATCHES = (
    batch_of(b"plain"),
    transactional(7, 0, b"gone", b"gone too"),
    transactional(8, 0, b"kept"),
    marker(7, commits=False),
    transactional(7, 2, b"kept of 7"),
    marker(8, commits=True),
    marker(7, commits=True),
    batch_of(b"last"),
)
ABORTED = [(7, 1)]
COMMITTED = [(0, b"plain"), (3, b"kept"), (5, b"kept of 7"), (8, b"last")]


def placed(batches: Iterable[bytearray]) -> bytes:
    data, offset = bytearray(b"".join(batches)), 0
    for header in list(iter_headers(data)):
        patch(data, header.position, base_offset=offset, leader_epoch=0)
        offset += header.record_count
    return bytes(data)


def fill(log: FakeLog) -> None:
    data = placed(BATCHES)
    for header in iter_headers(data):
        batch = data[header.position : header.position + header.size_bytes]
        log.batches.append((header.base_offset, header.next_offset, batch))
    log.end_offset, log.aborted = 9, ABORTED


async def polled(found: Consumer) -> list[tuple[int, Any]]:
    records = await found.poll(timeout_ms=100)
    return [(record.offset, record.value) for batch in records.values() for record in batch]


async def in_columns(found: Consumer) -> list[tuple[int, Any]]:
    seen: list[tuple[int, Any]] = []
    while (columns := await found.poll_batch(timeout_ms=100)) is not None:
        seen += zip(columns.offsets, columns.values, strict=True)
    return seen


async def in_arrow(found: Consumer) -> list[tuple[int, Any]]:
    seen: list[tuple[int, Any]] = []
    while (table := await found.poll_arrow(max_bytes=1, timeout_ms=100)).num_rows:  # one batch at a time
        seen += zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    return seen


async def walked(found: Consumer) -> list[tuple[int, Any]]:
    seen: list[tuple[int, Any]] = []
    async for record in found:
        seen.append((record.offset, record.value))
        if record.offset == 8:
            break
    return seen


@pytest.mark.parametrize("read", [polled, in_columns, in_arrow, walked])
def test_aborted_records_are_left_out_and_the_position_passes_them(read: Any) -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster.logs[T0])
        async with consumer(cluster, "t", isolation_level="read_committed") as found:
            assert await read(found) == COMMITTED
            assert await found.position(T0) == 9
        assert {request.isolation_level for request in cluster.sent(FetchRequest)} == {1}
        assert {request.isolation_level for request in cluster.sent(ListOffsetsRequest)} == {1}

    run(body())


def test_read_uncommitted_gets_all_records_but_no_markers() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster.logs[T0])
        async with consumer(cluster, "t") as found:
            assert [offset for offset, _ in await polled(found)] == [0, 1, 2, 3, 5, 8]

    run(body())


def test_ends_are_those_of_committed_records() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster.logs[T0])
        async with consumer(cluster, "t", isolation_level="read_committed") as found:
            await found.end_offsets(T0)
            await found.offsets_for_times({T0: 5})
        assert {request.isolation_level for request in cluster.sent(ListOffsetsRequest)} == {1}

    run(body())


def test_a_range_is_read_without_aborted_records() -> None:
    async def body() -> None:
        cluster = FakeCluster(topics={"t": 1})
        fill(cluster.logs[T0])
        client = await started(cluster)
        found, seen = reader(client, 0, 9), []
        while (chunk := await found.next_chunk()) is not None:
            seen += [(it.offset, it.value) for _, records in batches_of(chunk, end=9) for it in records]
        assert seen == COMMITTED
        await client.close()

    run(body())


@pytest.mark.parametrize("first", range(9))
def test_a_fetch_from_inside_of_a_transaction_leaves_out_the_rest_of_it(first: int) -> None:
    state = PartitionState(T0, max_bytes=1 << 20)
    state.seek(first)
    data = placed(BATCHES)
    start = next(header.position for header in iter_headers(data) if header.next_offset > first)
    state.fetched(data[start:], ABORTED if first <= 4 else ())
    assert [(it.offset, it.value) for it in state.take(100)] == [item for item in COMMITTED if item[0] >= first]
    assert state.position == 9


def test_a_producer_whose_transaction_was_aborted_commits_the_next_one_and_aborts_a_third() -> None:
    batches = [
        transactional(7, 0, b"a"),
        marker(7, commits=False),
        transactional(7, 1, b"b"),
        marker(7, commits=True),
        transactional(7, 2, b"c"),
        marker(7, commits=False),
    ]
    data = placed(batches)
    found = AbortedFilter([(7, 4), (7, 0)])
    shown = []
    for header in iter_headers(data):
        batch = data[header.position : header.position + header.size_bytes]
        if not found.leaves_out(read_header(batch), batch):
            shown.append(header.base_offset)
    assert shown == [2]


def test_a_plain_batch_of_a_producer_is_no_part_of_its_aborted_transaction() -> None:
    plain = placed([batch_of(b"x", producer=ProducerFields(producer_id=7, producer_epoch=0, base_sequence=0))])
    assert not AbortedFilter([(7, 0)]).leaves_out(read_header(plain), plain)


def test_a_damaged_marker_does_not_end_a_transaction() -> None:
    damaged = bytearray(placed([marker(7, commits=False)]))
    damaged[-1] ^= 1
    found = AbortedFilter([(7, 0)])
    with pytest.raises(CorruptRecordError):
        found.leaves_out(read_header(damaged), damaged)


def test_other_isolation_levels_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="read_committed"):
        Consumer("t", isolation_level="serializable")
