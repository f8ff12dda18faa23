"""What happens to the batches of a produce request before they are appended: records are checked, codecs changed.

Batches that are compressed, of a compacted topic, or stored under another codec are unpacked and walked through. A small one
is checked at once; the others in threads, appended in the order of arrival: a request waits for its own batches and for the
requests of its connection before it with batches of the same partition. All others pass. The threads take one request of each
connection in turn, so a client with many expensive batches delays its own most.
"""

import asyncio
import logging
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from barnabas.log.format.compression import Compression
from barnabas.log.format.recompression import codec_named, is_stored_otherwise, recompressed
from barnabas.log.format.record_batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    TRANSACTIONAL_MASK,
    Buffer,
)
from barnabas.log.format.record_check import RecordRules, check_batches
from barnabas.log.replication.ports import ReplicatedLogConfig
from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.coordination.transactions.verification import TransactionVerification
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.server.memory_budget import MemoryBudget
from barnabas.net.wire.protocol.requests import ProducePartition

from .produce_parts import MAX_APPENDED_AT_ONCE, AnyProduce
from .produce_rules import check_produced

logger = logging.getLogger("barnabas.produce")

MAX_PENDING_BYTES_OF_ONE: Final = 16 * 1024 * 1024  # of one connection; more fail with a retriable error
MAX_THREADS: Final = 2  # the loop needs a processor, too
MAX_CHECKED_AT_ONCE: Final = 4  # partitions of one request; each takes up to half a millisecond of the loop
MAX_BYTES_AT_ONCE: Final = 16 * 1024  # of a batch that is checked at once, packed
MAX_RECORDS_AT_ONCE: Final = 256  # of a batch that is checked at once: about 0.3 ms
# The limit of inline checks between two polls of the sockets, for all clients: about 10 ms. Each connection may have 64
# requests there, and there may be thousands of connections.
MAX_RECORDS_A_PASS: Final = 8_192
_BATCH_AS_RECORDS: Final = 16  # to unpack a batch takes as long as to look at so many records
THREAD_PAUSE_S: Final = 0.0002  # Long enough for a thread that waits for the interpreter to wake up and take it.
_COUNT_POSITION: Final = 57
_COUNT: Final = struct.Struct(">i")

Refused = dict[int, BarnabasError]  # by position in the request
Serve = Callable[[AnyProduce, Refused], None]


class _TooLongError(Exception):
    """A check takes longer than the loop can spare."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Job:
    """The batches of one partition that wait for a thread."""

    records: Buffer
    rules: RecordRules
    codec: Compression | None  # None: the batches stay as they are
    level: int  # of the codec
    is_wanted: Callable[[], bool]
    done: "asyncio.Future[Buffer | BarnabasError]"

    def perform(self) -> Buffer | BarnabasError:
        try:
            if self.codec is not None:
                return recompressed(
                    self.records, self.codec, self.rules, level=self.level, pause=_let_the_loop_go_first
                )
            check_batches(self.records, self.rules, pause=_let_the_loop_go_first)
            return self.records
        except BarnabasError as error:
            return type(error)(error.message)  # without a traceback, whose frames hold what was unpacked


class Preparing:
    """`config_of(partition)` is the topic's configuration, or None for a partition that is not here."""

    def __init__(
        self,
        config_of: Callable[[TopicPartition], ReplicatedLogConfig | None],
        memory: MemoryBudget,
        verification: TransactionVerification,
    ) -> None:
        self._config_of = config_of
        self._verification = verification
        self._memory = memory
        # The newest of each partition and connection. Other connections do not wait: the coordinator of a transaction may take
        # seconds to answer the question about the first batch of its producer.
        self._last: dict[tuple[TopicPartition, object], asyncio.Task[None]] = {}
        self._pending_bytes_of: dict[object, int] = {}  # by connection; what is not there is 0
        self._queues: OrderedDict[object, deque[_Job]] = OrderedDict()  # by connection, in the order of their turns
        self._working = 0
        self._checked_records = 0  # on the event loop, in this iteration
        self._threads = ThreadPoolExecutor(max_workers=MAX_THREADS, thread_name_prefix="prepare")
        self.tasks: dict[asyncio.Task[None], None] = {}

    def at_once(self, request: AnyProduce, connection: object) -> Refused | None:
        """The partitions of the request that fail, with their errors; None if the request must go through `later`."""
        if len(request.partitions) > MAX_APPENDED_AT_ONCE:
            return None
        refused: Refused = {}
        checked = 0
        for number, item in enumerate(request.partitions):
            topic_partition = TopicPartition(item.topic, item.partition)
            if self._last and (topic_partition, connection) in self._last:
                return None
            records = item.records
            is_transactional = len(records) >= HEADER_SIZE and records[ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK
            if is_transactional and self._verification.is_needed(item):
                return None
            config = self._config_of(topic_partition)
            if config is None or not _needs_preparation(item.records, config):
                continue
            checked += 1
            if checked > MAX_CHECKED_AT_ONCE or not self._check_at_once(item.records, config, number, refused):
                return None
        return refused

    def _check_at_once(self, batches: Buffer, config: ReplicatedLogConfig, number: int, refused: Refused) -> bool:
        """False if it must be done in a thread."""
        if len(batches) > MAX_BYTES_AT_ONCE or is_stored_otherwise(batches, config.compression_type):
            return False
        count = _COUNT.unpack_from(batches, _COUNT_POSITION)[0] if len(batches) >= HEADER_SIZE else 0
        if count > MAX_RECORDS_AT_ONCE or self._checked_records >= MAX_RECORDS_A_PASS:
            return False
        if self._checked_records == 0:
            asyncio.get_running_loop().call_soon(self._next_pass)
        self._checked_records += _BATCH_AS_RECORDS + max(0, count)
        try:
            check_batches(batches, _rules(config), pause=_too_long)
        except _TooLongError:
            return False
        except BarnabasError as error:
            refused[number] = error.with_traceback(None)  # whose frames hold the batches, and `refused`
        return True

    def _next_pass(self) -> None:
        self._checked_records = 0

    def later(self, request: AnyProduce, context: RequestContext, serve: Serve) -> None:
        """Call `serve` with the prepared request, in the order of arrival from its connection."""
        self.parts_later([(request, serve)], context)

    def parts_later(self, parts: Sequence[tuple[AnyProduce, Serve]], context: RequestContext) -> None:
        """The same for the parts of one request, one after the other: the loop runs after each. All are taken, or none."""
        connection = context.connection
        sizes = [sum(len(item.records) for item in part.partitions) for part, _ in parts]
        own_bytes, size_bytes = self._pending_bytes_of.get(connection, 0), sum(sizes)
        is_greedy = own_bytes > 0 and own_bytes + size_bytes > MAX_PENDING_BYTES_OF_ONE
        if is_greedy or not self._memory.take(size_bytes):
            error = RequestTimedOutError("too many batches are waiting for a check or compression; send again")
            for part, serve in parts:
                serve(part, dict.fromkeys(range(len(part.partitions)), error))
            return
        self._pending_bytes_of[connection] = own_bytes + size_bytes
        before: list[asyncio.Task[None]] = []
        for (part, serve), part_bytes in zip(parts, sizes, strict=True):
            before = [self._begin(part, part_bytes, context, serve, before)]

    def _begin(
        self, request: AnyProduce, size_bytes: int, context: RequestContext, serve: Serve,
        part_before: list[asyncio.Task[None]],
    ) -> asyncio.Task[None]:  # fmt: skip
        connection = context.connection
        places = [(TopicPartition(item.topic, item.partition), connection) for item in request.partitions]
        before = [*part_before, *(self._last[place] for place in places if place in self._last)]
        # The request's records are views of a receive buffer that others will be read into.
        kept = tuple(replace(item, records=bytearray(item.records)) for item in request.partitions)
        work = self._run(replace(request, partitions=kept), context, before, serve)
        task = asyncio.get_running_loop().create_task(work, name="barnabas-prepare")
        self.tasks[task] = None
        for place in places:
            self._last[place] = task
        task.add_done_callback(lambda done: self._ended(done, places, connection, size_bytes))
        return task

    def _ended(
        self,
        task: asyncio.Task[None],
        places: Iterable[tuple[TopicPartition, object]],
        connection: object,
        size_bytes: int,
    ) -> None:
        self._memory.give_back(size_bytes)
        left = self._pending_bytes_of.pop(connection, 0) - size_bytes
        if left:
            self._pending_bytes_of[connection] = left
        self.tasks.pop(task, None)
        for place in places:
            if self._last.get(place) is task:
                del self._last[place]

    async def _run(
        self, request: AnyProduce, context: RequestContext, before: list[asyncio.Task[None]], serve: Serve
    ) -> None:
        verified = await self._verification.verified(request)
        try:
            preparing = [self._prepared(item, request, context) for item in request.partitions]
            prepared = [_told(found) for found in await asyncio.gather(*preparing, return_exceptions=True)]
            if before:
                await asyncio.wait(before)
        finally:
            refused = verified.close()
        refused |= {number: found for number, found in enumerate(prepared) if isinstance(found, BarnabasError)}
        partitions = tuple(
            item if isinstance(found, BarnabasError) else replace(item, records=found)
            for item, found in zip(request.partitions, prepared, strict=True)
        )
        serve(replace(request, partitions=partitions), refused)
        verified.appended()

    async def _prepared(
        self, item: ProducePartition, request: AnyProduce, context: RequestContext
    ) -> Buffer | BarnabasError:
        config = self._config_of(TopicPartition(item.topic, item.partition))
        if config is None or not _needs_preparation(item.records, config):
            return item.records
        try:
            check_produced(item.records, kafka_version=request.kafka_version)
        except BarnabasError as error:
            return error
        is_otherwise = is_stored_otherwise(item.records, config.compression_type)
        job = _Job(
            records=item.records,
            rules=_rules(config),
            codec=codec_named(config.compression_type) if is_otherwise else None,
            level=config.compression_level,
            is_wanted=lambda: context.is_connected or request.acks == 0,
            done=asyncio.get_running_loop().create_future(),
        )
        return await self._in_turn(context.connection, job)

    # --- turns --------------------------------------------------------------------------------------------------------

    def _in_turn(self, connection: object, job: _Job) -> "asyncio.Future[Buffer | BarnabasError]":
        self._queues.setdefault(connection, deque()).append(job)
        self._work()
        return job.done

    def _work(self) -> None:
        while self._queues and self._working < MAX_THREADS:
            connection, queue = self._queues.popitem(last=False)
            job = queue.popleft()
            if queue:
                self._queues[connection] = queue  # behind the others
            if job.done.done():
                continue  # It was cancelled.
            if not job.is_wanted():
                job.done.set_result(RequestTimedOutError("the client disconnected before its batches were checked"))
                continue
            self._working += 1
            work = asyncio.get_running_loop().run_in_executor(self._threads, job.perform)
            work.add_done_callback(partial(self._performed, job))

    def _performed(self, job: _Job, ended: "asyncio.Future[Buffer | BarnabasError]") -> None:
        self._working -= 1
        error = None if ended.cancelled() else ended.exception()
        if ended.cancelled() or job.done.done():
            job.done.cancel()
        elif error is not None:
            job.done.set_exception(error)
        else:
            job.done.set_result(ended.result())
        self._work()


def _told(found: "Buffer | BaseException") -> Buffer | BarnabasError:
    """The caller receives an answer even if the preparation failed by a bug or for lack of memory."""
    if not isinstance(found, BaseException) or isinstance(found, BarnabasError):
        return found
    logger.error("batches could not be prepared error=%r", found, exc_info=found)
    return BarnabasError("the broker failed to check the batches because of an internal error; its log has the details")


def _rules(config: ReplicatedLogConfig) -> RecordRules:
    return RecordRules(needs_keys=config.is_compacted, max_message_bytes=config.max_message_bytes)


def _needs_preparation(batches: Buffer, config: ReplicatedLogConfig) -> bool:
    """Whether any of the batches is to be unpacked or looked into. What is cut is left to the log."""
    if not config.takes_batches_as_sent:
        if config.is_compacted:
            return len(batches) >= HEADER_SIZE
        if is_stored_otherwise(batches, config.compression_type):
            return True
    position = 0
    while position + HEADER_SIZE <= len(batches):
        if batches[position + ATTRIBUTES_POSITION] & COMPRESSION_MASK:
            return True
        position += max(HEADER_SIZE, LENGTH.unpack_from(batches, position + LENGTH_POSITION)[0] + LOG_OVERHEAD)
    return False


def _too_long() -> None:
    raise _TooLongError


def _let_the_loop_go_first() -> None:
    time.sleep(THREAD_PAUSE_S)
