"""DescribeUserScramCredentials (50), AlterUserScramCredentials (51): users with passwords (KIP-554).

Versions: 0, 0. Behaviour: as Kafka; the client sends the salted password, of which only stored key and server key are kept.
Differs from Kafka: up to 100,000 iterations are accepted (Kafka: 16,384), and all valid changes of a request are one decision, so
an error of the controller is the error of each of them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from barnabas.kraft.access.user_control import check_credential, check_iterations, check_user_name
from barnabas.log.vocabulary.access.scram import LoginSecret, ScramMechanism, UserCredential
from barnabas.log.vocabulary.cluster_changes import AlterUsersRequest, UserMechanism
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    DuplicateResourceError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from barnabas.net.base.sasl.scram import credential_of
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse

from ..common.changes import decided
from ..common.services import Services
from .users import SECRET_BYTES

if TYPE_CHECKING:  # the classes of messages are made at the first use, not at the import of the handlers
    Deletion = bodies.AlterUserScramCredentialsRequest.ScramCredentialDeletion
    Upsertion = bodies.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
T = TypeVar("T")


class KafkaUserHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def describe(
        self, request: KafkaRequest[bodies.DescribeUserScramCredentialsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeUserScramCredentialsResponse]:
        answer = bodies.DescribeUserScramCredentialsResponse
        users = self._services.metadata.image.users
        asked = Counter(user.name for user in request.body.users or ())
        results = []
        for name in asked or sorted(users):
            result = answer.DescribeUserScramCredentialsResult(user=name)
            if asked[name] > 1:
                _refuse(result, DuplicateResourceError(f"user {name!r} is described twice in one request"))
            elif name not in users:
                _refuse(result, ResourceNotFoundError(f"there is no user {name!r}"))
            else:
                result.credential_infos = [
                    answer.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                    for mechanism, credential in sorted(users[name].items())
                ]
            results.append(result)
        return KafkaResponse(body=answer(error_message=None, results=results))

    async def alter(
        self, request: KafkaRequest[bodies.AlterUserScramCredentialsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterUserScramCredentialsResponse]:
        answer, body = bodies.AlterUserScramCredentialsResponse, request.body
        outcomes: dict[str, BarnabasError | None] = {}
        for name in (*(item.name for item in body.deletions), *(item.name for item in body.upsertions)):
            outcomes[name] = None
        twice = Counter([(item.name, item.mechanism) for item in body.deletions])
        twice.update((item.name, item.mechanism) for item in body.upsertions)
        for (name, _), count in twice.items():
            if count > 1:
                outcomes[name] = DuplicateResourceError(f"user {name!r} is changed twice in one request")
        removals = [_tried(outcomes, self._removal, item) for item in body.deletions]
        credentials = [_tried(outcomes, _credential, item) for item in body.upsertions]
        change = AlterUsersRequest(
            credentials=tuple(item for item in credentials if item is not None and outcomes[item.user] is None),
            removals=tuple(item for item in removals if item is not None and outcomes[item.user] is None),
        )
        if change.credentials or change.removals:
            await self._decide(change, outcomes)
        results = [
            _refuse(answer.AlterUserScramCredentialsResult(user=name), error) for name, error in outcomes.items()
        ]
        return KafkaResponse(body=answer(results=results))

    async def _decide(self, change: AlterUsersRequest, outcomes: dict[str, BarnabasError | None]) -> None:
        if self._services.metadata.image.login_secret is None:
            change = replace(change, login_secret=LoginSecret(value=secrets.token_bytes(SECRET_BYTES)))
        try:
            await decided(self._services, change)
        except BarnabasError as error:
            for name, before in outcomes.items():
                outcomes[name] = before or error

    def _removal(self, item: Deletion) -> UserMechanism:
        check_user_name(item.name)
        _check_mechanism(item.mechanism)
        if item.mechanism not in self._services.metadata.image.users.get(item.name, {}):
            raise ResourceNotFoundError(f"user {item.name!r} has no credential for {ScramMechanism(item.mechanism)}")
        return UserMechanism(user=item.name, mechanism=item.mechanism)


def _credential(item: Upsertion) -> UserCredential:
    check_user_name(item.name)
    mechanism = _check_mechanism(item.mechanism)
    check_iterations(item.iterations)
    salted = bytes(item.salted_password)
    if len(salted) != mechanism.bits // 8:
        raise UnacceptableCredentialError(f"a salted password of {mechanism} has {mechanism.bits // 8} bytes")
    credential = credential_of(mechanism, salted, salt=bytes(item.salt), iterations=item.iterations)
    check_credential(item.name, item.mechanism, credential)
    return UserCredential(user=item.name, mechanism=item.mechanism, credential=credential)


def _check_mechanism(mechanism: int) -> ScramMechanism:
    try:
        return ScramMechanism(mechanism)
    except ValueError:
        raise UnsupportedSaslMechanismError(f"unknown mechanism {mechanism}") from None


def _tried(outcomes: dict[str, BarnabasError | None], make: Callable[[Any], T], item: Any) -> T | None:
    """The change, or None and the reason in `outcomes`."""
    try:
        return make(item)
    except BarnabasError as error:
        outcomes[item.name] = outcomes[item.name] or error
        return None


def _refuse(result: T, error: BarnabasError | None) -> T:
    if error is not None:
        found: Any = result  # both kinds of results have these fields
        found.error_code, found.error_message = int(error.code), error.message
    return result
