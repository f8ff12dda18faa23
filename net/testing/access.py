"""The logins of a cluster under test: what its clients must say, its users, and what these may do.

A secure cluster is one as `barnabas up --secure` makes it. Its administrator, a super user, belongs to the test.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.log.vocabulary.access.acls import MAX_FILTERS_PER_REQUEST, Acl, AclFilter, Permission
from barnabas.log.vocabulary.access.scram import MIN_ITERATIONS

from ..base.local.secure_layout import ADMIN, PLAIN_TEXT, USUAL_PROTOCOL, has_logins, is_encrypted
from ..client.admin.admin import Admin
from ..client.connection.security import SecurityOptions
from ..wire.protocol.requests import DescribeAclsRequest, Request
from ..wire.protocol.user_messages import DescribeUsersRequest
from .observation import Observation
from .permission_words import ALL_ALLOWED, read_permissions

CLIENTS: Final = ("barnabas", "kafka-python", "aiokafka", "confluent-kafka", "java")
_MECHANISM: Final = "SCRAM-SHA-256"
_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAccess:
    """What a cluster is asked for. `permissions`: None allows every user everything."""

    client_protocol: str = PLAIN_TEXT
    passwords: Mapping[str, str]
    permissions: Mapping[str, Sequence[str]] | None = None

    @property
    def is_secure(self) -> bool:
        return self.client_protocol != PLAIN_TEXT

    def principal(self, user: str) -> str:
        """By the password, or by the name in a certificate."""
        return f"User:{user}" if has_logins(self.client_protocol) else f"User:CN={user}"

    def acls(self) -> set[Acl]:
        if self.permissions is None:
            return set(ALL_ALLOWED)
        found = [read_permissions(self.principal(user), words) for user, words in self.permissions.items()]
        return {acl for acls in found for acl in acls}


def asked_access(
    *, tls: bool, users: Mapping[str, str] | None, permissions: Mapping[str, Sequence[str]] | None
) -> AskedAccess:
    """Raises ValueError, also for a permission that cannot be read."""
    passwords = dict(users or {})
    if permissions is not None and not tls and users is None:
        raise ValueError("permissions need users: give users={name: password}, or tls=True for users with certificates")
    if ADMIN in passwords:
        raise ValueError(f"users: {ADMIN!r} is the administrator of each secure cluster; choose another name")
    for user, password in passwords.items():
        if not user or not password:
            raise ValueError(f"users: give {user!r} a name and a password that are not empty")
    unknown = [user for user in permissions or () if users is not None and user not in passwords]
    if unknown:
        raise ValueError(f"permissions: {unknown[0]!r} is none of users")
    names = {(True, True): USUAL_PROTOCOL, (False, True): "SSL", (True, False): "SASL_PLAINTEXT"}
    asked = AskedAccess(
        client_protocol=names.get((users is not None, tls), PLAIN_TEXT), passwords=passwords, permissions=permissions
    )
    asked.acls()
    return asked


def login_of(
    access: AskedAccess, folder: Path, user: str | None = None, password: str | None = None
) -> SecurityOptions:
    """The options of a client of the cluster in this folder; None: of its administrator. A user without a given password must be
    one of the cluster's; any user gets a certificate. Raises ValueError."""
    options = SecurityOptions()
    if not access.is_secure:
        if user is not None:
            raise ValueError(f"login({user!r}): this cluster has no users; start it with users={{{user!r}: password}}")
        return options
    from ..base.local import secure_files  # certificates take long to import

    options["security_protocol"] = access.client_protocol
    if is_encrypted(access.client_protocol):
        options["ssl_cafile"] = str(secure_files.authority_file(folder))
    if has_logins(access.client_protocol):
        options["sasl_mechanism"] = _MECHANISM
        options["sasl_plain_username"] = ADMIN if user is None else user
        options["sasl_plain_password"] = password or _password_of(access, folder, user)
    else:
        options["ssl_certfile"] = str(secure_files.client_certificate_of(folder, ADMIN if user is None else user))
    return options


def _password_of(access: AskedAccess, folder: Path, user: str | None) -> str:
    if user is None:
        from ..base.local import secure_files

        return secure_files.password_of_admin(folder)
    if user not in access.passwords:
        known = ", ".join(map(repr, access.passwords)) or "none"
        raise ValueError(f"login({user!r}): the users of this cluster are {known}; for another one, give password=")
    return access.passwords[user]


def options_for(client: str, login: SecurityOptions) -> dict[str, Any]:
    """The same with the names and values that another client has for them. Raises ValueError."""
    if client in ("barnabas", "kafka-python"):
        return dict(login)
    if client == "aiokafka":
        return _for_aiokafka(login)
    if client == "confluent-kafka":
        found = {rd: login[name] for name, rd in _LIBRDKAFKA.items() if name in login}  # type: ignore[literal-required]
        if "ssl.certificate.location" in found:
            found["ssl.key.location"] = found["ssl.certificate.location"]
        return found
    if client == "java":
        return _for_java(login)
    raise ValueError(f"client={client!r}: choose one of {', '.join(CLIENTS)}")


_LIBRDKAFKA: Final = {
    "security_protocol": "security.protocol",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}


def _for_aiokafka(login: SecurityOptions) -> dict[str, Any]:
    found = {name: value for name, value in login.items() if not name.startswith("ssl_")}
    if "ssl_cafile" in login:
        context = ssl.create_default_context(cafile=login["ssl_cafile"])
        if "ssl_certfile" in login:
            context.load_cert_chain(login["ssl_certfile"])
        found["ssl_context"] = context
    return found


def _for_java(login: SecurityOptions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "security_protocol" in login:
        found["security.protocol"] = login["security_protocol"]
    if "ssl_cafile" in login:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login["ssl_cafile"]}
    if "ssl_certfile" in login:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login["ssl_certfile"]}
    if "sasl_mechanism" in login:
        user, password = login["sasl_plain_username"], login["sasl_plain_password"]
        found["sasl.mechanism"] = login["sasl_mechanism"]
        found["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'
        )
    return found


class AccessActs:
    """Users and permissions of a running cluster. `running`: the brokers that can be asked."""

    def __init__(
        self, access: AskedAccess, observation: Observation, running: Callable[[], Sequence[int]], *, timeout_s: float
    ) -> None:
        self._access = access
        self._observation = observation
        self._running = running
        self._timeout_s = timeout_s

    async def restore(self) -> None:
        """The users and permissions that the cluster was asked for, and no others; returns when all brokers know them."""
        if not self._access.is_secure:
            return
        admin = await self._observation.admin()
        await asyncio.gather(self._restore_users(admin), self._restore_acls(admin))

    async def _restore_users(self, admin: Admin) -> None:
        """Each gets the same password again: nobody can see whether it was changed."""
        wanted = self._access.passwords
        found = {item.user for item in await admin.users.list()}
        await asyncio.gather(
            *(admin.users.add(name, password, iterations=MIN_ITERATIONS) for name, password in wanted.items()),
            *(admin.users.remove(name) for name in found - {*wanted}),
        )
        await self._until_known(DescribeUsersRequest(users=None), lambda answer: {*wanted} == _names(answer))

    async def _restore_acls(self, admin: Admin) -> None:
        wanted, found = self._access.acls(), set(await admin.acls.find())
        await self._change(admin, add=wanted - found, remove=found - wanted)

    async def permit(self, user: str, words: Iterable[str], permission: Permission) -> set[Acl]:
        """Returns the new ones, for `withdraw`. Raises ValueError."""
        if not self._access.is_secure:
            raise ValueError("this cluster has no users; start it with users={name: password} or tls=True")
        admin = await self._observation.admin()
        found = set(await admin.acls.find())
        new = set(read_permissions(self._access.principal(user), words, permission)) - found
        await self._change(admin, add=new, remove=set())
        return new

    async def withdraw(self, acls: set[Acl]) -> None:
        await self._change(await self._observation.admin(), add=set(), remove=acls)

    async def _change(self, admin: Admin, *, add: set[Acl], remove: set[Acl]) -> None:
        filters = [_only(acl) for acl in remove]
        for first in range(0, len(filters), MAX_FILTERS_PER_REQUEST):
            await admin.acls.remove(filters[first : first + MAX_FILTERS_PER_REQUEST])
        if add:
            await admin.acls.add(add)
        if add or remove:

            def is_done(answer: Any) -> bool:
                return add <= {*answer.acls} and not remove & {*answer.acls}

            await self._until_known(DescribeAclsRequest(wanted=AclFilter()), is_done)

    async def _until_known(self, request: Request, is_as_wanted: Callable[[Any], bool]) -> None:
        """Brokers learn of a change from the quorum, one a little later than another."""
        async with asyncio.timeout(self._timeout_s):
            left = list(self._running())
            while True:
                left = [node_id for node_id in left if not is_as_wanted(await self._observation.ask(node_id, request))]
                if not left:
                    return
                await asyncio.sleep(_POLL_S)


def _names(answer: Any) -> set[str]:
    return {item.user for item in answer.users}


def _only(acl: Acl) -> AclFilter:
    return AclFilter(
        kind=acl.kind,
        pattern=acl.pattern,
        name=acl.name,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission,
    )
