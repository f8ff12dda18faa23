"""Metadata (3), for Kafka's clients: the answers of `MetadataHandler`, encoded once for all equal requests.

Versions: see `apis.SERVED`. Behaviour: encoding is the expensive part of an answer (milliseconds for a thousand partitions),
and every client asks repeatedly, so encoded answers are cached until their content changes. On request, every operation
is reported as authorized; with an authorizer, `net/server/access` leaves those that this client has.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterable

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.server.dispatcher import HasTasks, Reply, RequestContext, answering
from barnabas.net.wire.protocol.codec import Chunk
from barnabas.net.wire.protocol.kafka.apis import KafkaResponse
from barnabas.net.wire.protocol.kafka.compiler import encoder
from barnabas.net.wire.protocol.kafka.metadata_api import metadata_response
from barnabas.net.wire.protocol.requests import KafkaMetadataRequest
from barnabas.net.wire.protocol.responses import MetadataResponse

from ..own.metadata import MetadataHandler
from .access import ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS

MAX_KEPT_BYTES = 16 << 20  # of encoded answers and their keys; room for the largest cluster in several versions
_KEY_BYTES = 100  # approximate size of one topic name in a key


class EncodedAnswers:
    """A cache of encoded answers of one image; evicts the least recently used one. Pure.

    The client-visible parts of images are compared by identity: a delta shares all unchanged parts with its base, so commits of
    groups, ids or configurations evict nothing.
    """

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._image: MetadataImage | None = None  # the newest one that was seen
        self._shown: tuple[object, ...] = ()  # of it
        self._kept: OrderedDict[Hashable, tuple[bytes, int]] = OrderedDict()
        self.size_bytes = 0  # the total size of the cached answers; at most `max_bytes`

    def find(self, image: MetadataImage, key: Hashable) -> bytes | None:
        self._follow(image)
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def keep(self, image: MetadataImage, key: Hashable, body: bytes, *, key_bytes: int) -> None:
        """Cache `body`, made from `image`, unless it is larger than the cache."""
        self._follow(image)
        size_bytes = len(body) + key_bytes
        if key in self._kept or size_bytes > self._max_bytes:
            return
        self._kept[key] = (body, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self.size_bytes -= dropped_bytes

    def _follow(self, image: MetadataImage) -> None:
        if image is self._image:
            return
        self._image = image
        shown = (image.topics, image.brokers, image.slots, image.controller_id, image.cluster_id)
        same = len(self._shown) == len(shown) and all(
            old is new or (isinstance(new, int | str) and old == new)
            for old, new in zip(self._shown, shown, strict=True)
        )
        if not same:
            self._shown = shown
            self._kept.clear()
            self.size_bytes = 0


class KafkaMetadataHandler:
    """Answers from the cache at once, and in a task if the answer must be made."""

    def __init__(self, metadata: MetadataHandler) -> None:
        self._metadata = metadata
        self._make = answering(self._made)
        self.answers = EncodedAnswers()

    @property
    def tasks(self) -> Iterable[asyncio.Task[object]]:
        assert isinstance(self._make, HasTasks)
        return self._make.tasks

    def __call__(self, request: KafkaMetadataRequest, context: RequestContext, reply: Reply) -> None:
        found = self.answers.find(self._metadata.image, (context.listener_name, request))
        if found is None:
            self._make(request, context, reply)
        else:
            reply(KafkaResponse(body=found))

    async def _made(self, request: KafkaMetadataRequest, context: RequestContext) -> KafkaResponse[bytes]:
        image = self._metadata.image
        response = await self._metadata(request, context)
        items = sum(len(topic.partitions) or 1 for topic in response.topics)
        made = await self._metadata.work_on(items, lambda: _encoded(response, request))
        # Do not cache missing topics: the next request may have to create them.
        if response.offset == image.offset and not any(topic.error for topic in response.topics):
            key_bytes = _KEY_BYTES * (1 + len(response.topics))
            self.answers.keep(image, (context.listener_name, request), made, key_bytes=key_bytes)
        return KafkaResponse(body=made)


def _encoded(response: MetadataResponse, request: KafkaMetadataRequest) -> bytes:
    answer = metadata_response(response, request.kafka_version)
    if request.tells_cluster_operations:
        answer.cluster_authorized_operations = ALL_CLUSTER_OPERATIONS
    if request.tells_topic_operations:
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = ALL_TOPIC_OPERATIONS
    chunks: list[Chunk] = []
    encoder("MetadataResponse", request.kafka_version)(answer, chunks)
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
