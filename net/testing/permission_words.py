"""Permissions as tests write them, one in a line, as `Acl` is printed: "WRITE TOPIC orders", "READ GROUP bill*". Pure."""

import difflib
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, TypeVar

from barnabas.log.vocabulary.access.acls import (
    CLUSTER_NAME,
    EVERYONE,
    WILDCARD,
    Acl,
    Operation,
    PatternKind,
    Permission,
    ResourceKind,
    check_acl,
)
from barnabas.log.vocabulary.errors import InvalidRequestError

E = TypeVar("E", bound=IntEnum)
_FORM: Final = (
    'write OPERATION KIND NAME, as in "WRITE TOPIC orders", "READ GROUP bill*" (a prefix), or "CREATE CLUSTER"'
)
# What a cluster has whose users need no permissions.
ALL_ALLOWED: Final = tuple(
    Acl(
        kind=kind,
        name=CLUSTER_NAME if kind is ResourceKind.CLUSTER else WILDCARD,
        principal=EVERYONE,
        operation=Operation.ALL,
    )
    for kind in ResourceKind
    if kind is not ResourceKind.ANY
)


def read_permissions(principal: str, words: Iterable[str], permission: Permission = Permission.ALLOW) -> list[Acl]:
    """Raises ValueError, which names the fault and what to write."""
    if isinstance(words, str):
        raise ValueError(f"{words!r}: give a list of permissions, [{words!r}]")
    return [_read(principal, one, permission) for one in words]


def _read(principal: str, words: str, permission: Permission) -> Acl:
    parts = words.split()
    if len(parts) == 2 and parts[1].upper() == ResourceKind.CLUSTER.name:
        parts.append(CLUSTER_NAME)
    if len(parts) != 3:
        raise ValueError(f"{words!r} is no permission: {_FORM}")
    name = parts[2]
    is_prefix = name != WILDCARD and name.endswith(WILDCARD)
    acl = Acl(
        kind=_named(ResourceKind, parts[1], words),
        name=name[:-1] if is_prefix else name,
        pattern=PatternKind.PREFIXED if is_prefix else PatternKind.LITERAL,
        principal=principal,
        operation=_named(Operation, parts[0], words),
        permission=permission,
    )
    try:
        check_acl(acl)
    except InvalidRequestError as error:
        raise ValueError(f"{words!r} is no permission: {error.message}") from None
    return acl


def _named(kinds: type[E], word: str, words: str) -> E:
    known = [kind.name for kind in kinds if kind.name != "ANY"]
    if word.upper() in known:
        return kinds[word.upper()]
    near = difflib.get_close_matches(word.upper(), known, n=1)
    raise ValueError(
        f"{words!r} is no permission: {word!r} is none of {', '.join(known)}"
        + (f"; did you mean {near[0]}?" if near else f"; {_FORM}")
    )
