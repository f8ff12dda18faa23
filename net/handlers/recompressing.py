"""Produce requests whose batches are stored under another codec: converted in threads, appended in the order of arrival.

A request waits for its own batches and for whoever came before it with batches of the same partition. Everything else passes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from barnabas.log.errors import BarnabasError, RequestTimedOutError
from barnabas.log.recompression import codec_named, is_stored_otherwise, recompressed
from barnabas.log.record_batch import Buffer
from barnabas.log.replication.ports import ReplicatedLogConfig
from barnabas.log.topic_partition import TopicPartition
from barnabas.net.protocol.requests import KafkaProduceRequest, ProducePartition, ProduceRequest

from .produce_rules import check_produced

MAX_PENDING_BYTES = 64 * 1024 * 1024  # of batches that wait; more are refused, and come again
MAX_CONVERSIONS = 2  # at a time: a small batch may unpack to a large one, and the loop needs a processor too

AnyProduce = ProduceRequest | KafkaProduceRequest
Refused = dict[int, BarnabasError]  # by position in the request
Serve = Callable[[AnyProduce, Refused], None]


class Recompressing:
    """`config_of(partition)` is the configuration of its log, or None for a partition that is not here."""

    def __init__(self, config_of: Callable[[TopicPartition], ReplicatedLogConfig | None]) -> None:
        self._config_of = config_of
        self._last: dict[TopicPartition, asyncio.Task[None]] = {}  # of each partition, who waits longest from now on
        self._pending_bytes = 0
        self._converting = asyncio.Semaphore(MAX_CONVERSIONS)
        self.tasks: dict[asyncio.Task[None], None] = {}

    def must_wait(self, request: AnyProduce) -> bool:
        for item in request.partitions:
            topic_partition = TopicPartition(item.topic, item.partition)
            if topic_partition in self._last:
                return True
            config = self._config_of(topic_partition)
            if config is not None and is_stored_otherwise(item.records, config.compression_type):
                return True
        return False

    def later(self, request: AnyProduce, serve: Serve) -> None:
        """Call `serve` with the converted request, once it is its turn."""
        size_bytes = sum(len(item.records) for item in request.partitions)
        if self._pending_bytes + size_bytes > MAX_PENDING_BYTES:
            error = RequestTimedOutError("too many batches wait to be compressed anew (compression.type); send again")
            serve(request, dict.fromkeys(range(len(request.partitions)), error))
            return
        self._pending_bytes += size_bytes
        partitions = [TopicPartition(item.topic, item.partition) for item in request.partitions]
        before = [self._last[partition] for partition in partitions if partition in self._last]
        # The request's records are views of a receive buffer that others will be read into.
        kept = tuple(replace(item, records=bytearray(item.records)) for item in request.partitions)
        work = self._run(replace(request, partitions=kept), before, serve)
        task = asyncio.get_running_loop().create_task(work, name="barnabas-recompress")
        self.tasks[task] = None
        for partition in partitions:
            self._last[partition] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._pending_bytes -= size_bytes
            self.tasks.pop(done, None)
            for partition in partitions:
                if self._last.get(partition) is done:
                    del self._last[partition]

        task.add_done_callback(ended)

    async def _run(self, request: AnyProduce, before: list[asyncio.Task[None]], serve: Serve) -> None:
        converted = await asyncio.gather(*(self._converted(item, request.kafka_version) for item in request.partitions))
        if before:
            await asyncio.wait(before)
        refused = {number: found for number, found in enumerate(converted) if isinstance(found, BarnabasError)}
        partitions = tuple(
            item if isinstance(found, BarnabasError) else replace(item, records=found)
            for item, found in zip(request.partitions, converted, strict=True)
        )
        serve(replace(request, partitions=partitions), refused)

    async def _converted(self, item: ProducePartition, kafka_version: int) -> Buffer | BarnabasError:
        config = self._config_of(TopicPartition(item.topic, item.partition))
        if config is None or not is_stored_otherwise(item.records, config.compression_type):
            return item.records
        codec = codec_named(config.compression_type)
        loop = asyncio.get_running_loop()
        try:
            check_produced(item.records, kafka_version=kafka_version)
            async with self._converting:
                return await loop.run_in_executor(None, recompressed, item.records, codec, config.compression_level)
        except BarnabasError as error:
            return error
