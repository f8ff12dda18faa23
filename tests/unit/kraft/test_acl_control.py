"""Permissions in the quorum: what is added and removed, what is refused, and what filters find."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController

from barnabas.kraft.access.acl_control import create_acls
from barnabas.kraft.metadata.delta import MetadataDelta
from barnabas.kraft.metadata.feature_levels import SECURITY_LEVEL, TWO_PHASE_LEVEL
from barnabas.kraft.metadata.image import MetadataImage
from barnabas.kraft.metadata.records import AclRecord, RemoveAclRecord
from barnabas.kraft.metadata.replay import replay
from barnabas.kraft.metadata.requests import Done, Registered
from barnabas.log.vocabulary.access.acls import (
    CLUSTER_NAME,
    MAX_ACLS,
    MAX_ACLS_PER_REQUEST,
    MAX_FILTERS_PER_REQUEST,
    Acl,
    AclFilter,
    AclResource,
    Operation,
    PatternKind,
    Permission,
    ResourceKind,
)
from barnabas.log.vocabulary.cluster_changes import AclsRemoved, CreateAclsRequest, DeleteAclsRequest
from barnabas.log.vocabulary.errors import InvalidRequestError, PolicyViolationError, UnsupportedVersionError

ALICE = "User:alice"
READ = Acl(kind=ResourceKind.TOPIC, name="orders", principal=ALICE, operation=Operation.READ)
PREFIX = replace(READ, name="ord", pattern=PatternKind.PREFIXED, operation=Operation.WRITE)
ANY_TOPIC = replace(READ, name="*", permission=Permission.DENY, host="10.0.0.1")
CLUSTER = Acl(kind=ResourceKind.CLUSTER, name=CLUSTER_NAME, principal="User:*", operation=Operation.ALL)
ALL = (READ, PREFIX, ANY_TOPIC, CLUSTER)


def secure_cluster(level: int = SECURITY_LEVEL) -> SingleController:
    cluster = SingleController(0)
    answer = cluster.ask(replace(cluster.registration(0), max_feature_level=level))
    assert isinstance(answer, Registered)
    cluster.epochs[0] = answer.broker_epoch
    cluster.beat(0)
    return cluster


def add(cluster: SingleController, *acls: Acl) -> None:
    assert isinstance(cluster.ask(CreateAclsRequest(acls=acls)), Done)


def remove(cluster: SingleController, *filters: AclFilter) -> list[tuple[Acl, ...]]:
    answer = cluster.ask(DeleteAclsRequest(filters=filters))
    assert isinstance(answer, AclsRemoved)
    return [one.acls for one in answer.removed]


def held(cluster: SingleController) -> set[Acl]:
    return {acl for acls in cluster.image.acls.values() for acl in acls}


def test_permissions_are_added_once_and_found_by_their_resource() -> None:
    cluster = secure_cluster()
    add(cluster, *ALL, READ)
    before = cluster.image
    assert held(cluster) == set(ALL)
    assert before.acls[2, 3, "orders"] == (READ,)
    assert before.feature_level == SECURITY_LEVEL
    add(cluster, READ, CLUSTER)
    assert cluster.image.acls is before.acls, "nothing has changed"
    add(cluster, other := replace(READ, principal="User:bob"))
    assert cluster.image.acls[2, 3, "orders"] == (READ, other)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), ALL),
        (AclFilter(kind=ResourceKind.TOPIC), (READ, PREFIX, ANY_TOPIC)),
        (AclFilter(kind=ResourceKind.TOPIC, name="orders"), (READ,)),
        (AclFilter(kind=ResourceKind.TOPIC, name="orders", pattern=PatternKind.LITERAL), (READ,)),
        (AclFilter(kind=ResourceKind.TOPIC, name="orders", pattern=PatternKind.PREFIXED), ()),
        (AclFilter(kind=ResourceKind.TOPIC, name="orders", pattern=PatternKind.MATCH), (READ, PREFIX, ANY_TOPIC)),
        (AclFilter(name="or", pattern=PatternKind.MATCH), (ANY_TOPIC,)),
        (AclFilter(name="orders", pattern=PatternKind.LITERAL), (READ,)),
        (AclFilter(name="ord", pattern=PatternKind.PREFIXED), (PREFIX,)),
        (AclFilter(principal="User:*"), (CLUSTER,)),
        (AclFilter(host="10.0.0.1"), (ANY_TOPIC,)),
        (AclFilter(operation=Operation.WRITE), (PREFIX,)),
        (AclFilter(permission=Permission.DENY), (ANY_TOPIC,)),
        (AclFilter(pattern=PatternKind.PREFIXED), (PREFIX,)),
        (AclFilter(principal="User:carol"), ()),
    ],
)
def test_a_filter_removes_what_it_finds(wanted: AclFilter, found: tuple[Acl, ...]) -> None:
    cluster = secure_cluster()
    add(cluster, *ALL)
    assert remove(cluster, wanted) == [found]
    assert held(cluster) == set(ALL) - set(found)


def test_two_filters_may_find_the_same_permission() -> None:
    cluster = secure_cluster()
    add(cluster, READ)
    assert remove(cluster, AclFilter(), AclFilter(principal=ALICE)) == [(READ,), (READ,)]
    assert cluster.image.acls == {}
    assert remove(cluster, AclFilter()) == [()]


@pytest.mark.parametrize(
    "wrong",
    [
        replace(READ, kind=ResourceKind.ANY),
        replace(READ, pattern=PatternKind.MATCH),
        replace(READ, operation=Operation.ANY),
        replace(READ, permission=Permission.ANY),
        replace(READ, name=""),
        replace(READ, name="a" * 1001),
        replace(READ, operation=Operation.CLUSTER_ACTION),
        replace(READ, host=""),
        replace(READ, principal="alice"),
        replace(CLUSTER, name="other"),
        replace(CLUSTER, pattern=PatternKind.PREFIXED),
        replace(CLUSTER, operation=Operation.READ),
    ],
)
def test_a_permission_that_could_never_hold_is_refused_with_its_request(wrong: Acl) -> None:
    cluster = secure_cluster()
    cluster.refused(CreateAclsRequest(acls=(READ, wrong)), InvalidRequestError)
    assert cluster.image.acls == {}


def test_the_number_of_permissions_is_bounded() -> None:
    cluster = secure_cluster()
    many = [replace(READ, name=f"topic-{number}") for number in range(MAX_ACLS)]
    cluster.refused(CreateAclsRequest(acls=tuple(many[: MAX_ACLS_PER_REQUEST + 1])), InvalidRequestError)
    for start in range(0, MAX_ACLS, MAX_ACLS_PER_REQUEST):
        add(cluster, *many[start : start + MAX_ACLS_PER_REQUEST])
    cluster.refused(CreateAclsRequest(acls=(READ,)), PolicyViolationError)
    add(cluster, many[0])  # it is there already
    remove(cluster, AclFilter(kind=ResourceKind.TOPIC, name="topic-0", pattern=PatternKind.LITERAL))
    add(cluster, READ)
    too_many = DeleteAclsRequest(filters=(AclFilter(),) * (MAX_FILTERS_PER_REQUEST + 1))
    cluster.refused(too_many, InvalidRequestError)


def test_adding_permissions_does_not_walk_through_those_of_a_resource_for_each_of_them() -> None:
    """1,000 new ones beside 9,000 of the same resource took half a second of the quorum's thread."""

    class WithoutWalks(tuple[Acl, ...]):
        def __contains__(self, acl: object) -> bool:
            raise AssertionError("a walk through all permissions of the resource")

    class View(MetadataDelta):
        def acls_of(self, resource: AclResource) -> Collection[Acl]:
            return WithoutWalks(super().acls_of(resource))

    other = replace(READ, principal="User:bob")
    image = MetadataImage(feature_level=SECURITY_LEVEL, acls={READ.resource: (READ,)})
    made = create_acls(View(image), CreateAclsRequest(acls=(READ, other)))
    assert made.records == (AclRecord(acl=other),)


def test_permissions_wait_until_every_broker_can_read_them() -> None:
    cluster = SingleController(1)  # of the first version
    assert "permissions" in cluster.refused(CreateAclsRequest(acls=(READ,)), UnsupportedVersionError)
    assert (cluster.image.feature_level, cluster.image.acls) == (1, {})


def test_a_permission_to_prepare_waits_until_every_broker_can_read_it() -> None:
    """A broker that reads an operation that it does not know stops."""
    commit = Acl(kind=ResourceKind.TRANSACTIONAL_ID, name="x", principal=ALICE, operation=Operation.TWO_PHASE_COMMIT)
    older = secure_cluster(TWO_PHASE_LEVEL - 1)
    message = older.refused(CreateAclsRequest(acls=(READ, commit)), UnsupportedVersionError)
    assert "brokers [0] do not support permissions with the operation TWO_PHASE_COMMIT" in message
    assert not held(older)
    add(older, READ)
    assert older.image.feature_level == SECURITY_LEVEL
    cluster = secure_cluster(TWO_PHASE_LEVEL)
    add(cluster, READ)
    assert cluster.image.feature_level == SECURITY_LEVEL, "as before: such a cluster may return to the older version"
    add(cluster, commit)
    assert cluster.image.feature_level == TWO_PHASE_LEVEL and held(cluster) == {READ, commit}
    cluster.refused(CreateAclsRequest(acls=(replace(commit, kind=ResourceKind.TOPIC),)), InvalidRequestError)


def test_a_permission_that_is_there_or_gone_already_is_void() -> None:
    delta = MetadataDelta(MetadataImage())
    assert [replay(delta, AclRecord(acl=READ), 1) for _ in range(2)] == [True, False]
    assert [replay(delta, RemoveAclRecord(acl=READ), 2) for _ in range(2)] == [True, False]
    assert delta.apply(3).acls == {} and list(delta.acls()) == []
