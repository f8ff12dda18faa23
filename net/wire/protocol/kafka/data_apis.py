"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch, between Kafka's messages and the values that our handlers know. Pure.

Kafka groups by topic what we keep as a list of partitions. Answers keep the order of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol, TypeVar

from barnabas.log.vocabulary.errors import ErrorCode

from ..requests import (
    EpochPartition,
    FetchPartition,
    FetchRequest,
    ForgottenTopic,
    KafkaProduceRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProducePartition,
)
from ..responses import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
    ProducePartitionResponse,
    ProduceResponse,
)
from . import bodies
from .apis import NO_TOPIC_ID, KafkaApi, KafkaRequest

_FETCH_BY_ID_SINCE = 13
_OF_SESSION = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class _OfTopic(Protocol):
    @property
    def topic(self) -> str: ...


P = TypeVar("P", bound=_OfTopic)
_TOPIC = attrgetter("topic")


def _by_topic(partitions: Sequence[P]) -> Iterable[tuple[str, Iterable[P]]]:
    """Neighbours of one topic together: that is how they came. Often it is one partition, which costs nothing so."""
    if len(partitions) == 1:
        return ((partitions[0].topic, partitions),)
    return groupby(partitions, key=_TOPIC)


# --- Produce ----------------------------------------------------------------------------------------------------------


def produce_request(body: bodies.ProduceRequest, version: int) -> KafkaProduceRequest:
    partitions = [
        ProducePartition(topic=topic.name, partition=item.index, records=b"" if item.records is None else item.records)
        for topic in body.topic_data
        for item in topic.partition_data
    ]
    return KafkaProduceRequest(
        acks=body.acks,
        timeout_ms=body.timeout_ms,
        partitions=tuple(partitions),
        transactional_id=body.transactional_id,
        kafka_version=version,
    )


def produce_response(response: ProduceResponse, version: int) -> bodies.ProduceResponse:
    make_partition = bodies.ProduceResponse.PartitionProduceResponse
    make_topic = bodies.ProduceResponse.TopicProduceResponse
    topics = [
        make_topic(
            name=name,
            partition_responses=[
                make_partition(
                    index=item.partition,
                    error_code=item.error,
                    base_offset=item.base_offset,
                    log_append_time_ms=item.log_append_time_ms,
                    log_start_offset=item.log_start_offset,
                    error_message=item.message or None,
                )
                for item in items
            ],
        )
        for name, items in _by_topic(response.partitions)
    ]
    return bodies.ProduceResponse(responses=topics)


def produce_failed(request: KafkaProduceRequest, error: int, message: str) -> ProduceResponse:
    return ProduceResponse(
        partitions=tuple(
            ProducePartitionResponse(topic=item.topic, partition=item.partition, error=error, message=message)
            for item in request.partitions
        )
    )


# --- Fetch ------------------------------------------------------------------------------------------------------------


def fetch_request(body: bodies.FetchRequest, version: int) -> FetchRequest | KafkaRequest[bodies.FetchRequest]:
    """Since version 13 topics have ids and no names: a handler that knows the ids then calls `fetch_by_name`."""
    if version >= _FETCH_BY_ID_SINCE:
        return KafkaRequest(api_key=KafkaApi.FETCH, version=version, body=body)
    return fetch_by_name(body)


def fetch_by_name(body: bodies.FetchRequest) -> FetchRequest:
    """A partition that is named twice is read once, as it was named last, as in Kafka."""
    partitions = {
        (topic.topic, item.partition): FetchPartition(
            topic=topic.topic,
            partition=item.partition,
            fetch_offset=item.fetch_offset,
            max_bytes=item.partition_max_bytes,
            current_leader_epoch=item.current_leader_epoch,
            last_fetched_epoch=item.last_fetched_epoch,
            topic_id="" if topic.topic_id == NO_TOPIC_ID else topic.topic_id.hex(),
        )
        for topic in body.topics
        for item in topic.partitions
    }
    forgotten = [
        ForgottenTopic(
            topic=topic.topic,
            partitions=tuple(topic.partitions),
            topic_id="" if topic.topic_id == NO_TOPIC_ID else topic.topic_id.hex(),
        )
        for topic in body.forgotten_topics_data
    ]
    return FetchRequest(
        max_wait_ms=body.max_wait_ms,
        min_bytes=body.min_bytes,
        max_bytes=body.max_bytes,
        partitions=tuple(partitions.values()),
        isolation_level=body.isolation_level,
        rack=body.rack_id,
        may_be_sent_away=bool(body.rack_id),
        session_id=body.session_id,
        session_epoch=body.session_epoch,
        forgotten=tuple(forgotten),
    )


def fetch_response(response: FetchResponse, version: int) -> bodies.FetchResponse:
    make_topic = bodies.FetchResponse.FetchableTopicResponse
    make_partition = bodies.FetchResponse.PartitionData
    topics = [
        make_topic(topic=name, partitions=[_fetched(item, make_partition) for item in items])
        for name, items in _by_topic(response.partitions)
    ]
    return bodies.FetchResponse(error_code=response.error, session_id=response.session_id, responses=topics)


def _fetched(
    item: FetchPartitionResponse, make_partition: type[bodies.FetchResponse.PartitionData]
) -> bodies.FetchResponse.PartitionData:
    made = make_partition(
        partition_index=item.partition,
        error_code=item.error,
        high_watermark=item.high_watermark,
        last_stable_offset=item.last_stable_offset,
        log_start_offset=item.log_start_offset,
        aborted_transactions=_aborted(item.aborted) if item.aborted else [],
        preferred_read_replica=item.preferred_read_replica,
        records=item.records,
    )
    if item.diverging_epoch >= 0:
        make_end = bodies.FetchResponse.EpochEndOffset
        made.diverging_epoch = make_end(epoch=item.diverging_epoch, end_offset=item.diverging_end_offset)
    # No current leader: before version 16 it comes without an address (KIP-951), and kafka-python dies of a broker that it does
    # not know yet. The error makes clients ask for the metadata.
    return made


def _aborted(found: Iterable[tuple[int, int]]) -> list[bodies.FetchResponse.AbortedTransaction]:
    make_aborted = bodies.FetchResponse.AbortedTransaction
    return [make_aborted(producer_id=who, first_offset=first) for who, first in found]


def fetch_failed(request: FetchRequest, error: int, message: str) -> FetchResponse:
    if error in _OF_SESSION:
        return FetchResponse(partitions=(), error=error)
    return FetchResponse(
        partitions=tuple(
            FetchPartitionResponse(topic=item.topic, partition=item.partition, error=error, message=message)
            for item in request.partitions
        )
    )


# --- offsets ----------------------------------------------------------------------------------------------------------


def list_offsets_request(body: bodies.ListOffsetsRequest, version: int) -> ListOffsetsRequest:
    partitions = tuple(
        ListOffsetsPartition(
            topic=topic.name,
            partition=item.partition_index,
            timestamp_ms=item.timestamp,
            current_leader_epoch=item.current_leader_epoch,
        )
        for topic in body.topics
        for item in topic.partitions
    )
    return ListOffsetsRequest(partitions=partitions, isolation_level=body.isolation_level)


def list_offsets_response(response: ListOffsetsResponse, version: int) -> bodies.ListOffsetsResponse:
    make_partition = bodies.ListOffsetsResponse.ListOffsetsPartitionResponse
    make_topic = bodies.ListOffsetsResponse.ListOffsetsTopicResponse
    topics = [
        make_topic(
            name=name,
            partitions=[
                make_partition(
                    partition_index=item.partition,
                    error_code=item.error,
                    timestamp=item.timestamp_ms,
                    offset=item.offset,
                    leader_epoch=item.leader_epoch,
                )
                for item in items
            ],
        )
        for name, items in _by_topic(response.partitions)
    ]
    return bodies.ListOffsetsResponse(topics=topics)


def list_offsets_failed(request: ListOffsetsRequest, error: int, message: str) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        partitions=tuple(
            ListOffsetsPartitionResponse(topic=item.topic, partition=item.partition, error=error, message=message)
            for item in request.partitions
        )
    )


def epochs_request(body: bodies.OffsetForLeaderEpochRequest, version: int) -> OffsetForLeaderEpochRequest:
    partitions = tuple(
        EpochPartition(
            topic=topic.topic,
            partition=item.partition,
            leader_epoch=item.leader_epoch,
            current_leader_epoch=item.current_leader_epoch,
        )
        for topic in body.topics
        for item in topic.partitions
    )
    return OffsetForLeaderEpochRequest(partitions=partitions)


def epochs_response(response: OffsetForLeaderEpochResponse, version: int) -> bodies.OffsetForLeaderEpochResponse:
    make_partition = bodies.OffsetForLeaderEpochResponse.EpochEndOffset
    make_topic = bodies.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = [
        make_topic(
            topic=name,
            partitions=[
                make_partition(
                    error_code=item.error,
                    partition=item.partition,
                    leader_epoch=item.leader_epoch,
                    end_offset=item.end_offset,
                )
                for item in items
            ],
        )
        for name, items in _by_topic(response.partitions)
    ]
    return bodies.OffsetForLeaderEpochResponse(topics=topics)


def epochs_failed(request: OffsetForLeaderEpochRequest, error: int, message: str) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        partitions=tuple(
            EpochEndOffset(topic=item.topic, partition=item.partition, error=error) for item in request.partitions
        )
    )
