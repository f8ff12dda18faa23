"""`Tracing`: a trace goes on from the program that sends a record to the one that processes it (OpenTelemetry).

The context travels in the record's headers, as the configured propagator writes it (`traceparent`), so programs with Kafka's
clients and their instrumentation take part. Names and attributes are those of OpenTelemetry's conventions for messaging.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ..connection.arguments import explained
from ..connection.errors import InvalidConfigError
from ..connection.records import ConsumerRecord, RecordMetadata
from ..producer.handles import Handle

if TYPE_CHECKING:  # an extra
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from ..consumer.consumer import Consumer
    from ..producer.producer import Producer
    from ..producer.transaction import Transaction

NAME: Final = "barnabas"
MAX_LINKS: Final = 128  # of a span; also OpenTelemetry's own default
Headers = Sequence[tuple[str, bytes | None]]


@explained(
    sender="a producer, or a transaction",
    partition="the number of a partition; None: chosen by the key",
    options="those of `Consumer.poll`",
    consumer="a consumer of this event loop",
)
class Tracing:
    """Use one per program, on one event loop."""

    def __init__(self, tracer_provider: "TracerProvider | None" = None) -> None:
        """`tracer_provider`: where spans go; None: to the global one. Raises InvalidConfigError if OpenTelemetry is not
        installed."""
        try:
            from opentelemetry import context, propagate, trace

            from .carriers import HeaderGetter, HeaderSetter
        except ImportError as error:
            raise InvalidConfigError("Tracing needs OpenTelemetry: pip install 'barnabas[tracing]'") from error
        self._trace = trace
        self._propagate = propagate
        self._no_context = context.Context()
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        self._setter, self._getter = HeaderSetter(), HeaderGetter()
        self._sending: set[asyncio.Task[None]] = set()

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        sender: "Producer | Transaction",
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """As `Producer.send`, with a span that lasts until the record is acknowledged."""
        span = self._tracer.start_span(
            f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=_attributes(topic, "send", key, value)
        )
        told = list(headers or ())
        self._propagate.inject(told, context=self._trace.set_span_in_context(span), setter=self._setter)
        try:
            handle = await sender.send(
                topic, value, key=key, headers=told, partition=partition, timestamp_ms=timestamp_ms
            )
        except BaseException as error:
            self._failed(span, error)
            raise
        task = asyncio.get_running_loop().create_task(self._acknowledged(span, handle))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return handle

    async def _acknowledged(self, span: "Span", handle: Handle) -> None:
        try:
            metadata = await handle
        except BarnabasError as error:
            self._failed(span, error)
        except BaseException as error:
            self._failed(span, error)
            raise
        else:
            _place(span, metadata)
            span.end()

    def _failed(self, span: "Span", error: BaseException) -> None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end()

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def poll(self, consumer: "Consumer", **options: Any) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As `Consumer.poll`, with a span of the time that it took, linked to the senders of the records (of the first 128).

        A call that returns no records leaves no span, one that raises does.
        """
        began_ns = time.time_ns()
        try:
            found = await consumer.poll(**options)
        except Exception as error:
            self._failed(self._received(consumer, {}, began_ns), error)
            raise
        if found:
            self._received(consumer, found, began_ns).end()
        return found

    def _received(
        self, consumer: "Consumer", found: dict[TopicPartition, list[ConsumerRecord]], began_ns: int
    ) -> "Span":
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "poll",
            "messaging.operation.type": "receive",
            "messaging.batch.message_count": sum(map(len, found.values())),
        }
        if consumer.group:
            attributes["messaging.consumer.group.name"] = consumer.group
        topics = {place.topic for place in found}
        if len(topics) == 1:
            (attributes["messaging.destination.name"],) = topics
        if len(found) == 1:
            attributes["messaging.destination.partition.id"] = str(next(iter(found)).partition)
        senders = (
            self._trace.get_current_span(self._propagate.extract(record.headers or (), self._no_context, self._getter))
            for records in found.values()
            for record in records[:MAX_LINKS]
        )
        contexts = (span.get_span_context() for span in senders)
        links = islice((self._trace.Link(context) for context in contexts if context.is_valid), MAX_LINKS)
        return self._tracer.start_span(
            " ".join(["poll", *(topics if len(topics) == 1 else ())]),
            kind=self._trace.SpanKind.CLIENT,
            attributes=attributes,
            links=list(links),
            start_time=began_ns,
        )

    # --- processing --------------------------------------------------------------------------------------------------

    @contextmanager
    def processing(self, record: ConsumerRecord, *, group: str | None = None) -> "Iterator[Span]":
        """The block processes the record: its span continues the trace of the sender, and is the parent of spans inside."""
        attributes = _attributes(record.topic, "process", record.key, record.value)
        attributes["messaging.destination.partition.id"] = str(record.partition)
        attributes["messaging.kafka.offset"] = record.offset
        if group:
            attributes["messaging.consumer.group.name"] = group
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=self.context_of(record),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span

    def context_of(self, record: ConsumerRecord) -> "Context":
        """The context of the sender, for links and spans of your own; the current one if the record has none."""
        return self._propagate.extract(record.headers or (), getter=self._getter)

    def handler(
        self, handler: Callable[[ConsumerRecord], Awaitable[None] | None], *, group: str | None = None
    ) -> Callable[[ConsumerRecord], Any]:
        """The same handler for `process_each`, each call in a span: a retry is a span of its own. A plain function stays one."""
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):

            async def traced(record: ConsumerRecord) -> None:
                with self.processing(record, group=group):
                    done = handler(record)
                    assert done is not None
                    await done

            return traced

        def traced_in_a_thread(record: ConsumerRecord) -> None:
            with self.processing(record, group=group):
                handler(record)

        return traced_in_a_thread


def _attributes(topic: str, operation: str, key: Any, value: Any) -> dict[str, str | int | bool]:
    found: dict[str, str | int | bool] = {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if isinstance(key, bytes) and key.isascii():
        found["messaging.kafka.message.key"] = key.decode()
    elif isinstance(key, str):
        found["messaging.kafka.message.key"] = key
    if value is None:
        found["messaging.kafka.message.tombstone"] = True
    elif isinstance(value, bytes):
        found["messaging.message.body.size"] = len(value)
    return found


def _place(span: "Span", metadata: RecordMetadata) -> None:
    span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
    if metadata.offset >= 0:
        span.set_attribute("messaging.kafka.offset", metadata.offset)
