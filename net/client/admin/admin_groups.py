"""The consumer group methods of `Admin`."""

import asyncio
from collections.abc import Collection, Mapping
from typing import cast

from barnabas.log.vocabulary.group_messages import OffsetToCommit, UndoOffsetResetResponse
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.wire.protocol import requests as q
from barnabas.net.wire.protocol.group_responses import (
    DescribeGroupResponse,
    ListedGroup,
    ListGroupsResponse,
)
from barnabas.net.wire.protocol.lag import NOTHING_COMMITTED, Lag, lag_behind

from ..connection.arguments import explained
from ..connection.client import Client
from ..connection.errors import GroupIdNotFoundError
from ..connection.habits import partition_of
from ..connection.records import OffsetAndMetadata
from ..group.group_offsets import commit_offsets, fetch_committed
from ..positions.offset_lookup import unread_behind, unread_now
from .asking import Ask


@explained
class GroupAdmin:
    _client: Client
    _ask: Ask
    _timeout_ms: int

    async def list_groups(self) -> list[ListedGroup]:
        """Ask every broker for the groups that it coordinates. Raises if a broker cannot be reached: no group is left
        out."""
        await self._client.refresh()
        answers: list[ListGroupsResponse] = await asyncio.gather(
            *(self._ask.broker(node_id, q.ListGroupsRequest()) for node_id in self._client.metadata.brokers)
        )
        groups = {group.group_id: group for answer in answers for group in answer.groups}
        return [groups[group_id] for group_id in sorted(groups)]

    async def describe_group(
        self, group_id: str, *, history: bool = False, shares: bool = False
    ) -> DescribeGroupResponse:
        """Describe members, assignments and the causes of the last rebalances; with `history`, also the lag in the last hour, as
        far as its coordinator remembers it; with `shares`, of a share group also its partitions. Raises GroupIdNotFoundError."""
        request = q.DescribeGroupRequest(group_id=group_id, history=history, shares=shares)
        return cast(DescribeGroupResponse, await self._ask.coordinator(group_id, request))

    async def explain_group(self, group_id: str) -> DescribeGroupResponse:
        """Like `describe_group`, with the moves of each rebalance, partitions without a reader, and silent or slow members."""
        request = q.DescribeGroupRequest(group_id=group_id, explain=True)
        return cast(DescribeGroupResponse, await self._ask.coordinator(group_id, request))

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets."""
        await self._ask.coordinator(group_id, q.DeleteGroupRequest(group_id=group_id))

    async def group_offsets(self, group_id: str, *, only_reachable: bool = False) -> dict[TopicPartition, Lag]:
        """Return the group's offsets and lag for all partitions with a committed offset, and those that its members own.

        Partitions of deleted topics are left out. `only_reachable` also leaves out partitions whose leader cannot be reached
        now, instead of waiting for the leader.
        """
        committed = await fetch_committed(self._client, group_id, None, timeout_ms=self._timeout_ms, is_stable=False)
        offsets = {partition: item.offset for partition, item in committed.items()}
        for partition in await self._owned(group_id):
            offsets.setdefault(partition, NOTHING_COMMITTED)
        known = {partition: offset for partition, offset in offsets.items() if await self._exists(partition)}
        if only_reachable:
            found = await unread_now(self._client, known.items())
            return {place: lag_behind(offset, answer) for (place, offset), answer in found.items()}
        answers = await unread_behind(self._client, known, timeout_ms=self._timeout_ms)
        return {partition: lag_behind(offset, answers[partition]) for partition, offset in known.items()}

    async def _owned(self, group_id: str) -> list[TopicPartition]:
        try:
            group = await self.describe_group(group_id)
        except GroupIdNotFoundError:
            return []  # a group whose offsets were committed from outside has no members
        return [
            TopicPartition(owned.topic, number)
            for member in group.members
            for owned in member.assigned
            for number in owned.partitions
        ]

    async def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group that has no members."""
        plain = {partition_of(partition): OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        await commit_offsets(self._client, group_id, plain, timeout_ms=self._timeout_ms)

    async def reset_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets, also of a group that is running: its members continue from there. See `undo_reset`."""
        partitions = tuple(
            OffsetToCommit(topic=topic, partition=number, offset=offset) for (topic, number), offset in offsets.items()
        )
        await self._ask.coordinator(group_id, q.ResetOffsetsRequest(group_id=group_id, partitions=partitions))

    async def undo_reset(
        self, group_id: str, *, validate_only: bool = False, topics: Collection[str] | None = None
    ) -> UndoOffsetResetResponse:
        """Restore the offsets from before the last reset; a second undo repeats the reset.

        `validate_only`: return what would change, without changing it. `topics`: those that may change; if the reset moved
        another one, nothing changes. None: those of the last reset. Raises InvalidRequestError if no reset is known.
        """
        return await _undo_reset(self._ask, group_id, validate_only, topics)

    async def _exists(self, partition: TopicPartition) -> bool:
        if not self._client.metadata.partition_count(partition.topic):
            self._client.want_topic(partition.topic)
            await self._client.refresh()
        return partition.partition < self._client.metadata.partition_count(partition.topic)


async def _undo_reset(
    ask: Ask, group_id: str, validate_only: bool, topics: Collection[str] | None
) -> UndoOffsetResetResponse:
    if topics is None and not validate_only:  # named, so that a caller needs the permission to read those, not all
        preview = await _undo_reset(ask, group_id, True, None)
        topics = {item.topic for item in preview.offsets}
    named = None if validate_only or topics is None else tuple(sorted(topics))
    request = q.UndoOffsetResetRequest(group_id=group_id, validate_only=validate_only, topics=named)
    response: UndoOffsetResetResponse = await ask.coordinator(group_id, request)
    return response


__all__ = ["GroupAdmin", "Lag"]
