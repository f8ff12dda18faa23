"""A scan reads each record of its ranges once, whatever leaders do; a query says what the ranges are."""

from datetime import UTC, datetime

import pytest
from unit.net.client.consumer_world import T0, fill, filled
from unit.net.client.fake_cluster import FakeCluster

from barnabas.net.client.arrow.tables import BatchBuilder
from barnabas.net.client.connection.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnreadableBatchError,
)
from barnabas.net.client.consumer.table_range import Position, TableQuery
from barnabas.net.client.consumer.table_scan import TopicScan
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse


async def scanned(cluster: FakeCluster, query: TableQuery) -> list[tuple[int, int]]:
    """(partition, offset) of all records, in the order of the scan."""
    builder = BatchBuilder(["partition", "offset"])
    client = cluster.client()
    await client.start()
    found: list[tuple[int, int]] = []
    scan = await TopicScan.of(client, query)
    try:
        while (part := await scan.next_part()) is not None:
            for columns in part.columns():
                rows = builder.batch(part.partition, columns)
                rows.validate(full=True)
                found += zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    finally:
        await scan.close()
        await client.close()
    return found


async def ranges(cluster: FakeCluster, start: Position, end: Position) -> list[tuple[int, int]]:
    client = cluster.client()
    await client.start()
    try:
        found = await TableQuery(topic="t", start=start, end=end).ranges(client)
    finally:
        await client.close()
    return [(item.start, item.end) for item in found]


async def test_all_partitions_are_read_each_in_order() -> None:
    found = await scanned(filled(100, partitions=7), TableQuery(topic="t"))
    assert sorted(found) == [(number, offset) for number in range(7) for offset in range(100)]
    for number in range(7):
        assert [offset for partition, offset in found if partition == number] == list(range(100))


async def test_a_range_cuts_batches() -> None:
    found = await scanned(filled(100, per_batch=10), TableQuery(topic="t", start=15, end=37))
    assert found == [(0, offset) for offset in range(15, 37)]


@pytest.mark.parametrize(("start", "answers"), [("start", 1), ("@1050", 1), ("@1050", 2)])
async def test_offsets_of_two_topics_of_one_name_make_no_range(start: Position, answers: int) -> None:
    """The topic is made again between two questions for its offsets."""
    cluster = filled(50)
    client = cluster.client()
    await client.start()

    def remade(*_: object) -> None:
        cluster.make_anew("t")
        fill(cluster, T0, 80)

    cluster.script(ApiKey.LIST_OFFSETS, *[lambda *_: None] * answers, remade)
    with pytest.raises(TopicRecreatedError, match="topic t was deleted and created again: its id was t and is t' now"):
        await TableQuery(topic="t", start=start).ranges(client)
    found = await TableQuery(topic="t", start=start).ranges(client)
    assert [(item.end, item.topic_id) for item in found] == [(80, "t'")]
    await client.close()


async def test_chosen_partitions_only() -> None:
    found = await scanned(filled(10, partitions=3), TableQuery(topic="t", partitions=(2, 1)))
    assert {number for number, _ in found} == {1, 2}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("start", "end", [(0, 100), (0, 100)]),
        (40, 60, [(40, 60), (40, 60)]),
        (60, 40, [(60, 60), (60, 60)]),  # Empty.
        (0, 10_000, [(0, 100), (0, 100)]),
        ({0: 5}, {1: 7}, [(5, 100), (0, 7)]),
        ("@1050", "end", [(50, 100), (50, 100)]),
        (datetime.fromtimestamp(1.05, UTC), datetime.fromtimestamp(9, UTC), [(50, 100), (50, 100)]),
        (datetime(1970, 1, 1, 0, 0, 1, 50_400, UTC), datetime(1970, 1, 1, 0, 0, 1, 60_400, UTC), [(51, 61), (51, 61)]),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), "end", [(0, 100), (0, 100)]),
        ("start", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), [(0, 0), (0, 0)]),
        ("@9000", "end", [(100, 100), (100, 100)]),
        ("end", "end", [(100, 100), (100, 100)]),
    ],
)
async def test_positions(start: Position, end: Position, expected: list[tuple[int, int]]) -> None:
    assert await ranges(filled(100, partitions=2), start, end) == expected


@pytest.mark.parametrize("position", [-1, True, "yesterday", "@", datetime(2026, 1, 1), {0: -1}, 1.5])
def test_what_is_no_position_is_refused(position: Position) -> None:
    with pytest.raises(InvalidRequestError, match="^end is "):
        TableQuery(topic="t", end=position)


async def test_a_partition_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="t has no partition 3; its partitions are 0 to 1"):
        await scanned(filled(1, partitions=2), TableQuery(topic="t", partitions=(3,)))
    with pytest.raises(InvalidRequestError, match="no partition 7"):
        await ranges(filled(1, partitions=2), {0: 1, 7: 1}, "end")


async def test_leaders_move_and_connections_break_while_it_reads() -> None:
    cluster = filled(200, brokers=2)
    calls = 0

    def disturb(node_id: int, request: object) -> object:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            cluster.drop_connections()
        if calls % 4 == 0:
            cluster.move_leader(T0, 1 - node_id)
        return None

    cluster.script(ApiKey.FETCH, disturb, forever=True)
    client_query = TableQuery(topic="t", start=3)
    assert await scanned(cluster, client_query) == [(0, offset) for offset in range(3, 200)]


async def test_deleted_records_are_an_error_that_names_them() -> None:
    cluster = filled(100)

    def delete(node_id: int, request: object) -> FetchResponse:
        cluster.logs[T0].start_offset = 60
        refused = FetchPartitionResponse(topic="t", partition=0, error=OffsetOutOfRangeError.code, records=b"")
        return FetchResponse(partitions=(refused,))

    cluster.script(ApiKey.FETCH, delete)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 59 of t-0 were deleted before they were read"):
        await scanned(cluster, TableQuery(topic="t"))


async def test_a_damaged_batch_is_named() -> None:
    cluster = filled(20, per_batch=10)
    base, following, data = cluster.logs[T0].batches[1]
    cluster.logs[T0].batches[1] = base, following, data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(UnreadableBatchError, match="offsets 10 to 19 cannot be read"):
        await scanned(cluster, TableQuery(topic="t"))
    with pytest.raises(UnreadableBatchError, match="offsets 15 to 19 cannot be read"):
        await scanned(cluster, TableQuery(topic="t", start=15))
