"""`Producer`: sends records, in batches that the application does not see.

What happens per record is an append to the columns of the partition's open batch and a tuple for its handle; all else
is done per batch. So the two fast paths below are written out, and everything unusual about a record leaves them early.
"""

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Self

from ...base.clock import Clock
from ...wire.network import Network
from ..arrow.extra import require
from ..connection.client import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, Client, check_loop
from ..connection.errors import (
    ClientClosedError,
    UnknownTopicOrPartitionError,
)
from ..connection.record_checks import checked_headers
from ..connection.records import Headers
from .bulk import send_columns
from .departures import Departures
from .handles import BatchHandles, Handle, finished
from .producer_config import MAX_REQUEST_BYTES, ProducerConfig, acks_of, compression_named, idempotence_of
from .record_buffer import RecordBuffer
from .sender import ErrorCallback, Sender, SenderConfig
from .table import TableHandle, send_rows


class Producer:
    """Sends records to topics.

        async with Producer("localhost:9092") as producer:
            handle = await producer.send("orders", b"value", key=b"key")  # Waits while the buffer is full.
            metadata = await handle  # Acknowledged: topic, partition, offset.

    With `linger_ms` 0 (the default) lingering is adaptive: a record goes out at once while nothing is in flight to its
    broker, and joins a batch while something is. Records of one partition stay in the order of `send`, retries
    included, and a retry writes none of them twice: `enable_idempotence` is on unless `acks` or `max_in_flight` forbid it
    (asked for with those, it is refused). None is lost silently: every handle resolves, and a batch that fails goes to
    `on_error(error, partition, count)`, or to the log.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = DEFAULT_BOOTSTRAP,
        *,
        acks: str | int = "all",
        linger_ms: float = 0,
        batch_size: int = 65_536,
        compression: str = "none",
        buffer_memory: int = 64 * 1024 * 1024,
        max_in_flight: int = 5,
        enable_idempotence: bool | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        delivery_timeout_ms: int = 120_000,
        max_block_ms: int = 60_000,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        client_id: str = "barnabas-producer",
        on_error: ErrorCallback | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        client: Client | None = None,
    ) -> None:
        self._config = ProducerConfig(
            acks=acks_of(acks),
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression=compression_named(compression),
            buffer_memory=buffer_memory,
            max_in_flight=max_in_flight,
            max_request_bytes=max_request_bytes,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            max_block_ms=max_block_ms,
            enable_idempotence=idempotence_of(enable_idempotence, acks=acks_of(acks), max_in_flight=max_in_flight),
        )
        self._client = client or Client(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            network=network,
            clock=clock,
            rng=rng,
        )
        self._on_error = on_error
        self._buffer = RecordBuffer(self._client, self._config)
        self._sticky = self._buffer.sticky  # The same dict, and the next one: every record looks into one of them.
        self._topics = self._buffer.topics
        self._is_started = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Raises NoBrokersAvailableError, which names each address and its reason."""
        if self._is_started:
            return
        await self._client.start()
        config = self._config
        self._loop = asyncio.get_running_loop()
        departures = Departures(self._buffer, config, self._client)
        self._sender = Sender(
            self._client,
            SenderConfig(
                acks=config.acks,
                compression=config.compression,
                max_in_flight=config.max_in_flight,
                max_request_bytes=config.max_request_bytes,
                request_timeout_ms=config.request_timeout_ms,
                delivery_timeout_ms=config.delivery_timeout_ms,
            ),
            on_idle=departures.broker_is_idle,
            on_done=self._buffer.batch_done,
            on_error=self._on_error,
        )
        departures.start(self._sender)
        self._buffer.start(self._sender, departures)
        if config.enable_idempotence:
            self._sender.identity.start()
        self._client.on_metadata(self._buffer.metadata_changed)
        self._is_started = True

    async def flush(self) -> None:
        """Send all that is waiting, and return when everything sent before this call is acknowledged or has failed."""
        self._check_usable()
        self._buffer.seal_open()
        for batch in [batch for queue in self._buffer.queues() for batch in queue.batches()]:
            if not batch.is_done:
                await finished(batch)
        await self._sender.settle()

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush for at most `timeout_ms` (None: as long as delivery takes), fail what is left, and disconnect."""
        if self._buffer.is_closed or not self._is_started:
            self._buffer.is_closed = True
            return
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            self._buffer.close()
            await self._sender.close()
            await self._client.close()

    @property
    def client(self) -> Client:
        """The connections and the metadata, which producers, consumers and admins share."""
        return self._client

    # --- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """Hand a record over and return its handle; waits up to `max_block_ms` while the buffer is full or the topic not known.

        Raises TypeError, RecordTooLargeError, BufferExhaustedError, and for an unknown topic the error of its metadata request.
        """
        if partition is None and headers is None and timestamp_ms is None:
            if key is None:
                batch = self._sticky.get(topic)
            else:
                state = self._topics.get(topic)
                queue = None if state is None or key.__class__ is not bytes else state.by_key.get(key)
                batch = None if queue is None else queue.open
            if batch is not None and value.__class__ is bytes:
                now_ms = self._buffer.now_ms or self._buffer.read_clock()
                if batch.stamp_ms != now_ms:
                    batch.restamp(now_ms)
                handle = batch.append_for(Handle, batch, value, key, (), now_ms)
                if handle is not None:
                    return handle
        return await self._send_slowly(topic, value, key, headers, partition, timestamp_ms)

    def send_nowait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Handle:
        """As `send`, without waiting: raises BufferExhaustedError when the buffer is full.

        The topic must be known: `await producer.prepare(topic)` first, else UnknownTopicOrPartitionError.
        """
        batch = self._sticky.get(topic) if key is None else None
        is_plain = partition is None and headers is None and timestamp_ms is None and value.__class__ is bytes
        if batch is not None and is_plain:
            now_ms = self._buffer.now_ms or self._buffer.read_clock()
            if batch.stamp_ms != now_ms:
                batch.restamp(now_ms)
            handle = batch.append_for(Handle, batch, value, key, (), now_ms)
            if handle is not None:
                return handle
        self._check_usable()
        state = self._topics.get(topic)
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
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> BatchHandles:
        """Hand many records over at once: the fastest way in. Values without keys stay in order in few partitions.

        Columns are of equal length; `partition` is for all of the records.
        """
        self._check_usable()
        state = self._topics.get(topic) or await self._buffer.learn(topic)
        checked = None if headers is None else [checked_headers(pairs) for pairs in headers]
        return await send_columns(self._buffer, state, values, keys, headers=checked, partition=partition)

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

        All arguments but the first two name columns. `value`: one column of bytes or text; several columns become one JSON
        object; by default all columns without another use (as they are if it is one of bytes or text). Rows are partitioned
        by the key, or by `partition`: a column of integers, or one number for all rows. Returns when the last row is in the
        buffer; await the handle for the acknowledgements. Needs the extra: pip install 'barnabas[arrow]'.
        """
        self._check_usable()
        require("pyarrow", extra="arrow", feature="send_table")
        from ..arrow.outgoing import TableColumns

        columns = TableColumns(key=key, value=value, headers=headers, timestamp=timestamp, partition=partition)
        state = self._topics.get(topic) or await self._buffer.learn(topic)
        return await send_rows(self._buffer, state, columns, table)

    async def prepare(self, topic: str) -> int:
        """Learn a topic before the first record, as `send_nowait` needs it; returns its number of partitions."""
        self._check_usable()
        return len((await self._buffer.learn(topic)).queues)

    async def partitions_for(self, topic: str) -> list[int]:
        return list(range(await self.prepare(topic)))

    # --- the slow path: once per batch, or for unusual records -------------------------------------------------------

    async def _send_slowly(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Handle:
        self._check_usable()
        deadline_ms = self._buffer.block_deadline_ms
        state = self._topics.get(topic) or await self._buffer.learn(topic)
        while (handle := self._buffer.append(state, value, key, headers, partition, timestamp_ms)) is None:
            await self._buffer.wait_for_room(deadline_ms)
        queue = state.queues[handle.batch.partition.partition]
        if self._buffer.has_much_of(queue):
            await self._buffer.ease(queue)
        return handle

    def _check_usable(self) -> None:
        if self._buffer.is_closed:
            raise ClientClosedError("the producer is closed")
        if not self._is_started:
            raise ClientClosedError("the producer is not started: use `async with Producer(...)`, or await start()")
        check_loop(self._loop, "producer")
