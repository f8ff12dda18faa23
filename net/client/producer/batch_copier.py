"""Whole record batches from one partition to another, under numbers that the caller has chosen.

For copies that must be the same however often they are begun: with the producer id, the epoch and the sequences fixed
beforehand, a broker appends each batch once, from any sender (KIP-98). Records are neither decoded nor encoded.
"""

from collections.abc import AsyncIterator, Sequence

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import ProducerFields, number_batch
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import ProducePartition, ProduceRequest
from barnabas.net.wire.protocol.responses import ProduceResponse

from ..connection.client import Client
from ..connection.errors import BarnabasError, ErrorCode, LeaderNotAvailableError, error_for
from ..consumer.range_reader import RangeReader
from ..positions.offset_lookup import EARLIEST, LATEST, list_offsets, topic_id_of

ACKS_ALL = -1
MAX_FETCH_BYTES = 8 << 20  # Two such chunks are in memory for each partition that is copied at a time.
RESPONSE_GRACE_MS = 5_000  # On top of the broker's own timeout, before the connection is suspected.
_SEQUENCES = 2**31
# The second: the batch was appended so long ago that the broker does not remember its offset.
_WRITTEN = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class MissingBatchError(BarnabasError):
    """A batch to copy is missing, or differs from the expected one."""


class BatchCopier:
    """Used on the loop of its client. `timeout_ms` bounds each chunk that is fetched and each batch that is written."""

    def __init__(self, client: Client, *, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms

    async def copy(
        self,
        source: TopicPartition,
        batches: Sequence[tuple[int, int]],
        target: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        first_record: int = 0,
    ) -> int:
        """Append the batches (base offset, number of records; ascending) to the target, one after the other.

        Their sequences count their records from 0 on. What lies before `first_record` is left out: it must end a batch. Returns
        the number of records that the target has now. Raises MissingBatchError; InvalidProducerEpochError where a later epoch
        of the producer has written; and what else keeps a batch from being appended, when the time is over.
        """
        for topic in (source.topic, target.topic):
            await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms)
        # Decisions have no id of the stage. What they name is checked batch by batch, of one topic from here on.
        topic_id = self._client.metadata.topic_id(source.topic)
        wanted = dict(batches)
        position = sequence = 0
        for _, count in batches:
            if sequence >= first_record:
                break
            sequence += count
            position += 1
        if sequence != first_record:
            raise MissingBatchError(f"{target} has {first_record} records of a copy of {sequence}")
        left = batches[position:]
        if not left:
            return sequence
        expected = iter(left)
        async for base_offset, count, data in self._read(source, left[0][0], left[-1][0] + left[-1][1], topic_id):
            if base_offset not in wanted:
                continue  # A batch of another producer, or of an attempt that does not count.
            if (base_offset, count) != next(expected, None):
                raise _missing(source, left)
            fields = ProducerFields(
                producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence % _SEQUENCES
            )
            await self._append(target, number_batch(data, fields))
            sequence += count
        if next(expected, None) is not None:
            raise _missing(source, left)
        return sequence

    async def written(self, target: TopicPartition, *, from_offset: int, producer_id: int, producer_epoch: int) -> int:
        """How many records of a copy the target has, looked for from an offset to the end that is committed now."""
        starts = await list_offsets(self._client, {target: EARLIEST}, timeout_ms=self._timeout_ms)
        ends = await list_offsets(self._client, {target: LATEST}, timeout_ms=self._timeout_ms)
        start, end = max(starts[target].offset, from_offset), ends[target].offset
        found = 0
        async for chunk in self._chunks(target, start, end, topic_id_of(target.topic, [starts, ends])):
            for header in iter_headers(chunk):
                if (header.producer_id, header.producer_epoch) == (producer_id, producer_epoch):
                    found = max(found, header.base_sequence + header.last_offset_delta + 1)
        return found

    async def _read(
        self, source: TopicPartition, start: int, end: int, topic_id: str
    ) -> AsyncIterator[tuple[int, int, bytes]]:
        async for chunk in self._chunks(source, start, end, topic_id):
            for header in iter_headers(chunk, verify_crc=True):
                data = chunk[header.position : header.position + header.size_bytes]
                yield header.base_offset, header.record_count, data

    async def _chunks(self, source: TopicPartition, start: int, end: int, topic_id: str) -> AsyncIterator[bytes]:
        reader = RangeReader(
            self._client,
            source,
            start=start,
            end=max(start, end),
            max_bytes=MAX_FETCH_BYTES,
            is_committed_only=False,
            topic_id=topic_id,
            timeout_ms=self._timeout_ms,
        )
        while (chunk := await reader.next_chunk()) is not None:
            yield chunk.data

    async def _append(self, target: TopicPartition, data: bytes) -> None:
        async def attempt() -> None:
            leader = self._client.metadata.leader(target)
            if leader.node_id < 0:
                raise LeaderNotAvailableError(f"{target} has no leader")
            timeout_ms = self._client.request_timeout_ms
            response: ProduceResponse = await self._client.call(
                leader.node_id,
                ProduceRequest(
                    acks=ACKS_ALL,
                    timeout_ms=timeout_ms,
                    partitions=(ProducePartition(topic=target.topic, partition=target.partition, records=data),),
                ),
                timeout_ms=timeout_ms + RESPONSE_GRACE_MS,
            )
            (answer,) = response.partitions
            if answer.error not in _WRITTEN:
                self._client.metadata.hint(target, node_id=answer.leader_id, epoch=answer.leader_epoch)
                raise error_for(answer.error, answer.message or f"append to {target}")

        await self._client.retrying(attempt, timeout_ms=self._timeout_ms, before_retry=self._client.refresh)


def _missing(source: TopicPartition, batches: Sequence[tuple[int, int]]) -> MissingBatchError:
    first, (last, count) = batches[0][0], batches[-1]
    return MissingBatchError(
        f"batches between the offsets {first} and {last + count} of {source} do not exist any more"
    )
