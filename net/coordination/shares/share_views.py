"""`ShareViews`: what a share group has done in its partitions: where it is, what members hold, what was given out again.

The coordinator of the group has what is stored. Locks, and what has happened since, are known to the leaders alone: each of them
is asked once, side by side. Where a leader does not answer, the stored state is shown without an end, a lag and locks.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol

from barnabas.kraft.metadata.records import ShareStateRecord
from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.log.vocabulary.group_messages import TopicPartitions
from barnabas.log.vocabulary.share.messages import (
    DeliveredRecords,
    RecordState,
    SharePartitionView,
    ShareRange,
    ShareViewsRequest,
    ShareViewsResponse,
)
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.base.slices import sliced
from barnabas.net.logs.replication_service import ReplicationService
from barnabas.net.metadata.broker_to_controller import ControllerChannel
from barnabas.net.wire.protocol.requests import LATEST_TIMESTAMP

from .led_partitions import LedSharePartitions
from .log_ends import share_lag

ASK_TIMEOUT_MS: Final = 2_000  # a leader that does not answer in time leaves the stored state as it is
MAX_PARTITIONS: Final = 1_000  # of one request to a leader; of the others, only the stored state is told


class LeaderParts(Protocol):
    """The parts of a broker that it works with."""

    @property
    def node_id(self) -> int: ...
    @property
    def replication(self) -> ReplicationService: ...
    @property
    def controller(self) -> ControllerChannel: ...


class ShareViews:
    def __init__(self, parts: LeaderParts, led: LedSharePartitions, now_ms: Callable[[], int]) -> None:
        self._node_id = parts.node_id
        self._led = led
        self._replication = parts.replication
        self._controller = parts.controller
        self._now_ms = now_ms

    async def of(self, group_id: str, states: Sequence[ShareStateRecord]) -> tuple[SharePartitionView, ...]:
        """At the coordinator: one for each stored state."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for state in states:
            place = TopicPartition(state.topic, state.partition)
            leader_id, _ = self._replication.leader_hint(place)
            if leader_id >= 0:
                by_leader.setdefault(leader_id, []).append(place)
        asked = [self._ask(leader_id, group_id, some[:MAX_PARTITIONS]) for leader_id, some in by_leader.items()]
        told = {place: view for found in await asyncio.gather(*asked) for place, view in found.items()}
        return tuple([_merged(state, told) async for state in sliced(states, self._now_ms)])

    async def _ask(
        self, leader_id: int, group_id: str, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, SharePartitionView]:
        if leader_id == self._node_id:
            found = await self._here(group_id, places)
        else:
            topics = tuple(
                TopicPartitions(topic=topic, partitions=tuple(place.partition for place in some))
                for topic, some in groupby(places, key=lambda place: place.topic)
            )
            request = ShareViewsRequest(group_id=group_id, partitions=topics)
            try:
                answer = await self._controller.ask_broker(leader_id, request, timeout_ms=ASK_TIMEOUT_MS)
            except (BarnabasError, OSError):
                return {}
            assert isinstance(answer, ShareViewsResponse)
            found = answer.partitions
        return {TopicPartition(view.topic, view.partition): view for view in found}

    async def here(self, request: ShareViewsRequest) -> ShareViewsResponse:
        """At a leader. Partitions that it does not lead are left out."""
        places = [TopicPartition(item.topic, number) for item in request.partitions for number in item.partitions]
        return ShareViewsResponse(partitions=await self._here(request.group_id, places))

    async def _here(self, group_id: str, places: Iterable[TopicPartition]) -> tuple[SharePartitionView, ...]:
        found = []
        async for place in sliced(places, self._now_ms):
            try:
                partition = self._replication.replica(place)
                log_end_offset = partition.reads.list_offset(LATEST_TIMESTAMP).offset
            except BarnabasError:
                continue
            led = self._led.find((group_id, (partition.topic_id, place.partition)))
            if led is None:
                # A leader holds the locks of what it has loaded, and of nothing else.
                view = SharePartitionView(
                    topic=place.topic, partition=place.partition, log_end_offset=log_end_offset, acquired=0
                )
            else:
                machine = led.machine
                view = _view(place, machine.start_offset, machine.stored(), log_end_offset, machine.acquired_count)
            found.append(view)
        return tuple(found)


def _merged(state: ShareStateRecord, told: Mapping[TopicPartition, SharePartitionView]) -> SharePartitionView:
    place = TopicPartition(state.topic, state.partition)
    view = told.get(place)
    if view is not None and view.start_offset >= 0:
        return view
    if view is None:
        return _view(place, state.start_offset, state.ranges, -1, -1)
    return _view(place, state.start_offset, state.ranges, view.log_end_offset, view.acquired)


def _view(
    place: TopicPartition, start_offset: int, ranges: Sequence[ShareRange], log_end_offset: int, acquired: int
) -> SharePartitionView:
    """`log_end_offset` -1: not known."""
    delivered: Counter[int] = Counter()
    for item in ranges:
        if item.state == RecordState.AVAILABLE and item.delivery_count > 0:
            delivered[item.delivery_count] += item.last_offset - item.first_offset + 1
    return SharePartitionView(
        topic=place.topic,
        partition=place.partition,
        start_offset=start_offset,
        log_end_offset=log_end_offset,
        lag=-1 if log_end_offset < 0 else share_lag(start_offset, ranges, log_end_offset),
        acquired=acquired,
        deliveries=tuple(
            DeliveredRecords(deliveries=deliveries, count=records) for deliveries, records in sorted(delivered.items())
        ),
    )
