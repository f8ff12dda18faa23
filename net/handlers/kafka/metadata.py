"""Metadata (3), as Kafka's clients ask: the answers of `MetadataHandler`, encoded once for all who ask the same.

Versions: see `apis.SERVED`. Behaviour: encoding is the dear part of an answer (milliseconds for a thousand partitions), and every
client asks again and again, so encoded answers are kept while nothing that they show has changed. Without an authorizer
everybody may do everything, and is told so where they ask.
"""

from collections import OrderedDict
from collections.abc import Hashable

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.protocol.codec import Chunk
from barnabas.net.protocol.kafka.apis import KafkaResponse
from barnabas.net.protocol.kafka.compiler import encoder
from barnabas.net.protocol.kafka.metadata_api import metadata_response
from barnabas.net.protocol.requests import KafkaMetadataRequest
from barnabas.net.protocol.responses import MetadataResponse
from barnabas.net.server.dispatcher import RequestContext

from ..own.metadata import MetadataHandler
from .access import ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS

MAX_KEPT_BYTES = 16 << 20  # of encoded answers and what asks for them; room for the largest cluster in several versions
_KEY_BYTES = 100  # about what one topic takes in a key, where it was asked for by name


class EncodedAnswers:
    """Encoded answers of one image, the least recently used of them dropped first. Pure.

    What an image shows to clients is compared by identity: a delta shares with its base whatever did not change, so commits of
    groups, ids or configurations drop nothing.
    """

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._shown: tuple[object, ...] = ()
        self._kept: OrderedDict[Hashable, tuple[bytes, int]] = OrderedDict()
        self.size_bytes = 0  # the sum of what is kept; at most `max_bytes`

    def find(self, image: MetadataImage, key: Hashable) -> bytes | None:
        self._follow(image)
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def keep(self, image: MetadataImage, key: Hashable, body: bytes, *, key_bytes: int) -> None:
        """`body` was made of `image`. One that is larger than all that may be kept is not."""
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
    def __init__(self, metadata: MetadataHandler) -> None:
        self._metadata = metadata
        self.answers = EncodedAnswers()

    async def __call__(self, request: KafkaMetadataRequest, context: RequestContext) -> KafkaResponse[bytes]:
        image, key = self._metadata.image, (context.listener_name, request)
        found = self.answers.find(image, key)
        if found is None:
            response = await self._metadata(request, context)
            items = sum(len(topic.partitions) or 1 for topic in response.topics)
            found = await self._metadata.work_on(items, lambda: _encoded(response, request))
            # What is not here yet may have to be created by the next who asks.
            if response.offset == image.offset and not any(topic.error for topic in response.topics):
                self.answers.keep(image, key, found, key_bytes=_KEY_BYTES * (1 + len(response.topics)))
        return KafkaResponse(body=found)


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
