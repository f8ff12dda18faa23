"""`LogEnds`: where partitions end, as their leaders say: this broker, or others, which are asked once and side by side."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.share.messages import RecordState, ShareRange
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.wire.protocol.requests import LATEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest
from barnabas.net.wire.protocol.responses import ListOffsetsResponse

ASK_TIMEOUT_MS: Final = 2_000  # a leader that does not answer in time leaves its partitions out
MAX_PARTITIONS: Final = 1_000  # of one request to a leader; the others are left out


class LogEnds:
    def __init__(self, *, node_id: int, replication: ReplicationService, controller: ControllerChannel) -> None:
        self._node_id = node_id
        self._replication = replication
        self._controller = controller

    async def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Without those that have no leader, or whose leader does not tell."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader_id, _ = self._replication.leader_hint(partition)
            if leader_id >= 0:
                by_leader.setdefault(leader_id, []).append(partition)
        asked = [self._ask(leader_id, some[:MAX_PARTITIONS]) for leader_id, some in by_leader.items()]
        return {partition: end for found in await asyncio.gather(*asked) for partition, end in found.items()}

    async def _ask(self, leader_id: int, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if leader_id == self._node_id:
            return self._here(partitions)
        wanted = tuple(
            ListOffsetsPartition(topic=item.topic, partition=item.partition, timestamp_ms=LATEST_TIMESTAMP)
            for item in partitions
        )
        try:
            answer = await self._controller.ask_broker(
                leader_id, ListOffsetsRequest(partitions=wanted), timeout_ms=ASK_TIMEOUT_MS
            )
        except (BarnabasError, OSError):
            return {}
        assert isinstance(answer, ListOffsetsResponse)
        return {TopicPartition(item.topic, item.partition): item.offset for item in answer.partitions if not item.error}

    def _here(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = {}
        for partition in partitions:
            try:
                found[partition] = self._replication.replica(partition).reads.list_offset(LATEST_TIMESTAMP).offset
            except BarnabasError:
                continue
        return found


def share_lag(start_offset: int, ranges: Iterable[ShareRange], log_end_offset: int) -> int:
    """Records from `start_offset` on that are neither acknowledged nor archived; those that are locked now count, too."""
    done = sum(
        item.last_offset - item.first_offset + 1
        for item in ranges
        if item.state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
    )
    return max(log_end_offset - start_offset - done, 0)
