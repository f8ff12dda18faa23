"""What a producer is given: values and columns of them, keys, headers, sizes, and what it refuses."""

from typing import Any

import pytest
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import iter_records
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.errors import (
    InvalidConfigError,
    RecordTooLargeError,
)
from barnabas.net.client.producer.partitioner import partition_of_key
from barnabas.net.client.producer.producer import Producer

T0 = TopicPartition("t", 0)


def test_send_many_keeps_handles_in_the_order_of_values() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 4, "u": 1})
        values = [b"%d" % number for number in range(2000)]
        keys = [b"k%d" % (number % 13) for number in range(2000)]
        async with Producer(client=cluster.client(), batch_size=2048) as producer:
            handles = await producer.send_many("t", values, keys)
            places = await handles
            plain = await (await producer.send_many("u", values))
        for key, value, place in zip(keys, values, places, strict=True):
            assert place.partition == partition_of_key(key, 4)
            assert cluster.logs[TopicPartition("t", place.partition)].values()[place.offset] == value
        assert [place.offset for place in plain] == list(range(2000))
        assert handles[3].result() == places[3]

    run(main())


def test_wrong_types_and_sizes_name_the_cure() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client()) as producer:
            with pytest.raises(TypeError, match=r"value\.encode\(\)"):
                await producer.send("t", "text")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"key\.encode\(\)"):
                await producer.send("t", b"", key="text")  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await producer.send_many("t", ["text"])  # type: ignore[list-item]
            with pytest.raises(RecordTooLargeError):
                await producer.send("t", bytes(2 << 20))
            with pytest.raises(RecordTooLargeError):
                await producer.send_many("t", [bytes(2 << 20)])
            large = await (await producer.send("t", bytes(500_000)))
            assert large.offset == 0

    run(main())
    for options in ({"acks": 2}, {"compression": "rar"}, {"batch_size": 1}, {"buffer_memory": 10}):
        with pytest.raises(InvalidConfigError):
            Producer(**options)  # type: ignore[arg-type]


def test_keyed_columns_in_a_batch_of_plain_records_keep_the_columns_equal() -> None:
    """The fast path of `send` must not go on filling a batch that has keys since."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), linger_ms=10) as producer:
            await producer.send("t", b"a")
            await producer.send_many("t", [b"b", b"c"], [b"k", b"k"])
            assert (await (await producer.send("t", b"d"))).offset == 3
        assert cluster.logs[T0].values() == [b"a", b"b", b"c", b"d"]

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"timestamp_ms": 1.5},
        {"timestamp_ms": "1"},
        {"timestamp_ms": -7},
        {"timestamp_ms": 2**63},
        {"headers": [("\ud800", b"")]},
    ],
)
def test_what_cannot_be_encoded_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """In a batch it would keep all the others from being sent."""

    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client()) as producer:
            fine = await producer.send("t", b"a")
            with pytest.raises((TypeError, ValueError, InvalidRequestError)):
                await producer.send("t", b"b", **wrong)
            assert (await fine).offset == 0

    run(main())


def test_columns_are_refused_before_the_first_record_is_on_its_way() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 2})
        keys = [b"k0", b"k4"]
        assert partition_of_key(keys[0], 2) != partition_of_key(keys[1], 2)
        async with Producer(client=cluster.client(), max_request_bytes=1000) as producer:
            with pytest.raises(RecordTooLargeError):
                await producer.send_many("t", [b"a", b"x" * 2000], keys)
        assert not any(log.values() for log in cluster.logs.values())

    run(main())


def test_send_many_takes_headers_tombstones_and_a_partition() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 3})
        async with Producer(client=cluster.client()) as producer:
            rows = [b"%d" % number if number % 3 else None for number in range(200)]
            keys = [b"k%d" % (number % 5) for number in range(200)]
            headers = [[("h", b"%d" % number)] if number % 2 else [] for number in range(200)]
            chosen = await producer.send_many("t", rows, keys, headers=headers, partition=2)
            assert {found.partition for found in await chosen} == {2}
            found = [
                record for _, _, data in cluster.logs[TopicPartition("t", 2)].batches for record in iter_records(data)
            ]
            assert [record.value for record in found] == rows and [record.key for record in found] == keys
            assert [list(record.headers) for record in found] == headers
            keyed = await producer.send_many("t", rows, keys, headers=headers)
            for key, place in zip(keys, await keyed, strict=True):
                assert place.partition == partition_of_key(key, 3)
            with pytest.raises(ValueError, match="200 values and 1 headers"):
                await producer.send_many("t", rows, headers=[()])
            with pytest.raises(InvalidRequestError, match="has partitions 0 to 2"):
                await producer.send_many("t", rows, partition=3)

    run(main())


def test_no_batch_is_larger_than_its_size_and_all_are_full() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with Producer(client=cluster.client(), batch_size=1_000, linger_ms=5) as producer:
            await producer.send_many("t", [b"x" * 90] * 50, [b"key"] * 50)
            for _ in range(50):
                await producer.send("t", b"y" * 90, headers=[("name", b"value")])
        sizes = [len(data) for _, _, data in cluster.logs[T0].batches]
        assert max(sizes) <= 1_000
        assert sorted(sizes)[1] > 800

    run(main())


def test_rows_without_a_key_among_keys_go_to_the_sticky_partition() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 3})
        async with Producer(client=cluster.client()) as producer:
            sent = await producer.send_many("t", [b"a", b"b", b"c", b"d"], [b"k", None, b"l", None])
            places = await sent
        assert [places[row].partition for row in (0, 2)] == [partition_of_key(key, 3) for key in (b"k", b"l")]
        assert places[1].partition == places[3].partition
        assert places[3].offset == places[1].offset + 1
        assert sent[0].result() == places[0]
        assert [handle.result() for handle in sent] == places

    run(main())
