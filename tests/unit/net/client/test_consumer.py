"""The consumer against a scripted cluster, on virtual time."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from crc32c import crc32c
from unit.net.client.consumer_world import T0, T1, consumer, fill, filled, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.format.record_codec import encode_batch
from barnabas.log.vocabulary.errors import CorruptRecordError, OffsetOutOfRangeError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import inside_of
from barnabas.net.client.connection.errors import (
    ClientClosedError,
    ConcurrentUseError,
    DeliveryTimeoutError,
    InvalidRequestError,
    NoOffsetForPartitionError,
    NotAssignedError,
    TopicRecreatedError,
    UnknownTopicOrPartitionError,
    UnreadableBatchError,
)
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.wire.protocol import responses as r
from barnabas.net.wire.protocol.api_keys import ApiKey
from barnabas.net.wire.protocol.requests import FetchRequest


def test_all_three_ways_to_read() -> None:
    async def main() -> None:
        cluster = filled()
        async with consumer(cluster, "t") as reader:
            records = await read(reader, 100)
            assert [record.offset for record in records] == list(range(100))
            assert records[7].value == b"7"
            assert (records[7].topic, records[7].partition, records[7].timestamp_ms) == ("t", 0, 1007)
            assert await reader.poll(timeout_ms=10) == {}
        async with consumer(cluster, "t") as reader:
            columns = await reader.poll_batch()
            assert columns is not None
            assert columns.offsets == list(range(10))
            assert columns.values[3] == b"3"
        async with consumer(cluster, "t") as reader:
            seen = []
            async for record in reader:
                seen.append(record.offset)
                assert await reader.position(T0) == record.offset + 1
                if record.offset == 42:
                    break
            async for record in reader:  # Goes on where it stopped.
                seen.append(record.offset)
                if record.offset == 99:
                    break
            assert seen == list(range(100))

    run(main())


def test_poll_takes_no_more_than_it_is_asked_for() -> None:
    async def main() -> None:
        async with consumer(filled(), "t") as reader:
            for first in range(0, 98, 7):
                batch = (await reader.poll(max_records=7))[T0]
                assert [record.offset for record in batch] == list(range(first, first + 7))
                assert await reader.position(T0) == first + 7

    run(main())


def test_seeks() -> None:
    async def main() -> None:
        async with consumer(filled(), "t") as reader:
            await read(reader, 5)
            reader.seek(T0, 57)
            assert (await read(reader, 1))[0].offset == 57
            await reader.seek_to_time(1033)
            assert (await read(reader, 1))[0].offset == 33
            await reader.seek_to_start(T0)
            assert (await read(reader, 1))[0].offset == 0
            await reader.seek_to_end()
            assert await reader.position(T0) == 100
            await reader.seek_to_time(99_999_999)
            assert await reader.position(T0) == 100
            with pytest.raises(NotAssignedError):
                reader.seek(T1, 0)
        with pytest.raises(ClientClosedError):
            await reader.poll()

    run(main())


def test_a_seek_ends_the_walk_at_once() -> None:
    async def main() -> None:
        async with consumer(filled(), "t") as reader:
            seen = []
            async for record in reader:
                seen.append(record.offset)
                if record.offset == 3:
                    reader.seek(T0, 80)
                if record.offset == 81:
                    break
            assert seen == [0, 1, 2, 3, 80, 81]

    run(main())


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 20), ("latest", 100)])
def test_an_offset_that_is_gone_is_reset(policy: str, expected: int) -> None:
    async def main() -> None:
        cluster = filled()
        cluster.logs[T0].start_offset = 20
        async with consumer(cluster, "t", auto_offset_reset=policy) as reader:
            await reader.position(T0)
            reader.seek(T0, 5)
            await reader.poll(timeout_ms=50)
            fill(cluster, T0, 10)
            reader.seek(T0, 500)
            records = await reader.poll(timeout_ms=100)
            first = records[T0][0].offset if records else await reader.position(T0)
            assert first == (expected if policy == "earliest" else 110)

    run(main())


def test_a_topic_that_is_made_anew_is_read_from_its_start_and_never_from_the_middle() -> None:
    """Its leader epochs begin anew too, so that only the topic's id tells the two apart."""

    async def main() -> None:
        cluster = filled(50)
        async with consumer(cluster, "t", auto_offset_reset="latest") as reader:
            reader.seek(T0, 0)
            await read(reader, 50)
            cluster.make_anew("t")
            fill(cluster, T0, 80)
            assert [record.offset for record in await read(reader, 80)] == list(range(80))
            assert inside_of(reader).origin(T0).topic_id == "t'"

    run(main())


def test_a_topic_that_is_gone_holds_up_no_other() -> None:
    """The search for its position waited for it, for as long as calls wait, and all other searches with it."""

    async def main() -> None:
        cluster, loop = filled(50), asyncio.get_running_loop()
        async with consumer(cluster) as reader:
            reader.assign([TopicPartition("gone", 0)])
            await reader.poll(timeout_ms=500)  # the search begins
            reader.assign([TopicPartition("gone", 0), T0])
            began_s = loop.time()
            assert len(await read(reader, 50)) == 50
            assert loop.time() - began_s < 2
            cluster.create("gone", 1)
            fill(cluster, TopicPartition("gone", 0), 10)
            assert len(await read(reader, 10)) == 10

    run(main())


def test_a_topic_that_is_made_anew_is_an_error_where_no_reset_is_allowed() -> None:
    async def main() -> None:
        cluster = filled(50)
        async with consumer(cluster, auto_offset_reset="none") as reader:
            reader.assign([T0])
            reader.seek(T0, 0)
            await read(reader, 50)
            cluster.make_anew("t")
            fill(cluster, T0, 80)
            with pytest.raises(TopicRecreatedError, match="offset 50 of t-0 was an offset of the old topic: seek"):
                await reader.poll(timeout_ms=5_000)
            reader.seek(T0, 70)
            reader.resume(T0)
            assert [record.offset for record in await read(reader, 10)] == list(range(70, 80))

    run(main())


def test_a_start_that_is_cancelled_or_fails_leaves_nothing_open() -> None:
    async def main() -> None:
        cluster = filled(10)
        for timeout_s, expected in ((1, TimeoutError), (100, UnknownTopicOrPartitionError)):
            reader = consumer(cluster, "typo")
            with pytest.raises(expected):
                async with asyncio.timeout(timeout_s):
                    await reader.start()
            assert not cluster.connections
            assert len(asyncio.all_tasks()) == 1

    run(main())


def test_a_wrong_advertised_address_is_named_with_the_one_that_told_it(caplog: Any) -> None:
    async def main() -> None:
        cluster = filled(10)
        cluster.nodes[0] = ("internal", 9092)
        cluster.bootstrap_node = 0
        reader = consumer(cluster, "t", group="g")
        writer = Producer(client=cluster.client(), delivery_timeout_ms=8_000, request_timeout_ms=5_000)
        await reader.start()
        await writer.start()
        handle = await writer.send("t", b"v")
        assert await reader.poll(timeout_ms=5_000) == {}
        told = "Broker 0 advertises internal:9092, according to fake:9000: if the broker is up, set its advertised.listeners"
        assert any(
            text.startswith("broker 0: cannot connect to internal:9092") and told in text for text in caplog.messages
        )
        assert any(text.startswith("coordinator of g:") and told in text for text in caplog.messages)
        with pytest.raises(DeliveryTimeoutError, match=told):
            await handle
        await reader.close()
        await writer.close()

    run(main())


def test_no_reset_is_an_error() -> None:
    async def main() -> None:
        cluster = filled()
        cluster.logs[T0].start_offset = 20
        async with consumer(cluster, auto_offset_reset="none") as reader:
            reader.assign([T0])
            with pytest.raises(NoOffsetForPartitionError):
                await reader.poll()
            reader.seek(T0, 3)
            with pytest.raises(OffsetOutOfRangeError, match="seek to another offset"):
                await reader.poll()
            reader.seek(T0, 20)
            reader.resume(T0)
            assert (await read(reader, 1))[0].offset == 20

    run(main())


def test_a_partition_without_a_commit_leaves_the_others_readable() -> None:
    async def main() -> None:
        cluster = filled(10, partitions=3)
        places = [TopicPartition("t", number) for number in range(3)]
        cluster.committed["g"] = {places[1]: 4, places[2]: 0}
        reader = consumer(cluster, group="g", auto_offset_reset="none", auto_commit=False)
        await reader.start()
        reader.assign(places)
        with pytest.raises(NoOffsetForPartitionError, match="committed for t-0, and auto_offset_reset is 'none': seek"):
            await reader.poll()
        assert {record.partition for record in await read(reader, 16)} == {1, 2}
        with pytest.raises(NoOffsetForPartitionError):
            await reader.position(T0)
        reader.seek(T0, 3)
        assert [record.offset for record in await read(reader, 7)] == list(range(3, 10))
        await reader.close()

    run(main())


@pytest.mark.parametrize("count", [0, -1])
def test_a_poll_without_room_for_a_record_is_refused(count: int) -> None:
    async def main() -> None:
        async with consumer(filled(), "t") as reader:
            await asyncio.sleep(1)  # Records are there.
            with pytest.raises(InvalidRequestError, match=f"max_records is {count}"):
                await reader.poll(max_records=count)
            assert len(await read(reader, 100)) == 100

    run(main())


def test_one_task_at_a_time_asks_for_records() -> None:
    async def main() -> None:
        async with consumer(filled(0), "t") as reader:
            first = asyncio.create_task(reader.poll(timeout_ms=1_000))
            await asyncio.sleep(0.1)
            for call in (reader.poll, reader.poll_batch, partial(inside_of(reader).walk_batch, timeout_ms=10)):
                with pytest.raises(ConcurrentUseError, match="one consumer per task"):
                    await call()
            assert await first == {}
            assert await reader.poll(timeout_ms=10) == {}

    run(main())


def test_a_call_from_another_loop_is_refused() -> None:
    cluster = filled()
    reader, writer = consumer(cluster, "t"), Producer(client=cluster.client())

    async def start() -> None:
        await reader.start()
        await writer.start()

    async def elsewhere() -> None:
        for call in (
            reader.poll,
            reader.end_offsets,
            partial(writer.send, "t", b"v"),
            partial(writer.prepare, "t"),
            reader.close,
            writer.close,
            reader.client.close,
        ):
            with pytest.raises(ConcurrentUseError, match="another event loop"):
                async with asyncio.timeout(100):
                    await call()
        with pytest.raises(ConcurrentUseError, match="consumer was started on another"):
            reader.seek(T0, 0)

    async def close() -> None:
        await reader.close()
        await writer.close()

    with asyncio.Runner() as home:
        home.run(start())
        with asyncio.Runner() as other:
            other.run(elsewhere())
        home.run(close())


def test_the_leader_moves_unnoticed() -> None:
    async def main() -> None:
        cluster = filled(brokers=2)
        async with consumer(cluster, "t", partition_max_bytes=300) as reader:
            await read(reader, 15)
            cluster.move_leader(T0, 1)
            assert [record.offset for record in await read(reader, 85)] == list(range(15, 100))
            cluster.drop_connections()
            fill(cluster, T0, 10)
            assert len(await read(reader, 10)) == 10
            await asyncio.sleep(0.1)
            fetched = cluster.sent(FetchRequest)[-1].partitions[0]
            assert (fetched.current_leader_epoch, fetched.last_fetched_epoch) == (1, 1)

    run(main())


def test_prefetch_is_bounded() -> None:
    async def main() -> None:
        cluster = filled(5000)
        async with consumer(cluster, "t", partition_max_bytes=1000) as reader:
            await reader.poll(max_records=1)
            await asyncio.sleep(5)
            before = len(cluster.sent(FetchRequest))
            assert before <= 4
            assert reader._reading.states[T0].buffered_bytes <= 2000
            await asyncio.sleep(5)
            assert len(cluster.sent(FetchRequest)) == before
            assert len(await read(reader, 4999)) == 4999

    run(main())


def test_pause_and_resume() -> None:
    async def main() -> None:
        cluster = filled(partitions=2)
        async with consumer(cluster, "t") as reader:
            seen = await read(reader, 20)
            reader.pause(T0)
            left = 100 - sum(record.partition == 1 for record in seen)
            assert {record.partition for record in await read(reader, left)} == {1}
            assert await reader.poll(timeout_ms=100) == {}
            assert reader.paused == [T0]
            reader.resume(T0)
            assert {record.partition for record in await read(reader, 200 - 20 - left)} == {0}

    run(main())


def test_an_idle_partition_holds_up_no_busy_one() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 2})
        async with consumer(cluster, "t", fetch_max_wait_ms=10_000, partition_max_bytes=300) as reader:
            await reader.poll(timeout_ms=10)
            begin = asyncio.get_running_loop().time()
            fill(cluster, T1, 500)
            assert len(await read(reader, 500)) == 500
            assert asyncio.get_running_loop().time() - begin < 1

    run(main())


def test_damaged_cut_and_control_batches() -> None:
    async def main() -> None:
        cluster = filled(20)
        log = cluster.logs[T0]
        base, end, data = log.batches[1]
        control = bytearray(encode_batch([b"marker"], timestamps_ms=1))
        control[22] |= 0x20
        struct.pack_into(">I", control, 17, crc32c(bytes(control[21:])))
        log.append(bytes(control))
        fill(cluster, T0, 1)
        async with consumer(cluster, "t") as reader:
            offsets = [record.offset for record in await read(reader, 21)]
            assert offsets == [*range(20), 21]
        damaged = bytearray(data)
        damaged[-3] ^= 1
        log.batches[1] = (base, end, bytes(damaged))
        async with consumer(cluster, "t") as reader:
            assert len(await read(reader, 10)) == 10
            with pytest.raises(CorruptRecordError, match="CRC"):
                await reader.poll()

    run(main())


def test_a_log_that_was_truncated_takes_the_position_back() -> None:
    async def main() -> None:
        cluster = filled(50)
        async with consumer(cluster, "t") as reader:
            await read(reader, 50)
            cluster.script(
                ApiKey.FETCH,
                lambda *_: r.FetchResponse(
                    partitions=(
                        r.FetchPartitionResponse(topic="t", partition=0, diverging_epoch=0, diverging_end_offset=40),
                    )
                ),
            )
            assert [record.offset for record in await read(reader, 10)] == list(range(40, 50))

    run(main())


async def by_poll(reader: Consumer) -> list[int]:
    return [record.offset for records in (await reader.poll(timeout_ms=100)).values() for record in records]


async def by_batch(reader: Consumer) -> list[int]:
    columns = await reader.poll_batch(timeout_ms=100)
    return [] if columns is None else list(columns.offsets)


async def by_step(reader: Consumer) -> list[int]:
    return [record.offset for record in await inside_of(reader).walk_batch(timeout_ms=100)]


@pytest.mark.parametrize("step", [by_poll, by_batch, by_step])
def test_a_batch_that_cannot_be_read_is_named_and_can_be_left_out(
    step: Callable[[Consumer], Awaitable[list[int]]],
) -> None:
    async def main() -> None:
        cluster = filled(30)
        log = cluster.logs[T0]
        base, end, data = log.batches[1]
        nonsense = bytearray(data[:61] + b"\xa5" * (len(data) - 61))
        struct.pack_into(">I", nonsense, 17, crc32c(bytes(nonsense[21:])))
        log.batches[1] = (base, end, bytes(nonsense))
        async with consumer(cluster, "t") as reader:
            seen: list[int] = []
            while len(seen) < 10:
                seen += await step(reader)
            for _ in range(2):  # It stays so until the application decides.
                with pytest.raises(
                    UnreadableBatchError, match="t-0 with the offsets 10 to 19.*seek to offset 20"
                ) as caught:
                    await step(reader)
            error = caught.value
            assert (error.partition, error.offset, error.next_offset, error.retriable) == (T0, 10, 20, False)
            reader.seek(error.partition, error.next_offset)
            while len(seen) < 20:
                seen += await step(reader)
        assert seen == [*range(10), *range(20, 30)]

    run(main())


@pytest.mark.parametrize("step", [by_poll, by_batch, by_step])
def test_a_batch_whose_header_is_damaged_is_named_behind_all_records_before_it(
    step: Callable[[Consumer], Awaitable[list[int]]],
) -> None:
    """Where it ends is not known, so the application may have to seek more than once."""

    async def main() -> None:
        cluster = filled(30)
        log = cluster.logs[T0]
        base, end, data = log.batches[1]
        log.batches[1] = (base, end, data[:16] + b"\x09" + data[17:])
        async with consumer(cluster, "t") as reader:
            seen: list[int] = []
            while len(seen) < 10:
                seen += await step(reader)
            for _ in range(2):
                with pytest.raises(
                    UnreadableBatchError, match="t-0 with the offsets 10 to 10.*header is damaged"
                ) as caught:
                    await step(reader)
            error = caught.value
            assert (error.partition, error.offset, error.next_offset, error.retriable) == (T0, 10, 11, False)
            reader.seek(T0, 20)
            while len(seen) < 20:
                seen += await step(reader)
        assert seen == [*range(10), *range(20, 30)]

    run(main())


def test_a_damaged_batch_of_one_partition_takes_no_records_of_another() -> None:
    async def main() -> None:
        cluster = filled(20, partitions=2)
        log = cluster.logs[T1]
        first, end, data = log.batches[1]
        log.batches[1] = first, end, data[:70] + bytes([data[70] ^ 1]) + data[71:]
        async with consumer(cluster) as reader:
            reader.assign([T0, T1])
            seen: list[tuple[int, int]] = []
            failures = 0
            for _ in range(6):
                try:
                    found = await reader.poll()
                except CorruptRecordError:
                    failures += 1
                else:
                    seen += [(partition, item.offset) for (_, partition), items in found.items() for item in items]
        assert failures
        assert sorted(seen) == [(0, offset) for offset in range(20)] + [(1, offset) for offset in range(10)]

    run(main())
