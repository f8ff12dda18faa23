"""Decisions about permissions, as Kafka's StandardAuthorizer makes them. Pure.

A permission holds for a resource if it names it, names a prefix of it, or `*`. A matching DENY wins over every ALLOW. ALLOW of
some operations implies DESCRIBE (`_ALLOWED_BY`); DENY implies nothing. Super users may do everything. A resource without any
permission is closed, unless `allow.everyone.if.no.acl.found`.

Permissions are found by resource and principal in dicts: a decision costs two look-ups for each of: the name, `*`, and each
*length* of a prefix that some permission has. What other principals may do is never walked through.
"""

import ipaddress
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from barnabas.log.vocabulary.access.acls import (
    EVERYONE,
    WILDCARD,
    Acl,
    AclResource,
    Operation,
    PatternKind,
    Permission,
    ResourceKind,
)

_LITERAL: Final = int(PatternKind.LITERAL)
_PREFIXED: Final = int(PatternKind.PREFIXED)

# The operations whose ALLOW allows an operation.
_IMPLIES_DESCRIBE: Final = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
_ALLOWED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    operation: frozenset({operation, Operation.ALL})
    | (frozenset(_IMPLIES_DESCRIBE) if operation is Operation.DESCRIBE else frozenset())
    | (frozenset({Operation.ALTER_CONFIGS}) if operation is Operation.DESCRIBE_CONFIGS else frozenset())
    for operation in Operation
}

_ByPrincipal = dict[str, list[Acl]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """What the configuration says, beside the permissions."""

    super_users: frozenset[str] = frozenset()
    allows_everyone_without_acl: bool = False


class Authorizer:
    """Decides on one state of the permissions. A new state gets a new authorizer."""

    def __init__(self, acls: Mapping[AclResource, Collection[Acl]], rules: AccessRules) -> None:
        self._acls = acls
        self._rules = rules
        self._by_principal: dict[AclResource, _ByPrincipal] = {}  # of the resources that were asked for
        lengths: dict[int, set[int]] = {}
        for kind, pattern, name in acls:
            if pattern == _PREFIXED:
                lengths.setdefault(kind, set()).add(len(name))
        self._prefix_lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def is_super_user(self, principal: str) -> bool:
        return principal in self._rules.super_users

    def may(self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str) -> bool:
        if principal in self._rules.super_users:
            return True
        allowed_by = _ALLOWED_BY[operation]
        has_acls = is_allowed = False
        for by_principal in self._of_resource(int(kind), name):
            has_acls = True
            for who in (principal, EVERYONE):
                for acl in by_principal.get(who, ()):
                    if acl.host != WILDCARD and acl.host != host:
                        continue
                    if acl.permission is Permission.ALLOW:
                        is_allowed = is_allowed or acl.operation in allowed_by
                    elif acl.operation is operation or acl.operation is Operation.ALL:
                        return False
        return is_allowed or (not has_acls and self._rules.allows_everyone_without_acl)

    def may_any(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        """May it do that with at least one resource of the kind? Walks through all resources that have permissions."""
        if principal in self._rules.super_users:
            return True
        if self._is_denied_everywhere(principal, host, operation, kind):
            return False
        if self._rules.allows_everyone_without_acl:
            return True
        for resource in self._acls:
            if resource[0] == kind and any(
                acl.permission is Permission.ALLOW and acl.operation in _ALLOWED_BY[operation]
                for acl in self._holding(resource, principal, host)
            ):
                _, pattern, name = resource
                if name == WILDCARD and pattern == _LITERAL:
                    return True
                if not self._is_dominated(principal, host, operation, kind, name, is_prefix=pattern == _PREFIXED):
                    return True
        return False

    def may_all(self, principal: str, host: str, operation: Operation, kind: ResourceKind, prefix: str) -> bool:
        """May it do that with every resource whose name begins with the prefix ("": with all)? Walks likewise."""
        if principal in self._rules.super_users:
            return True
        is_allowed = False
        for resource in self._acls:
            found_kind, pattern, name = resource
            if found_kind != kind:
                continue
            covers = name == WILDCARD if pattern == _LITERAL else prefix.startswith(name)
            touches = covers or name.startswith(prefix)
            for acl in self._holding(resource, principal, host) if touches else ():
                if acl.permission is Permission.ALLOW:
                    is_allowed = is_allowed or (covers and acl.operation in _ALLOWED_BY[operation])
                elif acl.operation is operation or acl.operation is Operation.ALL:
                    return False
        return is_allowed

    def _of_resource(self, kind: int, name: str) -> list[_ByPrincipal]:
        """A list: a generator would take a third of the time of a decision."""
        acls, found = self._acls, []
        if (literal := (kind, _LITERAL, name)) in acls:
            found.append(self._compiled(literal))
        if name != WILDCARD and (wildcard := (kind, _LITERAL, WILDCARD)) in acls:
            found.append(self._compiled(wildcard))
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                break
            if (prefixed := (kind, _PREFIXED, name[:length])) in acls:
                found.append(self._compiled(prefixed))
        return found

    def _compiled(self, resource: AclResource) -> _ByPrincipal:
        """Of a resource that has permissions."""
        found = self._by_principal.get(resource)
        if found is None:
            found = self._by_principal[resource] = {}
            for acl in self._acls[resource]:
                found.setdefault(acl.principal, []).append(_with_plain_host(acl))
        return found

    def _holding(self, resource: AclResource, principal: str, host: str) -> Iterator[Acl]:
        by_principal = self._compiled(resource)
        for who in (principal, EVERYONE):
            yield from (acl for acl in by_principal.get(who, ()) if acl.host in (host, WILDCARD))

    def _is_denied(self, resource: AclResource, principal: str, host: str, operation: Operation) -> bool:
        return resource in self._acls and any(
            acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL)
            for acl in self._holding(resource, principal, host)
        )

    def _is_denied_everywhere(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        return self._is_denied((int(kind), _LITERAL, WILDCARD), principal, host, operation)

    def _is_dominated(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str, *, is_prefix: bool
    ) -> bool:
        """Does a DENY hold for everything that a permission with this name allows?"""
        denied = [(int(kind), _PREFIXED, name[:length]) for length in self._prefix_lengths.get(kind, ())]
        if not is_prefix:
            denied.append((int(kind), _LITERAL, name))
        return any(self._is_denied(resource, principal, host, operation) for resource in denied)


def _with_plain_host(acl: Acl) -> Acl:
    """An address of IPv6 has several notations: connections have the short one, Kafka's permissions that of Java
    (0:0:0:0:0:0:0:1). A DENY must not depend on it."""
    if ":" not in acl.host:
        return acl
    try:
        return replace(acl, host=str(ipaddress.ip_address(acl.host)))
    except ValueError:
        return acl
