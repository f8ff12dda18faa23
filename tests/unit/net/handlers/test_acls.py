"""Permissions over the wire of both protocols: translated, decided by the real control, and described again."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace
from unit.kraft.single_controller import SingleController
from unit.net.handlers.handler_world import HandlerWorld
from unit.net.handlers.kafka_client import KafkaClient, made
from unit.net.shell_world import Client, simulated

from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL
from barnabas.kraft.metadata.requests import ControllerRequest
from barnabas.log.vocabulary.access.acls import Acl, AclFilter, Operation, PatternKind, ResourceKind
from barnabas.log.vocabulary.cluster_changes import CreateAclsRequest, DeleteAclsRequest
from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, SecurityDisabledError
from barnabas.net.handlers.registry import build_handlers
from barnabas.net.handlers.security.acls import AclHandlers
from barnabas.net.server.dispatcher import Dispatcher
from barnabas.net.wire.protocol.requests import DescribeAclsRequest

VERSIONS = range(1, 4)
ALICE = Acl(kind=ResourceKind.TOPIC, name="orders", principal="User:alice", operation=Operation.READ)
DESCRIBE, CREATE, DELETE = 29, 30, 31


class AclWorld:
    """A broker whose controller decides for real."""

    def __init__(self, world: HandlerWorld) -> None:
        self.world = world
        self.handlers = AclHandlers(world.services)
        handlers = build_handlers(world.services, shut_down=lambda: None, storage=cast(Any, None))
        self.kafka = KafkaClient(Dispatcher(handlers))
        self._controller = SingleController(0)
        self._controller.ask(replace(self._controller.registration(0), max_feature_level=NEWEST_LEVEL))
        world.source.decide = self._decide

    @classmethod
    async def start(cls, **settings: str) -> AclWorld:
        return cls(await HandlerWorld.start(**settings))

    def _decide(self, request: ControllerRequest) -> object:
        answer = self._controller.ask(request)
        if isinstance(answer, BarnabasError):
            raise answer
        shown, decided = self.world.source.image, self._controller.image
        self.world.source.publish(replace(shown, acls=decided.acls, offset=shown.offset + 100))
        return answer


def creation(acl: Acl, **changes: Any) -> Any:
    fields = {
        "resource_type": int(acl.kind),
        "resource_name": acl.name,
        "resource_pattern_type": int(acl.pattern),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }
    return made("CreateAclsRequest", "AclCreation", **(fields | changes))


ANY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_permissions_are_added_described_and_removed_by_kafkas_clients(version: int) -> None:
    world = await AclWorld.start(authorizer_class_name="acl")
    prefix = replace(ALICE, name="log-", pattern=PatternKind.PREFIXED)
    asked = made("CreateAclsRequest", creations=[creation(ALICE), creation(ALICE, operation=99), creation(prefix)])
    created = await world.kafka.ask(CREATE, version, asked)
    assert [item.error_code for item in created.results] == [0, ErrorCode.INVALID_REQUEST, 0]
    assert created.results[0].error_message is None
    described = await world.kafka.ask(DESCRIBE, version, made("DescribeAclsRequest", **ANY))
    assert [(one.resource_name, one.pattern_type) for one in described.resources] == [("orders", 3), ("log-", 4)]
    (acl,) = described.resources[0].acls
    assert (acl.principal, acl.host, acl.operation, acl.permission_type) == ("User:alice", "*", 3, 3)
    named = ANY | {"resource_name_filter": "orders"}
    filters = [made("DeleteAclsRequest", "DeleteAclsFilter", **fields) for fields in (named, ANY)]
    removed = await world.kafka.ask(DELETE, version, made("DeleteAclsRequest", filters=filters))
    assert [[acl.resource_name for acl in one.matching_acls] for one in removed.filter_results] == [
        ["orders"],
        ["orders", "log-"],
    ]
    described = await world.kafka.ask(DESCRIBE, version, made("DescribeAclsRequest", **ANY))
    assert (described.error_code, described.resources) == (0, [])


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_kafkas_clients_give_the_permission_to_prepare_transactions(version: int) -> None:
    """AclOperation.TWO_PHASE_COMMIT of Kafka 4 has the code 15."""
    world = await AclWorld.start(authorizer_class_name="acl")
    fields = {"resource_type": 5, "resource_name": "pay-1", "operation": 15}
    asked = made("CreateAclsRequest", creations=[creation(ALICE, **fields), creation(ALICE, operation=15)])
    created = await world.kafka.ask(CREATE, version, asked)
    assert [item.error_code for item in created.results] == [0, ErrorCode.INVALID_REQUEST]
    described = await world.kafka.ask(DESCRIBE, version, made("DescribeAclsRequest", **ANY | {"operation": 15}))
    (resource,) = described.resources
    assert (resource.resource_type, [acl.operation for acl in resource.acls]) == (5, [15])


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_filters_of_unknown_kinds_are_refused(version: int) -> None:
    world = await AclWorld.start(authorizer_class_name="acl")
    wrong = ANY | {"resource_type_filter": 7}
    told = await world.kafka.ask(DESCRIBE, version, made("DescribeAclsRequest", **wrong))
    assert told.error_code == ErrorCode.INVALID_REQUEST and "topics, groups" in told.error_message
    filters = [made("DeleteAclsRequest", "DeleteAclsFilter", **wrong)]
    (refused,) = (await world.kafka.ask(DELETE, version, made("DeleteAclsRequest", filters=filters))).filter_results
    assert (refused.error_code, refused.matching_acls) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("version", VERSIONS)
@simulated
async def test_without_an_authorizer_every_item_says_so(version: int) -> None:
    world = await AclWorld.start()
    described = await world.kafka.ask(DESCRIBE, version, made("DescribeAclsRequest", **ANY))
    assert (described.error_code, described.resources) == (54, []) and "authorizer" in described.error_message
    created = await world.kafka.ask(CREATE, version, made("CreateAclsRequest", creations=[creation(ALICE)] * 2))
    assert [item.error_code for item in created.results] == [54, 54]
    filters = [made("DeleteAclsRequest", "DeleteAclsFilter", **ANY)] * 2
    deleted = await world.kafka.ask(DELETE, version, made("DeleteAclsRequest", filters=filters))
    assert [(item.error_code, item.matching_acls) for item in deleted.filter_results] == [(54, []), (54, [])]
    for call in (
        world.handlers.describe(DescribeAclsRequest(wanted=AclFilter()), Client()),
        world.handlers.create(CreateAclsRequest(acls=(ALICE,)), Client()),
        world.handlers.delete(DeleteAclsRequest(filters=()), Client()),
    ):
        with pytest.raises(SecurityDisabledError):
            await call


@simulated
async def test_our_own_requests_do_the_same() -> None:
    world = await AclWorld.start(authorizer_class_name="acl")
    await world.handlers.create(CreateAclsRequest(acls=(ALICE,)), Client())
    found = await world.handlers.describe(DescribeAclsRequest(wanted=AclFilter(principal="User:alice")), Client())
    assert found.acls == (ALICE,)
    other = await world.handlers.describe(DescribeAclsRequest(wanted=AclFilter(principal="User:bob")), Client())
    assert other.acls == ()
    removed = await world.handlers.delete(DeleteAclsRequest(filters=(AclFilter(),)), Client())
    assert [one.acls for one in removed.removed] == [(ALICE,)]
