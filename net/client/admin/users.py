"""`Admin.users`: users with passwords. The password stays here: brokers get the SCRAM credential that is computed from it."""

import asyncio
import secrets
from collections.abc import Iterable
from typing import Final

from barnabas.log.vocabulary.access.scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramMechanism,
    UserCredential,
)
from barnabas.log.vocabulary.cluster_changes import AlterUsersRequest, UserMechanism
from barnabas.net.base.sasl.scram import SALT_BYTES, credential_for
from barnabas.net.wire.protocol.user_messages import DescribeUsersRequest, DescribeUsersResponse, UserDescription

from ..connection.errors import InvalidConfigError, ResourceNotFoundError
from .asking import Ask

ALL: Final = tuple(SCRAM_MECHANISMS)


def credentials_of(
    user: str, password: str, *, mechanisms: Iterable[str] = ALL, iterations: int = DEFAULT_ITERATIONS
) -> tuple[UserCredential, ...]:
    """What brokers store of a password, with new salts; takes milliseconds. Raises InvalidConfigError."""
    if not password:
        raise InvalidConfigError("the password is empty; give one")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise InvalidConfigError(f"iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {iterations}")
    return tuple(
        UserCredential(
            user=user,
            mechanism=mechanism,
            credential=credential_for(mechanism, password, salt=secrets.token_bytes(SALT_BYTES), iterations=iterations),
        )
        for mechanism in map(_mechanism, mechanisms)
    )


def _mechanism(name: str) -> ScramMechanism:
    found = SCRAM_MECHANISMS.get(name.upper())
    if found is None:
        raise InvalidConfigError(f"{name!r} has no credentials that are stored; use {' or '.join(ALL)}")
    return found


class UserAdmin:
    """A part of `Admin`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def add(
        self, user: str, password: str, *, mechanisms: Iterable[str] = ALL, iterations: int = DEFAULT_ITERATIONS
    ) -> None:
        """Add a user, or give an existing one another password for these mechanisms. The user may log in by PLAIN, too, on
        listeners that allow it."""
        made = await asyncio.to_thread(
            credentials_of, user, password, mechanisms=tuple(mechanisms), iterations=iterations
        )
        await self._ask.controller(AlterUsersRequest(credentials=made))

    async def remove(self, user: str, *, mechanisms: Iterable[str] = ()) -> None:
        """Remove a user, or its credentials for some mechanisms. Open connections stay open until their next login."""
        wanted = {_mechanism(name) for name in mechanisms}
        found = [item for item in await self.list(user) if not wanted or item.mechanism in wanted]
        if not found:
            raise ResourceNotFoundError(
                f"there is no user {user!r}" if not wanted else f"{user!r} has no such credential"
            )
        removals = tuple(UserMechanism(user=user, mechanism=item.mechanism) for item in found)
        await self._ask.controller(AlterUsersRequest(removals=removals), done_already=(ResourceNotFoundError,))

    async def list(self, *users: str) -> tuple[UserDescription, ...]:
        """All users, or these, with their mechanisms; those of brokers' own files are not among them."""
        answer: DescribeUsersResponse = await self._ask.anywhere(DescribeUsersRequest(users=users or None))
        return answer.users
