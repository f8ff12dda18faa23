"""Metadata (key 3): brokers, topics and partition leaders, from any broker.

Versions: 0. Behaviour: `topics` None lists all, `topic_ids` asks by id; an unknown topic is created when both the request and
`auto.create.topics.enable` allow it; fenced brokers are not listed as addresses, but stay in replica lists.
Differs from Kafka: `known_offset` with `max_wait_ms` makes it a long poll for newer metadata, so that a client learns of an
election without polling.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from barnabas.kraft.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    ErrorCode,
    InvalidRequestError,
    LeaderNotAvailableError,
    RequestTimedOutError,
)
from barnabas.log.vocabulary.topic_partition import (
    CONSUMER_OFFSETS_PARTITIONS,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    check_topic_name,
    no_such_topic,
    no_such_topic_id,
)
from barnabas.net.base.threads import to_its_end
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import MetadataRequest
from barnabas.net.wire.protocol.responses import (
    BrokerMetadata,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)

from ..common.many import once
from ..common.services import Services
from .auto_creation import TopicCreations

MAX_METADATA_WAIT_MS = 30_000
MAX_CREATED_PER_REQUEST = 100  # clients ask again for the others, as they do while a topic has no leader
# A broker that has just started waits this long until it knows a serving broker: clients handle a late answer better than one
# without brokers, and after this time they may ask another broker.
KNOWN_WITHIN_MS = 5_000
MAX_NAMES = 20_000  # of one request: about half a second of work in total; no client needs to name more
# An answer with more partitions or names than this is made in a separate thread, one at a time: the interpreter switches between
# threads every millisecond, while on the loop 200,000 partitions would block it for two seconds.
MAX_ITEMS_ON_LOOP = 1_000

T = TypeVar("T")


class MetadataHandler:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._creations = TopicCreations(services)
        self._large_answers = asyncio.Semaphore(1)

    @property
    def tasks(self) -> list[asyncio.Task[BarnabasError | None]]:
        """Creations in progress, whose clients may have disconnected."""
        return self._creations.tasks

    @property
    def image(self) -> MetadataImage:
        """The image for the next answer."""
        return self._services.metadata.image

    async def __call__(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        metadata = self._services.metadata
        names = len(request.topics or ()) + len(request.topic_ids)
        if names > MAX_NAMES:
            raise InvalidRequestError(
                f"{names} topics are named in one request; name at most {MAX_NAMES}, or request all topics"
            )
        await metadata.wait_until_known(timeout_ms=KNOWN_WITHIN_MS)
        if request.max_wait_ms > 0 and metadata.image.offset <= request.known_offset:
            try:
                timeout_ms = min(request.max_wait_ms, MAX_METADATA_WAIT_MS)
                await metadata.wait_for_offset(request.known_offset + 1, timeout_ms=timeout_ms)
            except RequestTimedOutError:
                pass  # an unchanged answer means that nothing has changed
        failures: dict[str, BarnabasError] = {}
        if request.topics is not None and request.allow_auto_topic_creation:
            failures = await self._create_missing(request.topics)
        image = metadata.image
        return await self.work_on(_items(request, image), lambda: self._answer(request, context, image, failures))

    async def work_on(self, items: int, work: Callable[[], T]) -> T:
        """Run small work here and large work in a thread: it must be pure."""
        if items <= MAX_ITEMS_ON_LOOP:
            return work()
        async with self._large_answers:
            # The thread continues if the client disconnects: the next request waits for it.
            return await to_its_end(asyncio.get_running_loop().run_in_executor(None, work))

    async def _create_missing(self, topics: tuple[str, ...]) -> dict[str, BarnabasError]:
        missing = [
            name for name in topics if name not in self._services.metadata.image.topics and name not in INTERNAL_TOPICS
        ]
        if not missing or not self._services.config.auto_create_topics_enable:
            return {}
        now, later = missing[:MAX_CREATED_PER_REQUEST], missing[MAX_CREATED_PER_REQUEST:]
        failures = await self._creations.create(now)
        too_many = LeaderNotAvailableError(
            f"{len(missing)} topics are to be created; request the remaining topics again"
        )
        return {**failures, **dict.fromkeys(later, too_many)}

    def _answer(
        self,
        request: MetadataRequest,
        context: RequestContext,
        image: MetadataImage,
        failures: dict[str, BarnabasError],
    ) -> MetadataResponse:
        if request.topics is None:
            topics = [_describe(topic, image) for topic in image.topics.values()]
            topics.append(_describe_consumer_offsets(image))
        else:
            topics = [self._one_topic(name, image, failures) for name in once(request.topics)]
            topics += [_topic_by_id(topic_id, image) for topic_id in once(request.topic_ids)]
        brokers = []
        for broker in image.brokers.values():
            if not broker.fenced:
                endpoint = broker.endpoint(context.listener_name)
                brokers.append(
                    BrokerMetadata(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
                )
        return MetadataResponse(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            offset=image.offset,
            brokers=tuple(brokers),
            topics=tuple(topics),
        )

    def _one_topic(self, name: str, image: MetadataImage, failures: dict[str, BarnabasError]) -> TopicMetadata:
        topic = image.topics.get(name)
        if topic is not None:
            return _describe(topic, image)
        if name == CONSUMER_OFFSETS_TOPIC:
            return _describe_consumer_offsets(image)
        failure = failures.get(name)
        if failure is None:
            try:
                check_topic_name(name)
            except BarnabasError as error:
                failure = error
        if failure is not None:
            return TopicMetadata(error=failure.code, name=name, message=failure.message)
        return TopicMetadata(
            error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            name=name,
            message=no_such_topic(name),
        )


def _items(request: MetadataRequest, image: MetadataImage) -> int:
    """The approximate size of an answer: its partitions, and the requested names."""
    if request.topics is None:
        return sum(len(topic.partitions) for topic in image.topics.values())
    asked = [*request.topics, *(image.topic_names.get(topic_id, "") for topic_id in request.topic_ids)]
    return sum(len(topic.partitions) if (topic := image.topics.get(name)) is not None else 1 for name in asked)


def _topic_by_id(topic_id: str, image: MetadataImage) -> TopicMetadata:
    name = image.topic_names.get(topic_id)
    if name is not None:
        return _describe(image.topics[name], image)
    return TopicMetadata(
        error=ErrorCode.UNKNOWN_TOPIC_ID, name="", topic_id=topic_id, message=no_such_topic_id(topic_id)
    )


def _describe(topic: TopicImage, image: MetadataImage) -> TopicMetadata:
    return TopicMetadata(
        error=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_describe_partition(partition, image) for partition in topic.partitions),
    )


def _describe_partition(partition: PartitionImage, image: MetadataImage) -> PartitionMetadata:
    brokers = image.brokers
    offline = tuple(
        node
        for node in partition.replicas
        if node not in brokers or brokers[node].fenced or node in partition.offline_replicas
    )
    return PartitionMetadata(
        error=ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        offline=offline,
        eligible=partition.eligible_leader_replicas,
        unclean_elections=partition.unclean_elections,
    )


def _describe_consumer_offsets(image: MetadataImage) -> TopicMetadata:
    """The group slots in the form of Kafka's __consumer_offsets: a coordinator is the leader of its partition."""
    voters = tuple(sorted(image.brokers))
    partitions = tuple(
        PartitionMetadata(
            error=ErrorCode.NONE if slot.coordinator >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            leader=slot.coordinator,
            leader_epoch=slot.coordinator_epoch,
            replicas=voters,
            isr=voters,
        )
        for slot in image.slots[:CONSUMER_OFFSETS_PARTITIONS]
    )
    return TopicMetadata(error=ErrorCode.NONE, name=CONSUMER_OFFSETS_TOPIC, internal=True, partitions=partitions)
