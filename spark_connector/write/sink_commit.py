"""`SinkCommitter`: the driver's side of effectively-once sinks: each micro-batch is decided once and published once.

    1  tasks have staged their rows and reported the offsets            crash before 3: no topic has any of the rows
    2  check whether this micro-batch is already decided or published      (Spark runs it again with the same number;
    3  write the decision to the ledger                                    rows staged before are never read)
    4  copy the decided batches into their topics, with the sequence    crash after 3: the next driver of this sink
       numbers that the decision fixed                                     completes 4 with the *decided* batches, not
    5  write to the ledger that they are published                         with those that it has staged itself
    6  Spark records in its checkpoint that the micro-batch is done     crash after 5: 2 finds it published

So each row of a micro-batch is written to its topic once, wherever the driver, tasks or brokers fail, and whatever a repeated
task computes: the first decision counts. In step 4 readers see the batches appear one by one, because there are no transactions
yet; with transactions 3 becomes the commit and 4 its markers, and nothing else here changes.

A driver that resumes at 4 first reads which batches the target already has. Brokers refuse the same sequence numbers a second
time, so a concurrent second driver of the same query does no harm either.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import BarnabasError, ErrorCode, RecordTooLargeError, error_for
from barnabas.net.client.consumer.range_reader import RangeReader, batches_of
from barnabas.net.client.positions.offset_lookup import EARLIEST, LATEST, list_offsets
from barnabas.net.client.producer.batch_copier import BatchCopier, MissingBatchError
from barnabas.net.client.producer.producer import Producer
from barnabas.net.protocol.requests import InitProducerIdRequest
from barnabas.net.protocol.responses import InitProducerIdResponse

from ..common.sink_ledger import (
    LEDGER_TOPIC,
    Decision,
    ProducerEpoch,
    SinkLedger,
    StagedBatch,
    StagedPartition,
    stage_of,
)
from .sink_topics import SinkTopics

logger = logging.getLogger("barnabas.spark")

LEDGER = TopicPartition(LEDGER_TOPIC, 0)
MAX_COPIES = 16  # Partitions that are published concurrently: each has one or two chunks in memory.
TRIM_EVERY = 100  # Commits of a process between two trims; the first commit trims, too.
LEDGER_FETCH_BYTES = 4 << 20
MAX_DECISION_BYTES = 900 * 1024  # Of a record of 1 MiB: some 50,000 staged batches.


class StagedRowsLostError(BarnabasError):
    """Staged rows are gone; the message says whether any of them were published."""


class SinkFencedError(BarnabasError):
    """Another driver of the same query, or another query with the same sinkId, has written a later micro-batch."""


class Probe(Protocol):
    """Called after each step; tests kill the process there."""

    def __call__(self, step: str) -> None: ...


def no_probe(step: str) -> None:
    pass


class SinkCommitter:
    """Use it only on the event loop of its client. One per process and cluster: it keeps the replayed state of the ledger."""

    def __init__(self, client: Client, producer: Producer, *, timeout_ms: int) -> None:
        self._client = client
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._probe: Probe = no_probe
        self._turn = asyncio.Lock()
        self._topics = SinkTopics(client, timeout_ms=timeout_ms)
        self._copier = BatchCopier(client, timeout_ms=timeout_ms)
        self._ledger = SinkLedger()
        self._is_ready = False
        self._commits = 0

    async def commit(
        self,
        sink_id: str,
        batch_id: int,
        staged: Sequence[StagedBatch],
        *,
        is_last: bool = False,
        probe: Probe = no_probe,
    ) -> bool:
        """Publish a micro-batch unless it was published before; return whether the rows staged now were published.

        With `is_last` the sink is deleted from the ledger afterwards: its id is never used again. Raises StagedRowsLostError,
        SinkFencedError, and the brokers' errors if they persist until the timeout. After any error the commit may be retried.
        """
        async with self._turn:
            self._probe = probe
            return await self._commit(sink_id, batch_id, staged, is_last=is_last)

    async def _commit(self, sink_id: str, batch_id: int, staged: Sequence[StagedBatch], *, is_last: bool) -> bool:
        await self._read_ledger()
        pending = self._ledger.pending(sink_id)
        if pending is not None:
            logger.warning("finishing micro-batch sink=%s batch=%d", sink_id, pending.batch_id)
            await self._publish(pending, is_resumed=True, is_last=False)
        published = self._ledger.published(sink_id)
        if published is not None and batch_id <= published.batch_id:
            logger.warning("micro-batch is already published sink=%s batch=%d", sink_id, batch_id)
            return False
        if not staged:
            return True
        mine = await self._decision(sink_id, batch_id, staged)
        holds = await self._decide(mine)
        if holds is None:
            logger.warning("another driver has published the micro-batch sink=%s batch=%d", sink_id, batch_id)
            return False
        await self._publish(holds, is_resumed=holds.attempt != mine.attempt, is_last=is_last)
        if self._commits % TRIM_EVERY == 0:
            await self._trim({item.target.topic for item in holds.partitions})
        self._commits += 1
        return holds.attempt == mine.attempt

    # --- deciding ----------------------------------------------------------------------------------------------------

    async def _decision(self, sink_id: str, batch_id: int, staged: Iterable[StagedBatch]) -> Decision:
        by_target: dict[TopicPartition, list[tuple[int, int]]] = {}
        for item in staged:
            target = TopicPartition(item.topic, item.partition)
            by_target.setdefault(target, []).append((item.base_offset, item.record_count))
        ends = await self._ends(by_target)
        producer = self._ledger.next_epoch(sink_id)
        if producer is None:
            answer: InitProducerIdResponse = await self._client.retrying(
                lambda: self._client.call_any(InitProducerIdRequest()), timeout_ms=self._timeout_ms
            )
            producer = ProducerEpoch(producer_id=answer.producer_id, epoch=0)
        return Decision(
            sink_id=sink_id,
            batch_id=batch_id,
            attempt=uuid.uuid4().hex,
            producer=producer,
            partitions=tuple(
                StagedPartition(target=target, batches=tuple(sorted(by_target[target])), not_before=ends[target])
                for target in sorted(by_target)
            ),
        )

    async def _ends(self, staged: Mapping[TopicPartition, list[tuple[int, int]]]) -> dict[TopicPartition, int]:
        """The log ends of the targets. Raises StagedRowsLostError if a stage no longer has all staged rows."""
        for topic in {target.topic for target in staged}:
            await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms)
            await self._client.wait_for_topic(stage_of(topic), timeout_ms=self._timeout_ms)
        stages = {TopicPartition(stage_of(target.topic), target.partition): target for target in staged}
        asked = {**dict.fromkeys(stages, EARLIEST), **dict.fromkeys(staged, LATEST)}
        found = await list_offsets(self._client, asked, timeout_ms=self._timeout_ms)
        for stage, target in stages.items():
            if found[stage].offset > min(staged[target])[0]:
                raise StagedRowsLostError(
                    f"{stage} now begins at offset {found[stage].offset}, after rows that were staged: its retention is "
                    "shorter than the duration of the micro-batch; nothing of the micro-batch was published"
                )
        return {target: found[target].offset for target in staged}

    async def _decide(self, mine: Decision) -> Decision | None:
        """Write the decision and return the valid one: the first in the ledger, which may be another driver's. None if that
        driver has already published it."""
        self._probe("staged")
        value = mine.to_bytes()
        if len(value) > MAX_DECISION_BYTES:
            raise RecordTooLargeError(
                f"micro-batch {mine.batch_id} of sink {mine.sink_id} has {sum(len(item.batches) for item in mine.partitions)} "
                "staged batches, too many for one decision; nothing of it was published: lower maxOffsetsPerTrigger, or raise "
                "batch.size"
            )
        await self._write([(mine.key, value)])
        await self._read_ledger()
        self._probe("decided")
        return self._ledger.pending(mine.sink_id)

    # --- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self, decision: Decision, *, is_resumed: bool, is_last: bool) -> None:
        limit = asyncio.Semaphore(MAX_COPIES)
        copies = await asyncio.gather(
            *(self._copy(decision, item, limit, is_resumed=is_resumed) for item in decision.partitions),
            return_exceptions=True,
        )
        for outcome in copies:
            if isinstance(outcome, BaseException):
                raise outcome
        self._probe("copied")
        count = sum(item.record_count for item in decision.partitions)
        ledger = self._ledger
        await self._write(ledger.records_of_forgetting(decision) if is_last else ledger.records_of_publishing(decision))
        await self._read_ledger()
        self._probe("published")
        logger.info("micro-batch published sink=%s batch=%d records=%d", decision.sink_id, decision.batch_id, count)

    async def _copy(
        self, decision: Decision, item: StagedPartition, limit: asyncio.Semaphore, *, is_resumed: bool
    ) -> None:
        producer = decision.producer
        async with limit:
            try:
                first = 0
                if is_resumed:
                    await self._client.wait_for_topic(item.target.topic, timeout_ms=self._timeout_ms)
                    first = await self._copier.written(
                        item.target,
                        from_offset=item.not_before,
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                    )
                await self._copier.copy(
                    item.stage,
                    item.batches,
                    item.target,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    first_record=first,
                )
            except BarnabasError as error:
                raise self._explained(decision, item, error) from error
            self._probe(f"copied {item.target}")

    @staticmethod
    def _explained(decision: Decision, item: StagedPartition, error: BarnabasError) -> BarnabasError:
        what = f"micro-batch {decision.batch_id} of sink {decision.sink_id} is decided, but {item.target} does not have all of it"
        if error.code == ErrorCode.INVALID_PRODUCER_EPOCH:
            return SinkFencedError(
                f"{what}: a later micro-batch was written ({error.message}); two drivers run this query: stop one"
            )
        if isinstance(error, MissingBatchError) or error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return StagedRowsLostError(
                f"{what}, and its staged rows are gone (retention.ms of {item.stage.topic}): {error}"
            )
        if error.retriable:
            return error
        return error_for(
            error.code,
            f"{what}, because the topic refuses it: {error.message}; change the topic's configuration, or continue with another "
            "sinkId, without the rest of this micro-batch",
        )

    async def _trim(self, topics: Iterable[str]) -> None:
        needed: dict[TopicPartition, int] = {}
        for item in [item for decision in self._ledger.all_pending() for item in decision.partitions]:
            needed[item.stage] = min(item.batches[0][0], needed.get(item.stage, item.batches[0][0]))
        for topic in topics:
            await self._topics.trim(topic, needed)

    # --- the ledger --------------------------------------------------------------------------------------------------

    async def _write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """The first record is the essential one; the tombstones after it may get lost."""
        keys = [key for key, _ in records]
        await (await self._producer.send_many(LEDGER_TOPIC, [value for _, value in records], keys, partition=0))

    async def _read_ledger(self) -> None:
        """Read the ledger up to its current end."""
        if not self._is_ready:
            await self._topics.ensure_ledger()
            self._is_ready = True
        end = (await list_offsets(self._client, {LEDGER: LATEST}, timeout_ms=self._timeout_ms))[LEDGER].offset
        reader = RangeReader(
            self._client,
            LEDGER,
            start=min(self._ledger.position, end),
            end=end,
            max_bytes=LEDGER_FETCH_BYTES,
            is_committed_only=False,
            timeout_ms=self._timeout_ms,
        )
        while (chunk := await reader.next_chunk()) is not None:
            for _, records in batches_of(chunk, end=end):
                for record in records:
                    self._ledger.replay(record.offset, record.key, record.value)
