"""Consumers with deserializers: nothing is skipped that the application has not skipped, whatever fails or is cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from unit.net.client.consumer_world import T0, T1, consumer, filled, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas import ConsumerRecord, dead_letters
from barnabas.log.format.record_codec import encode_batch
from barnabas.net.client.connection.errors import (
    DeserializationError,
    InvalidConfigError,
    SchemaRegistryUnavailableError,
)
from barnabas.net.client.consumer.consumer import Consumer
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.serde.serdes import Part, SchemaNotLoaded

BAD = 7


def number(data: bytes) -> int:
    found = int(data)
    if found % 10 == BAD:
        raise ValueError("it ends with seven")
    return found


class Schemas:
    """A deserializer that needs a schema for every ten numbers; `load` says how that goes."""

    def __init__(self, load: Callable[[int], Awaitable[None]]) -> None:
        self.loads: list[int] = []
        self._known: set[int] = set()
        self._load = load

    def deserialize(self, data: bytes, topic: str, part: Part) -> int:
        ten = int(data) // 10
        if ten in self._known:
            return int(data)

        async def load() -> None:
            self.loads.append(ten)
            await self._load(ten)
            self._known.add(ten)

        raise SchemaNotLoaded(load)


async def nothing(ten: int) -> None:
    await asyncio.sleep(0.001)


async def collected(reader: Consumer, end: int) -> list[Any]:
    """The values of `async for`, up to the record before `end`."""
    found = []
    async for record in reader:
        found.append(record.value)
        if record.offset >= end - 1:
            break
    return found


def test_records_have_objects_and_keep_what_was_stored() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        cluster.logs[T0].append(encode_batch([b'{"n": 1}', None], keys=[b"k", b"dead"], timestamps_ms=[5, 6]))
        async with consumer(cluster, "t", value_deserializer="json", key_deserializer="text") as reader:
            first, second = await read(reader, 2)
            assert (first.value, first.key, first.offset, first.timestamp_ms) == ({"n": 1}, "k", 0, 5)
            assert (first.topic, first.partition, first.topic_partition, first.headers) == ("t", 0, T0, ())
            assert (
                isinstance(first.raw, ConsumerRecord) and first.raw.value == b'{"n": 1}' and first.raw.raw is first.raw
            )
            assert (second.value, second.key) == (None, "dead")
            assert "DecodedRecord(topic='t', partition=0, offset=0" in repr(first)

    run(main())


@pytest.mark.parametrize("way", ["poll", "poll one by one", "async for"])
def test_a_bad_record_stops_the_reader_until_it_seeks(way: str) -> None:
    async def main() -> None:
        cluster = filled(20)
        async with consumer(cluster, "t", value_deserializer=number) as reader:

            async def some() -> list[Any]:
                if way == "async for":
                    return await collected(reader, 20)
                at_most = 1 if way == "poll one by one" else 500
                polled = await reader.poll(max_records=at_most)
                return [record.value for records in polled.values() for record in records]

            found: list[Any] = []
            errors: list[DeserializationError] = []
            while len(found) < 18 and len(errors) < 10:
                try:
                    found += await some() if way != "async for" else await tracked(reader, found)
                except DeserializationError as error:
                    errors.append(error)
                    assert await reader.position(T0) == error.offset
                    if len(errors) % 3 == 0:  # The same error comes until the application goes on.
                        reader.seek(error.partition, error.next_offset)
            assert found == [n for n in range(20) if n % 10 != BAD]
            assert [error.offset for error in errors] == [7, 7, 7, 17, 17, 17]
            assert "the value of the record at offset 7 of t-0 cannot be read: it ends with seven" in str(errors[0])

    async def tracked(reader: Consumer, found: list[Any]) -> list[Any]:
        async for record in reader:
            found.append(record.value)
            if len(found) == 18:
                break
        return []

    run(main())


def test_skipped_records_are_counted_logged_and_committed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = filled(28)
        reader = consumer(cluster, "t", value_deserializer=number, on_bad_record="skip")
        with caplog.at_level(logging.WARNING):
            async with reader:
                assert [record.value for record in await read(reader, 25)] == [n for n in range(27) if n % 10 != BAD]
                assert await reader.poll(timeout_ms=0) == {} and await reader.position(T0) == 28
        assert caplog.text.count("record skipped") == 3
        assert "record skipped partition=t-0 offset=27 part=value reason=it ends with seven" in caplog.text

    run(main())


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_handler_gets_the_record_and_its_error(is_coroutine: bool) -> None:
    async def main() -> None:
        handled: list[tuple[Any, int]] = []

        def handle(record: ConsumerRecord, error: DeserializationError) -> None:
            handled.append((record.value, error.offset))

        async def handle_later(record: ConsumerRecord, error: DeserializationError) -> None:
            await asyncio.sleep(0.01)
            handle(record, error)

        handler = handle_later if is_coroutine else handle
        async with consumer(filled(20), "t", value_deserializer=number, on_bad_record=handler) as reader:
            assert [record.value for record in await read(reader, 18)] == [n for n in range(20) if n % 10 != BAD]
            assert handled == [(b"7", 7), (b"17", 17)]

    run(main())


def test_a_record_whose_handler_fails_or_is_cancelled_comes_again() -> None:
    async def main() -> None:
        calls: list[int] = []

        async def handle(record: ConsumerRecord, error: DeserializationError) -> None:
            calls.append(record.offset)
            if len(calls) == 1:
                raise RuntimeError("the dead-letter topic is full")
            if len(calls) == 2:
                await asyncio.sleep(3600)

        async with consumer(filled(10), "t", value_deserializer=number, on_bad_record=handle) as reader:
            assert [record.value for record in await read(reader, 7)] == list(range(7))
            with pytest.raises(RuntimeError, match="is full"):
                await reader.poll()
            polling = asyncio.create_task(reader.poll())
            await asyncio.sleep(1)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert await reader.position(T0) == 7
            assert [record.value for record in await read(reader, 2)] == [8, 9]
            assert calls == [7, 7, 7]

    run(main())


def test_a_seek_while_the_handler_works_wins() -> None:
    async def main() -> None:
        async def handle(record: ConsumerRecord, error: DeserializationError) -> None:
            reader.seek(T0, 3)
            is_first.append(True)
            if len(is_first) > 1:
                reader.seek(T0, 9)

        is_first: list[bool] = []
        reader = consumer(filled(10), "t", value_deserializer=number, on_bad_record=handle)
        async with reader:
            assert [record.value for record in await read(reader, 12)] == [0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 9]

    run(main())


@pytest.mark.parametrize("way", ["poll", "async for"])
def test_schemas_are_loaded_between_records_and_nothing_is_skipped(way: str) -> None:
    async def main() -> None:
        schemas = Schemas(nothing)
        async with consumer(filled(95, per_batch=7), "t", value_deserializer=schemas) as reader:
            if way == "poll":
                found = [record.value for record in await read(reader, 95)]
            else:
                found = await collected(reader, 95)
            assert found == list(range(95))
            assert schemas.loads == list(range(10))

    run(main())


def test_a_registry_that_is_down_is_an_error_of_each_call_and_the_record_waits() -> None:
    async def main() -> None:
        is_down = True

        async def load(ten: int) -> None:
            if is_down and ten == 1:
                raise SchemaRegistryUnavailableError("down")

        async with consumer(filled(20), "t", value_deserializer=Schemas(load), on_bad_record="skip") as reader:
            assert [record.value for record in await read(reader, 10)] == list(range(10))
            for _ in range(3):
                with pytest.raises(SchemaRegistryUnavailableError):
                    await reader.poll()
                assert await reader.position(T0) == 10
            is_down = False
            assert [record.value for record in await read(reader, 10)] == list(range(10, 20))

    run(main())


def test_a_call_returns_at_its_timeout_while_a_schema_is_loaded() -> None:
    async def main() -> None:
        async def load(ten: int) -> None:
            await asyncio.sleep(5)

        loop = asyncio.get_running_loop()
        schemas = Schemas(lambda ten: asyncio.shield(loads.setdefault(ten, asyncio.ensure_future(load(ten)))))
        loads: dict[int, asyncio.Future[None]] = {}
        async with consumer(filled(10), "t", value_deserializer=schemas) as reader:
            began = loop.time()
            assert await reader.poll(timeout_ms=1_000) == {}
            assert loop.time() - began < 1.5
            assert [record.value for record in await read_patiently(reader, 10)] == list(range(10))
            assert loop.time() - began < 7

    run(main())


async def read_patiently(reader: Consumer, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while len(found) < count:
        found += [record for records in (await reader.poll(timeout_ms=500)).values() for record in records]
    return found


class Trouble:
    """Loads and handlers that take their time and fail."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.handled: set[Any] = set()

    async def load(self, ten: int) -> None:
        await asyncio.sleep(self.random.choice([0, 0.01, 0.2]))
        if self.random.random() < 0.3:
            raise SchemaRegistryUnavailableError("down")

    async def handle(self, record: ConsumerRecord, error: DeserializationError) -> None:
        await asyncio.sleep(self.random.choice([0, 0.05]))
        if self.random.random() < 0.3:
            raise RuntimeError("full")
        self.handled.add((record.topic_partition, record.offset))

    async def poll(self, reader: Consumer) -> Any:
        """A call that may be cancelled."""
        call = asyncio.create_task(reader.poll(max_records=self.random.choice([1, 5, 500]), timeout_ms=100))
        done, _ = await asyncio.wait([call], timeout=self.random.choice([0.001, 0.03, 5]))
        if not done:
            call.cancel()
        try:
            return await call
        except (asyncio.CancelledError, SchemaRegistryUnavailableError, RuntimeError):
            return {}


@pytest.mark.parametrize("seed", range(30))
def test_calls_that_are_cancelled_at_any_moment_skip_and_repeat_nothing(seed: int) -> None:
    """Loads, handlers, partitions in turn, and calls that end at any time: each good record is returned once."""

    async def main() -> None:
        class Both(Schemas):
            def deserialize(self, data: bytes, topic: str, part: Part) -> int:
                return number(b"%d" % super().deserialize(data, topic, part))

        trouble = Trouble(seed)
        cluster = filled(60, per_batch=trouble.random.choice([1, 7, 60]), partitions=2)
        reader = consumer(cluster, "t", value_deserializer=Both(trouble.load), on_bad_record=trouble.handle)
        found: dict[Any, list[int]] = {T0: [], T1: []}
        async with reader:
            while sum(map(len, found.values())) < 108:
                for partition, records in (await trouble.poll(reader)).items():
                    found[partition] += [record.value for record in records]
        good = [n for n in range(60) if n % 10 != BAD]
        assert found == {T0: good, T1: good}
        assert trouble.handled == {(place, n) for place in (T0, T1) for n in range(60) if n % 10 == BAD}

    run(main())


def test_what_the_application_has_not_seen_of_a_walk_is_decoded_again() -> None:
    """A walk that ends in its middle puts back what was stored, not objects."""

    async def main() -> None:
        async with consumer(filled(10), "t", value_deserializer=number, on_bad_record="skip") as reader:
            walked = []
            async for record in reader:
                walked.append(record.value)
                if record.offset == 4:
                    break
            reader.pause(T0)
            reader.resume(T0)
            assert walked + [record.value for record in await read(reader, 4)] == [n for n in range(10) if n != BAD]
            reader.seek(T0, 2)
            assert (await read(reader, 1))[0].value == 2
            batch = await reader.poll_batch()
            assert batch is not None and batch.values == [b"%d" % n for n in range(3, 10)]

    run(main())


def test_dead_letters_are_as_they_were_stored_with_the_reason() -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1, "dead": 1})
        cluster.logs[T0].append(encode_batch([b"1", b"x", b"2"], keys=[None, b"k", None], timestamps_ms=[5, 6, 7]))
        async with Producer(client=cluster.client()) as producer:
            handler = dead_letters(producer, "dead")
            async with consumer(cluster, "t", value_deserializer=int, on_bad_record=handler) as reader:
                assert [record.value for record in await read(reader, 2)] == [1, 2]
            async with consumer(cluster, "dead") as reader:
                (dead,) = await read(reader, 1)
            assert (dead.key, dead.value, dead.timestamp_ms) == (b"k", b"x", 6)
            assert dict(dead.headers) == {
                "barnabas-error": b"value: invalid literal for int() with base 10: b'x'",
                "barnabas-record-topic": b"t",
                "barnabas-record-partition": b"0",
                "barnabas-record-offset": b"1",
            }

    run(main())


def test_wrong_options_are_refused() -> None:
    cluster = FakeCluster(topics={"t": 1})
    with pytest.raises(InvalidConfigError, match="on_bad_record is 'ignore'; it must be"):
        consumer(cluster, "t", on_bad_record="ignore")
    with pytest.raises(InvalidConfigError, match="value_deserializer is 'xml'"):
        consumer(cluster, "t", value_deserializer="xml")
    with pytest.raises(InvalidConfigError, match="a producer without serializers"):
        dead_letters(Producer(client=cluster.client(), value_serializer="json"), "dead")
    with pytest.raises(InvalidConfigError, match="without a transactional_id"):
        dead_letters(Producer(client=cluster.client(), transactional_id="x"), "dead")
