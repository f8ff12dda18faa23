"""`RangeReader`: the batches of one partition from one offset to another, following moves of its leader.

For readers of a fixed range, such as a task of Spark: no group, no reset, no buffer beyond the chunk being fetched. The caller
decodes with `columns_of` or `batches_of`: in the thread that needs the records, while the next chunk is in flight.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from barnabas.log.format.record_batch import (
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    BatchHeader,
    iter_headers,
    read_header,
)
from barnabas.log.records.aborted import AbortedFilter
from barnabas.log.records.codec import RecordView, decode, records_of
from barnabas.log.records.columns import Columns
from barnabas.log.vocabulary.errors import InconsistentTopicIdError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol.requests import READ_COMMITTED, READ_UNCOMMITTED, FetchPartition, FetchRequest
from barnabas.net.wire.protocol.responses import FetchPartitionResponse, FetchResponse

from ..connection.client import Client
from ..connection.errors import (
    BarnabasError,
    CorruptRecordError,
    LeaderNotAvailableError,
    PartitionGoneError,
    RequestTimedOutError,
    TopicRecreatedError,
    UnknownTopicOrPartitionError,
    UnreadableBatchError,
    error_for,
)
from .read_replicas import ReadReplicas

FIRST_FETCH_BYTES = 1 << 20  # A short range must not fetch the rest of the log; each further fetch doubles the size.
# Decompressed, in one `Columns`, or one larger batch: a chunk may expand to much more than memory has.
COLUMNS_BYTES = 4 << 20
MAX_WAIT_MS = 500  # The records exist already, or become visible as soon as a new leader knows that they are committed.
# For a topic that is unknown, or another one of its name: longer than the metadata lag of any running broker.
UNKNOWN_TOPIC_PATIENCE_MS = 5_000
RESPONSE_GRACE_MS = 30_000  # On top of that wait, before the request times out.


class Chunk(NamedTuple):
    """Whole batches. Ignore records before `start`: they were not requested, or do not exist any more."""

    start: int
    data: bytes
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset) of transactions to leave out


class RangeReader:
    """Used on one event loop; one call of `next_chunk` at a time."""

    def __init__(
        self,
        client: Client,
        partition: TopicPartition,
        *,
        start: int,
        end: int,
        max_bytes: int,
        is_committed_only: bool,
        topic_id: str,
        timeout_ms: int,
        rack: str = "",
    ) -> None:
        """`timeout_ms` bounds the time of one chunk, including retries. `topic_id`: of the topic that the offsets are of, as
        `list_offsets` tells it; no record of another topic of this name is read. "": any topic."""
        assert 0 <= start <= end
        self.partition = partition
        self.position = start  # 0 <= position; at `end` or after it, the range is complete.
        self.end = end
        self._client = client
        self._max_bytes = max_bytes
        self._fetch_bytes = min(FIRST_FETCH_BYTES, max_bytes)
        self._isolation_level = READ_COMMITTED if is_committed_only else READ_UNCOMMITTED
        self._may_be_sent_away = bool(rack)
        self.topic_id = topic_id
        self._other_topic_since_ms: float | None = None  # the id was refused or the partition was not there, each time
        self._replicas = ReadReplicas(client.metadata, rack, stay_ms=client.metadata_max_age_ms)
        self._timeout_ms = timeout_ms

    async def next_chunk(self) -> Chunk | None:
        """Return whole batches from the position on, and advance the position; None at the end of the range.

        Batches may start before the position and reach beyond the end: `columns_of` and `batches_of` drop those records. Raises
        OffsetOutOfRangeError if the log does not have the position (any more), PartitionGoneError if the topic is gone,
        TopicRecreatedError if the name has another topic id or fewer partitions, and the last error at the timeout.
        """
        deadline_ms = self._client.clock.now_ms() + self._timeout_ms
        while self.position < self.end:
            remaining_ms = max(1, deadline_ms - self._client.clock.now_ms())
            start = self.position
            data, aborted = await self._client.retrying(
                self._fetch, timeout_ms=remaining_ms, before_retry=self._client.refresh
            )
            if data:
                return Chunk(start, data, aborted)
            if self._client.clock.now_ms() >= deadline_ms:
                raise RequestTimedOutError(
                    f"no record of {self.partition} at offset {self.position} within {self._timeout_ms} ms, though the range "
                    f"ends at {self.end}: its leader may be without its in-sync replicas (barnabas topic describe)"
                )
        return None

    def go_to(self, offset: int) -> None:
        """Continue from this offset: its own one does not exist."""
        self.position = offset

    async def _wait_for_topic(self) -> None:
        try:
            await self._client.wait_for_topic(self.partition.topic, timeout_ms=UNKNOWN_TOPIC_PATIENCE_MS)
        except UnknownTopicOrPartitionError as error:
            raise PartitionGoneError(f"topic {self.partition.topic} does not exist any more") from error

    async def _fetch(self) -> tuple[bytes, Sequence[tuple[int, int]]]:
        topic, number = self.partition
        if not self._client.metadata.partition_count(topic):
            await self._wait_for_topic()
        leader = self._client.metadata.leader(self.partition)
        node_id, rack = self._replicas.source(self.partition, self._client.clock.now_ms())
        if node_id < 0:
            if self._client.metadata.partition_failure(self.partition) is not None:
                self._check_patience()
            raise LeaderNotAvailableError(f"{self.partition} has no leader")
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            partitions=(
                FetchPartition(
                    topic=topic,
                    partition=number,
                    fetch_offset=self.position,
                    max_bytes=self._fetch_bytes,
                    current_leader_epoch=leader.epoch,
                    topic_id=self.topic_id,
                ),
            ),
            isolation_level=self._isolation_level,
            rack=rack,
            may_be_sent_away=self._may_be_sent_away,
        )
        try:
            connection = await self._client.connect(node_id, bulk=True)
            response: FetchResponse = await connection.call(request, timeout_ms=MAX_WAIT_MS + RESPONSE_GRACE_MS)
            (answer,) = response.partitions
            return self._take(answer), answer.aborted
        except BarnabasError as error:
            if self._replicas.failed(self.partition, self._client.clock.now_ms()):
                return b"", ()  # the leader is asked at once
            if isinstance(error, InconsistentTopicIdError):
                self._check_patience()
            raise

    def _check_patience(self) -> None:
        """The broker or the id may be of the older topic (ids have no order). A broker that is behind catches up. A topic never
        loses partitions, so one that lacks the partition is another one, or a broker does not know of more partitions yet."""
        now_ms = self._client.clock.now_ms()
        if self._other_topic_since_ms is None:
            self._other_topic_since_ms = now_ms
        elif now_ms - self._other_topic_since_ms >= UNKNOWN_TOPIC_PATIENCE_MS:
            topic = self.partition.topic
            raise TopicRecreatedError.between(topic, self.topic_id, self._client.metadata.topic_id(topic))

    def _take(self, answer: FetchPartitionResponse) -> bytes:
        if answer.error:
            self._client.metadata.hint(self.partition, node_id=answer.leader_id, epoch=answer.leader_epoch)
            raise error_for(answer.error, answer.message or f"fetch of {self.partition} at offset {self.position}")
        if answer.preferred_read_replica >= 0:
            if not self._replicas.send(self.partition, answer.preferred_read_replica, self._client.clock.now_ms()):
                self._client.request_refresh()
            return b""
        self._other_topic_since_ms = None
        assert isinstance(answer.records, bytes | bytearray | memoryview)
        size_bytes, next_offset = _whole_batches(answer.records)
        if not size_bytes:
            if len(answer.records):
                self._fetch_bytes *= 2  # The batch is larger than the requested size.
            return b""
        self._fetch_bytes = max(self._fetch_bytes, min(2 * self._fetch_bytes, self._max_bytes))
        self.position = max(self.position, next_offset)
        return bytes(answer.records[:size_bytes])


def batches_of(chunk: Chunk, *, end: int) -> Iterator[tuple[BatchHeader, Sequence[RecordView]]]:
    """The records of a chunk before `end`, batch by batch; batches without records in the range are left out, and so are those of
    aborted transactions, for a reader of committed records.

    Raises CorruptRecordError for a damaged batch.
    """
    start, data, aborted = chunk
    to_leave_out = AbortedFilter(aborted)
    for header in iter_headers(data, verify_crc=True):
        is_left_out = to_leave_out.leaves_out(header, data)
        if not is_left_out and header.next_offset > start and header.base_offset < end:
            records = records_of(data, header, RecordView, start, end, check=False)
            if records:
                yield header, records


def columns_of(
    partition: TopicPartition, chunk: Chunk, *, end: int, max_bytes: int = COLUMNS_BYTES
) -> Iterator[Columns]:
    """As `batches_of`: the records of many batches as columns, at most `max_bytes` of them or one batch at a time.

    Raises UnreadableBatchError after the records before a damaged batch.
    """
    start, data, aborted = chunk
    to_leave_out = AbortedFilter(aborted)
    rest = memoryview(data)
    while rest.nbytes and start < end:
        try:
            columns = decode([rest], start, end, aborted=to_leave_out, max_bytes=max_bytes)
        except CorruptRecordError as error:
            header = read_header(rest)
            first = max(header.base_offset, start)
            raise UnreadableBatchError(partition, first, header.next_offset, error.message) from error
        rest = rest[columns.consumed_bytes :]
        start = columns.next_offset
        if columns.count:
            yield columns


def _whole_batches(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """The size of all whole batches at the start of an answer, and the offset after the last of them."""
    end = 0
    next_offset = -1
    while len(data) - end >= LOG_OVERHEAD:
        size_bytes: int = LENGTH.unpack_from(data, end + LENGTH_POSITION)[0] + LOG_OVERHEAD
        if size_bytes > len(data) - end:
            break
        next_offset = read_header(data, end).next_offset
        end += size_bytes
    return end, next_offset
