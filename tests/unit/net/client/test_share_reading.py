"""`ShareConsumer` with deserializers and dead letters: what is rejected, when, and what the application is told."""

import asyncio
from typing import Any

import pytest
from simulation.log_building import batch_of
from unit.net.shell_world import simulated

from barnabas.log.format.record_batch import patch
from barnabas.log.vocabulary.share.messages import Acknowledgement, AcquiredRecords, SharePartitionAnswer
from barnabas.net.client.connection.errors import (
    BarnabasError,
    DeserializationError,
    InvalidConfigError,
    RecordGivenUpError,
)
from barnabas.net.client.serde.serdes import SchemaNotLoaded
from barnabas.net.client.share.share_consumer import ShareConsumer

from .test_share_consumer import Broker

ACCEPT, RELEASE, REJECT = (
    int(kind) for kind in (Acknowledgement.ACCEPT, Acknowledgement.RELEASE, Acknowledgement.REJECT)
)


class Queue(Broker):
    """Gives out these values, each with its number of deliveries."""

    def __init__(self, *values: bytes, deliveries: int = 1) -> None:
        super().__init__()
        self._values = values
        self._deliveries = deliveries
        self.kinds: dict[int, int] = {}

    async def _answer(self, request: Any, *, timeout_ms: float) -> Any:
        for batch in (batch for item in request.partitions for batch in item.acknowledged):
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.kinds[offset] = (
                    batch.kinds[0] if len(batch.kinds) == 1 else batch.kinds[offset - batch.first_offset]
                )
        answer = await super()._answer(request, timeout_ms=timeout_ms)
        (partition,) = answer.partitions
        if not partition.acquired:
            return answer
        offset = partition.acquired[0].first_offset
        if offset >= len(self._values):
            return type(answer)(partitions=(SharePartitionAnswer(topic_id="id", partition=0),), lock_duration_ms=1_000)
        data = batch_of(self._values[offset], timestamp_ms=1)
        patch(data, 0, base_offset=offset, leader_epoch=1)
        acquired = AcquiredRecords(first_offset=offset, last_offset=offset, delivery_count=self._deliveries)
        found = SharePartitionAnswer(topic_id="id", partition=0, records=bytes(data), acquired=(acquired,))
        return type(answer)(partitions=(found,), lock_duration_ms=1_000)


async def consumer_of(queue: Queue, **options: Any) -> ShareConsumer:
    consumer = ShareConsumer("t", group="g", client=queue, **options)  # type: ignore[arg-type]
    await consumer.start()
    return consumer


async def values_of(consumer: ShareConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += [record.value for record in await consumer.poll()]
    return found


@simulated
async def test_a_record_that_cannot_be_read_stops_until_it_is_settled() -> None:
    queue = Queue(b"1", b"bad", b"2")
    consumer = await consumer_of(queue, value_deserializer=int)
    assert await values_of(consumer, 1) == [1]
    for _ in range(2):
        with pytest.raises(DeserializationError, match=r"acknowledge\(error.record") as raised:
            await consumer.poll()
    record: Any = raised.value.record
    assert (record.value, record.delivery_count, record.offset) == (b"bad", 1, 1)
    consumer.acknowledge(record, "release")
    assert await values_of(consumer, 1) == [2]
    await consumer.close()
    assert queue.kinds == {0: ACCEPT, 1: RELEASE}


@simulated
async def test_skipped_records_are_rejected() -> None:
    queue = Queue(b"1", b"bad", b"2")
    consumer = await consumer_of(queue, value_deserializer=int, on_bad_record="skip")
    assert await values_of(consumer, 2) == [1, 2]
    await consumer.poll(timeout_ms=100)
    await consumer.commit()
    assert queue.kinds == {0: ACCEPT, 1: REJECT, 2: ACCEPT}
    await consumer.close()


@simulated
async def test_a_function_that_raises_gets_the_record_again() -> None:
    queue, told = Queue(b"bad", b"2"), list[tuple[Any, type]]()

    async def handler(record: Any, error: Exception) -> None:
        told.append((record.value, type(error)))
        if len(told) == 1:
            raise OSError("the other system is down")

    consumer = await consumer_of(queue, value_deserializer=int, on_bad_record=handler)
    with pytest.raises(OSError, match="down"):
        await consumer.poll()
    assert queue.kinds == {}
    assert await values_of(consumer, 1) == [2]
    assert told == [(b"bad", DeserializationError)] * 2
    await consumer.commit()
    assert queue.kinds == {0: REJECT}
    await consumer.close()


@simulated
async def test_a_schema_is_loaded_for_as_long_as_the_poll_lasts() -> None:
    loaded = asyncio.Event()

    def read(data: bytes) -> int:
        if not loaded.is_set():

            async def load() -> None:
                await loaded.wait()

            raise SchemaNotLoaded(load)
        return int(data)

    class Reads:
        def deserialize(self, data: bytes, topic: str, part: str) -> int:
            return read(data)

    consumer = await consumer_of(Queue(b"1"), value_deserializer=Reads())
    assert await consumer.poll(timeout_ms=200) == []
    asyncio.get_running_loop().call_later(0.1, loaded.set)
    assert await values_of(consumer, 1) == [1]
    await consumer.close()


@simulated
async def test_a_record_whose_lock_may_be_over_when_its_schema_has_come_is_not_returned() -> None:
    """Another member may have handled it by now. It is locked for a second, and the registry takes two."""
    loaded = asyncio.Event()

    class Reads:
        def deserialize(self, data: bytes, topic: str, part: str) -> int:
            if not loaded.is_set():
                raise SchemaNotLoaded(loaded.wait)  # type: ignore[arg-type]
            return int(data)

    queue = Queue(b"1", b"2")
    consumer = await consumer_of(queue, value_deserializer=Reads())
    asyncio.get_running_loop().call_later(2, loaded.set)
    found = await consumer.poll(timeout_ms=5_000) or await consumer.poll(timeout_ms=5_000)
    assert [record.value for record in found] == [2]
    await consumer.commit()
    await consumer.close()
    assert 0 not in queue.kinds


@simulated
async def test_a_rejected_record_is_rejected_when_its_dead_letter_is_written() -> None:
    queue, gate, told = Queue(b"1"), asyncio.Event(), list[tuple[Any, str]]()

    async def keep(record: Any, error: Exception) -> None:
        await gate.wait()
        assert isinstance(error, RecordGivenUpError)
        told.append((record.value, error.message))

    consumer = await consumer_of(queue, value_deserializer=int, dead_letter=keep)
    (record,) = await consumer.poll()
    consumer.acknowledge(record, "reject", reason="no such customer")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.commit(), 1)
    assert queue.kinds == {}
    asyncio.get_running_loop().call_later(1, gate.set)
    await consumer.commit()
    assert queue.kinds == {0: REJECT} and told == [(b"1", "no such customer")]
    await consumer.close()


@simulated
async def test_a_record_without_its_dead_letter_is_released() -> None:
    queue = Queue(b"1")

    def keep(record: Any, error: Exception) -> None:
        raise OSError("disk full")

    consumer = await consumer_of(queue, dead_letter=keep)
    (record,) = await consumer.poll()
    consumer.acknowledge(record, "reject")
    with pytest.raises(BarnabasError, match=r"no dead letter: disk full"):
        await consumer.commit()
    assert queue.kinds == {0: RELEASE}
    await consumer.close()


@simulated
async def test_close_waits_for_dead_letters() -> None:
    queue, gate = Queue(b"1"), asyncio.Event()

    async def keep(record: Any, error: Exception) -> None:
        await gate.wait()

    consumer = await consumer_of(queue, dead_letter=keep)
    (record,) = await consumer.poll()
    consumer.acknowledge(record, "reject")
    asyncio.get_running_loop().call_later(2, gate.set)
    await consumer.close()
    assert queue.kinds == {0: REJECT}


@simulated
@pytest.mark.parametrize(("deliveries", "is_given"), [(3, True), (4, False)])
async def test_a_record_that_comes_too_often_is_a_dead_letter(deliveries: int, is_given: bool) -> None:
    queue, told = Queue(b"1", deliveries=deliveries), list[str]()

    def keep(record: Any, error: BarnabasError) -> None:
        told.append(error.message)

    consumer = await consumer_of(queue, dead_letter=keep, max_deliveries=3)
    found = await consumer.poll(timeout_ms=300)
    await consumer.commit()
    assert len(found) == is_given
    assert told == ([] if is_given else ["delivered 4 times, and never accepted"])
    assert queue.kinds == ({} if is_given else {0: REJECT})
    await consumer.close()


@pytest.mark.parametrize(
    "options", [{"max_deliveries": 3}, {"dead_letter": print, "max_deliveries": 0}, {"on_bad_record": "no"}]
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        ShareConsumer("t", group="g", **options)
