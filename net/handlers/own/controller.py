"""ControllerCall (1000) and MetadataFeed (1001): requests between brokers.

Versions: 0. Behaviour: the controller of this node decides a controller call, or answers NOT_CONTROLLER if it is not active;
the caller then asks another broker. Any voter answers a feed: committed commands after an offset.
"""

from barnabas.kraft.metadata.controller_errors import DivergentMetadataError
from barnabas.kraft.metadata.requests import decode_request, encode_answer
from barnabas.kraft.node.metadata_feed import MetadataFeed
from barnabas.log.vocabulary.errors import BarnabasError, RequestTimedOutError
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.requests import ControllerCallRequest, MetadataFeedRequest
from barnabas.net.wire.protocol.responses import ControllerCallResponse, MetadataFeedResponse

from ..common.services import Services

MAX_FEED_BYTES = 8 << 20
MAX_FEED_WAIT_MS = 5_000


class ControllerHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def call(self, request: ControllerCallRequest, context: RequestContext) -> ControllerCallResponse:
        try:
            answer = await self._services.metadata.source.submit(decode_request(request.body))
        except BarnabasError as error:
            return self._response(encode_answer(error))
        return self._response(encode_answer(answer))

    def _response(self, body: bytes) -> ControllerCallResponse:
        return ControllerCallResponse(body=body, wall_ms=self._services.clock.wall_ms())

    async def feed(self, request: MetadataFeedRequest, context: RequestContext) -> MetadataFeedResponse:
        metadata = self._services.metadata
        try:
            wait_ms = min(request.max_wait_ms, MAX_FEED_WAIT_MS)
            await metadata.wait_for_offset(request.after_offset + 1, timeout_ms=wait_ms)
        except (TimeoutError, RequestTimedOutError):
            pass  # an empty answer still contains the leader
        feed, contradiction = MetadataFeed(), ""
        try:
            feed = await metadata.source.feed(
                request.after_offset,
                min(request.max_bytes, MAX_FEED_BYTES),
                node_id=request.node_id,
                applied=request.applied,
            )
        except DivergentMetadataError as error:
            contradiction = error.message
        leader_id = metadata.leadership.leader_id
        return MetadataFeedResponse(
            leader_id=-1 if leader_id is None else leader_id,
            term=metadata.leadership.term,
            entries=feed.commands,
            snapshot_offset=-1 if feed.snapshot_index is None else feed.snapshot_index,
            snapshot_chunks=feed.snapshot,
            contradiction=contradiction,
        )
