"""The part of `Admin` that deals with consumer groups."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from barnabas.log.topic_partition import TopicPartition

from ..protocol import requests as q
from ..protocol.responses import (
    CommittedOffset,
    DescribeGroupResponse,
    ListedGroup,
    ListGroupsResponse,
    UndoOffsetResetResponse,
)
from .client import Client
from .errors import BarnabasError, UnknownTopicOrPartitionError
from .group_session import commit_offsets, fetch_committed
from .offset_lookup import EARLIEST, LATEST, list_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Where a group stands in a partition. `lag` counts the records that it has still to read."""

    committed: CommittedOffset
    log_start_offset: int
    log_end_offset: int

    @property
    def lag(self) -> int:
        return max(0, self.log_end_offset - max(self.committed.offset, self.log_start_offset))


class GroupAdmin:
    _client: Client
    _timeout_ms: int

    async def list_groups(self) -> list[ListedGroup]:
        """Ask every broker for the groups that it coordinates. Raises when one cannot be asked: no group is left
        out."""
        await self._client.refresh()
        answers: list[ListGroupsResponse] = await asyncio.gather(
            *(self._ask_broker(node_id, q.ListGroupsRequest()) for node_id in self._client.metadata.brokers)
        )
        groups = {group.group_id: group for answer in answers for group in answer.groups}
        return [groups[group_id] for group_id in sorted(groups)]

    async def describe_group(self, group_id: str) -> DescribeGroupResponse:
        """Members, assignments and the causes of the last rebalances. Raises GroupIdNotFoundError."""
        response: DescribeGroupResponse = await self._coordinator(group_id, q.DescribeGroupRequest(group_id=group_id))
        return response

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its offsets."""
        await self._coordinator(group_id, q.DeleteGroupRequest(group_id=group_id))

    async def group_offsets(self, group_id: str) -> dict[TopicPartition, PartitionLag]:
        """All that the group has committed, with its lag. Partitions of deleted topics are left out."""
        committed = await fetch_committed(self._client, group_id, None, timeout_ms=self._timeout_ms)
        known = {partition: item for partition, item in committed.items() if await self._exists(partition)}
        starts = await list_offsets(self._client, dict.fromkeys(known, EARLIEST), timeout_ms=self._timeout_ms)
        ends = await list_offsets(self._client, dict.fromkeys(known, LATEST), timeout_ms=self._timeout_ms)
        return {
            partition: PartitionLag(
                committed=item, log_start_offset=starts[partition].offset, log_end_offset=ends[partition].offset
            )
            for partition, item in known.items()
        }

    async def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for a group that has no members."""
        plain = {TopicPartition(*partition): (offset, -1) for partition, offset in offsets.items()}
        await commit_offsets(self._client, group_id, plain, timeout_ms=self._timeout_ms)

    async def reset_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets, also of a group that is running: its members go on from there. See `undo_reset`."""
        partitions = tuple(
            q.OffsetCommitPartition(topic=topic, partition=number, offset=offset)
            for (topic, number), offset in offsets.items()
        )
        await self._coordinator(group_id, q.ResetOffsetsRequest(group_id=group_id, partitions=partitions))

    async def undo_reset(self, group_id: str, *, validate_only: bool = False) -> UndoOffsetResetResponse:
        """Bring back the offsets from before the last reset; undoing that again makes the reset again.

        `validate_only`: tell what would change, change nothing. Raises InvalidRequestError when no reset is known.
        """
        request = q.UndoOffsetResetRequest(group_id=group_id, validate_only=validate_only)
        response: UndoOffsetResetResponse = await self._coordinator(group_id, request)
        return response

    async def _exists(self, partition: TopicPartition) -> bool:
        if not self._client.metadata.partition_count(partition.topic):
            self._client.want_topic(partition.topic)
            await self._client.refresh()
        return partition.partition < self._client.metadata.partition_count(partition.topic)

    async def _ask_broker(self, node_id: int, request: q.Request) -> Any:
        return await self._client.retrying(lambda: self._client.call(node_id, request), timeout_ms=self._timeout_ms)

    # --- how: where a request goes -----------------------------------------------------------------------------------

    async def _controller(self, request: q.Request, *, done_already: tuple[type[BarnabasError], ...] = ()) -> Any:
        """To clients at large an unknown topic may be one that is not known yet; the controller knows all there are."""
        final = (UnknownTopicOrPartitionError,)
        return await self._client.call_controller(
            request, timeout_ms=self._timeout_ms, final=final, done_already=done_already
        )

    async def _coordinator(self, group_id: str, request: q.Request) -> Any:
        return await self._client.call_coordinator(group_id, request, timeout_ms=self._timeout_ms)

    async def _anywhere(self, request: q.Request) -> Any:
        return await self._client.retrying(lambda: self._client.call_any(request), timeout_ms=self._timeout_ms)


__all__ = ["GroupAdmin", "PartitionLag"]
