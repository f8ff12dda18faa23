"""ApiVersions (Kafka's key 18): what is served, in which versions.

Versions: 0 to 3. Behaviour: answered before anything else, also to clients that negotiate nothing else.
"""

from barnabas.net.dispatcher import Reply, RequestContext
from barnabas.net.protocol.kafka.apis import SERVED, KafkaRequest, KafkaResponse
from barnabas.net.protocol.kafka.compiler import types_of


def api_versions(request: KafkaRequest, context: RequestContext, reply: Reply) -> None:
    types = types_of("ApiVersionsResponse")
    keys = [
        types["ApiVersion"](api_key=key, min_version=served.versions.first, max_version=served.versions.last)
        for key, served in sorted(SERVED.items())
    ]
    reply(KafkaResponse(body=types["ApiVersionsResponse"](api_keys=keys)))
