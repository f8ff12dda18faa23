"""`Restoring`: a run of `barnabas cluster restore`. It writes the records of a backup into a cluster, each once, in order, and
then sets what belongs to them.

Records and how far they are restored are written in one transaction, as by the mirror. Offsets begin at 0 in the new log, and
markers of transactions take some: what a group had committed is translated when the first record from there on is acknowledged.
Until all records of a topic are there, it has settings with which brokers take them all and delete none.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.log.records.codec import RecordView
from barnabas.log.vocabulary.errors import BarnabasError, SecurityDisabledError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import BROKER, Admin
from barnabas.net.client.connection.records import OffsetAndMetadata
from barnabas.net.client.group.group_offsets import commit_offsets
from barnabas.net.client.producer.handles import Handle
from barnabas.net.client.producer.producer import Producer
from barnabas.net.client.producer.transaction import Transaction

from ..copying.kept_positions import TRANSACTION_TIMEOUT_MS, KeptPositions
from ..copying.sessions import run_sessions
from .contents import (
    SHARE,
    BackupError,
    Contents,
    PartitionContents,
    TopicContents,
    check_segment,
    needed_contents,
    partition_folder,
)
from .places import Place, Places
from .segments import read_batches
from .taking import ALL_BROKERS, POSITIONS_PREFIX, locked

logger = logging.getLogger("barnabas.backup")

MAX_RECORDS: Final = 5_000  # of one transaction ...
MAX_BYTES: Final = 8 << 20  # ... or so many bytes of keys and values: batches may be compressed, and memory is not
MAX_REQUEST_BYTES: Final = (
    32 << 20
)  # The cluster of before may have taken larger records than producers send by default.
GONE_S: Final = 30.0  # for a topic that is replaced
POLL_S: Final = 0.1
NAMES_SHOWN: Final = 10
LARGEST: Final = str((1 << 63) - 1)
# While records are restored: all are taken, with their own times, and none is deleted.
MEANWHILE: Final = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(MAX_REQUEST_BYTES),
    "message.timestamp.after.max.ms": LARGEST,
    "message.timestamp.before.max.ms": LARGEST,
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}

MIN_INSYNC: Final = "min.insync.replicas"
NEEDS_BROKERS: Final = ("default.replication.factor", MIN_INSYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoringConfig:
    bootstrap: str
    folder: Path
    replace: bool = False  # topics of the same names are deleted first
    compression: str = "lz4"
    security: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Restored:
    """Of this process alone."""

    records: int = 0
    topics: int = 0
    groups: int = 0
    is_complete: bool = False
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Records of one batch, and the offset behind it in the cluster of before."""

    partition: TopicPartition
    records: Sequence[RecordView]
    next_offset: int
    size_bytes: int


class Restoring:
    def __init__(self, config: RestoringConfig) -> None:
        self._config = config
        self._stopping = asyncio.Event()
        self.restored = Restored()

    def stop(self) -> None:
        """`run` returns when the current transaction has ended; the same command goes on."""
        self._stopping.set()

    async def run(self) -> bool:
        """Return whether all is restored; False after `stop`. Raises BackupError for a folder or a cluster that does not fit, and
        BarnabasError for what does not pass by itself."""
        config = self._config
        with locked(config.folder, is_made=False):
            contents = await asyncio.to_thread(needed_contents, config.folder)
            name = f"{contents.backup_id}.{contents.run}"
            kept = KeptPositions(
                POSITIONS_PREFIX + name,
                name,
                program="restore",
                after_loss="delete the restored topics and begin again",
                bootstrap=config.bootstrap,
                security=config.security,
                stopping=self._stopping,
            )
            await run_sessions(
                lambda: _Session(config, contents, kept, name, self.restored, self._stopping).run(),
                stopping=self._stopping,
                records_done=lambda: self.restored.records,
                replaced=kept.replaced,
                logger=logger,
            )
        return self.restored.is_complete


class _Session:
    """One producer, from the kept places on."""

    def __init__(
        self,
        config: RestoringConfig,
        contents: Contents,
        kept: KeptPositions,
        name: str,
        restored: Restored,
        stopping: asyncio.Event,
    ) -> None:
        self._config = config
        self._contents = contents
        self._kept = kept
        self._name = name
        self._restored = restored
        self._stopping = stopping
        self._places = Places(name, contents, ())

    async def run(self) -> None:
        config = self._config
        async with Admin(config.bootstrap, **config.security) as admin:
            if self._kept.topic not in await admin.list_topics():
                await self._check_topics(admin)  # a refusal leaves nothing behind
            await self._kept.make_topic()
            if self._kept.is_owner:
                self._kept.check_owner(await self._kept.records())
            async with Producer(
                config.bootstrap,
                transactional_id=f"barnabas-restore-{self._name}",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                compression=config.compression,
                max_request_bytes=MAX_REQUEST_BYTES,
                client_id="barnabas-restore",
                **config.security,
            ) as producer:
                await producer.prepare(self._kept.topic)  # from here on, no other restore of this backup writes
                self._places = Places(self._name, self._contents, await self._kept.records())
                async with producer.transaction() as transaction:
                    await self._kept.own(transaction)
                self._kept.is_owner = True
                if not self._places.is_done:
                    await self._make_topics(admin, producer)
                    await self._copy(producer)
                    if self._stopping.is_set():
                        return
                    await self._finish(admin, producer)
            await admin.delete_topic(self._kept.topic)
        self._restored.is_complete = True

    # --- topics -------------------------------------------------------------------------------------------------------

    async def _make_topics(self, admin: Admin, producer: Producer) -> None:
        """All are looked at before the first is made."""
        for name in await self._check_topics(admin):
            await self._delete(admin, name)
        machines = {broker.machine or f"node {broker.node_id}" for broker in (await admin.describe_cluster()).brokers}
        for topic in self._contents.topics:
            if topic.name not in self._places.topic_ids:
                await self._make_topic(admin, producer, topic, most_replicas=len(machines))

    async def _check_topics(self, admin: Admin) -> list[str]:
        """Those that are to be replaced. Raises BackupError if there are some, and they are to be kept."""
        existing = {topic.name: topic.topic_id for topic in await admin.describe_topics(include_internal=False)}
        foreign = []
        for topic in self._contents.topics:
            made, found = self._places.topic_ids.get(topic.name), existing.get(topic.name)
            if made is not None and found != made:
                raise BackupError(f"topic {topic.name!r} was deleted meanwhile; begin again in an empty cluster")
            if made is None and found is not None and not await self._is_own(admin, topic.name):
                foreign.append(topic.name)
        if foreign and not self._config.replace:
            raise BackupError(
                f"the cluster has {len(foreign)} topics of the backup already: {_some(foreign)}; restore into an empty "
                "cluster, or delete them and their records: --replace"
            )
        return foreign

    async def _is_own(self, admin: Admin, name: str) -> bool:
        """Whether a run that was killed has made the topic, and had no time to note it. Then nothing is in it."""
        if name not in self._places.intended:
            return False
        return all(at.offset == 0 for at in (await admin.list_offsets(name)).values())

    async def _make_topic(self, admin: Admin, producer: Producer, topic: TopicContents, *, most_replicas: int) -> None:
        async with producer.transaction() as transaction:
            await self._note(transaction, self._places.intent(topic.name))
        replicas = min(topic.replication_factor, most_replicas)
        configs = dict(MEANWHILE)
        least = int(topic.configs.get(MIN_INSYNC, "1"))
        if MIN_INSYNC in topic.configs:  # as safe as before, from the first record on
            configs[MIN_INSYNC] = str(min(least, replicas))
        if least > replicas:
            self._warn(f"{topic.name} has {replicas} replicas, and {MIN_INSYNC}={least}: acks=all will be refused")
        await admin.create_topic(
            topic.name,
            partitions=len(topic.partitions),
            replication_factor=replicas,
            configs=configs,
            if_not_exists=True,
        )
        topic_id = (await admin.describe_topic(topic.name)).topic_id
        async with producer.transaction() as transaction:
            await self._note(transaction, self._places.made(topic.name, topic_id))
        self._restored.topics += 1
        logger.info("event=topic_made topic=%s partitions=%d replicas=%d", topic.name, len(topic.partitions), replicas)

    async def _delete(self, admin: Admin, name: str) -> None:
        await admin.delete_topic(name)
        logger.info("event=topic_deleted topic=%s reason=replaced", name)
        until_s = time.monotonic() + GONE_S
        while name in await admin.list_topics():
            if time.monotonic() > until_s:
                raise BackupError(f"topic {name!r} was deleted, and is still listed after {GONE_S:g} s; try again")
            await asyncio.sleep(POLL_S)

    # --- records ------------------------------------------------------------------------------------------------------

    async def _copy(self, producer: Producer) -> None:
        pieces = self._pieces()
        gathered: list[_Piece] = []
        records = size_bytes = 0
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            gathered.append(piece)
            records += len(piece.records)
            size_bytes += piece.size_bytes
            if records >= MAX_RECORDS or size_bytes >= MAX_BYTES:
                await self._write(producer, gathered)
                gathered, records, size_bytes = [], 0, 0
            if self._stopping.is_set():
                return
        if gathered:
            await self._write(producer, gathered)

    def _pieces(self) -> Iterator[_Piece]:
        """Batch by batch, from the kept places on. Runs in a thread."""
        for topic in self._contents.topics:
            for number, partition in enumerate(topic.partitions):
                place = TopicPartition(topic.name, number)
                folder = partition_folder(self._config.folder, topic.topic_id, number)
                yield from self._pieces_of(place, folder, partition)

    def _pieces_of(self, place: TopicPartition, folder: Path, partition: PartitionContents) -> Iterator[_Piece]:
        at = self._places.restored.get(place, max(0, partition.start_offset))
        for segment in partition.segments:
            if segment.next_offset <= at:
                continue
            check_segment(folder, segment)
            for records in read_batches(folder, segment, at):
                if records:
                    at = records[-1].offset + 1
                    size_bytes = sum(len(record.key or b"") + len(record.value or b"") for record in records)
                    yield _Piece(partition=place, records=records, next_offset=at, size_bytes=size_bytes)

    async def _write(self, producer: Producer, pieces: Sequence[_Piece]) -> None:
        """In one transaction. What it has reached is in `_places` when it is committed."""
        reached: dict[TopicPartition, int] = {}
        waiting: list[tuple[TopicPartition, int, Handle]] = []  # offsets of groups, with the first record from there on
        async with producer.transaction() as transaction:
            for piece in pieces:
                topic, number = piece.partition
                wanted = self._places.wanted_from(piece.partition, reached.get(piece.partition))
                for record in piece.records:
                    handle = await transaction.send(
                        topic, record.value, key=record.key, headers=record.headers, partition=number,
                        timestamp_ms=record.timestamp_ms,
                    )  # fmt: skip
                    while wanted and wanted[0] <= record.offset:
                        waiting.append((piece.partition, wanted.popleft(), handle))
                reached[piece.partition] = piece.next_offset
            notes = [self._places.translated(place, offset, (await handle).offset) for place, offset, handle in waiting]
            notes += [self._places.at(place, offset) for place, offset in reached.items()]
            for note in notes:
                await self._note(transaction, note)
        for note in notes:
            self._places.take(note)
        self._restored.records += sum(len(piece.records) for piece in pieces)
        logger.info("event=restored records=%d partition=%s", self._restored.records, pieces[-1].partition)

    async def _note(self, transaction: Transaction, place: Place) -> None:
        await transaction.send(self._kept.topic, place.value, key=place.key, partition=0)

    # --- what belongs to them -----------------------------------------------------------------------------------------

    async def _finish(self, admin: Admin, producer: Producer) -> None:
        """Each step may be done twice. Groups come last but one: their consumers find all records."""
        contents = self._contents
        for topic in contents.topics:
            changes: dict[str, str | None] = {**dict.fromkeys(MEANWHILE), **topic.configs}
            await self._try(f"settings of {topic.name}", admin.alter_config(topic.name, changes))
        brokers = len((await admin.describe_cluster()).brokers)
        for key, value in contents.cluster_configs.items():
            if key in NEEDS_BROKERS and int(value) > brokers:
                self._warn(f"{key}={value} is left out: this cluster has {brokers} brokers")
                continue
            await self._try(f"{key}={value}", admin.alter_config(ALL_BROKERS, {key: value}, resource_type=BROKER))
        for quotas in contents.quotas:
            await self._try(f"quotas of {quotas.entity}", admin.quotas.alter(quotas.entity, quotas.values))
        if contents.acls:
            try:
                await admin.acls.add(contents.acls)
            except SecurityDisabledError:
                self._warn(f"{len(contents.acls)} permissions are left out: this cluster has no authorizer")
        if contents.users:
            self._warn(f"{len(contents.users)} users need new passwords (barnabas user add): {_some(contents.users)}")
        await self._restore_groups(admin)
        async with producer.transaction() as transaction:
            await self._note(transaction, self._places.done())

    async def _restore_groups(self, admin: Admin) -> None:
        ends: dict[TopicPartition, int] = {}
        for topic in (topic for topic in self._contents.topics if topic.has_records):
            ends |= {place: at.offset for place, at in (await admin.list_offsets(topic.name)).items()}
        for group in self._contents.groups:
            offsets = {}
            for item in group.offsets:
                place = TopicPartition(item.topic, item.partition)
                if place in ends:
                    # Everything was read: the end, behind the marker of the last transaction.
                    target = self._places.translation.get((place, item.offset), ends[place])
                    offsets[place] = OffsetAndMetadata(target, item.metadata)
            if group.protocol == SHARE:
                # An offset commit would make a consumer group of this name, which share consumers cannot use.
                starts = [f"{place}={at.offset}" for place, at in offsets.items()]
                self._warn(
                    f"share group {group.group_id} is left out: before its consumers begin, set where it starts "
                    f"(alterShareGroupOffsets of Kafka's Admin): {_some(starts)}"
                )
                continue
            if offsets and await self._try(
                f"offsets of group {group.group_id}", commit_offsets(admin.client, group.group_id, offsets)
            ):
                self._restored.groups += 1

    async def _try(self, what: str, doing: Any) -> bool:
        """What one cluster refuses must not keep the rest from being restored."""
        try:
            await doing
        except BarnabasError as error:
            if error.retriable:
                raise
            self._warn(f"{what}: {error.message}")
            return False
        return True

    def _warn(self, text: str) -> None:
        logger.warning("event=left_out what=%s", text)
        if text not in self._restored.warnings:
            self._restored.warnings.append(text)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")
