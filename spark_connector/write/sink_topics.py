"""The internal topics of effectively-once sinks: the ledger, and a stage for each target topic.

A stage has at least as many partitions as its topic, and partition n of the stage is for partition n of the topic. Staged
batches are needed until they are published, usually moments later, and are trimmed periodically; batches that are decided but
not published are kept for a driver that restarts days later.
"""

import logging
from collections.abc import Mapping

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.client import Client
from barnabas.net.client.connection.errors import (
    BarnabasError,
    ErrorCode,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
)
from barnabas.net.client.positions.offset_lookup import EARLIEST, list_offsets
from barnabas.net.protocol.requests import MetadataRequest
from barnabas.net.protocol.responses import MetadataResponse

from ..common.sink_ledger import LEDGER_TOPIC, stage_of

logger = logging.getLogger("barnabas.spark")

REPLICAS = 3  # At most the number of brokers; two of three must have each decision and staged batch.
# The longest downtime of a driver between deciding and publishing a micro-batch; unneeded batches are trimmed earlier.
STAGE_RETENTION_MS = 7 * 86_400_000
UNDECIDED_MS = 3_600_000  # A task that has staged its rows has its micro-batch decided by then, or it fails.
_MANY_REPLICAS = {"min.insync.replicas": "2"}
_LEDGER = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),  # The open segment is never compacted, and a driver that starts reads all of it.
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
_STAGE = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",  # Published records keep the time at which a task created them.
    "retention.ms": str(STAGE_RETENTION_MS),
    "segment.bytes": str(64 << 20),
}


class SinkTopics:
    """Use it only on the event loop of its client."""

    def __init__(self, client: Client, *, timeout_ms: int) -> None:
        self._client = client
        self._admin = Admin(client=client, timeout_ms=timeout_ms)
        self._timeout_ms = timeout_ms

    async def ensure_ledger(self) -> None:
        await self._create(LEDGER_TOPIC, 1, _LEDGER)

    async def ensure_stage(self, topic: str) -> int:
        """Return the number of partitions of the topic; its stage has at least as many."""
        count = await self._client.wait_for_topic(topic, timeout_ms=self._timeout_ms, create=True)
        stage = stage_of(topic)
        staged = await self._create(stage, count, {**_STAGE, **await self._limits(topic)})
        if staged < count:
            await self._grow(stage, count)
        return count

    async def _grow(self, stage: str, count: int) -> None:
        try:
            await self._admin.add_partitions(stage, count)
        except BarnabasError as error:
            if error.code != ErrorCode.INVALID_PARTITIONS:
                raise
            # Another task was faster.

        async def attempt() -> None:
            await self._client.refresh()
            if self._client.metadata.partition_count(stage) < count:
                raise LeaderNotAvailableError(f"{stage} does not have the {count} partitions of its topic yet")

        await self._client.retrying(attempt, timeout_ms=self._timeout_ms)

    async def trim(self, topic: str, needed: Mapping[TopicPartition, int]) -> None:
        """Delete batches of a topic's stage that are older than any task that might still report them, and below the offsets
        that pending decisions need (`needed`). A pending decision no longer counts once retention has deleted its rows. If
        deletion fails now, retention deletes the batches later."""
        stages = self._client.metadata.partitions(stage_of(topic))
        before_ms = self._client.clock.wall_ms() - UNDECIDED_MS
        try:
            young = await list_offsets(self._client, dict.fromkeys(stages, before_ms), timeout_ms=self._timeout_ms)
            starts = await list_offsets(self._client, dict.fromkeys(stages, EARLIEST), timeout_ms=self._timeout_ms)
            for stage, found in young.items():
                wanted = needed.get(stage, found.offset)
                before = min(found.offset, wanted) if wanted >= starts[stage].offset else found.offset
                if before > starts[stage].offset:
                    await self._admin.delete_records(stage.topic, stage.partition, before_offset=before)
        except BarnabasError as error:
            logger.info("stage not trimmed topic=%s reason=%s", topic, error.message)

    async def _limits(self, topic: str) -> dict[str, str]:
        """The target's size limit: a batch that is too large for the topic must be refused when it is staged, because a staged
        batch must be publishable."""
        entries = await self._admin.describe_configs(topic)
        return {entry.key: entry.value for entry in entries if entry.key == "max.message.bytes" and entry.value}

    async def _create(self, name: str, partitions: int, configs: dict[str, str]) -> int:
        """Create the topic unless it exists; return the number of its partitions.

        The request names the topic before the client tracks its metadata: a client that allows automatic creation for one topic
        would make the brokers create all topics that it tracks, with their defaults.
        """
        request = MetadataRequest(topics=(name,), allow_auto_topic_creation=False)
        found: MetadataResponse = await self._client.retrying(
            lambda: self._client.call_any(request), timeout_ms=self._timeout_ms
        )
        if found.topics[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            replicas = min(REPLICAS, len(self._client.metadata.brokers))
            extra = _MANY_REPLICAS if replicas >= REPLICAS else {}
            try:
                await self._admin.create_topic(
                    name, partitions=partitions, replication_factor=replicas, configs={**configs, **extra}
                )
            except TopicAlreadyExistsError:
                pass  # Another task was faster.
        return await self._client.wait_for_topic(name, timeout_ms=self._timeout_ms)
