"""Fetch (1) since version 13, which names topics by id (KIP-516).

Behaviour: each id is looked up in this broker's image; without a name there, the error is UNKNOWN_TOPIC_ID: the topic was
deleted, or is too new. So a reader of a topic that is deleted and created again never receives records of the new topic as
those of the old one. `FetchHandler`, which uses names, does the reading. A request with an unknown id gets no session, so that
each request of its reader asks for this id again.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import ErrorCode, FetchSessionIdNotFoundError
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.server.dispatcher import Reply, RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import NO_TOPIC_ID, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.data_apis import fetch_by_name, fetch_response
from barnabas.net.wire.protocol.requests import FINAL_EPOCH, INITIAL_EPOCH
from barnabas.net.wire.protocol.responses import ErrorResponse, FetchResponse, Response

from ..common.services import Services
from ..records.fetch import FetchHandler


class FetchByTopicId:
    """Translates between topic ids and the names that `fetch` uses."""

    def __init__(self, services: Services, fetch: FetchHandler) -> None:
        self._metadata = services.metadata
        self._manager = services.replication.manager
        self._fetch = fetch

    def __call__(self, request: KafkaRequest[bodies.FetchRequest], context: RequestContext, reply: Reply) -> None:
        body, image = request.body, self._metadata.image
        ids: dict[str, bytes] = {}
        refused, named = [], []
        for topic in body.topics:
            name = image.topic_names.get(topic.topic_id.hex())
            if name is None:
                refused.append(_refused(topic.topic_id, [item.partition for item in topic.partitions]))
                continue
            topic.topic, ids[name] = name, topic.topic_id
            named.append(topic)
        body.topics = named
        if refused:
            if body.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
                raise FetchSessionIdNotFoundError("a topic id is not known: name all partitions again")
            body.session_epoch = FINAL_EPOCH
            body.max_wait_ms = 0  # the request has an error to report

        def answered(response: Response | KafkaResponse[object]) -> None:
            if isinstance(response, ErrorResponse):
                reply(response)
                return
            assert isinstance(response, FetchResponse)
            session = self._fetch.sessions.find(response.session_id)
            known = ids if session is None else session.topic_ids
            made = fetch_response(response, request.version)
            made.responses = [
                self._checked(topic, known.get(topic.topic, NO_TOPIC_ID)) for topic in made.responses
            ] + refused
            reply(KafkaResponse(body=made))

        self._fetch(fetch_by_name(body), context, answered)

    def _checked(
        self, topic: bodies.FetchResponse.FetchableTopicResponse, topic_id: bytes
    ) -> bodies.FetchResponse.FetchableTopicResponse:
        """The answer for a topic, unless another topic took over the name while the request waited, or the local replica does
        not belong to this topic yet."""
        topic.topic_id = topic_id
        hexadecimal = topic_id.hex()
        if self._metadata.image.topic_names.get(hexadecimal) != topic.topic:
            return _refused(topic_id, [item.partition_index for item in topic.partitions])
        topic.partitions = [self._checked_partition(item, topic.topic, hexadecimal) for item in topic.partitions]
        return topic

    def _checked_partition(
        self, item: bodies.FetchResponse.PartitionData, topic: str, topic_id: str
    ) -> bodies.FetchResponse.PartitionData:
        replica = self._manager.find(TopicPartition(topic, item.partition_index))
        if replica is not None and replica.topic_id != topic_id:
            return _error(item.partition_index, ErrorCode.INCONSISTENT_TOPIC_ID)
        return item


def _refused(topic_id: bytes, partitions: list[int]) -> bodies.FetchResponse.FetchableTopicResponse:
    return bodies.FetchResponse.FetchableTopicResponse(
        topic_id=topic_id, partitions=[_error(number, ErrorCode.UNKNOWN_TOPIC_ID) for number in partitions]
    )


def _error(partition: int, error: ErrorCode) -> bodies.FetchResponse.PartitionData:
    return bodies.FetchResponse.PartitionData(
        partition_index=partition, error_code=error, high_watermark=-1, aborted_transactions=[]
    )
