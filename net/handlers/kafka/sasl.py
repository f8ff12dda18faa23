"""SaslHandshake (17), SaslAuthenticate (36): authentication, which this broker does not support.

Versions: 0-1, 0-2, which ApiVersions does not list. Behaviour: a handshake is refused with UNSUPPORTED_SASL_MECHANISM and the
empty list of mechanisms, so that a client with security.protocol=SASL_PLAINTEXT ends with a clear error. Differs from Kafka,
whose listeners without SASL list both, and answer ILLEGAL_SASL_STATE: kafka-python then tries again for 30 seconds.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.protocol.kafka import bodies
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.server.dispatcher import Reply, RequestContext

NO_SASL = "this listener does not support SASL: set security.protocol=PLAINTEXT"


def handshake(request: KafkaRequest[bodies.SaslHandshakeRequest], context: RequestContext, reply: Reply) -> None:
    make = bodies.SaslHandshakeResponse
    reply(KafkaResponse(body=make(error_code=int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), mechanisms=[])))


def authenticate(request: KafkaRequest[bodies.SaslAuthenticateRequest], context: RequestContext, reply: Reply) -> None:
    make = bodies.SaslAuthenticateResponse
    reply(KafkaResponse(body=make(error_code=int(ErrorCode.ILLEGAL_SASL_STATE), error_message=NO_SASL)))
