"""Spans of records that are sent and processed, and the trace that goes on from one program to the other."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from unit.net.client.consumer_world import consumer, read
from unit.net.client.fake_cluster import FakeCluster
from unit.net.client.virtual_time import run

from barnabas.log.vocabulary.errors import RecordTooLargeError
from barnabas.net.client.connection.errors import ClientClosedError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.tracing.tracing import MAX_LINKS, Tracing


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider)
        self.tracer = provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    yield Spans()


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def sent(cluster: FakeCluster, spans: Spans, *values: bytes | None, **options: Any) -> None:
    async with Producer(client=cluster.client()) as producer:
        for value in values:
            await (await spans.tracing.send(producer, "t", value, **options))
        await asyncio.sleep(0)


def test_a_trace_goes_on_from_the_sender_to_the_handler(spans: Spans) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        with spans.tracer.start_as_current_span("order"):
            await sent(cluster, spans, b"one", key=b"k", headers=[("a", b"1"), ("TraceParent", b"old")])
        async with consumer(cluster, "t") as reader:
            (record,) = await read(reader, 1)
        assert [name for name, _ in record.headers or ()] == ["a", "traceparent"]
        with spans.tracing.processing(record, group="g"), spans.tracer.start_as_current_span("query"):
            pass

    run(main())
    order, send, process, query = (spans.one(name) for name in ("order", "send t", "process t", "query"))
    assert {ids(span)[0] for span in (order, send, process, query)} == {ids(order)[0]}, "one trace"
    parents = [span.parent.span_id for span in (send, process, query) if span.parent is not None]
    assert parents == [ids(order)[1], ids(send)[1], ids(process)[1]]
    assert (send.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert send.attributes is not None and process.attributes is not None
    both = {"messaging.system": "kafka", "messaging.destination.name": "t", "messaging.kafka.message.key": "k"}
    place = {"messaging.destination.partition.id": "0", "messaging.kafka.offset": 0}
    assert dict(send.attributes).items() >= (both | place | {"messaging.operation.type": "send"}).items()
    told = both | place | {"messaging.operation.type": "process", "messaging.consumer.group.name": "g"}
    assert dict(process.attributes).items() >= told.items()


def test_a_poll_is_linked_to_the_senders_of_its_records(spans: Spans) -> None:
    async def main() -> int:
        cluster = FakeCluster(topics={"t": 1})
        await sent(cluster, spans, b"one", b"two")
        async with Producer(client=cluster.client()) as producer:
            await (await producer.send("t", b"without a trace"))
        async with consumer(cluster, "t") as reader:
            found, count = 0, 0
            while found < 3:
                received = sum(map(len, (await spans.tracing.poll(reader, timeout_ms=200)).values()))
                found, count = found + received, count + bool(received)
            assert await spans.tracing.poll(reader, timeout_ms=10) == {}
        with pytest.raises(ClientClosedError):
            await spans.tracing.poll(reader)
        return count

    count = run(main())
    polls, failed = spans.named("poll t"), spans.one("poll")
    assert len(polls) == count, "a poll without records leaves no span"
    assert sum(int((span.attributes or {})["messaging.batch.message_count"]) for span in polls) == 3
    linked = [(link.context.trace_id, link.context.span_id) for span in polls for link in span.links]
    assert sorted(linked) == sorted(ids(span) for span in spans.named("send t"))
    told = {
        "messaging.operation.type": "receive",
        "messaging.destination.partition.id": "0",
        "messaging.system": "kafka",
    }
    assert all(dict(span.attributes or {}).items() >= told.items() for span in polls)
    assert all((span.kind, span.parent) == (trace.SpanKind.CLIENT, None) for span in polls)
    assert all(span.start_time is not None and span.start_time <= (span.end_time or 0) for span in polls)
    assert (failed.attributes or {})["error.type"] == "ClientClosedError"


def test_a_poll_of_many_records_has_a_limit_of_links(spans: Spans) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 2})
        for partition in (0, 1):
            await sent(cluster, spans, *[b"v"] * (MAX_LINKS + 2), partition=partition)
        async with consumer(cluster, "t") as reader:
            await spans.tracing.poll(reader, timeout_ms=1_000, within_ms=1_000)

    run(main())
    (span,) = spans.named("poll t")
    assert len(span.links) == MAX_LINKS
    assert (span.attributes or {})["messaging.batch.message_count"] == 2 * (MAX_LINKS + 2)


def test_a_failure_is_told_in_the_span(spans: Spans) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        with pytest.raises(RecordTooLargeError):
            await sent(cluster, spans, b"x" * 10_000_000)
        cluster.logs[next(iter(cluster.logs))].max_batch_bytes = 10
        with pytest.raises(RecordTooLargeError):
            await sent(cluster, spans, b"one")

    run(main())
    failed = spans.named("send t")
    assert len(failed) == 2
    for span in failed:
        assert span.status.status_code is trace.StatusCode.ERROR and span.attributes is not None
        assert span.attributes["error.type"] == "RecordTooLargeError"
        assert [event.name for event in span.events] == ["exception"]


def test_a_tombstone_without_a_key_and_a_record_without_a_context(spans: Spans) -> None:
    async def main() -> None:
        cluster = FakeCluster(topics={"t": 1})
        await sent(cluster, spans, None)
        async with Producer(client=cluster.client()) as producer:
            await (await producer.send("t", b"plain"))
        async with consumer(cluster, "t") as reader:
            for record in await read(reader, 2):
                with spans.tracing.processing(record):
                    pass

    run(main())
    tombstone, plain = spans.named("process t")
    assert tombstone.attributes is not None and tombstone.attributes["messaging.kafka.message.tombstone"] is True
    assert tombstone.parent is not None and plain.parent is None


@pytest.mark.parametrize("is_blocking", [False, True])
def test_each_call_of_a_handler_is_a_span(spans: Spans, is_blocking: bool) -> None:
    calls: list[int] = []

    def fails_once(record: ConsumerRecord) -> None:
        assert trace.get_current_span().is_recording()
        calls.append(record.offset)
        if len(calls) == 1:
            raise ValueError("once")

    async def in_the_loop(record: ConsumerRecord) -> None:
        fails_once(record)

    handler = spans.tracing.handler(fails_once if is_blocking else in_the_loop, group="g")

    class Record:
        topic, partition, offset, key, value, headers = "t", 0, 5, b"\xff", b"v", ()

    async def main() -> None:
        for _ in range(2):
            try:
                done = handler(Record())  # type: ignore[arg-type]
                if not is_blocking:
                    await done
            except ValueError:
                pass

    run(main())
    first, second = spans.named("process t")
    assert (first.status.status_code, second.status.status_code) == (trace.StatusCode.ERROR, trace.StatusCode.UNSET)
    assert asyncio.iscoroutinefunction(handler) is not is_blocking, "process_each tells the two apart"
