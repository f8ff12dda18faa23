"""ApiVersions (Kafka's key 18): what is served, in which versions.

Versions: 0 to 4. Behaviour: answered before anything else, also to clients that negotiate nothing else.
"""

from barnabas.net.dispatcher import Reply, RequestContext
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.protocol.kafka.versions_api import versions_response


def api_versions(request: KafkaRequest, context: RequestContext, reply: Reply) -> None:
    reply(KafkaResponse(body=versions_response()))
