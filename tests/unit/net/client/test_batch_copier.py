"""Copies of whole batches under fixed numbers: begun again, interrupted, beside strangers' batches, while leaders move."""

from collections.abc import Awaitable, Callable

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import BarnabasError, ErrorCode, RequestTimedOutError
from barnabas.net.client.producer.batch_copier import BatchCopier, MissingBatchError

SOURCE, TARGET = TopicPartition("source", 0), TopicPartition("target", 1)
PRODUCER = {"producer_id": 9, "producer_epoch": 4}
WANTED = [(0, 2), (4, 1), (5, 3)]  # Between the first two lies somebody else's.
VALUES = [b"a", b"b", b"c", b"d", b"e", b"f"]


def with_copier(test: Callable[[FakeCluster, BatchCopier], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, topics={"source": 1, "target": 2})
        for values in ([b"a", b"b"], [b"x", b"y"], [b"c"], [b"d", b"e", b"f"]):
            cluster.logs[SOURCE].append(encode_batch(values, timestamps_ms=7))
        client = cluster.client()
        await client.start()
        await test(cluster, BatchCopier(client, timeout_ms=2_000))
        await client.close()

    run(main())


def test_a_copy_has_the_wanted_batches_once_however_often_it_is_made() -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        for _ in range(3):
            assert await copier.copy(SOURCE, WANTED, TARGET, **PRODUCER) == 6
        assert cluster.logs[TARGET].values() == VALUES
        headers = [
            header for _, _, data in cluster.logs[TARGET].batches for header in iter_headers(data, verify_crc=True)
        ]
        assert [header.base_sequence for header in headers] == [0, 2, 3]
        assert {(header.producer_id, header.producer_epoch, header.base_timestamp_ms) for header in headers} == {
            (9, 4, 7)
        }

    with_copier(test)


def test_it_goes_on_behind_what_is_there_though_the_broker_has_forgotten_who_wrote_it() -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        cluster.logs[TARGET].append(encode_batch([b"before"], timestamps_ms=1))
        await copier.copy(SOURCE, WANTED[:2], TARGET, **PRODUCER)
        cluster.logs[TARGET].append(encode_batch([b"between"], timestamps_ms=1))
        cluster.logs[TARGET].producers.clear()
        assert await copier.written(TARGET, from_offset=1, producer_id=9, producer_epoch=3) == 0
        there = await copier.written(TARGET, from_offset=1, **PRODUCER)
        assert there == 3
        await copier.copy(SOURCE, WANTED, TARGET, **PRODUCER, first_record=there)
        assert cluster.logs[TARGET].values() == [b"before", *VALUES[:3], b"between", *VALUES[3:]]
        assert await copier.copy(SOURCE, WANTED, TARGET, **PRODUCER, first_record=6) == 6

    with_copier(test)


def test_two_drivers_that_copy_at_once_write_each_batch_once() -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        for value in (b"%d" % number for number in range(8)):
            cluster.logs[SOURCE].append(encode_batch([value], timestamps_ms=7))
        wanted = [(offset, 1) for offset in range(8, 16)]
        for _ in range(2):  # The second is all eight batches behind, and a broker remembers five.
            assert await copier.copy(SOURCE, wanted, TARGET, **PRODUCER) == 8
        assert cluster.logs[TARGET].values() == [b"%d" % number for number in range(8)]

    with_copier(test)


@pytest.mark.parametrize("wanted", [[(0, 2), (3, 1)], [(0, 2), (2, 3)], [(0, 1)]])
def test_a_batch_that_is_not_there_is_an_error(wanted: list[tuple[int, int]]) -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        with pytest.raises(MissingBatchError, match="do not exist any more"):
            await copier.copy(SOURCE, wanted, TARGET, **PRODUCER)

    with_copier(test)


def test_a_source_that_ends_before_is_told_when_the_time_is_over() -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        with pytest.raises(RequestTimedOutError, match="though the range ends at 9"):
            await copier.copy(SOURCE, [(5, 3), (8, 1)], TARGET, **PRODUCER)

    with_copier(test)


def test_it_follows_a_leader_that_moves() -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        await copier.copy(SOURCE, WANTED[:1], TARGET, **PRODUCER)
        cluster.move_leader(TARGET, 0)
        cluster.move_leader(SOURCE, 1)
        await copier.copy(SOURCE, WANTED, TARGET, **PRODUCER, first_record=2)
        assert cluster.logs[TARGET].values() == VALUES

    with_copier(test)


def test_an_older_epoch_is_refused_where_a_newer_one_has_written() -> None:
    async def test(cluster: FakeCluster, copier: BatchCopier) -> None:
        await copier.copy(SOURCE, WANTED[:1], TARGET, producer_id=9, producer_epoch=5)
        with pytest.raises(BarnabasError) as caught:
            await copier.copy(SOURCE, WANTED, TARGET, **PRODUCER)
        assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert cluster.logs[TARGET].values() == VALUES[:2]

    with_copier(test)
