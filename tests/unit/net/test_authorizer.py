"""Decisions about permissions, by example and against the definition: every permission is looked at, one after the other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.log.vocabulary.access.acls import (
    Acl,
    AclResource,
    Operation,
    PatternKind,
    Permission,
    ResourceKind,
)
from barnabas.net.server.access.authorizer import AccessRules, Authorizer

ALICE, BOB, HERE, THERE = "User:alice", "User:bob", "10.0.0.1", "10.0.0.2"
TOPIC = ResourceKind.TOPIC
DENY = Permission.DENY


def acl(operation: Operation, name: str, *, principal: str = ALICE, prefix: bool = False, **rest: object) -> Acl:
    pattern = PatternKind.PREFIXED if prefix else PatternKind.LITERAL
    fields = {"kind": TOPIC, "pattern": pattern, "name": name, "principal": principal, "operation": operation, **rest}
    return Acl(**fields)  # type: ignore[arg-type]


def by_resource(acls: Iterable[Acl]) -> dict[AclResource, list[Acl]]:
    found: dict[AclResource, list[Acl]] = {}
    for one in acls:
        found.setdefault(one.resource, []).append(one)
    return found


def authorizer(*acls: Acl, everyone: bool = False) -> Authorizer:
    rules = AccessRules(super_users=frozenset({"User:root"}), allows_everyone_without_acl=everyone)
    return Authorizer(by_resource(acls), rules)


def may(found: Authorizer, operation: Operation, name: str, principal: str = ALICE, host: str = HERE) -> bool:
    return found.may(principal, host, operation, TOPIC, name)


def test_nothing_is_allowed_without_a_permission_except_to_super_users() -> None:
    found = authorizer()
    assert not may(found, Operation.READ, "t")
    assert may(found, Operation.READ, "t", "User:root")
    assert found.is_super_user("User:root")
    assert not found.is_super_user(ALICE)
    everyone = authorizer(acl(Operation.READ, "closed", principal=BOB), everyone=True)
    assert may(everyone, Operation.READ, "open")
    assert not may(everyone, Operation.READ, "closed")


def test_a_permission_names_a_resource_a_prefix_or_all() -> None:
    found = authorizer(acl(Operation.READ, "orders"), acl(Operation.READ, "log-", prefix=True))
    assert may(found, Operation.READ, "orders")
    assert may(found, Operation.READ, "log-")
    assert may(found, Operation.READ, "log-1")
    for name in ("order", "orders2", "log", "xlog-1"):
        assert not may(found, Operation.READ, name)
    assert may(authorizer(acl(Operation.READ, "*")), Operation.READ, "any")
    assert not may(authorizer(acl(Operation.READ, "*", kind=ResourceKind.GROUP)), Operation.READ, "any")


def test_principals_hosts_and_operations_are_compared() -> None:
    found = authorizer(acl(Operation.READ, "t", host=HERE), acl(Operation.WRITE, "t", principal="User:*"))
    assert may(found, Operation.READ, "t")
    assert not may(found, Operation.READ, "t", host=THERE)
    assert not may(found, Operation.READ, "t", BOB)
    assert may(found, Operation.WRITE, "t", BOB)
    assert may(authorizer(acl(Operation.ALL, "t")), Operation.ALTER_CONFIGS, "t")


def test_deny_wins() -> None:
    found = authorizer(
        acl(Operation.ALL, "*"),
        acl(Operation.READ, "secret-", prefix=True, permission=DENY),
        acl(Operation.ALL, "gone", permission=DENY, host=THERE),
    )
    assert may(found, Operation.WRITE, "secret-1")
    assert not may(found, Operation.READ, "secret-1")
    assert may(found, Operation.READ, "gone")
    assert not may(found, Operation.DESCRIBE, "gone", host=THERE)


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_what_changes_or_reads_may_also_describe(operation: Operation) -> None:
    assert may(authorizer(acl(operation, "t")), Operation.DESCRIBE, "t")
    assert not may(authorizer(acl(operation, "t")), Operation.DESCRIBE_CONFIGS, "t")
    denied = authorizer(acl(Operation.DESCRIBE, "t"), acl(operation, "t", permission=DENY))
    assert may(denied, Operation.DESCRIBE, "t"), "DENY implies nothing"


def test_who_changes_configurations_may_describe_them() -> None:
    found = authorizer(acl(Operation.ALTER_CONFIGS, "t"))
    assert may(found, Operation.DESCRIBE_CONFIGS, "t")
    assert not may(found, Operation.DESCRIBE, "t")


def test_any_resource_counts_unless_a_deny_covers_it() -> None:
    def may_any(*acls: Acl, everyone: bool = False, principal: str = ALICE) -> bool:
        return authorizer(*acls, everyone=everyone).may_any(principal, HERE, Operation.WRITE, TOPIC)

    one, some = acl(Operation.WRITE, "orders"), acl(Operation.WRITE, "ord", prefix=True)
    assert may_any(one)
    assert may_any(some)
    assert may_any(principal="User:root")
    assert not may_any()
    assert may_any(everyone=True)
    assert not may_any(acl(Operation.READ, "orders"))
    assert not may_any(one, acl(Operation.WRITE, "*", permission=DENY))
    assert not may_any(one, acl(Operation.ALL, "orders", permission=DENY))
    assert not may_any(one, some, acl(Operation.WRITE, "o", prefix=True, permission=DENY))
    assert may_any(some, acl(Operation.WRITE, "orders", permission=DENY)), "others begin with ord, too"
    assert may_any(acl(Operation.WRITE, "*"), acl(Operation.WRITE, "o", prefix=True, permission=DENY))


def test_all_resources_of_a_prefix() -> None:
    def may_all(prefix: str, *acls: Acl) -> bool:
        return authorizer(*acls).may_all(ALICE, HERE, Operation.DESCRIBE, TOPIC, prefix)

    logs = acl(Operation.READ, "log-", prefix=True)
    assert may_all("log-", logs)
    assert may_all("log-web", logs)
    assert not may_all("log", logs)
    assert not may_all("", logs)
    assert may_all("", acl(Operation.DESCRIBE, "*"))
    assert not may_all("log-", logs, acl(Operation.DESCRIBE, "log-secret", permission=DENY))
    assert not may_all("log-", logs, acl(Operation.ALL, "l", prefix=True, permission=DENY))
    assert may_all("log-", logs, acl(Operation.DESCRIBE, "other", permission=DENY))
    assert authorizer().may_all("User:root", HERE, Operation.DESCRIBE, TOPIC, "")


names = st.text("ab*", min_size=1, max_size=3)
acls = st.builds(
    Acl,
    kind=st.sampled_from([TOPIC, ResourceKind.GROUP]),
    pattern=st.sampled_from([PatternKind.LITERAL, PatternKind.PREFIXED]),
    name=names,
    principal=st.sampled_from([ALICE, BOB, "User:*"]),
    host=st.sampled_from([HERE, THERE, "*"]),
    operation=st.sampled_from([Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER]),
    permission=st.sampled_from([Permission.ALLOW, DENY]),
)


def by_definition(found: list[Acl], operation: Operation, name: str, *, everyone: bool) -> bool:
    here = [
        one
        for one in found
        if one.kind is TOPIC
        and (name.startswith(one.name) if one.pattern is PatternKind.PREFIXED else one.name in (name, "*"))
    ]
    if not here:
        return everyone
    mine = [one for one in here if one.principal in (ALICE, "User:*") and one.host in (HERE, "*")]
    if any(one.permission is DENY and one.operation in (operation, Operation.ALL) for one in mine):
        return False
    enough = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        enough |= {Operation.READ, Operation.ALTER}
    return any(one.permission is Permission.ALLOW and one.operation in enough for one in mine)


@settings(max_examples=300, deadline=None)
@given(st.lists(acls, max_size=8, unique=True), names, st.booleans())
def test_every_decision_is_that_of_the_definition(found: list[Acl], name: str, everyone: bool) -> None:
    decided = authorizer(*found, everyone=everyone)
    operations = (Operation.READ, Operation.DESCRIBE, Operation.ALTER)
    for operation in operations:
        expected = by_definition(found, operation, name, everyone=everyone)
        assert may(decided, operation, name) == expected, (operation, name)
        if expected:
            assert decided.may_any(ALICE, HERE, operation, TOPIC)
        if decided.may_all(ALICE, HERE, operation, TOPIC, name):
            assert may(decided, operation, name + "b")
