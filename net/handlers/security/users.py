"""Logins and users in our own protocol: Authenticate, AlterUsers, DescribeUsers."""

import secrets
from typing import Final

from msgspec.structs import replace

from barnabas.log.vocabulary.access.scram import LoginSecret
from barnabas.log.vocabulary.cluster_changes import AlterUsersRequest
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.server.logins.authenticator import Authenticator
from barnabas.net.wire.protocol.responses import EmptyResponse
from barnabas.net.wire.protocol.user_messages import (
    AuthenticateRequest,
    AuthenticateResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    UserDescription,
)

from ..common.changes import decided
from ..common.services import Services

SECRET_BYTES: Final = 32


class LoginHandler:
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def __call__(self, request: AuthenticateRequest, context: RequestContext) -> AuthenticateResponse | None:
        if request.mechanism:
            self._authenticator.choose(context, request.mechanism)
        return await self._authenticator.authenticate(context, request.data)


class UserHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def alter(self, request: AlterUsersRequest, context: RequestContext) -> EmptyResponse:
        """What a client says of the secret does not count."""
        has_secret = self._services.metadata.image.login_secret is not None
        secret = None if has_secret else LoginSecret(value=secrets.token_bytes(SECRET_BYTES))
        await decided(self._services, replace(request, login_secret=secret))
        return EmptyResponse()

    async def describe(self, request: DescribeUsersRequest, context: RequestContext) -> DescribeUsersResponse:
        found = self._services.metadata.image.users
        names = sorted(found) if request.users is None else [name for name in request.users if name in found]
        return DescribeUsersResponse(
            users=tuple(
                UserDescription(user=name, mechanism=mechanism, iterations=credential.iterations)
                for name in names
                for mechanism, credential in sorted(found[name].items())
            )
        )
