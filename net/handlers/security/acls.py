"""DescribeAcls (29), CreateAcls (30, ours 1020), DeleteAcls (31, ours 1021): permissions, from any broker.

Versions: 0 of our protocol, 1 to 3 of Kafka's. Behaviour: descriptions come from the image of the broker that is asked; changes
go to the active controller, and the answer leaves once this broker's own image shows them. Without an authorizer, permissions
would have no effect: every request is refused with SECURITY_DISABLED. Differs from Kafka: permissions for delegation tokens and
users do not exist; a request of Kafka's protocol adds its valid permissions in one step.
"""

from __future__ import annotations

from typing import Final, NoReturn

from barnabas.log.vocabulary.access.acls import (
    Acl,
    AclFilter,
    AclResource,
    Operation,
    PatternKind,
    Permission,
    ResourceKind,
    check_acl,
)
from barnabas.log.vocabulary.cluster_changes import CreateAclsRequest, DeleteAclsRequest, DeleteAclsResponse
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError, SecurityDisabledError
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.requests import DescribeAclsRequest
from barnabas.net.wire.protocol.responses import DescribeAclsResponse, EmptyResponse

from ..common.changes import ForwardingHandler
from ..common.many import DONE, Outcome
from ..common.services import Services

_NO_AUTHORIZER: Final = (
    "this cluster has no authorizer: every client that can connect may do everything; set authorizer.class.name=acl"
)


class AclHandlers:
    """Of our own protocol."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._forward = ForwardingHandler(services)

    def check_enabled(self) -> None:
        """Raises SecurityDisabledError."""
        if self._services.config.authorizer_class_name is None:
            raise SecurityDisabledError(_NO_AUTHORIZER)

    async def describe(self, request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        self.check_enabled()
        acls = self._services.metadata.image.acls
        found = tuple(acl for some in acls.values() for acl in some if request.wanted.matches(acl))
        return DescribeAclsResponse(acls=found)

    async def create(self, request: CreateAclsRequest, context: RequestContext) -> EmptyResponse:
        self.check_enabled()
        answer = await self._forward(request, context)
        assert isinstance(answer, EmptyResponse)
        return answer

    async def delete(self, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        self.check_enabled()
        answer = await self._forward(request, context)
        assert isinstance(answer, DeleteAclsResponse)
        return answer


class KafkaAclHandlers:
    """Translates; our own handlers do the rest."""

    def __init__(self, own: AclHandlers) -> None:
        self._own = own

    async def describe(
        self, request: KafkaRequest[bodies.DescribeAclsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeAclsResponse]:
        answer = bodies.DescribeAclsResponse
        found = await self._own.describe(DescribeAclsRequest(wanted=_filter(request.body)), context)
        by_resource: dict[AclResource, list[bodies.DescribeAclsResponse.AclDescription]] = {}
        for acl in found.acls:
            by_resource.setdefault(acl.resource, []).append(
                answer.AclDescription(
                    principal=acl.principal,
                    host=acl.host,
                    operation=int(acl.operation),
                    permission_type=int(acl.permission),
                )
            )
        resources = [
            answer.DescribeAclsResource(resource_type=kind, pattern_type=pattern, resource_name=name, acls=acls)
            for (kind, pattern, name), acls in by_resource.items()
        ]
        return KafkaResponse(body=answer(error_message=None, resources=resources))

    async def create(
        self, request: KafkaRequest[bodies.CreateAclsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.CreateAclsResponse]:
        answer = bodies.CreateAclsResponse
        outcomes: list[Outcome] = []
        valid: list[Acl] = []
        for creation in request.body.creations:
            try:
                self._own.check_enabled()
                acl = _acl(creation)
                check_acl(acl)
            except BarnabasError as error:
                outcomes.append(Outcome.of(error))
            else:
                valid.append(acl)
                outcomes.append(DONE)
        failure = await self._added(tuple(valid), context)
        results = [outcome if outcome is not DONE else failure for outcome in outcomes]
        return KafkaResponse(
            body=answer(
                results=[
                    answer.AclCreationResult(error_code=outcome.error, error_message=outcome.message)
                    for outcome in results
                ]
            )
        )

    async def _added(self, acls: tuple[Acl, ...], context: RequestContext) -> Outcome:
        if acls:
            try:
                await self._own.create(CreateAclsRequest(acls=acls), context)
            except BarnabasError as error:
                return Outcome.of(error)
        return DONE

    async def delete(
        self, request: KafkaRequest[bodies.DeleteAclsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DeleteAclsResponse]:
        answer = bodies.DeleteAclsResponse
        try:
            filters = tuple(_filter(item) for item in request.body.filters)
            removed = (await self._own.delete(DeleteAclsRequest(filters=filters), context)).removed
        except BarnabasError as error:
            failed = answer.DeleteAclsFilterResult(error_code=error.code, error_message=error.message, matching_acls=[])
            return KafkaResponse(body=answer(filter_results=[failed] * len(request.body.filters)))
        results = [
            answer.DeleteAclsFilterResult(error_message=None, matching_acls=[_matching(acl) for acl in one.acls])
            for one in removed
        ]
        return KafkaResponse(body=answer(filter_results=results))


def _matching(acl: Acl) -> bodies.DeleteAclsResponse.DeleteAclsMatchingAcl:
    return bodies.DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=int(acl.kind),
        resource_name=acl.name,
        pattern_type=int(acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _acl(item: bodies.CreateAclsRequest.AclCreation) -> Acl:
    """Raises InvalidRequestError."""
    try:
        return Acl(
            kind=ResourceKind(item.resource_type),
            pattern=PatternKind(item.resource_pattern_type),
            name=item.resource_name,
            principal=item.principal,
            host=item.host,
            operation=Operation(item.operation),
            permission=Permission(item.permission_type),
        )
    except ValueError as error:
        _refuse(error)


def _filter(item: bodies.DescribeAclsRequest | bodies.DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    """Raises InvalidRequestError."""
    try:
        return AclFilter(
            kind=ResourceKind(item.resource_type_filter),
            pattern=PatternKind(item.pattern_type_filter),
            name=item.resource_name_filter,
            principal=item.principal_filter,
            host=item.host_filter,
            operation=Operation(item.operation),
            permission=Permission(item.permission_type),
        )
    except ValueError as error:
        _refuse(error)


def _refuse(error: ValueError) -> NoReturn:
    raise InvalidRequestError(
        f"{error}: permissions exist for topics, groups, transactional ids and the cluster, with Kafka's operations for them"
    ) from None
