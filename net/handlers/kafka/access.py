"""Who may do what, as Kafka's clients ask: ACLs (29, 30, 31), quotas (48, 49), users with passwords (50, 51).

Versions: 1-3; 0-1; 0. Behaviour: that of a Kafka without an authorizer. There are no ACLs (SECURITY_DISABLED), no quotas and
no users; reading says so, and a change is refused item by item with UNSUPPORTED_VERSION, so that no tool believes in one.
"""

from typing import Any

from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.protocol.kafka.compiler import types_of
from barnabas.net.server.dispatcher import RequestContext

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = range(3, 9)  # Kafka's numbers of operations
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(9, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


# What there is to be allowed (KIP-430), a bit for each operation.
ALL_CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
ALL_GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ALL_TOPIC_OPERATIONS = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)

_NO_AUTHORIZER = {
    "error_code": int(ErrorCode.SECURITY_DISABLED),
    "error_message": "there is no authorizer here: everybody who can connect may do everything; restrict the listeners",
}
_NO_QUOTAS = {
    "error_code": int(ErrorCode.UNSUPPORTED_VERSION),
    "error_message": "clients have no quotas here yet",
}
_NO_USERS = {
    "error_code": int(ErrorCode.UNSUPPORTED_VERSION),
    "error_message": "there are no users with passwords here yet: clients connect without SASL",
}


class KafkaAccessHandlers:
    async def describe_acls(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        return _answer("DescribeAclsResponse", **_NO_AUTHORIZER)

    async def create_acls(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        make = types_of("CreateAclsResponse")["AclCreationResult"]
        return _answer("CreateAclsResponse", results=[make(**_NO_AUTHORIZER) for _ in request.body.creations])

    async def delete_acls(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        make = types_of("DeleteAclsResponse")["DeleteAclsFilterResult"]
        return _answer("DeleteAclsResponse", filter_results=[make(**_NO_AUTHORIZER) for _ in request.body.filters])

    async def describe_quotas(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        return _answer("DescribeClientQuotasResponse", error_message=None, entries=[])

    async def alter_quotas(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        types = types_of("AlterClientQuotasResponse")
        entries = [
            types["EntryData"](
                entity=[
                    types["EntityData"](entity_type=one.entity_type, entity_name=one.entity_name) for one in entity
                ],
                **_NO_QUOTAS,
            )
            for entity in (entry.entity for entry in request.body.entries)
        ]
        return _answer("AlterClientQuotasResponse", entries=entries)

    async def describe_users(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        make = types_of("DescribeUserScramCredentialsResponse")["DescribeUserScramCredentialsResult"]
        results = [make(user=user.name, **_not_found(user.name)) for user in request.body.users or ()]
        return _answer("DescribeUserScramCredentialsResponse", error_message=None, results=results)

    async def alter_users(self, request: KafkaRequest, context: RequestContext) -> KafkaResponse:
        make = types_of("AlterUserScramCredentialsResponse")["AlterUserScramCredentialsResult"]
        outcomes = {user.name: _not_found(user.name) for user in request.body.deletions}
        outcomes |= {user.name: _NO_USERS for user in request.body.upsertions}
        results = [make(user=name, **outcome) for name, outcome in outcomes.items()]
        return _answer("AlterUserScramCredentialsResponse", results=results)


def _answer(message: str, **values: Any) -> KafkaResponse:
    return KafkaResponse(body=types_of(message)[message](**values))


def _not_found(user: str) -> dict[str, Any]:
    return {"error_code": int(ErrorCode.RESOURCE_NOT_FOUND), "error_message": f"there is no user {user!r}"}
