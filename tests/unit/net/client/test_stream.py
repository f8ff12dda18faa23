"""`Consumer.stream` and `poll(within_ms=...)`: batches that fill up for a while. On virtual time."""

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, T1, consumer, fill, filled
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.fake_groups import FakeGroups
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.positions.partition_state import PartitionState


def now() -> float:
    return asyncio.get_running_loop().time()


def of(batch: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in batch]


def test_batches_are_full_as_long_as_records_are_there() -> None:
    async def main() -> None:
        async with consumer(filled(1_000, partitions=2), "t") as reader, aclosing(stream(reader, 300, 100)) as batches:
            began = now()
            sizes = [len(await anext(batches)) for _ in range(7)]
            assert sizes == [300] * 6 + [200]
            assert 0.1 <= now() - began < 0.2  # only the last batch has waited

    run(main())


def stream(reader: Consumer, batch_size: int, within_ms: float) -> Any:
    return reader.stream(batch_size=batch_size, within_ms=within_ms)


async def trickle(cluster: FakeCluster, count: int, pause_s: float) -> None:
    for _ in range(count):
        fill(cluster, T0, 1)
        await asyncio.sleep(pause_s)


def test_a_batch_waits_for_others_from_its_first_record_on() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with consumer(cluster, "t") as reader, aclosing(stream(reader, 1_000, 500)) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(60)  # no record, no batch
            assert not waiting.done()
            began = now()
            feeding = asyncio.ensure_future(trickle(cluster, 100, 0.1))
            first = await waiting
            assert 0.5 <= now() - began < 0.6 and 4 <= len(first) <= 6
            rest = of(await anext(batches))
            assert rest[0] == first[-1].offset + 1  # nothing is left out, and nothing comes twice
            feeding.cancel()

    run(main())


def test_a_batch_that_is_full_does_not_wait() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        async with consumer(cluster, "t") as reader:
            feeding = asyncio.ensure_future(trickle(cluster, 10, 0.1))
            began = now()
            found = await reader.poll(max_records=3, timeout_ms=5_000, within_ms=60_000)
            assert of(found[T0]) == [0, 1, 2] and now() - began < 1
            await feeding

    run(main())


def test_what_is_ready_is_counted_through_parts_of_batches_and_all_partitions() -> None:
    """7 of 10 records of each batch at a time: what an earlier call left over counts, and what it has taken does not."""

    async def main() -> None:
        async with consumer(filled(1_000, partitions=3), "t") as reader:
            await reader.poll(max_records=7)
            began = now()
            sizes = [await size_of(reader, 299) for _ in range(10)]
            assert sizes == [299] * 10 and now() - began < 0.1
            assert await size_of(reader, 299) == 3 and 0.1 <= now() - began < 0.2

    async def size_of(reader: Consumer, count: int) -> int:
        found = await reader.poll(max_records=count, within_ms=100)
        return sum(map(len, found.values()))

    run(main())


def test_records_of_paused_partitions_do_not_complete_a_batch() -> None:
    async def main() -> None:
        async with consumer(filled(100, partitions=2), "t") as reader:
            await reader.poll(max_records=1)  # both are buffered
            await asyncio.sleep(1)
            reader.pause(T1)
            began = now()
            found = await reader.poll(max_records=150, within_ms=500)
            assert {*found} == {T0} and 0.5 <= now() - began < 0.6

    run(main())


def test_a_batch_that_fills_up_for_long_does_not_end_the_membership() -> None:
    async def main() -> None:
        cluster = filled(10)
        FakeGroups(cluster)
        async with consumer(cluster, "t", group="g", max_poll_interval_ms=6_000) as reader:
            began = now()
            found = await reader.poll(max_records=100, timeout_ms=5_000, within_ms=60_000)
            assert of(found[T0]) == list(range(10)) and 60 <= now() - began < 61

    run(main())


def test_a_seek_while_a_batch_fills_up_is_where_it_begins() -> None:
    async def main() -> None:
        async with consumer(filled(10), "t") as reader:
            waiting = asyncio.ensure_future(reader.poll(max_records=100, timeout_ms=5_000, within_ms=1_000))
            await asyncio.sleep(0.5)
            reader.seek(T0, 4)
            assert of((await waiting)[T0]) == [4, 5, 6, 7, 8, 9]

    run(main())


@pytest.mark.parametrize("within_ms", [-1, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(within_ms: float) -> None:
    async def main() -> None:
        async with consumer(filled(10), "t") as reader:
            with pytest.raises(InvalidRequestError, match="within_ms is .*; it must be from 0 to"):
                await reader.poll(within_ms=within_ms)
            assert len((await reader.poll(within_ms=0))[T0]) == 10

    run(main())


def test_counting_what_is_ready_does_not_read_every_batch() -> None:
    """Each answer that arrives asks for the count: with batches of one record, reading their headers took half a second."""
    log = filled(10_000, per_batch=1).logs[T0]
    state = PartitionState(T0, max_bytes=1 << 20)
    state.seek(0)
    while data := log.read(state.fetch_offset, 50_000):
        state.fetched(data)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        count = state.buffered_records(1_000_000)
    finally:
        sys.setprofile(None)
    assert count == 10_000 and len(calls) < 10
    for left in (9_993, 9_500, 8_997):  # in the middle of an answer, and behind its end
        state.take(state.buffered_records(1_000_000) - left)
        assert state.buffered_records(1_000_000) == left
        assert state.buffered_records(500) >= 500


def test_a_buffer_without_room_does_not_wait_either() -> None:
    async def main() -> None:
        async with consumer(filled(5_000), "t", partition_max_bytes=1_000) as reader:
            began = now()
            found = await reader.poll(max_records=5_000, timeout_ms=5_000, within_ms=60_000)
            assert 0 < len(found[T0]) < 5_000 and now() - began < 1

    run(main())


def test_a_cancelled_call_loses_no_record() -> None:
    async def main() -> None:
        async with consumer(filled(10), "t") as reader:
            waiting = asyncio.ensure_future(reader.poll(max_records=100, timeout_ms=5_000, within_ms=60_000))
            await asyncio.sleep(1)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert of((await reader.poll())[T0]) == list(range(10))

    run(main())


def test_a_partition_that_is_taken_away_while_a_batch_fills_up_is_not_in_it() -> None:
    async def main() -> None:
        cluster = filled(10, partitions=2)
        FakeGroups(cluster)
        async with consumer(cluster, "t", group="g") as first:
            waiting = asyncio.ensure_future(first.poll(max_records=1_000, timeout_ms=30_000, within_ms=20_000))
            await asyncio.sleep(2)
            async with consumer(cluster, "t", group="g") as second:
                theirs: dict[Any, Any] = {}
                async with asyncio.timeout(60):
                    while not theirs:
                        theirs = await second.poll(timeout_ms=1_000)
                mine = await waiting
                assert {*mine, *theirs} == {T0, T1} and not mine.keys() & theirs.keys()

    run(main())


def test_records_of_a_batch_are_done_when_the_next_one_is_asked_for() -> None:
    async def main() -> None:
        cluster = filled(20)
        async with consumer(cluster, group="g") as reader:
            reader.assign([T0])
            async for batch in reader.stream(batch_size=10, within_ms=10):
                if batch[0].offset == 10:
                    break  # the second batch is not done
        assert cluster.committed["g"] == {T0: 10}

    run(main())


def test_the_stream_ends_with_the_consumer() -> None:
    async def main() -> None:
        reader = consumer(filled(5), "t")
        await reader.start()
        seen = [len(batch) async for batch in until_first_closes(reader)]
        assert seen == [5]

    async def until_first_closes(reader: Consumer) -> AsyncIterator[list[ConsumerRecord]]:
        async for batch in reader.stream(batch_size=5, within_ms=10):
            yield batch
            await reader.close()

    run(main())


def test_bad_records_do_not_begin_the_wait_again() -> None:
    """Ten of them at the front, each given to a handler: the batch is due as if there were none."""

    def number(data: bytes) -> int:
        if int(data) < 10:
            raise ValueError("too small")
        return int(data)

    async def handle(record: Any, error: Any) -> None:
        handled.append(record.offset)

    async def main() -> None:
        async with consumer(filled(15), "t", value_deserializer=number, on_bad_record=handle) as reader:
            began = now()
            found = await reader.poll(max_records=100, timeout_ms=60_000, within_ms=500)
            assert of(found[T0]) == [*range(10, 15)] and handled == [*range(10)]
            assert 0.5 <= now() - began < 0.6

    handled: list[int] = []
    run(main())


def test_records_that_are_skipped_take_no_time_from_the_next_batch() -> None:
    async def main() -> None:
        cluster = filled(3)
        async with consumer(cluster, "t", value_deserializer=from_three_on, on_bad_record="skip") as reader:
            waiting = asyncio.ensure_future(reader.poll(max_records=100, timeout_ms=60_000, within_ms=500))
            await asyncio.sleep(10)
            feeding = asyncio.ensure_future(trickle(cluster, 10, 0.1))
            assert len((await waiting)[T0]) >= 4
            await feeding

    def from_three_on(data: bytes) -> int:
        if int(data) < 3:
            raise ValueError("too small")
        return int(data)

    run(main())


def test_records_in_the_buffer_are_counted_without_looking_at_all_batches_again() -> None:
    """Also of a fetch that is taken in part, and of what is left of a batch."""
    state = PartitionState(T0, max_bytes=1_000_000)
    state.seek(0)
    batches = [bytes(batch) for _, _, batch in filled(35, per_batch=3).logs[T0].batches]
    state.fetched(b"".join(batches[:10]))
    state.fetched(b"".join(batches[10:]))
    left = 35
    assert state.buffered_records(1_000) == left
    for count in (1, 1, 1, 4, 20, 5):
        left -= len(state.take(count))
        assert state.buffered_records(1_000) == left
    assert len(state.take(1_000)) == left == 3 and not state.buffered_records(1_000)
    assert state.buffered_records(0) == 0
