"""OffsetFetch (9), OffsetDelete (47): committed offsets of groups. `own.groups` handles commits.

Versions: 1-9, 0. Behaviour: errors are per partition; a partition without a commit, also of an unknown group, has
offset -1 without an error. `require_stable` is accepted: without transactions every offset is stable.

Our own OffsetFetch (`own.groups`) has another handler because its answer differs: one group, whose refusal is the answer, and
offsets with the topic ids that they belong to. A Kafka client names many groups, each with its own error, and may fetch as a
member, whose epoch is checked. The decision is the same call of the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.log.vocabulary.group_messages import NO_OFFSET, CommittedOffset
from barnabas.net.base.slices import sliced
from barnabas.net.protocol.kafka import bodies
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.server.dispatcher import RequestContext

from ..common.services import Services

_MANY_GROUPS_SINCE = 8  # of OffsetFetch
_TOPIC = attrgetter("topic")


class KafkaOffsetHandlers:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups

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
        if request.version < _MANY_GROUPS_SINCE:
            keys = _keys(body.topics)
            return KafkaResponse(body=_of_one_group(*await self._committed(body.group_id, keys)))
        groups = []
        async for asked in sliced(body.groups, self._groups.now_ms):
            error, found = await self._committed(
                asked.group_id, _keys(asked.topics), member_id=asked.member_id or "", member_epoch=asked.member_epoch
            )
            groups.append(_of_group(asked.group_id, error, found))
        return KafkaResponse(body=bodies.OffsetFetchResponse(groups=groups))

    async def _committed(
        self, group_id: str, keys: tuple[tuple[str, int], ...] | None, *, member_id: str = "", member_epoch: int = -1
    ) -> tuple[ErrorCode, tuple[CommittedOffset, ...]]:
        """Return the group's error and its offsets. `keys` None: all committed offsets of the group."""
        try:
            found = await self._groups.handle(
                group_id,
                lambda machine: machine.fetch_offsets(
                    group_id=group_id, partitions=keys, member_id=member_id, member_epoch=member_epoch
                ),
            )
        except BarnabasError as error:
            return error.code, tuple(
                CommittedOffset(topic=topic, partition=number, offset=NO_OFFSET) for topic, number in keys or ()
            )
        return ErrorCode.NONE, found


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


def _of_one_group(error: ErrorCode, found: Sequence[CommittedOffset]) -> bodies.OffsetFetchResponse:
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
                    error_code=error,
                )
                for item in items
            ],
        )
        for name, items in groupby(found, key=_TOPIC)
    ]
    return answer(topics=topics, error_code=error)


def _of_group(
    group_id: str, error: ErrorCode, found: Sequence[CommittedOffset]
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
                    error_code=error,
                )
                for item in items
            ],
        )
        for name, items in groupby(found, key=_TOPIC)
    ]
    return answer.OffsetFetchResponseGroup(group_id=group_id, topics=topics, error_code=error)
