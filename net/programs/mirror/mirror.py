"""`Mirror`: copies topics of a source cluster into this one, each record once, with their settings and the groups' offsets.

Records and the positions behind them are written in one transaction. A copy is in the partition of its number, with key, value,
timestamp and headers of the original, and one header more (`provenance`).
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError, InvalidConfigError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction

from ..copying.kept_positions import TRANSACTION_TIMEOUT_MS, KeptPositions, Records
from ..copying.sessions import pause, run_sessions
from .group_offsets import GroupOffsets
from .positions import POSITIONS_TOPIC, Position, key_of, positions_of, source_key, source_of, value_of
from .provenance import was_in, with_place
from .reach import Reach
from .source import Read, Source, SourceError, SourceRecord, SourceTopic, client_options

logger = logging.getLogger("barnabas.mirror")

REFRESH_S: Final = 30.0  # new topics, partitions and settings of the source
GROUPS_S: Final = 10.0
REPORT_S: Final = 30.0
MAX_REQUEST_BYTES: Final = 32 << 20  # The source may have larger records than producers take by default.
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
# Of a copy, over what the source takes: for the header that names its places.
MESSAGE_ROOM_BYTES: Final = 4_096
# Kafka has taken any time before 4.0.
SETTINGS_OF_COPIES: Final = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
IDLE_S: Final = 0.5  # while the source has no topic that matches


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConfig:
    name: str
    topics: Sequence[str]  # names, or patterns with * and ?
    source: str  # host:port, ...
    source_options: Mapping[str, str] = field(default_factory=dict)  # of librdkafka
    prefix: str = ""  # of the copies' names
    groups: Sequence[str] = ("*",)  # none: no group is translated
    from_end: bool = False  # where a partition that was never mirrored begins
    is_once: bool = False  # return when all that the source had at the start is mirrored
    bootstrap: str
    compression: str = "lz4"
    security: Mapping[str, Any] = field(default_factory=dict)

    @property
    def transactional_id(self) -> str:
        return f"barnabas-mirror-{self.name}"


@dataclass(slots=True)
class Progress:
    records: int = 0
    bytes: int = 0
    left_out: int = 0  # they were in this cluster already
    offsets_moved: int = 0


class Mirror:
    def __init__(self, config: MirrorConfig) -> None:
        self._config = config
        self._stopping = asyncio.Event()
        self._kept = KeptPositions(
            POSITIONS_TOPIC,
            config.name,
            program="mirror",
            after_loss="start the mirror again to copy all topics from their starts, or with another --name and --from end",
            bootstrap=config.bootstrap,
            security=config.security,
            stopping=self._stopping,
        )
        self._positions: dict[TopicPartition, int] = {}  # of the source: all before them is mirrored
        self._ids: dict[TopicPartition, str] = {}  # of the topics of these positions, "" if they are not known
        # What is read now. A topic that the source does not show for a while keeps its positions, and goes on there.
        self._active: dict[TopicPartition, None] = {}
        self._late: dict[str, SourceTopic] = {}  # topics that are made with the first record that must be copied
        self._ends: dict[TopicPartition, int] = {}  # of the source, as the last fetches told
        self._topics: dict[str, SourceTopic] = {}
        self._goals: dict[TopicPartition, int] = {}  # with `is_once`: to be reached
        self._refreshed_s = self._groups_s = self._reported_s = time.monotonic()
        self._warned: set[str] = set()
        self._reach = Reach(config.source)
        self.progress = Progress()

    def stop(self) -> None:
        """`run` returns when the current transaction has ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Return after `stop`, or with `is_once` when all is mirrored. Raises BarnabasError for what does not pass by itself."""
        await run_sessions(
            self._reaching_session,
            stopping=self._stopping,
            records_done=lambda: self.progress.records,
            replaced=self._kept.replaced,
            is_told=lambda error: isinstance(error, SourceError) and self._reach.is_away,
            logger=logger,
        )

    @property
    def lag(self) -> int:
        """Records of the source that are not mirrored yet, by what the last fetches told."""
        return sum(max(0, end - self._positions[place]) for place, end in self._ends.items() if place in self._active)

    @property
    def _has_reached_its_goals(self) -> bool:
        """A topic that was deleted meanwhile is no goal any more."""
        return all(self._positions[place] >= end for place, end in self._goals.items() if place in self._active)

    # --- a session: one producer, from its positions on ---------------------------------------------------------------

    async def _reaching_session(self) -> None:
        try:
            await self._session()
        except SourceError as error:
            _tell(self._reach.failed(time.time(), str(error)))
            raise

    def _answered(self) -> None:
        _tell(self._reach.answered(time.time()))

    async def _session(self) -> None:
        config = self._config
        await self._kept.make_topic()
        if self._kept.is_owner:  # before the new producer would fence that of another one
            self._kept.check_owner(await self._kept.records())
        options = client_options(config.source, config.source_options)
        source = Source(
            options,
            group_id=config.transactional_id,
            troubled=self._reach.troubled,
            unreachable=lambda: _tell(self._reach.failed(time.time())),
        )
        async with Producer(
            config.bootstrap,
            transactional_id=config.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            compression=config.compression,
            max_request_bytes=MAX_REQUEST_BYTES,
            client_id="barnabas-mirror",
            **config.security,
        ) as producer:
            await producer.prepare(POSITIONS_TOPIC)  # from here on, no other mirror of this name writes
            records = await self._kept.records()
            if self._kept.is_owner:
                self._kept.check_owner(records)
            kept = positions_of(config.name, records)
            self._positions = {place: position.offset for place, position in kept.items()}
            self._ids = {place: position.topic_id for place, position in kept.items()}
            async with producer.transaction() as transaction:
                await self._kept.own(transaction)
            self._kept.is_owner = True
            await source.start()
            self._answered()
            try:
                await self._check_source(source, producer, records)
                await self._copy(source, producer)
            finally:
                await source.close()

    async def _check_source(self, source: Source, producer: Producer, records: Records) -> None:
        """Positions in one cluster mean nothing in another. Raises InvalidConfigError."""
        kept, found = source_of(self._config.name, records), source.cluster_id
        if kept is not None and found and kept != found:
            raise InvalidConfigError(
                f"the positions of {self._config.name!r} are of the cluster {kept}, and the source is {found}: give each source "
                "its own --name"
            )
        if kept is None and found:
            async with producer.transaction() as transaction:
                key = source_key(self._config.name)
                await transaction.send(POSITIONS_TOPIC, found.encode(), key=key, partition=0)

    async def _copy(self, source: Source, producer: Producer) -> None:
        async with Admin(self._config.bootstrap, **self._config.security) as admin:
            here = (await admin.describe_cluster()).cluster_id
        if source.cluster_id == here and not self._config.prefix:
            raise InvalidConfigError(
                "the source is this cluster: give the address of another one to --source, or names of their own to the copies "
                "by --prefix"
            )
        self._topics, self._ends, self._active, self._late = {}, {}, {}, {}
        await self._refresh(source, producer)
        groups = GroupOffsets(
            source,
            groups=self._config.groups,
            prefix=self._config.prefix,
            bootstrap=self._config.bootstrap,
            security=self._config.security,
        )
        while not self._stopping.is_set():
            if time.monotonic() - self._refreshed_s >= REFRESH_S:
                await self._refresh(source, producer)
            if not self._active:
                self._report()
                if self._config.is_once:
                    return
                await pause(self._stopping, IDLE_S)
                continue
            read = await source.read()
            if read.records or read.ends:
                self._answered()
            await self._take(read, source, producer, here)
            is_done = self._config.is_once and self._has_reached_its_goals
            if self._config.groups and (is_done or time.monotonic() - self._groups_s >= GROUPS_S):
                self.progress.offsets_moved += await groups.sync(
                    {place: self._positions[place] for place in self._active}
                )
                self._groups_s = time.monotonic()
            self._report()
            if is_done:
                return

    # --- records ------------------------------------------------------------------------------------------------------

    async def _take(self, read: Read, source: Source, producer: Producer, here: str) -> None:
        if read.records:  # first: those of a lost partition were read before it was lost
            await self._write(read.records, source, producer, here)
        for place in read.lost:
            await self._begin_again(source, place)
        for place, end in read.ends.items():
            if place in self._active and place not in read.lost:
                # What lies behind the last record is not shown to readers.
                self._positions[place] = max(self._positions[place], end)
        for place in self._active:
            known = source.known_end(place)
            if known is not None:
                self._ends[place] = known

    async def _write(self, records: Sequence[SourceRecord], source: Source, producer: Producer, here: str) -> None:
        """One transaction: the records, and the positions behind them."""
        after = dict[TopicPartition, int]()
        done = Progress()
        if self._late:
            await self._make_late(records, source, here)
        async with producer.transaction() as transaction:
            for record in records:
                place = record.partition
                if place not in self._active or record.offset < self._positions[place]:
                    continue  # of a fetch from before `_begin_again`
                after[place] = record.offset + 1
                if was_in(record.headers, here):
                    done.left_out += 1
                    continue
                await transaction.send(
                    self._config.prefix + place.topic,
                    record.value,
                    key=record.key,
                    partition=place.partition,
                    headers=with_place(record.headers, source.cluster_id, record.offset),
                    timestamp_ms=record.timestamp_ms,
                )
                done.records += 1
                done.bytes += len(record.value or b"") + len(record.key or b"")
            await self._keep(transaction, after)
        self._positions.update(after)
        self.progress.records += done.records
        self.progress.bytes += done.bytes
        self.progress.left_out += done.left_out

    async def _keep(self, transaction: Transaction, offsets: Mapping[TopicPartition, int]) -> None:
        for place, offset in offsets.items():
            value = value_of(Position(offset, self._ids.get(place, "")))
            await transaction.send(POSITIONS_TOPIC, value, key=key_of(self._config.name, place), partition=0)

    async def _begin_again(self, source: Source, place: TopicPartition) -> None:
        """The source does not have the position: retention was faster, its log was truncated, or the topic was made anew."""
        if place not in self._active:
            return
        start, end = await source.bounds(place)
        topic_id = (await source.topic_ids([place.topic])).get(place.topic, "")
        was, known_id = self._positions[place], self._ids.get(place, "")
        is_known = bool(topic_id and known_id)
        if topic_id != known_id if is_known else was > end:
            self._made_anew(place, topic_id, start)
        elif was < start:
            logger.error("event=lost partition=%s records=%d reason=deleted at the source", place, start - was)
            self._positions[place] = start
        elif was > end:
            logger.error(
                "event=truncated partition=%s position=%d end=%d: the source has lost records", place, was, end
            )
            self._positions[place] = end
        else:  # It has changed its leader, and the new one did not know the position for a moment, or has lost records.
            logger.error("event=refused partition=%s position=%d: read again from there", place, was)
            await pause(self._stopping, IDLE_S)
        await self._assign(source)

    def _made_anew(self, place: TopicPartition, topic_id: str, start: int) -> None:
        was = self._positions[place]
        logger.error("event=made_anew partition=%s position=%d: copied from its start", place, was)
        self._positions[place], self._ids[place] = start, topic_id

    async def _assign(self, source: Source) -> None:
        await source.assign({place: self._positions[place] for place in self._active})

    # --- topics -------------------------------------------------------------------------------------------------------

    async def _refresh(self, source: Source, producer: Producer) -> None:
        """Make what the source has and this cluster has not, and read new partitions."""
        self._refreshed_s = time.monotonic()
        found = await source.topics(self._config.topics)
        self._answered()
        configs = await source.configs(found)
        async with Admin(self._config.bootstrap, **self._config.security) as admin:
            known = set(await admin.list_topics())
            self._late = {name: topic for name, topic in found.items() if self._may_be_a_copy(name, known)}
            for name, topic in found.items():
                if name not in self._late:
                    await self._make(admin, known, name, topic, configs.get(name, {}))
        active = {
            TopicPartition(name, number): None for name, topic in found.items() for number in range(topic.partitions)
        }
        begun = dict[TopicPartition, int]()
        for place in active:
            topic_id = found[place.topic].topic_id
            is_new = place not in self._positions
            if is_new:
                bounds = await source.bounds(place)
                self._positions[place] = bounds[1] if self._config.from_end else bounds[0]
                self._ids[place] = topic_id
            elif topic_id and topic_id != (known_id := self._ids.get(place, "")):
                if known_id:
                    self._made_anew(place, topic_id, (await source.bounds(place))[0])
                self._ids[place] = topic_id
            else:
                continue
            begun[place] = self._positions[place]
        if begun:  # Also where a partition begins that has no record yet: it may be its end of this moment.
            async with producer.transaction() as transaction:
                await self._keep(transaction, begun)
        is_other = active.keys() != self._active.keys() or bool(begun)
        self._active = active
        if is_other or not self._topics:
            if self._config.is_once and not self._goals:
                self._goals = {place: (await source.bounds(place))[1] for place in active}
            await self._assign(source)
        self._topics = found

    def _may_be_a_copy(self, name: str, known: Collection[str]) -> bool:
        """Two clusters that mirror all topics of each other under prefixes would make copies of copies without end. So what may
        be a copy of a copy is not made before it has a record that was not in this cluster."""
        prefix = self._config.prefix
        return prefix != "" and prefix in name and name not in self._config.topics and prefix + name not in known

    async def _make_late(self, records: Sequence[SourceRecord], source: Source, here: str) -> None:
        wanted = {
            record.partition.topic
            for record in records
            if record.partition.topic in self._late and not was_in(record.headers, here)
        }
        if not wanted:
            return
        configs = await source.configs(wanted)
        async with Admin(self._config.bootstrap, **self._config.security) as admin:
            for name in wanted:
                await self._make(admin, (), name, self._late.pop(name), configs.get(name, {}))

    async def _make(
        self, admin: Admin, known: Collection[str], name: str, topic: SourceTopic, configs: Mapping[str, str]
    ) -> None:
        copy = self._config.prefix + name
        if copy not in known:
            await admin.create_topic(copy, partitions=topic.partitions, configs=SETTINGS_OF_COPIES, if_not_exists=True)
            logger.info("event=created topic=%s partitions=%d", copy, topic.partitions)
        elif len((await admin.describe_topic(copy)).partitions) < topic.partitions:
            await admin.add_partitions(copy, topic.partitions)
            logger.info("event=grown topic=%s partitions=%d", copy, topic.partitions)
        has = {entry.key: entry.value for entry in await admin.describe_configs(copy)}
        for key, value in _with_room(configs, has).items():
            if key not in has or has[key] == value or f"{copy} {key}={value}" in self._warned:
                continue
            try:
                await admin.alter_config(copy, {key: value})
                logger.info("event=set topic=%s key=%s value=%s", copy, key, value)
            except BarnabasError as error:
                self._warned.add(f"{copy} {key}={value}")
                logger.warning("event=not_set topic=%s key=%s value=%s reason=%s", copy, key, value, error)

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_S:
            self._reported_s = now_s
            done = self.progress
            logger.info(
                "event=mirrored records=%d bytes=%d left_out=%d topics=%d partitions=%d lag=%d",
                done.records, done.bytes, done.left_out, len(self._topics), len(self._positions), self.lag,
            )  # fmt: skip


def _tell(line: str | None) -> None:
    if line is not None:
        logger.warning("%s", line)


def _with_room(configs: Mapping[str, str], has: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of the source for a copy that has these now: it must take what the source takes, with one header more."""
    limit, now = configs.get(MAX_MESSAGE_BYTES, ""), has.get(MAX_MESSAGE_BYTES) or ""
    if not (limit.isdecimal() and now.isdecimal()):
        return dict(configs)
    return {**configs, MAX_MESSAGE_BYTES: str(max(int(limit) + MESSAGE_ROOM_BYTES, int(now)))}
