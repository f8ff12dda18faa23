"""ApiVersions (Kafka's key 18): the served APIs with their versions, and Kafka's features.

Versions: 0 to 4. Behaviour: answered before anything else, also to clients that negotiate no other API. The epoch of the
finalized features is the metadata offset: a broker without metadata sends none.
"""

from __future__ import annotations

from collections.abc import Callable

from barnabas.net.server.dispatcher import Handler, Reply, RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.kafka.versions_api import NO_EPOCH, versions_response


def api_versions(
    metadata_offset: Callable[[], int], greeted: Callable[[str, str], None] = lambda name, version: None
) -> Handler:
    """`greeted` gets name and version of the client's software, of clients that say them (KIP-511)."""

    def handle(request: KafkaRequest[bodies.ApiVersionsRequest], context: RequestContext, reply: Reply) -> None:
        offset = metadata_offset()
        epoch = offset if offset > 0 else NO_EPOCH
        if request.body.client_software_name:
            greeted(request.body.client_software_name, request.body.client_software_version)
        has_sasl = context.login is not None
        reply(KafkaResponse(body=versions_response(version=request.version, epoch=epoch, has_sasl=has_sasl)))

    return handle
