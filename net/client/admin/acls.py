"""`Admin.acls`: permissions of a cluster that has an authorizer."""

from collections.abc import Iterable

from barnabas.log.vocabulary.access.acls import Acl, AclFilter
from barnabas.log.vocabulary.cluster_changes import CreateAclsRequest, DeleteAclsRequest, DeleteAclsResponse
from barnabas.net.wire.protocol.requests import DescribeAclsRequest
from barnabas.net.wire.protocol.responses import DescribeAclsResponse

from .asking import Ask

EVERY = AclFilter()


class AclAdmin:
    """Each call raises SecurityDisabledError if the cluster has no authorizer."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def find(self, wanted: AclFilter = EVERY) -> list[Acl]:
        """The permissions that the filter finds; all of them without one."""
        response: DescribeAclsResponse = await self._ask.anywhere(DescribeAclsRequest(wanted=wanted))
        return [*response.acls]

    async def add(self, acls: Iterable[Acl]) -> None:
        """All or none are added; those that exist already stay. Raises InvalidRequestError for one that could never hold."""
        await self._ask.controller(CreateAclsRequest(acls=tuple(acls)))

    async def remove(self, filters: Iterable[AclFilter]) -> list[tuple[Acl, ...]]:
        """Returns what each filter has found, which is removed."""
        response: DeleteAclsResponse = await self._ask.controller(DeleteAclsRequest(filters=tuple(filters)))
        return [one.acls for one in response.removed]
