"""Permissions over HTTP: Confluent's /acls, with Kafka's words for kinds, patterns, operations."""

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final, TypeVar

from barnabas.log.vocabulary.access.acls import Acl, AclFilter, Operation, PatternKind, Permission, ResourceKind

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route, text_of
from ..frame.errors import bad_request

ACLS: Final = "/v3/clusters/{cluster_id}/acls"
E = TypeVar("E", bound=IntEnum)


def _shown(call: Call, acl: Acl) -> Json:
    fields = {
        "resource_type": acl.kind.name,
        "resource_name": acl.name,
        "pattern_type": acl.pattern.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    return call.item("KafkaAcl", ("acls",), fields)


def _word(kinds: type[E], values: Mapping[str, Any], field: str, default: E | None = None) -> E:
    """Raises ApiError, which names the words."""
    text = values.get(field)
    if text is None and default is not None:
        return default
    try:
        return kinds[str(text).upper()]
    except KeyError:
        known = ", ".join(kind.name for kind in kinds)
        raise bad_request(f"{field} must be one of {known}, not {str(text)[:100]!r}") from None


def _filter(values: Mapping[str, Any]) -> AclFilter:
    return AclFilter(
        kind=_word(ResourceKind, values, "resource_type", ResourceKind.ANY),
        name=values.get("resource_name"),
        pattern=_word(PatternKind, values, "pattern_type", PatternKind.ANY),
        principal=values.get("principal"),
        host=values.get("host"),
        operation=_word(Operation, values, "operation", Operation.ANY),
        permission=_word(Permission, values, "permission", Permission.ANY),
    )


async def _list(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.acls.find())
    return call.listed("KafkaAclList", ("acls",), [_shown(call, acl) for acl in found])


async def _create(call: Call) -> Reply:
    body = call.body
    acl = Acl(
        kind=_word(ResourceKind, body, "resource_type"),
        name=text_of(body, "resource_name"),
        pattern=_word(PatternKind, body, "pattern_type", PatternKind.LITERAL),
        principal=text_of(body, "principal"),
        host=text_of({"host": "*"} | body, "host"),
        operation=_word(Operation, body, "operation"),
        permission=_word(Permission, body, "permission", Permission.ALLOW),
    )
    await call.ask(lambda admin: admin.acls.add([acl]))
    return Reply(status=HTTPStatus.CREATED, body=_shown(call, acl))


async def _delete(call: Call) -> Reply:
    """An empty filter would remove everything, so it is refused."""
    if not call.body:
        raise bad_request("name at least one field of the permissions to remove; all of them: resource_type ANY")
    wanted = _filter(call.body)
    (removed,) = await call.ask(lambda admin: admin.acls.remove([wanted]))
    return Reply(body={"data": [_shown(call, acl) for acl in removed]})


def _fields(*required: str) -> tuple[Field, ...]:
    described = {
        "resource_type": "TOPIC, GROUP, CLUSTER or TRANSACTIONAL_ID",
        "resource_name": "the name, a prefix of names, or *",
        "pattern_type": "LITERAL or PREFIXED",
        "principal": "User:NAME; User:* for everyone",
        "host": "an address; * for every host",
        "operation": "READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ..., or ALL",
        "permission": "ALLOW or DENY",
    }
    return tuple(
        Field(name=name, type="string", description=text, required=name in required) for name, text in described.items()
    )


_ACL: Final = shapes.item("KafkaAcl", *(replace(field, required=True) for field in _fields()))

ROUTES: Final = (
    Route(
        method="GET", path=ACLS, handler=_list, summary="All permissions", answer=shapes.listed("KafkaAclList", _ACL)
    ),
    Route(
        method="POST",
        path=ACLS,
        handler=_create,
        summary="Add a permission",
        body=_fields("resource_type", "resource_name", "principal", "operation"),
        answer=_ACL,
        status=HTTPStatus.CREATED,
    ),
    Route(
        method="DELETE",
        path=ACLS,
        handler=_delete,
        summary="Remove the permissions that have these fields",
        body=_fields(),
        answer=(shapes.rows("data", "The permissions that were removed.", *_ACL),),
    ),
)
