"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37): many topics in one request, accepted by any broker.

Versions: 0-7, 0-6, 0-3. Behaviour: the active controller, wherever it is, creates, deletes or grows each topic separately,
and each has its own error; the answer leaves once the change is committed and this broker's own image shows it. A topic that
is named twice in one request is refused and not changed. Since version 6 topics are deleted by name or by id; a deletion by
id never affects another topic of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.kraft.metadata.requests import DeleteTopic
from barnabas.log.settings.config import TOPIC_KEYS
from barnabas.log.vocabulary.cluster_changes import AddPartitionsRequest, CreateTopicResponse
from barnabas.log.vocabulary.errors import (
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import NO_TOPIC_ID, KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.requests import CreateTopicRequest, DeleteTopicRequest

from ..common.many import DONE, Outcome, check_named_once, each
from ..common.mutations import mutations, partitions_of
from ..common.services import Services
from ..own.configs import described_topic
from ..own.topics import TopicHandlers

_DELETED_BY_ID_SINCE = 6
_NEW_TOPIC_SHOWN_SINCE = 5  # KIP-525: the answer to a creation describes the new topic


class KafkaTopicHandlers:
    def __init__(self, services: Services, topics: TopicHandlers) -> None:
        self._services = services
        self._topics = topics

    # --- create -------------------------------------------------------------------------------------------------------

    async def create(
        self, request: KafkaRequest[bodies.CreateTopicsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.CreateTopicsResponse]:
        body = request.body
        names = Counter(topic.name for topic in body.topics)
        topics = {topic.name: topic for topic in body.topics}
        outcomes = await each(self._create(topic, body, context, times=names[name]) for name, topic in topics.items())
        shows = request.version >= _NEW_TOPIC_SHOWN_SINCE
        results = []
        for topic, outcome in zip(topics.values(), outcomes, strict=True):
            if isinstance(outcome, Outcome):
                made = bodies.CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name, error_code=outcome.error, error_message=outcome.message, configs=[]
                )
            else:
                made = bodies.CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name,
                    topic_id=bytes.fromhex(outcome.topic_id),
                    error_message=None,
                    num_partitions=outcome.partition_count,
                    replication_factor=outcome.replication_factor,
                    configs=self._configs(_overrides(topic)) if shows else [],
                )
            results.append(made)
        return KafkaResponse(body=bodies.CreateTopicsResponse(topics=results))

    async def _create(
        self,
        topic: bodies.CreateTopicsRequest.CreatableTopic,
        body: bodies.CreateTopicsRequest,
        context: RequestContext,
        *,
        times: int,
    ) -> CreateTopicResponse:
        check_named_once(f"topic {topic.name!r}", times)
        created = CreateTopicRequest(
            name=topic.name,
            partition_count=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignment=_assignment(topic),
            configs=_overrides(topic),
            validate_only=body.validate_only,
            timeout_ms=body.timeout_ms,
        )
        return await self._topics.create(created, context)

    def _configs(self, overrides: Mapping[str, str]) -> list[bodies.CreateTopicsResponse.CreatableTopicConfigs]:
        return [
            bodies.CreateTopicsResponse.CreatableTopicConfigs(
                name=item.key, value=item.value, config_source=int(item.source)
            )
            for item in described_topic(self._services, overrides)
            if item.key in TOPIC_KEYS
        ]

    # --- delete -------------------------------------------------------------------------------------------------------

    async def delete(
        self, request: KafkaRequest[bodies.DeleteTopicsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DeleteTopicsResponse]:
        body = request.body
        if request.version < _DELETED_BY_ID_SINCE:
            asked = [self._doomed(name, NO_TOPIC_ID) for name in body.topic_names]
        else:
            asked = [self._doomed(topic.name, topic.topic_id) for topic in body.topics]
        times = Counter(doomed.key for doomed in asked)
        topics = {doomed.key: doomed for doomed in asked}
        outcomes = await each(
            self._delete(item, context, body.timeout_ms, times=times[key]) for key, item in topics.items()
        )
        results = [
            bodies.DeleteTopicsResponse.DeletableTopicResult(
                name=item.name, topic_id=item.topic_id, error_code=outcome.error, error_message=outcome.message
            )
            for item, outcome in zip(topics.values(), outcomes, strict=True)
        ]
        return KafkaResponse(body=bodies.DeleteTopicsResponse(responses=results))

    def _doomed(self, name: str | None, topic_id: bytes) -> _Doomed:
        """The topics to delete, with the ids and names known before the deletion."""
        image = self._services.metadata.image
        by_id = topic_id != NO_TOPIC_ID
        if by_id:
            known = image.topic_names.get(topic_id.hex()) if name is None else name
            return _Doomed(name=known, topic_id=topic_id, by_id=True, is_clear=name is None)
        topic = image.topics.get(name or "")
        found = bytes.fromhex(topic.topic_id) if topic is not None else NO_TOPIC_ID
        return _Doomed(name=name, topic_id=found, by_id=False, is_clear=name is not None)

    async def _delete(self, item: _Doomed, context: RequestContext, timeout_ms: int, *, times: int) -> Outcome:
        if not item.is_clear:
            raise InvalidRequestError("identify each topic to delete either by name or by id")
        check_named_once(f"topic {str(item.name)!r}", times)
        if not item.by_id:
            await self._topics.delete(DeleteTopicRequest(name=str(item.name)), context, timeout_ms=timeout_ms)
            return DONE
        topic_id = item.topic_id.hex()  # which our own request cannot express
        self._topics.check_deletable(item.name or topic_id)
        gone = (UnknownTopicOrPartitionError, UnknownTopicIdError)
        with mutations(self._services, context, partitions_of(self._services, item.name)):
            await self._topics.change(DeleteTopic(name="", topic_id=topic_id), done_already=gone, timeout_ms=timeout_ms)
        return DONE

    # --- grow ---------------------------------------------------------------------------------------------------------

    async def add_partitions(
        self, request: KafkaRequest[bodies.CreatePartitionsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.CreatePartitionsResponse]:
        body = request.body
        times = Counter(topic.name for topic in body.topics)
        topics = {topic.name: topic for topic in body.topics}
        outcomes = await each(self._grow(topic, body, context, times=times[name]) for name, topic in topics.items())
        results = [
            bodies.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=name, error_code=outcome.error, error_message=outcome.message
            )
            for name, outcome in zip(topics, outcomes, strict=True)
        ]
        return KafkaResponse(body=bodies.CreatePartitionsResponse(results=results))

    async def _grow(
        self,
        topic: bodies.CreatePartitionsRequest.CreatePartitionsTopic,
        body: bodies.CreatePartitionsRequest,
        context: RequestContext,
        *,
        times: int,
    ) -> Outcome:
        check_named_once(f"topic {topic.name!r}", times)
        wanted = AddPartitionsRequest(
            name=topic.name,
            total_count=topic.count,
            assignment=tuple(tuple(item.broker_ids) for item in topic.assignments or ()),
            validate_only=body.validate_only,
        )
        await self._topics.add_partitions(wanted, context, timeout_ms=body.timeout_ms)
        return DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doomed:
    """`topic_id` as on the wire. `is_clear`: exactly one of name and id is set."""

    name: str | None
    topic_id: bytes
    by_id: bool
    is_clear: bool

    @property
    def key(self) -> object:
        """One key for a topic, however the request identifies it."""
        return self.name if self.name is not None else self.topic_id


def _assignment(topic: bodies.CreateTopicsRequest.CreatableTopic) -> tuple[tuple[int, ...], ...]:
    """Replicas by partition. Raises InvalidRequestError, InvalidReplicaAssignmentError."""
    if not topic.assignments:
        return ()
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise InvalidRequestError(
            f"topic {topic.name!r} has an assignment: set the numbers of partitions and replicas to -1"
        )
    by_number = {item.partition_index: tuple(item.broker_ids) for item in topic.assignments}
    if sorted(by_number) != list(range(len(topic.assignments))):
        raise InvalidReplicaAssignmentError(
            f"the assignment of topic {topic.name!r} must list each partition from 0 to {len(topic.assignments) - 1} exactly once"
        )
    return tuple(by_number[number] for number in range(len(by_number)))


def _overrides(topic: bodies.CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    """Raises InvalidConfigError."""
    found = {}
    for item in topic.configs:
        if item.value is None:
            raise InvalidConfigError(f"{item.name} of topic {topic.name!r} has no value; omit it to use its default")
        found[item.name] = item.value
    return found
