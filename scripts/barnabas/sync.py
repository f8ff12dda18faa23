"""The SDK without asyncio: the same names and arguments, blocking, for scripts, notebooks and Spark workers.

    with Producer("localhost:9092") as producer:
        metadata = producer.send("orders", b"value").result()

    with Consumer("orders", group="billing") as consumer:
        for record in consumer: ...

All clients of a process share one event loop in one daemon thread. After a fork, the child starts a loop of its own.
Clients that the parent made raise an error there: create new ones in the child. Methods may be called from any thread, but
a consumer may be used by only one thread at a time.
"""

import asyncio
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin import admin as _admin
from barnabas.net.client.connection.arguments import PARTITION_OF_A_RECORD, explained
from barnabas.net.client.connection.client import inside_of
from barnabas.net.client.connection.either_kind import run_blocking
from barnabas.net.client.connection.errors import ClientClosedError
from barnabas.net.client.connection.habits import keyworded, no_such_method
from barnabas.net.client.connection.loop_thread import loop_thread
from barnabas.net.client.connection.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    ReadingOrigin,
    RecordColumns,
    RecordMetadata,
)
from barnabas.net.client.consumer import consumer as _consumer
from barnabas.net.client.consumer.process_once import MAX_RECORDS, BlockingProcessOnce
from barnabas.net.client.consumer.read_table import read_table
from barnabas.net.client.group.group_positions import GroupPositions
from barnabas.net.client.processing.blocking import run_in_thread
from barnabas.net.client.processing.options import FailureHandler, RecordHandler
from barnabas.net.client.processing.process_each import Processed
from barnabas.net.client.processing.process_each import process_each as _process_each
from barnabas.net.client.producer import producer as _producer
from barnabas.net.client.producer.handles import BatchExtent
from barnabas.net.client.producer.handles import BatchHandles as _BatchHandles
from barnabas.net.client.producer.handles import Handle as _Handle
from barnabas.net.client.producer.table import TableHandle as _TableHandle
from barnabas.net.client.producer.transaction import Transaction as _Transaction
from barnabas.net.client.serde.dead_letters import dead_letters as _dead_letters
from barnabas.net.client.share import share_consumer as _share_consumer
from barnabas.net.client.share.share_record import ShareRecord
from barnabas.net.client.transactions.machine import Outcome
from barnabas.net.client.transactions.prepared import PreparedTransaction
from barnabas.net.client.transactions.transform_once import MAX_RECORDS as MAX_TRANSFORMED
from barnabas.net.client.transactions.transform_once import TransformOnce

if TYPE_CHECKING:  # of an extra
    import pyarrow

__all__ = [
    "Admin",
    "BatchHandles",
    "Consumer",
    "Handle",
    "Processed",
    "Producer",
    "ShareConsumer",
    "Transaction",
    "dead_letters",
    "process_each",
    "process_once",
    "read_table",
    "transform_once",
]

T = TypeVar("T")
C = TypeVar("C", bound=_producer.Producer | _consumer.Consumer | _admin.Admin | _share_consumer.ShareConsumer)

B = TypeVar("B")

_ITERATION_POLL_MS = 1_000  # `for record in consumer` wakes up this often, so that Ctrl-C works.


class _Blocking(Generic[C]):
    """A client that runs on the thread of the shared event loop."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._loop_thread = loop_thread()
        self._call(client.start())
        # A client dropped without a close would stay a member of its group for minutes: also close it when the process exits.
        self._closed = self._loop_thread.look_after(self, client.close)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """For names that are missing only: the answer says what it is called here."""
            raise no_such_method(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Same as for the asyncio client. In a forked child this does nothing: the client belongs to the parent."""
        if self._loop_thread.process_id == os.getpid():
            self._loop_thread.end(self._client.close)
            self._closed()

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        if self._loop_thread.process_id != os.getpid():
            coroutine.close()
            raise ClientClosedError(
                f"this {type(self).__name__} was made before a fork: create a new one in the child process"
            )
        return self._loop_thread.call(coroutine, timeout)


def _like(twin: type, **meanings: str) -> Callable[[type[B]], type[B]]:
    """Of a blocking client: `help` says of its arguments and methods what it says of those of its twin."""

    def shown(kind: type[B]) -> type[B]:
        init = vars(kind)["__init__"]
        init.__doc__, init.__signature__ = twin.__init__.__doc__, inspect.signature(twin.__init__)
        return cast(type[B], explained(kind, like=twin, **meanings))

    return shown


@explained(like=_Handle)
class Handle:
    """The handle of a record that was sent; `result` waits for its metadata."""

    __slots__ = ("_handle", "_owner")

    def __init__(self, owner: "Producer", handle: _Handle) -> None:
        self._owner = owner
        self._handle = handle

    @property
    def is_done(self) -> bool:
        return self._handle.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for at most `timeout` seconds. Raises the typed error if the record could not be delivered."""
        if self._handle.is_done:
            return self._handle.result()
        metadata: RecordMetadata = self._owner._call(_resolved(self._owner, self._handle), timeout)
        return metadata


@explained
class BatchHandles:
    """The handle of many records that were sent together."""

    __slots__ = ("_handles", "_owner")

    def __init__(self, owner: "Producer", handles: _BatchHandles) -> None:
        self._owner = owner
        self._handles = handles

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, index: int) -> Handle:
        return Handle(self._owner, self._handles[index])

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait for all of them. Raises the first error."""
        metadata: list[RecordMetadata] = self._owner._call(_resolved(self._owner, self._handles), timeout)
        return metadata


@explained
class TableHandle:
    """The handle of the rows of a table."""

    __slots__ = ("_handle", "_owner")

    def __init__(self, owner: "Producer", handle: _TableHandle) -> None:
        self._owner = owner
        self._handle = handle

    def __len__(self) -> int:
        return len(self._handle)

    def result(self, timeout: float | None = None) -> list[BatchExtent]:
        """Wait until all rows are acknowledged; return the batches that they went into."""
        found: list[BatchExtent] = self._owner._call(_resolved(self._owner, self._handle), timeout)
        return found


async def _resolved(owner: "Producer", handle: Any) -> Any:
    owner._sending.hurry()
    return await handle


@_like(_producer.Producer, partition=PARTITION_OF_A_RECORD)
class Producer(_Blocking[_producer.Producer]):
    """Like `barnabas.Producer`, for any number of threads at a time. Records of one thread to one partition keep their order.

    `send` writes into the open batch in the caller's thread, and asks the loop's thread only for another batch. Without
    `linger_ms`, a batch leaves when it is full, when a thread waits for a `result` (at once while nothing is in flight to its
    broker), or after 1 ms. When another thread closes the producer meanwhile, `send` raises ClientClosedError, or the handle does
    if its record was not acknowledged before.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(_producer.Producer(*arguments, **options))
        self._sending = inside_of(self._client)
        self._sending.serve_threads()

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        if headers is None and timestamp_ms is None and not self._loop_thread.is_of_parent:
            handle = self._sending.send_from_thread(topic, value, key, partition)
            if handle is not None:
                return Handle(self, handle)
        coroutine = self._sending.send_on_loop(topic, value, key, headers, partition, timestamp_ms)
        return Handle(self, self._call(coroutine))

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
        partition: int | None = None,
    ) -> BatchHandles:
        coroutine = self._client.send_many(topic, values, keys, headers=headers, partition=partition)
        return BatchHandles(self, self._call(coroutine))

    def send_table(self, topic: str, table: Any, **columns: Any) -> TableHandle:
        """The columns are those of `barnabas.Producer.send_table`."""
        return TableHandle(self, self._call(self._client.send_table(topic, table, **columns)))

    def transaction(self) -> "Transaction":
        return Transaction(self, self._client.transaction())

    def take_over(self, transactional_id: str) -> None:
        self._call(self._client.take_over(transactional_id))

    def flush(self, timeout: float | None = None) -> None:
        self._call(self._client.flush(), timeout)

    def partitions_for(self, topic: str) -> list[int]:
        return self._call(self._client.partitions_for(topic))


@explained(like=_Transaction, partition=PARTITION_OF_A_RECORD, consumer="the consumer that has read the records")
class Transaction:
    """Like `barnabas.Transaction`: `with producer.transaction() as transaction`. Use `send_many` for speed."""

    __slots__ = ("_owner", "_transaction")

    def __init__(self, owner: Producer, transaction: _Transaction) -> None:
        self._owner = owner
        self._transaction = transaction

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._owner._call(self._transaction.__aexit__(kind, error, traceback))

    @property
    def outcome(self) -> Outcome:
        return self._transaction.outcome

    def begin(self) -> None:
        self._owner._call(self._transaction.begin())

    def commit(self) -> None:
        self._owner._call(self._transaction.commit())

    def prepare(self, prepared_for: str = "") -> PreparedTransaction | None:
        return self._owner._call(self._transaction.prepare(prepared_for))

    def abort(self) -> Outcome:
        return self._owner._call(self._transaction.abort())

    def send(self, topic: str, value: Any, **options: Any) -> Handle:
        """The options are those of `Producer.send`."""
        return Handle(self._owner, self._owner._call(self._transaction.send(topic, value, **options)))

    def send_many(
        self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None = None, **options: Any
    ) -> BatchHandles:
        """The options are those of `Producer.send_many`."""
        return BatchHandles(self._owner, self._owner._call(self._transaction.send_many(topic, values, keys, **options)))

    def send_table(self, topic: str, table: Any, **columns: Any) -> TableHandle:
        return TableHandle(self._owner, self._owner._call(self._transaction.send_table(topic, table, **columns)))

    def commit_offsets(
        self, consumer: "Consumer", offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> None:
        self._owner._call(self._transaction.commit_offsets(consumer._client, offsets))


async def _in_a_thread(callback: Callable[..., object], *arguments: object) -> None:
    """The thread for what the application is called for. It is not the loop's: what a listener calls needs the loop."""
    outcome = await asyncio.to_thread(callback, *arguments)
    if inspect.isawaitable(outcome):
        await outcome


def _called_in_threads(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """The options, with the functions of these names called in a thread."""
    functions = {name: options[name] for name in names if callable(options.get(name))}
    return options | {name: partial(_in_a_thread, function) for name, function in functions.items()}


@_like(_consumer.Consumer)
class Consumer(_Blocking[_consumer.Consumer]):
    """Like `barnabas.Consumer`. Heartbeats continue on the loop's thread while the application processes records.

    Listeners (`on_assigned`, `on_revoked`, `on_lost`) are called from another thread, while a call of the application waits
    for records. They may commit, seek and ask for positions. So may a function for `on_bad_record`.
    """

    def __init__(self, *topics: str | Iterable[str], **options: Any) -> None:
        names = ("on_assigned", "on_revoked", "on_lost", "on_bad_record")
        super().__init__(_consumer.Consumer(*topics, **_called_in_threads(options, *names)))
        self._inside = _ConsumerInside(self)

    @keyworded
    def poll(
        self, *, max_records: int = _consumer.MAX_POLL_RECORDS, timeout_ms: float = 1_000, within_ms: float = 0
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        return self._call(self._client.poll(max_records=max_records, timeout_ms=timeout_ms, within_ms=within_ms))

    def stream(
        self, *, batch_size: int = _consumer.MAX_POLL_RECORDS, within_ms: float = 100
    ) -> Iterator[list[ConsumerRecord]]:
        """Yield lists of records without end, as `barnabas.Consumer.stream`."""
        while True:
            found = self.poll(max_records=batch_size, timeout_ms=_ITERATION_POLL_MS, within_ms=within_ms)
            if batch := [record for records in found.values() for record in records]:
                yield batch

    def poll_batch(self, *, timeout_ms: float = 1_000) -> RecordColumns | None:
        return self._call(self._client.poll_batch(timeout_ms=timeout_ms))

    def poll_arrow(self, *, max_bytes: int = _consumer.MAX_POLL_BYTES, timeout_ms: float = 1_000) -> "pyarrow.Table":
        return self._call(self._client.poll_arrow(max_bytes=max_bytes, timeout_ms=timeout_ms))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records without end. Batches cross the threads, single records do not: the caller's thread iterates."""
        while True:
            yield from self._call(inside_of(self._client).walk_batch(timeout_ms=_ITERATION_POLL_MS))

    def subscribe(self, *topics: str | Iterable[str], pattern: str | None = None) -> None:
        self._call(self._client.subscribe(*topics, pattern=pattern))

    def unsubscribe(self) -> None:
        self._call(self._client.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        self._on_loop(partial(self._client.assign, partitions))

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._client.assignment

    @property
    def group(self) -> str | None:
        return self._client.group

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int, *, topic_id: str = "") -> None:
        self._on_loop(partial(self._client.seek, partition, offset, topic_id=topic_id))

    def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition | tuple[str, int]) -> None:
        self._call(self._client.seek_to_time(timestamp_ms, *partitions))

    def seek_to_start(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        self._call(self._client.seek_to_start(*partitions))

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        self._call(self._client.seek_to_end(*partitions))

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        return self._call(self._client.position(partition))

    def committed(self, *partitions: TopicPartition | tuple[str, int]) -> dict[TopicPartition, int]:
        return self._call(self._client.committed(*partitions))

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return dict(self._call(self._client.offsets_for_times(times_ms)))

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        self._on_loop(partial(self._client.pause, *partitions))

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        self._on_loop(partial(self._client.resume, *partitions))

    @keyworded
    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        self._call(self._client.commit(offsets))

    def commit_nowait(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit in the background. A failure is logged; closing the consumer waits for commits in flight."""
        self._on_loop(partial(self._client.commit_nowait, offsets))

    def committed_offsets(
        self, *partitions: TopicPartition | tuple[str, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._call(self._client.committed_offsets(*partitions))

    def beginning_offsets(self, *partitions: TopicPartition | tuple[str, int]) -> dict[TopicPartition, int]:
        return self._call(self._client.beginning_offsets(*partitions))

    def end_offsets(self, *partitions: TopicPartition | tuple[str, int]) -> dict[TopicPartition, int]:
        return self._call(self._client.end_offsets(*partitions))

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        return self._call(self._client.partitions_for(topic))

    def lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        return self._on_loop(partial(self._client.lag, partition))

    @property
    def paused(self) -> list[TopicPartition]:
        return self._client.paused

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._call(call())


class _ConsumerInside:
    """As `consumer.ConsumerInside`, in the caller's thread."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._async = inside_of(consumer._client)

    def poll_with_origins(
        self, *, max_records: int, timeout_ms: float
    ) -> tuple[dict[TopicPartition, list[ConsumerRecord]], dict[TopicPartition, ReadingOrigin]]:
        return self._consumer._call(self._async.poll_with_origins(max_records=max_records, timeout_ms=timeout_ms))

    def origin(self, partition: TopicPartition) -> ReadingOrigin:
        return self._async.origin(partition)

    def group_positions(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None
    ) -> GroupPositions:
        return self._consumer._on_loop(partial(self._async.group_positions, offsets))


@_like(_share_consumer.ShareConsumer)
class ShareConsumer(_Blocking[_share_consumer.ShareConsumer]):
    """Like `barnabas.ShareConsumer`: a member of a share group, for one thread at a time.

    Functions for `on_bad_record` and `dead_letter` are called from another thread; `dead_letters` makes one.
    """

    def __init__(self, *topics: str | Iterable[str], **options: Any) -> None:
        functions = _called_in_threads(options, "on_bad_record", "dead_letter")
        super().__init__(_share_consumer.ShareConsumer(*topics, **functions))

    def __iter__(self) -> Iterator[ShareRecord]:
        """Yield records without end. Each is accepted when the next one is asked for, unless it was acknowledged before."""
        while True:
            yield from self.poll(max_records=1, timeout_ms=_ITERATION_POLL_MS)

    def poll(self, *, max_records: int = _share_consumer.MAX_RECORDS, timeout_ms: float = 1_000) -> list[ShareRecord]:
        return self._call(self._client.poll(max_records=max_records, timeout_ms=timeout_ms))

    def acknowledge(self, record: ShareRecord, kind: str = "accept", *, reason: str = "") -> None:
        """Send it with the next fetch; `commit` waits until it is stored."""

        async def call() -> None:
            self._client.acknowledge(record, kind, reason=reason)

        self._call(call())

    def commit(self, *, timeout_ms: float = _share_consumer.API_TIMEOUT_MS) -> None:
        self._call(self._client.commit(timeout_ms=timeout_ms))


def dead_letters(producer: Producer, topic: str) -> Callable[[ConsumerRecord, Exception], None]:
    """Like `barnabas.dead_letters`: a function for `on_bad_record`, `on_failure` and `dead_letter`, which sends records to
    `topic` by `producer`. It returns when the record is acknowledged."""
    send: Callable[..., Any] = _dead_letters(producer._client, topic)

    def write(record: ConsumerRecord, error: Exception) -> None:
        producer._call(send(record, error))

    return write


def process_each(
    consumer: Consumer,
    handler: RecordHandler,
    *,
    on_failure: str | FailureHandler = "stop",
    stop: threading.Event | None = None,
    stop_on_signals: bool = False,
    **options: Any,
) -> Processed:
    """Like `barnabas.process_each`: call `handler(record)` in `concurrency` threads until `stop` is set, a signal comes or the
    consumer is closed. `on_failure`, `stop_on_signals` and the other `options` are the same. Ctrl-C ends it without waiting for
    handlers, after a last commit."""
    if callable(on_failure):
        on_failure = partial(_in_a_thread, on_failure)

    async def processing(stopping: asyncio.Event) -> Processed:
        return await _process_each(consumer._client, handler, on_failure=on_failure, stop=stopping, **options)

    return run_in_thread(consumer._loop_thread, handler, processing, stop=stop, stop_on_signals=stop_on_signals)


def process_once(consumer: Consumer, connection: Any, *, max_records: int = MAX_RECORDS) -> BlockingProcessOnce:
    """Like `barnabas.process_once`, with `with` and `for`. `consumer`, `connection` and `max_records` are as there; the
    database is used in the caller's thread."""
    return BlockingProcessOnce(consumer, connection, max_records=max_records)


def transform_once(
    consumer: Consumer,
    producer: Producer,
    function: Callable[[ConsumerRecord, Transaction], object],
    *,
    max_records: int = MAX_TRANSFORMED,
    idle_timeout_ms: float | None = None,
) -> int:
    """Like `barnabas.transform_once`, with the same `consumer`, `producer`, `max_records` and `idle_timeout_ms`; `function` is
    called in the caller's thread."""
    once = TransformOnce(consumer, producer, function, max_records=max_records, pause=time.sleep)
    return run_blocking(
        once.run(idle_timeout_ms=idle_timeout_ms), otherwise="a coroutine function needs barnabas.transform_once"
    )


class _BlockingPart:
    """The same methods, blocking, of a part of a client."""

    def __init__(self, part: Any, call: Callable[[Any], Any]) -> None:
        self._part = part
        self._call = call

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        return lambda *arguments, **options: self._call(method(*arguments, **options))


class Admin(_Blocking[_admin.Admin]):
    """Like `barnabas.Admin`: the same methods, blocking. So are those of `acls`, `quotas`, `transactions` and `users`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(_admin.Admin(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        """A part of the client. Type checkers find the methods here, too, which are added below."""
        part = None if name.startswith("_") else getattr(vars(self).get("_client"), name, None)
        if part is None:
            raise no_such_method(self, name)
        return _BlockingPart(part, self._call)


def _blocking(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @wraps(method)
    def called(self: Admin, *arguments: Any, **options: Any) -> Any:
        return self._call(method(self._client, *arguments, **options))

    return called


for _name in dir(_admin.Admin):
    if not _name.startswith("_") and not hasattr(Admin, _name) and callable(getattr(_admin.Admin, _name)):
        setattr(Admin, _name, _blocking(getattr(_admin.Admin, _name)))
_like(_admin.Admin)(Admin)


def __dir__() -> list[str]:
    return __all__
