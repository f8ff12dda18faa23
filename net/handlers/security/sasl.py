"""SaslHandshake (17), SaslAuthenticate (36): the login of Kafka's clients.

Versions: 0-1, 0-2. Behaviour: as Kafka, also logging in again (KIP-368). ApiVersions lists both only on listeners with SASL.
Differs from Kafka: on other listeners, a handshake is refused with UNSUPPORTED_SASL_MECHANISM and no mechanisms, not with
ILLEGAL_SASL_STATE, with which kafka-python would try again for 30 seconds. Version 0 of the handshake, after which the messages
of the mechanism come without Kafka's frames, is refused likewise; no client since 2018 needs it.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode
from barnabas.net.server.dispatcher import Reply, RequestContext
from barnabas.net.server.logins.authenticator import NO_SASL, Authenticator
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse


class KafkaSaslHandlers:
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def handshake(
        self, request: KafkaRequest[bodies.SaslHandshakeRequest], context: RequestContext, reply: Reply
    ) -> None:
        mechanisms = [] if context.login is None else list(context.login.mechanisms)
        error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if context.login is not None and request.version > 0:
            try:
                self._authenticator.choose(context, request.body.mechanism)
                error = ErrorCode.NONE
            except BarnabasError as refused:
                error = refused.code
                context.drain()
        reply(KafkaResponse(body=bodies.SaslHandshakeResponse(error_code=int(error), mechanisms=mechanisms)))

    async def authenticate(
        self, request: KafkaRequest[bodies.SaslAuthenticateRequest], context: RequestContext
    ) -> KafkaResponse[bodies.SaslAuthenticateResponse] | None:
        make = bodies.SaslAuthenticateResponse
        if context.login is None:
            return KafkaResponse(body=make(error_code=int(ErrorCode.ILLEGAL_SASL_STATE), error_message=NO_SASL))
        try:
            answer = await self._authenticator.authenticate(context, bytes(request.body.auth_bytes))
        except BarnabasError as error:
            return KafkaResponse(body=make(error_code=int(error.code), error_message=error.message))
        if answer is None:
            return None
        lifetime_ms = answer.session_lifetime_ms
        return KafkaResponse(body=make(auth_bytes=answer.data, session_lifetime_ms=lifetime_ms))
