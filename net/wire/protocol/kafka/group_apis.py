"""Heartbeat and OffsetCommit, between Kafka's messages and the values that our handlers know. Pure.

Both mean the same in both protocols, one request for one. What names many groups or members at once has a handler of its own,
which asks ours for each of them.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from barnabas.log.vocabulary.group_messages import HeartbeatRequest, OffsetToCommit, PartitionOutcome

from ..group_responses import OffsetCommitResponse
from ..requests import OffsetCommitRequest
from ..responses import EmptyResponse
from . import bodies

_TOPIC = attrgetter("topic")


def heartbeat_request(body: bodies.HeartbeatRequest, version: int) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=body.group_id,
        generation=body.generation_id,
        member_id=body.member_id,
        instance_id=body.group_instance_id,
    )


def heartbeat_response(response: EmptyResponse, version: int) -> bodies.HeartbeatResponse:
    return bodies.HeartbeatResponse()


def offset_commit_request(body: bodies.OffsetCommitRequest, version: int) -> OffsetCommitRequest:
    """Kafka's clients do not number their commits: any order is taken."""
    return OffsetCommitRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.generation_id_or_member_epoch,
        instance_id=body.group_instance_id,
        partitions=offsets_to_commit(body),
    )


def offsets_to_commit(body: bodies.OffsetCommitRequest | bodies.TxnOffsetCommitRequest) -> tuple[OffsetToCommit, ...]:
    """Both requests name offsets alike."""
    return tuple(
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


def offset_commit_response(response: OffsetCommitResponse, version: int) -> bodies.OffsetCommitResponse:
    answer = bodies.OffsetCommitResponse
    topics = [
        answer.OffsetCommitResponseTopic(
            name=name,
            partitions=[
                answer.OffsetCommitResponsePartition(partition_index=item.partition, error_code=item.error)
                for item in items
            ],
        )
        for name, items in groupby(response.partitions, key=_TOPIC)
    ]
    return answer(topics=topics)


def offset_commit_failed(request: OffsetCommitRequest, error: int, message: str) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        partitions=tuple(
            PartitionOutcome(topic=item.topic, partition=item.partition, error=error, message=message)
            for item in request.partitions
        )
    )
