"""OffsetFetch (9), OffsetDelete (47): committed offsets of groups. `own.groups` handles commits.

Versions: 1-9, 0. Behaviour: errors are per partition; a partition without a commit, also of an unknown group, has
offset -1 without an error. With `require_stable`, an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT.
A client of a version before 7 cannot ask for that, and may be transactional all the same (aiokafka): the quorum confirms also its
offsets, because a coordinator that was replaced while the network was cut would tell it older ones, and it would repeat
transactions.

Our own OffsetFetch (`own.groups`) has another handler because its answer differs: one group, whose refusal is the answer, and
offsets with the topic ids that they belong to, with unstable ones apart. A Kafka client names many groups, each with its own
error, and may fetch as a member, whose epoch is checked. The decision is the same call of the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from barnabas.log.vocabulary.errors import (
    BarnabasError,
    CoordinatorLoadInProgressError,
    ErrorCode,
    RequestTimedOutError,
)
from barnabas.log.vocabulary.group_messages import NO_OFFSET, CommittedOffset
from barnabas.net.base.slices import sliced
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse

from ..common.answer_room import AnswerRoom, size_of_offsets
from ..common.many import check_all_once
from ..common.services import Services

_STABLE_SINCE = 7  # of OffsetFetch
_MANY_GROUPS_SINCE = 8
_TOPIC = attrgetter("topic")
FEWER_OFFSETS = "fetch the offsets of fewer groups or partitions in one request"


class KafkaOffsetHandlers:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups
        self._memory = services.memory

    async def delete(
        self, request: KafkaRequest[bodies.OffsetDeleteRequest], context: RequestContext
    ) -> KafkaResponse[bodies.OffsetDeleteResponse]:
        body, answer = request.body, bodies.OffsetDeleteResponse
        keys = tuple((topic.name, item.partition_index) for topic in body.topics for item in topic.partitions)
        outcomes = await self._groups.handle(
            body.group_id,
            lambda machine: machine.delete_offsets(
                group_id=body.group_id, partitions=keys, now_ms=self._groups.now_ms()
            ),
        )
        topics = [
            answer.OffsetDeleteResponseTopic(
                name=name,
                partitions=[
                    answer.OffsetDeleteResponsePartition(partition_index=item.partition, error_code=item.error)
                    for item in items
                ],
            )
            for name, items in groupby(outcomes, key=_TOPIC)
        ]
        return KafkaResponse(body=answer(topics=topics))

    # --- fetch --------------------------------------------------------------------------------------------------------

    async def fetch(
        self, request: KafkaRequest[bodies.OffsetFetchRequest], context: RequestContext
    ) -> KafkaResponse[bodies.OffsetFetchResponse]:
        body = request.body
        with AnswerRoom(self._memory, FEWER_OFFSETS) as room:
            if request.version < _MANY_GROUPS_SINCE:
                keys = _keys(body.topics)
                told = await self._committed(
                    body.group_id,
                    keys,
                    room,
                    require_stable=body.require_stable,
                    must_confirm=body.require_stable or request.version < _STABLE_SINCE,
                )
                return KafkaResponse(body=_of_one_group(*told))
            check_all_once("group", (asked.group_id for asked in body.groups))
            groups = []
            async for asked in sliced(body.groups, self._groups.now_ms):
                error, found = await self._committed(
                    asked.group_id,
                    _keys(asked.topics),
                    room,
                    require_stable=body.require_stable,
                    must_confirm=body.require_stable,
                    member_id=asked.member_id or "",
                    member_epoch=asked.member_epoch,
                )
                groups.append(_of_group(asked.group_id, error, found))
        return KafkaResponse(body=bodies.OffsetFetchResponse(groups=groups))

    async def _committed(
        self,
        group_id: str,
        keys: tuple[tuple[str, int], ...] | None,
        room: AnswerRoom,
        *,
        require_stable: bool,
        must_confirm: bool,
        member_id: str = "",
        member_epoch: int = -1,
    ) -> _Fetched:
        """`keys` None: all committed offsets of the group."""
        try:
            found = await self._groups.handle_slot(
                group_id,
                lambda machine: machine.offsets.fetch_stable(
                    group_id=group_id,
                    partitions=keys,
                    member_id=member_id,
                    member_epoch=member_epoch,
                    must_confirm=must_confirm,
                ),
            )
            _take(room, size_of_offsets(found.offsets))
        except BarnabasError as error:
            unknown = [CommittedOffset(topic=topic, partition=number, offset=NO_OFFSET) for topic, number in keys or ()]
            return _Fetched(error.code, [(item, error.code) for item in unknown])
        unstable = found.unstable if require_stable else frozenset()
        return _Fetched(ErrorCode.NONE, [_stable(item, unstable) for item in found.offsets])


def _take(room: AnswerRoom, size_bytes: int) -> None:
    try:
        room.take(size_bytes)
    except (
        RequestTimedOutError
    ) as error:  # It ends the poll of a Java consumer; this one is tried again by every client.
        raise CoordinatorLoadInProgressError(error.message) from None


class _Fetched(NamedTuple):
    """The error of the group, and its offsets, each with its own error."""

    error: ErrorCode
    offsets: Sequence[tuple[CommittedOffset, ErrorCode]]


def _stable(item: CommittedOffset, unstable: AbstractSet[tuple[str, int]]) -> tuple[CommittedOffset, ErrorCode]:
    """An offset that an open transaction may change is not told: its reader asks again (KIP-447)."""
    if (item.topic, item.partition) not in unstable:
        return item, ErrorCode.NONE
    unknown = CommittedOffset(topic=item.topic, partition=item.partition, offset=NO_OFFSET)
    return unknown, ErrorCode.UNSTABLE_OFFSET_COMMIT


def _topic_of(told: tuple[CommittedOffset, ErrorCode]) -> str:
    return told[0].topic


def _keys(
    topics: Sequence[bodies.OffsetFetchRequest.OffsetFetchRequestTopic]
    | Sequence[bodies.OffsetFetchRequest.OffsetFetchRequestTopics]
    | None,
) -> tuple[tuple[str, int], ...] | None:
    return (
        None
        if topics is None
        else tuple((topic.name, number) for topic in topics for number in topic.partition_indexes)
    )


def _of_one_group(error: ErrorCode, found: Sequence[tuple[CommittedOffset, ErrorCode]]) -> bodies.OffsetFetchResponse:
    """The answer before version 8, with its own message classes."""
    answer = bodies.OffsetFetchResponse
    topics = [
        answer.OffsetFetchResponseTopic(
            name=name,
            partitions=[
                answer.OffsetFetchResponsePartition(
                    partition_index=item.partition,
                    committed_offset=item.offset,
                    committed_leader_epoch=item.leader_epoch,
                    metadata=item.metadata,
                    error_code=code,
                )
                for item, code in items
            ],
        )
        for name, items in groupby(found, key=_topic_of)
    ]
    return answer(topics=topics, error_code=error)


def _of_group(
    group_id: str, error: ErrorCode, found: Sequence[tuple[CommittedOffset, ErrorCode]]
) -> bodies.OffsetFetchResponse.OffsetFetchResponseGroup:
    answer = bodies.OffsetFetchResponse
    topics = [
        answer.OffsetFetchResponseTopics(
            name=name,
            partitions=[
                answer.OffsetFetchResponsePartitions(
                    partition_index=item.partition,
                    committed_offset=item.offset,
                    committed_leader_epoch=item.leader_epoch,
                    metadata=item.metadata,
                    error_code=code,
                )
                for item, code in items
            ],
        )
        for name, items in groupby(found, key=_topic_of)
    ]
    return answer.OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=error)
