"""Access control for Kafka's clients: ACLs (29, 30, 31), quotas (48, 49), users with passwords (50, 51).

Versions: 1-3; 0-1; 0. Behaviour: that of a Kafka without an authorizer. There are no ACLs (SECURITY_DISABLED), no quotas and no
users; reads report this, and each change is refused with UNSUPPORTED_VERSION, so that no tool assumes that it took effect.
"""

from __future__ import annotations

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.protocol.kafka import bodies
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.server.dispatcher import RequestContext

from ..common.many import Outcome

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)  # Kafka's codes of operations
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(9, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# The operations that exist for each resource (KIP-430), one bit per operation.
ALL_CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
ALL_GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ALL_TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)

_NO_AUTHORIZER = Outcome(
    error=ErrorCode.SECURITY_DISABLED,
    message="this cluster has no authorizer: every client that can connect may do everything; restrict the listeners",
)
_NO_QUOTAS = Outcome(error=ErrorCode.UNSUPPORTED_VERSION, message="client quotas are not supported yet")
_NO_USERS = Outcome(
    error=ErrorCode.UNSUPPORTED_VERSION,
    message="users with passwords are not supported yet: connect without SASL",
)


class KafkaAccessHandlers:
    async def describe_acls(
        self, request: KafkaRequest[bodies.DescribeAclsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeAclsResponse]:
        refused = bodies.DescribeAclsResponse(error_code=_NO_AUTHORIZER.error, error_message=_NO_AUTHORIZER.message)
        return KafkaResponse(body=refused)

    async def create_acls(
        self, request: KafkaRequest[bodies.CreateAclsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.CreateAclsResponse]:
        refused = bodies.CreateAclsResponse.AclCreationResult(
            error_code=_NO_AUTHORIZER.error, error_message=_NO_AUTHORIZER.message
        )
        return KafkaResponse(body=bodies.CreateAclsResponse(results=[refused] * len(request.body.creations)))

    async def delete_acls(
        self, request: KafkaRequest[bodies.DeleteAclsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DeleteAclsResponse]:
        refused = bodies.DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=_NO_AUTHORIZER.error, error_message=_NO_AUTHORIZER.message
        )
        return KafkaResponse(body=bodies.DeleteAclsResponse(filter_results=[refused] * len(request.body.filters)))

    async def describe_quotas(
        self, request: KafkaRequest[bodies.DescribeClientQuotasRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeClientQuotasResponse]:
        return KafkaResponse(body=bodies.DescribeClientQuotasResponse(error_message=None, entries=[]))

    async def alter_quotas(
        self, request: KafkaRequest[bodies.AlterClientQuotasRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterClientQuotasResponse]:
        answer = bodies.AlterClientQuotasResponse
        entries = [
            answer.EntryData(
                entity=[
                    answer.EntityData(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity
                ],
                error_code=_NO_QUOTAS.error,
                error_message=_NO_QUOTAS.message,
            )
            for entry in request.body.entries
        ]
        return KafkaResponse(body=answer(entries=entries))

    async def describe_users(
        self, request: KafkaRequest[bodies.DescribeUserScramCredentialsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeUserScramCredentialsResponse]:
        answer = bodies.DescribeUserScramCredentialsResponse
        results = [
            answer.DescribeUserScramCredentialsResult(
                user=user.name, error_code=outcome.error, error_message=outcome.message
            )
            for user in request.body.users or ()
            for outcome in (_not_found(user.name),)
        ]
        return KafkaResponse(body=answer(error_message=None, results=results))

    async def alter_users(
        self, request: KafkaRequest[bodies.AlterUserScramCredentialsRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterUserScramCredentialsResponse]:
        answer = bodies.AlterUserScramCredentialsResponse
        outcomes = {user.name: _not_found(user.name) for user in request.body.deletions}
        outcomes |= {user.name: _NO_USERS for user in request.body.upsertions}
        results = [
            answer.AlterUserScramCredentialsResult(user=name, error_code=outcome.error, error_message=outcome.message)
            for name, outcome in outcomes.items()
        ]
        return KafkaResponse(body=answer(results=results))


def _not_found(user: str) -> Outcome:
    return Outcome(error=ErrorCode.RESOURCE_NOT_FOUND, message=f"there is no user {user!r}")
