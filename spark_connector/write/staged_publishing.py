"""`StagedPublishing`: finishes decisions about staged rows, which drivers of versions without transactions have left.

Tasks had written their rows into a staging topic, and the decision named the staged batches. They are copied into their topics
with the producer id, the epoch and the sequence numbers of the decision, so that brokers accept each of them once, also if two
drivers copy at once. A driver that resumes first reads which batches the target already has. Retention deletes the stages.
"""

import asyncio

from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import BarnabasError, ErrorCode, error_for
from barnabas.net.client.producer.batch_copier import BatchCopier, MissingBatchError

from ..common.sink_ledger import Decision, ProducerEpoch, StagedPartition

MAX_COPIES = 16  # Partitions that are published concurrently: each has one or two chunks in memory.


class StagedRowsLostError(BarnabasError):
    """Staged rows are gone; the message says whether any of them were published."""


class SinkFencedError(BarnabasError):
    """Another driver of the same query, or another query with the same sinkId, has written a later micro-batch."""


class StagedPublishing:
    def __init__(self, client: Client, *, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms
        self._copier = BatchCopier(client, timeout_ms=timeout_ms)

    async def publish(self, decision: Decision) -> None:
        """Raises StagedRowsLostError, SinkFencedError, and what the brokers refuse for good."""
        assert decision.producer is not None
        limit = asyncio.Semaphore(MAX_COPIES)
        copies = await asyncio.gather(
            *(self._copy(decision, decision.producer, item, limit) for item in decision.partitions),
            return_exceptions=True,
        )
        for outcome in copies:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _copy(
        self, decision: Decision, producer: ProducerEpoch, item: StagedPartition, limit: asyncio.Semaphore
    ) -> None:
        async with limit:
            try:
                await self._client.wait_for_topic(item.target.topic, timeout_ms=self._timeout_ms)
                await self._client.wait_for_topic(item.stage.topic, timeout_ms=self._timeout_ms)
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
                raise _explained(decision, item, error) from error


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
