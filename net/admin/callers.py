"""Who makes a call, and what the caller may do: when it begins, and again while it lasts. For `app` alone."""

import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from aiohttp import web

from barnabas.log.vocabulary.errors import AuthorizationError, BarnabasError, SaslAuthenticationError
from barnabas.log.vocabulary.principal import ANONYMOUS

from ..server.access.access import Access
from .frame.call import Call, Route
from .frame.errors import ApiError, bad_request
from .frame.permissions import caller_of, check_call

LOGIN_AGAIN_S: Final = 5.0  # a stream goes on for so long if the user is removed, or has another password


async def access_of(request: web.Request, call: Call) -> Access | None:
    """What the caller may do, by its password or else by its certificate; None: everything. Raises BarnabasError, ApiError."""
    control = call.backend.access
    if control is None:
        return None
    if request.transport is None:
        raise ApiError(HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST, "the caller has disconnected")
    caller = caller_of(request.transport, call.backend.principal_rules)
    if not control.callers_may_be_brokers:
        caller = replace(caller, certified_node=None)
    told = _authorization(request)
    if told is not None:
        user = await call.backend.log_in(told, caller.client_host)
        caller = replace(caller, principal=user, certified_node=None)
    return control.of(caller)


def _authorization(request: web.Request) -> str | None:
    """Raises ApiError. Of two, a proxy in between may have checked the other one."""
    told = request.headers.getall("Authorization", [])
    if len(told) > 1:
        raise bad_request(f"the request has {len(told)} Authorization headers: send one")
    return told[0] if told else None


def refused(error: AuthorizationError, access: Access | None) -> BarnabasError:
    """The error for the caller: one that has not said who it is may be permitted to do it under its name."""
    client = None if access is None else access.client
    if client is None or client.certified_node is not None or client.principal != ANONYMOUS:
        return error
    return SaslAuthenticationError(f"{error.message}, or log in as a user that has it (Authorization: Basic or Bearer)")


class Standing:
    """Whether the caller of a stream may go on."""

    def __init__(
        self, request: web.Request, route: Route, call: Call, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._told = _authorization(request)
        self._route = route
        self._call = call
        self._clock = clock
        self._logged_in_s = clock()

    async def check(self) -> None:
        """Permissions count at once, the login after LOGIN_AGAIN_S. Raises BarnabasError."""
        access = self._call.access
        if access is None:
            return
        check_call(access, self._route.method, self._route.path, self._call)
        now_s = self._clock()
        if self._told is not None and now_s - self._logged_in_s >= LOGIN_AGAIN_S:
            self._logged_in_s = now_s
            client = access.client
            await self._call.backend.log_in(self._told, client.client_host, again=client.principal)
