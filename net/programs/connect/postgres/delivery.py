"""`TopicWriter`: changes and the position behind them go into topics in one transaction.

The position is a record of a compacted topic, not a committed offset of a group: offsets of a group without members expire, and
they have no room for the ranges of a snapshot. On start, the writer takes over the connector's transactional id, which ends a
process that still runs; then it commits a barrier record behind everything that the predecessor has written, and reads back from
there.
"""

import logging
from collections.abc import Iterable
from typing import Final

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.errors import TopicAlreadyExistsError
from barnabas.net.client.connection.security import SecurityOptions
from barnabas.net.client.consumer.range_reader import RangeReader, batches_of
from barnabas.net.client.positions.offset_lookup import topic_id_of
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction

from .changes.envelope import ALL_PARTITIONS, Outgoing
from .changes.lsn import NO_LSN
from .changes.position import Position, decode, encode
from .changes.settings import SourceSettings

logger = logging.getLogger("barnabas.connect")

POSITION_KEY: Final = b"position"
BARRIER_KEY: Final = b"barrier"
POSITION_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
FIRST_LOOK_BACK: Final = 64  # offsets before the barrier; a look further back doubles
READ_TIMEOUT_MS: Final = 60_000  # of one chunk: an election ends within it
SEND_AT_ONCE: Final = (
    500  # records of a topic that are handed to the producer in one call: a call costs more than a record
)
READ_BYTES: Final = 1 << 20
EARLIEST: Final = -2
IDLE_COMMIT_S: Final = 10.0  # a commit of a position alone is a transaction


class TopicWriter:
    """A `ChangeWriter`. One transaction at a time: `send` opens it, `commit` ends it with a position."""

    idle_commit_s = IDLE_COMMIT_S

    def __init__(self, settings: SourceSettings, bootstrap: str, security: SecurityOptions) -> None:
        self._settings = settings
        self._admin = Admin(bootstrap, **security)
        delivery = settings.delivery
        self._producer = Producer(
            bootstrap,
            transactional_id=f"postgres-{settings.name}",
            transaction_timeout_ms=delivery.transaction_timeout_ms,
            compression=delivery.compression,
            linger_ms=5,
            max_request_bytes=delivery.max_record_bytes,
            client_id=f"connect-{settings.name}",
            **security,
        )
        self._transaction: Transaction | None = None
        self._partitions: dict[str, int] = {}
        self._waiting: dict[
            str, tuple[list[bytes], list[bytes | None]]
        ] = {}  # keys and values by topic, at most SEND_AT_ONCE
        self.count = 0  # records in the open transaction
        self.is_full = False  # `send` waits while the producer's buffer is full
        self.confirmable_lsn = NO_LSN  # of the last commit

    async def start(self) -> None:
        """Take over from a predecessor. Raises BarnabasError."""
        await self._admin.start()
        await self._create(self._settings.position_topic, 1, POSITION_CONFIGS)
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close(timeout_ms=0)
        await self._admin.close()

    async def create_topics(self, names: Iterable[str]) -> None:
        topics = self._settings.topics
        for name in names:
            if name not in self._partitions:
                await self._create(name, topics.partitions, topics.configs)
                self._partitions[name] = len((await self._admin.describe_topic(name)).partitions)

    async def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        replication_factor = self._settings.topics.replication_factor
        try:
            await self._admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
        except TopicAlreadyExistsError:
            return
        logger.info("topic created topic=%s partitions=%d", name, partitions)

    # --- transactions -------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transaction is not None

    async def send(self, records: Iterable[Outgoing]) -> None:
        """Waits while the producer's buffer is full. Raises BarnabasError."""
        if self._transaction is None:
            await self._opened()
        for record in records:
            self.count += 1
            if record.partition == ALL_PARTITIONS:
                await self._send_to_all(record)
                continue
            waiting = self._waiting.get(record.topic)
            if waiting is None:
                waiting = self._waiting[record.topic] = ([], [])
            waiting[0].append(record.key)
            waiting[1].append(record.value)
            if len(waiting[0]) >= SEND_AT_ONCE:
                await self._flush(record.topic)

    async def _send_to_all(self, record: Outgoing) -> None:
        await self._flush(record.topic)
        transaction = await self._opened()
        for number in range(self._partitions[record.topic]):
            await transaction.send(record.topic, record.value, key=record.key, partition=number)

    async def _flush(self, topic: str) -> None:
        """Records of one topic stay in their order; of different topics, a transaction shows them at once."""
        waiting = self._waiting.pop(topic, None)
        if waiting is not None:
            keys, values = waiting
            await (await self._opened()).send_many(topic, values, keys)

    async def commit(self, position: Position) -> None:
        """End the transaction with this position. Raises BarnabasError; the connector then starts over."""
        transaction = await self._opened()
        for topic in list(self._waiting):
            await self._flush(topic)
        await transaction.send(self._settings.position_topic, encode(position), key=POSITION_KEY, partition=0)
        self._transaction, self.count = None, 0
        await transaction.commit()
        self.confirmable_lsn = position.lsn

    async def _opened(self) -> Transaction:
        if self._transaction is None:
            transaction = self._producer.transaction()
            await transaction.begin()
            self._transaction = transaction
        return self._transaction

    # --- the position -------------------------------------------------------------------------------------------------

    async def committed_position(self) -> Position | None:
        """The last one that any process of this connector has committed. Raises BarnabasError, PositionFormatError."""
        topic = self._settings.position_topic
        topic_id = (await self._admin.describe_topic(topic)).topic_id  # before the offset that it stands for
        transaction = self._producer.transaction()
        async with transaction:
            handle = await transaction.send(topic, b"", key=BARRIER_KEY, partition=0)
        barrier = (await handle).offset
        return await _position_before(self._admin, topic, barrier + 1, topic_id)


async def read_position(settings: SourceSettings, bootstrap: str, security: SecurityOptions) -> Position | None:
    """The last committed position, without disturbing the connector. Raises BarnabasError, PositionFormatError."""
    async with Admin(bootstrap, **security) as admin:
        if settings.position_topic not in await admin.list_topics(include_internal=True):
            return None
        (end,) = (await admin.list_offsets(settings.position_topic)).values()
        return await _position_before(admin, settings.position_topic, end.offset, end.topic_id)


async def _position_before(admin: Admin, topic: str, end: int, topic_id: str) -> Position | None:
    """Raises TopicRecreatedError: the end of an older topic would cut off the positions of the newer one."""
    place = TopicPartition(topic, 0)
    starts = await admin.list_offsets(topic, timestamp_ms=EARLIEST)
    topic_id_of(topic, [starts], planned=topic_id)
    first = starts[place]
    look_back, last = FIRST_LOOK_BACK, end
    while True:
        start = max(first.offset, last - look_back)
        found = await _last_position(admin, place, start, end, topic_id)
        if found is not None or start == first.offset:
            return found
        end, look_back = start, look_back * 2


async def _last_position(admin: Admin, place: TopicPartition, start: int, end: int, topic_id: str) -> Position | None:
    reader = RangeReader(
        admin.client,
        place,
        start=start,
        end=end,
        max_bytes=READ_BYTES,
        is_committed_only=True,
        topic_id=topic_id,
        timeout_ms=READ_TIMEOUT_MS,
    )
    last = None
    while (chunk := await reader.next_chunk()) is not None:
        for _, records in batches_of(chunk, end=end):
            for record in records:
                if record.key == POSITION_KEY and record.value is not None:
                    last = record.value
    return None if last is None else decode(bytes(last))
