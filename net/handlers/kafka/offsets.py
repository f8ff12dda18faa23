"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): committed offsets of groups.

Versions: 2-9, 1-9, 0. Behaviour: errors are told per partition; what was never committed, also of a group that nobody knows, is
offset -1 without an error. `require_stable` is taken: without transactions every offset is stable.
"""

from itertools import groupby
from typing import Any

from barnabas.consumer_groups.model.messages import CommittedOffset, OffsetToCommit, PartitionOutcome
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.net.base.slices import sliced
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.protocol.kafka.compiler import types_of
from barnabas.net.server.dispatcher import RequestContext

from ..common.services import Services

_MANY_GROUPS_SINCE = 8  # of OffsetFetch


class KafkaOffsetHandlers:
    def __init__(self, services: Services) -> None:
        self._groups = services.groups

    # --- commit -------------------------------------------------------------------------------------------------------

    async def commit(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        body = request.body
        offsets = tuple(
            OffsetToCommit(
                topic=topic.name,
                partition=item.partition_index,
                offset=item.committed_offset,
                leader_epoch=item.committed_leader_epoch,
                metadata=item.committed_metadata or "",
            )
            for topic in body.topics
            for item in topic.partitions
        )
        try:
            outcomes: Any = await self._groups.handle(
                body.group_id,
                lambda machine: machine.commit_offsets(
                    group_id=body.group_id,
                    member_id=body.member_id,
                    member_epoch=body.generation_id_or_member_epoch,
                    offsets=offsets,
                    now_ms=self._groups.now_ms(),
                    instance_id=body.group_instance_id,
                ),
            )
        except BarnabasError as error:
            outcomes = [PartitionOutcome(topic=one.topic, partition=one.partition, error=error.code) for one in offsets]
        return KafkaResponse(body=_outcomes("OffsetCommitResponse", outcomes))

    async def delete(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        body = request.body
        keys = tuple((topic.name, item.partition_index) for topic in body.topics for item in topic.partitions)
        outcomes: Any = await self._groups.handle(
            body.group_id,
            lambda machine: machine.delete_offsets(
                group_id=body.group_id, partitions=keys, now_ms=self._groups.now_ms()
            ),
        )
        return KafkaResponse(body=_outcomes("OffsetDeleteResponse", outcomes))

    # --- fetch --------------------------------------------------------------------------------------------------------

    async def fetch(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        body, types = request.body, types_of("OffsetFetchResponse")
        if request.version < _MANY_GROUPS_SINCE:
            error, topics = await self._of_group(body, types, "")
            return KafkaResponse(body=types["OffsetFetchResponse"](topics=topics, error_code=error))
        groups = []
        async for asked in sliced(body.groups, self._groups.now_ms):
            error, topics = await self._of_group(asked, types, "s")
            groups.append(types["OffsetFetchResponseGroup"](group_id=asked.group_id, topics=topics, error_code=error))
        return KafkaResponse(body=types["OffsetFetchResponse"](groups=groups))

    async def _of_group(self, asked: Any, types: dict[str, type], suffix: str) -> tuple[ErrorCode, list[Any]]:
        """Return the group's error and its topics. `asked.topics` None: all that the group has committed. `suffix`: the classes
        have other names since version 8."""
        keys = None
        if asked.topics is not None:
            keys = tuple((topic.name, number) for topic in asked.topics for number in topic.partition_indexes)
        failed = ErrorCode.NONE
        try:
            found: Any = await self._groups.handle(
                asked.group_id,
                lambda machine: machine.fetch_offsets(
                    group_id=asked.group_id,
                    partitions=keys,
                    member_id=getattr(asked, "member_id", None) or "",  # both since version 9
                    member_epoch=getattr(asked, "member_epoch", -1),
                ),
            )
        except BarnabasError as error:
            failed = error.code
            found = [CommittedOffset(topic=topic, partition=number) for topic, number in keys or ()]
        make_topic, make_partition = (
            types[f"OffsetFetchResponseTopic{suffix}"],
            types[f"OffsetFetchResponsePartition{suffix}"],
        )
        made = [
            make_topic(
                name=name,
                partitions=[
                    make_partition(
                        partition_index=item.partition,
                        committed_offset=item.offset,
                        committed_leader_epoch=item.leader_epoch,
                        metadata=item.metadata,
                        error_code=failed,
                    )
                    for item in items
                ],
            )
            for name, items in groupby(found, key=lambda item: item.topic)
        ]
        return failed, made


def _outcomes(message: str, outcomes: list[PartitionOutcome]) -> Any:
    types = types_of(message)
    topics = [
        types[f"{message}Topic"](
            name=name,
            partitions=[
                types[f"{message}Partition"](partition_index=item.partition, error_code=item.error) for item in items
            ],
        )
        for name, items in groupby(outcomes, key=lambda item: item.topic)
    ]
    return types[message](topics=topics)
