"""`Producer`: sends records, in batches that the application does not see.

What happens per record is that the partition's open batch takes it and returns a handle (`Accumulator.take`, compiled); all else
is done per batch. Everything unusual about a record leaves this path early.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Any, Self, Unpack

from barnabas.log.records.codec import Intake
from barnabas.log.vocabulary.topic_partition import TopicPartition

from ...base.clock import Clock
from ...wire.network import Network
from ..connection.arguments import PARTITION_OF_A_RECORD, explained
from ..connection.client import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, Client, check_loop
from ..connection.errors import (
    ClientClosedError,
    TransactionStateError,
    UnknownTopicOrPartitionError,
)
from ..connection.habits import asynchronous, with_habits
from ..connection.records import Headers
from ..connection.security import SecurityOptions
from ..serde.serdes import AnySerializer
from ..serde.writing import Encoders
from ..transactions.ending import Transactions
from ..transactions.machine import TransactionMachine
from .batch_growth import BatchGrowth
from .bulk import send_many
from .departures import Departures
from .handles import BatchHandles, Handle
from .idempotence import IdempotentQueue, TransactionalQueue
from .producer_config import (
    MAX_REQUEST_BYTES,
    TAKEN_OVER_LATER,
    TRANSACTION_TIMEOUT_MS,
    BatchSizes,
    ProducerConfig,
    acks_of,
    compression_named,
    idempotence_of,
)
from .record_accumulator import Batch, PartitionQueue
from .record_buffer import RecordBuffer, append_from_thread, send_one
from .sender import ErrorCallback, Sender, SenderConfig
from .table import TableHandle, send_table
from .transaction import Transaction


@explained(partition=PARTITION_OF_A_RECORD)
@asynchronous
class Producer:
    """Sends records to topics.

        async with Producer("localhost:9092") as producer:
            handle = await producer.send("orders", b"value", key=b"key")  # Waits while the buffer is full.
            metadata = await handle  # Acknowledged: topic, partition, offset.

    With `linger_ms` 0 (the default) lingering is adaptive: a record goes out at once while nothing is in flight to its
    broker, and joins a batch while something is. Batches have 64 KB, and grow to 512 KB while a request to their broker waits
    for its answer; `batch_size` alone sets both, `max_batch_size` the second. Records of one partition stay in the order of
    `send`, retries included, and a retry writes none of them twice: `enable_idempotence` is on unless `acks` or `max_in_flight`
    forbid it (asked for with those, it is refused). None is lost silently: every handle resolves, and a batch that fails goes to
    `on_error(error, partition, count)`, or to the log.

    Keys and values are bytes, or what `key_serializer` and `value_serializer` accept: a format such as Json(), a function, "json"
    or "text". None stays None. `send_table` writes the columns of a table without them.
    """

    _is_started: bool = False

    @with_habits
    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        acks: str | int = "all",
        linger_ms: float = 0,
        batch_size: int | None = None,
        max_batch_size: int | None = None,
        compression: str = "none",
        buffer_memory: int = 64 * 1024 * 1024,
        max_in_flight: int = 5,
        enable_idempotence: bool | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        delivery_timeout_ms: int = 120_000,
        max_block_ms: int = 60_000,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        key_serializer: AnySerializer | None = None,
        value_serializer: AnySerializer | None = None,
        client_id: str = "barnabas-producer",
        on_error: ErrorCallback | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        client: Client | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        sizes = BatchSizes.of(batch_size, max_batch_size)
        self._config = ProducerConfig(
            acks=acks_of(acks),
            linger_ms=linger_ms,
            batch_size=sizes.first,
            max_batch_size=sizes.largest,
            compression=compression_named(compression),
            buffer_memory=buffer_memory,
            max_in_flight=max_in_flight,
            max_request_bytes=max_request_bytes,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            max_block_ms=max_block_ms,
            enable_idempotence=idempotence_of(
                True if enable_idempotence is None and transactional_id is not None else enable_idempotence,
                acks=acks_of(acks),
                max_in_flight=max_in_flight,
            ),
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._client = client or Client(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            network=network,
            clock=clock,
            rng=rng,
            **security,
        )
        self._on_error = on_error
        self._buffer = RecordBuffer(self._client, self._config, self._new_queue)
        self._encoders = Encoders.of(key_serializer, value_serializer)
        self._sticky, self._intake = self._way_in(is_plain=transactional_id is None and self._encoders is None)
        self._transactions: Transactions | None = None
        if transactional_id is not None:
            machine = TransactionMachine(transactional_id, timeout_ms=transaction_timeout_ms)
            self._transactions = Transactions(self._client, machine, max_block_ms=max_block_ms)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Raises NoBrokersAvailableError, which names each address and its reason.

        With a `transactional_id`, take it over: a producer that had it is fenced, and its open transaction is aborted.
        """
        if self._is_started:
            return
        await self._client.start()
        config = self._config
        self._loop = asyncio.get_running_loop()
        self._departures = departures = Departures(self._buffer, config, self._client)
        self._sender = Sender(
            self._client,
            SenderConfig(
                acks=config.acks,
                compression=config.compression,
                max_in_flight=config.max_in_flight,
                max_request_bytes=config.max_request_bytes,
                request_timeout_ms=config.request_timeout_ms,
                delivery_timeout_ms=config.delivery_timeout_ms,
                transactional_id=config.transactional_id,
            ),
            on_room=departures.broker_has_room,
            on_done=self._buffer.batch_done if self._transactions is None else self._part_done,
            on_error=self._on_error,
        )
        departures.start(self._sender)
        self._buffer.start(self._sender, departures)
        self._client.on_metadata(self._buffer.metadata_changed)
        self._is_started = True
        if self._transactions is not None:
            if config.transactional_id == TAKEN_OVER_LATER:
                return
            try:
                await self._transactions.start()
            except BaseException:
                await self.close()
                raise
        elif config.enable_idempotence:
            self._sender.identity.start()

    async def flush(self) -> None:
        """Send all that is waiting, and return when everything sent before this call is acknowledged or has failed."""
        self._check_open()
        await self._buffer.delivered()
        await self._sender.settle()

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush for at most `timeout_ms` (None: as long as delivery takes), fail what is left, and disconnect. An open
        transaction is aborted. Raises ConcurrentUseError on another event loop than that of the start."""
        if self._buffer.is_closed or not self._is_started:
            self._buffer.is_closed = True
            if not self._is_started:
                await self._client.close()  # It may be connecting.
            return
        check_loop(self._loop, "producer")
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                if self._transactions is not None:
                    await self._transactions.close()
                # Not `flush`: another close may be through by now.
                await self._buffer.delivered()
                await self._sender.settle()
        except TimeoutError:
            pass
        finally:
            self._buffer.close()
            try:
                await self._sender.close()
            finally:
                await self._client.close()

    @property
    def client(self) -> Client:
        """The connections and the metadata, which producers, consumers and admins share."""
        return self._client

    @cached_property
    def _inside(self) -> "ProducerInside":
        return ProducerInside(self)

    def transaction(self) -> Transaction:
        """All or nothing: what is sent in the block is committed at its end, or aborted if an exception leaves it.

            async with producer.transaction() as transaction:
                await transaction.send("orders", b"value", key=b"key")
                await transaction.commit_offsets(consumer)

        One at a time; see `Transaction`. Raises TransactionStateError for a producer without a `transactional_id`.
        """
        if self._transactions is None:
            raise TransactionStateError("this producer has no transactions: create it with a transactional_id")
        return Transaction(
            self._client, self._buffer, self._transactions, check_usable=self._check_open, encoders=self._encoders
        )

    async def take_over(self, transactional_id: str) -> None:
        """Go on under another transactional id, as a new producer with it would: for producers that prepare transactions, which
        leave their id to them. An open transaction is aborted.

        Raises InvalidTxnStateError if the last transaction of the id is prepared, and waits for its decision.
        """
        self._check_open()
        if self._transactions is None:
            raise TransactionStateError("this producer has no transactions: create it with a transactional_id")
        self._sender.transactional_id = transactional_id
        await self._transactions.take_over(transactional_id)

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """Hand a record over and return its handle; waits up to `max_block_ms` while the buffer is full or the topic not known.

        Raises TypeError, RecordTooLargeError, BufferExhaustedError, and for an unknown topic the error of its metadata request.
        """
        handle: Handle = await self._intake.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return handle

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """As `send`, without waiting: raises BufferExhaustedError when the buffer is full.

        The topic must be known: `await producer.prepare(topic)` first, else UnknownTopicOrPartitionError.
        """
        batch = self._sticky.get(topic) if key is None else None
        if batch is not None and partition is None and headers is None and timestamp_ms is None:
            taken: Handle | None = batch.take(value)
            if taken is not None:
                return taken
        self._check_usable()
        if self._encoders is not None:
            value, key = self._encoders.at_once(topic, value, key)
        state = self._buffer.topics.get(topic)
        if state is None:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} is not known yet: call `await producer.prepare({topic!r})` first"
            )
        handle = self._buffer.append(state, value, key, headers, partition, timestamp_ms)
        if handle is None:
            raise self._buffer.exhausted()
        return handle

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> BatchHandles:
        """Hand many records over at once: the fastest way in. Values without keys stay in order in few partitions.

        Columns are of equal length; `partition` is for all of the records.
        """
        self._check_usable()
        if self._encoders is not None:
            values, keys = await self._encoders.columns(topic, values, keys)
        return await send_many(self._buffer, topic, values, keys, headers=headers, partition=partition)

    async def send_table(
        self,
        topic: str,
        table: Any,
        *,
        key: str | None = None,
        value: str | Sequence[str] | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: int | str | None = None,
    ) -> TableHandle:
        """Send the rows of an Arrow table, or of anything with the PyCapsule interface: polars, pandas, DuckDB, streams.

        All arguments but the first two name columns; that of `timestamp` has times. `value`: one column of bytes or text;
        several columns become one JSON object; by default all columns without another use (as they are if it is one of bytes or
        text). Rows are partitioned by the key, or by `partition`: a column of integers, or one number for all rows. Returns
        when the last row is in the buffer; await the handle for the acknowledgements. Needs the extra: pip install
        'barnabas[arrow]'.
        """
        self._check_usable()
        columns = {"key": key, "value": value, "headers": headers, "timestamp": timestamp, "partition": partition}
        return await send_table(self._buffer, topic, table, columns)

    async def prepare(self, topic: str) -> int:
        """Learn a topic before the first record, as `send_nowait` needs it; returns its number of partitions."""
        self._check_open()
        return len((await self._buffer.learn(topic)).queues)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the numbers of the partitions, for `partition` of `send`; waits until the topic is known."""
        return list(range(await self.prepare(topic)))

    def _way_in(self, *, is_plain: bool) -> tuple[dict[str, Batch], Intake]:
        """Every record looks into these dicts. Those outside of transactions, and objects, must not find anything."""
        open_batches, topics = (self._buffer.sticky, self._buffer.topics) if is_plain else ({}, {})
        intake = Intake(open_batches, topics, self._send_on_loop)
        if type(self).send is Producer.send:  # a subclass has its own
            vars(self)["send"] = intake.send  # found before the method of the class, and without a frame of Python
        return open_batches, intake

    # --- the slow path: once per batch, or for unusual records -------------------------------------------------------

    async def _send_on_loop(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Handle:
        """`send` without its fast path."""
        self._intake.is_behind = False
        self._check_usable()
        if self._encoders is not None:
            value, key = await self._encoders.record(topic, value, key)
        return await send_one(self._buffer, topic, value, key, headers, partition, timestamp_ms)

    def _new_queue(self, partition: TopicPartition, growth: BatchGrowth) -> PartitionQueue:
        if self._transactions is not None:
            transactions = self._transactions
            return TransactionalQueue(partition, growth, lambda: transactions.machine.identity)
        return (IdempotentQueue if self._config.enable_idempotence else PartitionQueue)(partition, growth)

    def _part_done(self, batch: Batch) -> None:
        """A batch of a transaction is acknowledged or has failed."""
        self._buffer.batch_done(batch)
        if batch.error is not None and self._transactions is not None:
            self._transactions.failed(batch.error)

    def _check_usable(self) -> None:
        """For records outside of transactions."""
        self._check_open()
        if self._transactions is not None:
            raise TransactionStateError(
                "a producer with a transactional_id sends in transactions only: use `async with producer.transaction() as"
                " transaction`, and transaction.send"
            )

    def _check_open(self) -> None:
        if self._buffer.is_closed:
            raise ClientClosedError("the producer is closed")
        if not self._is_started:
            raise ClientClosedError("the producer is not started: use `async with Producer(...)`, or await start()")
        check_loop(self._loop, "producer")


class ProducerInside:
    """A producer, as the other modules of the SDK use it."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.send_on_loop = producer._send_on_loop
        # Records outside of transactions are refused, and objects are encoded, on the loop.
        self._is_plain = not self.is_transactional and not self.has_serializers
        self._buffer = producer._buffer
        self._client = producer.client

    def serve_threads(self) -> None:
        """From now on, threads send: batches leave as `departures` says of them."""
        self._producer._departures.serve_threads()

    def hurry(self) -> None:
        """A thread waits for what it has sent."""
        self._producer._departures.hurry()

    @property
    def has_serializers(self) -> bool:
        """Whether keys or values are objects, which the producer encodes."""
        return self._producer._encoders is not None

    @property
    def is_transactional(self) -> bool:
        return self._producer._transactions is not None

    def send_from_thread(self, topic: str, value: Any, key: Any, partition: int | None) -> Handle | None:
        """As `send`, from any thread, into a batch that is open; None: let the loop do it, by `send_on_loop`.

        Once a thread has called this, no call on the loop may use `send` or `send_nowait`, which do not expect others.
        """
        if not self._is_plain:
            return None
        return append_from_thread(self._buffer, topic, value, key, partition, self._client.clock.wall_ms())
