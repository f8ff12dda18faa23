"""`Taking`: a run of `barnabas cluster backup`. It reads metadata, then records up to where the logs end at that time."""

import asyncio
import contextlib
import fcntl
import fnmatch
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.log.vocabulary.access.acls import Acl
from barnabas.log.vocabulary.errors import OffsetOutOfRangeError, SecurityDisabledError
from barnabas.log.vocabulary.group_messages import PartitionOffset
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import BROKER, EARLIEST, LATEST, Admin
from barnabas.net.client.connection.records import OffsetAndTimestamp
from barnabas.net.client.consumer.range_reader import RangeReader
from barnabas.net.client.group.group_offsets import fetch_committed
from barnabas.net.client.positions.offset_lookup import topic_id_of
from barnabas.net.wire.protocol.responses import TopicMetadata

from .contents import (
    BACKUP_NAME,
    CONSUMER,
    PRIVATE,
    PRIVATE_FOLDER,
    SHARE,
    BackupError,
    Contents,
    GroupContents,
    PartitionContents,
    TopicContents,
    partition_folder,
    read_contents,
    write_sealed,
)
from .segments import PartitionWriter

logger = logging.getLogger("barnabas.backup")

POSITIONS_PREFIX: Final = (
    "barnabas-restore-positions-"  # of the topics that `restore` keeps its places in; no backup has them
)
ALL_BROKERS: Final = ""
PARTITIONS_AT_ONCE: Final = 4  # each holds one answer in memory
FETCH_BYTES: Final = 8 << 20
CHUNK_TIMEOUT_MS: Final = 60_000  # a partition without a leader for longer ends the run; the next one goes on
ATTEMPTS: Final = 5  # at a partition whose start moves while it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingConfig:
    bootstrap: str
    folder: Path
    topics: Sequence[str] = ("*",)  # names or patterns; the records of others are left out, not their settings
    security: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Taken:
    """Of this run alone."""

    topics: int = 0
    partitions: int = 0
    offsets: int = 0  # that were read; markers of transactions are some of them
    bytes: int = 0
    lost: int = 0


class Taking:
    def __init__(self, config: TakingConfig) -> None:
        self._config = config
        self.taken = Taken()

    async def run(self) -> Contents:
        """Raises BackupError, and BarnabasError for what the cluster refuses or does not answer; run it again then."""
        config = self._config
        with locked(config.folder):
            before = read_contents(config.folder)
            async with Admin(config.bootstrap, **config.security) as admin:
                cluster_id = (await admin.describe_cluster()).cluster_id
                if before is not None and before.cluster_id != cluster_id:
                    raise BackupError(
                        f"{config.folder} has a backup of cluster {before.cluster_id}, and this is {cluster_id}; give another "
                        "folder"
                    )
                contents = await self._read_all(admin, cluster_id, before)
            await asyncio.to_thread(write_sealed, config.folder / BACKUP_NAME, contents)
        return contents

    async def _read_all(self, admin: Admin, cluster_id: str, before: Contents | None) -> Contents:
        described = await admin.describe_topics(include_internal=False)
        topics = [topic for topic in described if not topic.name.startswith(POSITIONS_PREFIX)]
        groups = await self._groups(admin, {topic.name for topic in topics})  # before the ends, so not behind them
        old = {topic.topic_id: topic for topic in before.topics} if before else {}
        return Contents(
            backup_id=before.backup_id if before else uuid.uuid4().hex,
            run=before.run + 1 if before else 1,
            cluster_id=cluster_id,
            taken_at_ms=int(time.time() * 1000),
            groups=groups,
            cluster_configs=await _cluster_configs(admin),
            acls=tuple(await _acls(admin)),
            quotas=tuple(await admin.quotas.find()),
            users=tuple(sorted({user.user for user in await admin.users.list()})),
            topics=tuple([await self._topic(admin, topic, old.get(topic.topic_id)) for topic in topics]),
        )

    async def _groups(self, admin: Admin, topics: set[str]) -> tuple[GroupContents, ...]:
        found = []
        for group in sorted(await admin.list_groups(), key=lambda listed: listed.group_id):
            committed = await fetch_committed(admin.client, group.group_id, None, is_stable=False)
            offsets = tuple(
                PartitionOffset(topic=place.topic, partition=place.partition, offset=at.offset, metadata=at.metadata)
                for place, at in sorted(committed.items())
                if place.topic in topics and at.offset >= 0
            )
            if offsets:
                protocol = SHARE if group.protocol == SHARE else CONSUMER
                found.append(GroupContents(group_id=group.group_id, offsets=offsets, protocol=protocol))
        return tuple(found)

    async def _topic(self, admin: Admin, topic: TopicMetadata, old: TopicContents | None) -> TopicContents:
        self.taken.topics += 1
        has_records = any(fnmatch.fnmatchcase(topic.name, pattern) for pattern in self._config.topics)
        known = old.partitions if old is not None else ()
        count = len(topic.partitions)
        partitions = list(known[:count]) + [PartitionContents()] * (count - len(known))
        if has_records:
            partitions = await self._records(admin, topic, partitions)
        configs = await _topic_configs(admin, topic.name)
        if (await admin.describe_topic(topic.name)).topic_id != topic.topic_id:  # settings are read by name
            raise BackupError(
                f"topic {topic.name!r} was deleted and created again while it was read; run the command again"
            )
        return TopicContents(
            name=topic.name,
            topic_id=topic.topic_id,
            replication_factor=max(len(partition.replicas) for partition in topic.partitions),
            configs=configs,
            partitions=tuple(partitions),
            has_records=has_records or bool(old and old.has_records),
        )

    async def _records(
        self, admin: Admin, topic: TopicMetadata, known: Sequence[PartitionContents]
    ) -> list[PartitionContents]:
        places = [TopicPartition(topic.name, number) for number in range(len(known))]
        ends = await admin.find_offsets(dict.fromkeys(places, LATEST), isolation_level="read_committed")
        topic_id_of(topic.name, [ends], planned=topic.topic_id)
        places_at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def read(place: TopicPartition) -> PartitionContents:
            async with places_at_once:
                folder = partition_folder(self._config.folder, topic.topic_id, place.partition)
                return await self._partition(admin, place, folder, known[place.partition], ends[place])

        reading = [asyncio.create_task(read(place)) for place in places]
        try:
            found = await asyncio.gather(*reading)
        finally:  # after a failure, the others are given up
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        return found

    async def _partition(
        self, admin: Admin, place: TopicPartition, folder: Path, known: PartitionContents, end: OffsetAndTimestamp
    ) -> PartitionContents:
        writer = await asyncio.to_thread(PartitionWriter, folder, known)
        try:
            for _ in range(ATTEMPTS):
                starts = await admin.find_offsets({place: EARLIEST})
                topic_id_of(place.topic, [starts], planned=end.topic_id)
                self._go_to(writer, place, starts[place].offset, end.offset)
                try:
                    await self._read(admin, place, writer, end)
                except OffsetOutOfRangeError:
                    await asyncio.to_thread(writer.finish)
                    continue  # retention was faster than this run
                await asyncio.to_thread(writer.finish)
                self.taken.partitions += 1
                logger.info("event=partition partition=%s to=%d", place, writer.contents.next_offset)
                return writer.contents
        finally:
            writer.close()
        raise BackupError(
            f"{place} deletes records faster than they are read; raise its retention, or leave it out of --topic"
        )

    def _go_to(self, writer: PartitionWriter, place: TopicPartition, start: int, end: int) -> None:
        writer.begin(start)
        at = writer.contents.next_offset
        if at > end:
            raise BackupError(
                f"{place} ends at offset {end}, and the backup has its records up to {at}: the cluster has lost some (an unclean "
                "election, or a recovery), so its log is another one; begin a backup in a new folder, and keep this one"
            )
        if start > at:
            self.taken.lost += start - at
            logger.warning(
                "event=lost partition=%s from=%d to=%d reason=deleted before they were read", place, at, start
            )
            writer.skip(start)

    async def _read(
        self, admin: Admin, place: TopicPartition, writer: PartitionWriter, end: OffsetAndTimestamp
    ) -> None:
        start = writer.contents.next_offset
        reader = RangeReader(
            admin.client, place, start=start, end=max(start, end.offset), max_bytes=FETCH_BYTES, is_committed_only=True,
            topic_id=end.topic_id, timeout_ms=CHUNK_TIMEOUT_MS,
        )  # fmt: skip
        while (chunk := await reader.next_chunk()) is not None:
            await asyncio.to_thread(writer.add, chunk, reader.position)
            self.taken.offsets += reader.position - chunk.start
            self.taken.bytes += len(chunk.data)


@contextlib.contextmanager
def locked(folder: Path, *, is_made: bool = True) -> Iterator[None]:
    """The folder, for one run at a time. `is_made`: made if needed. Raises BackupError."""
    try:
        if is_made:
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise BackupError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BackupError(f"another run uses {folder}; wait for its end") from None
    finally:
        os.close(descriptor)


async def _topic_configs(admin: Admin, topic: str) -> dict[str, str]:
    """What was set for the topic itself."""
    entries = await admin.describe_configs(topic)
    return {entry.key: entry.value for entry in entries if entry.source == "topic" and entry.value is not None}


async def _cluster_configs(admin: Admin) -> dict[str, str]:
    """Settings of all brokers that were changed. Those of single brokers are not for other machines."""
    entries = await admin.describe_configs(ALL_BROKERS, resource_type=BROKER)
    changed = [entry for entry in entries if entry.source == "dynamic" and entry.value != entry.default]
    return {entry.key: entry.value for entry in changed if entry.value is not None}


async def _acls(admin: Admin) -> Sequence[Acl]:
    try:
        return await admin.acls.find()
    except SecurityDisabledError:
        return ()
