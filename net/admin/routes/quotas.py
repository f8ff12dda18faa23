"""Quotas over HTTP, with Kafka's names of their kinds. "" is the name of the default."""

from collections.abc import Mapping
from typing import Any, Final

from barnabas.log.vocabulary.access.quotas import (
    CLIENT_ID,
    IP,
    MAX_VALUE,
    USER,
    EntityQuotas,
    QuotaEntity,
    QuotaKind,
    filter_of,
)

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route
from ..frame.errors import bad_request

QUOTAS: Final = "/v3/clusters/{cluster_id}/quotas"
_FIELDS: Final = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}


def _shown(call: Call, one: EntityQuotas) -> Json:
    parts = {_FIELDS[kind]: name for kind, name in one.entity.parts.items()}
    return call.item("KafkaQuota", ("quotas",), {**parts, "quotas": one.values})


def _entity(body: Mapping[str, Any]) -> QuotaEntity:
    names = {field: body[field] for field in _FIELDS.values() if body.get(field) is not None}
    if not names or not all(isinstance(name, str) for name in names.values()):
        raise bad_request('name the entity as text: user, client_id, both, or ip; "" is the default')
    return QuotaEntity(**names)


async def _list(call: Call) -> Reply:
    found = await call.ask(lambda admin: admin.quotas.find())
    return call.listed("KafkaQuotaList", ("quotas",), [_shown(call, one) for one in found])


async def _set(call: Call) -> Reply:
    """Those that are not named stay."""
    entity, values = _entity(call.body), call.body.get("quotas")
    if not isinstance(values, Mapping) or not all(_is_value(value) for value in values.values()):
        raise bad_request(
            f"quotas must give numbers up to {MAX_VALUE:.0f}, or null to remove one, by name: {', '.join(QuotaKind)}"
        )
    await call.ask(lambda admin: admin.quotas.alter(entity, {str(kind): value for kind, value in values.items()}))
    return Reply(body={"data": [_shown(call, one) for one in await _of(call, entity)]})


def _is_value(value: Any) -> bool:
    """Also not an integer that no float can express."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_VALUE)


async def _delete(call: Call) -> Reply:
    entity = _entity(call.body)
    found = await _of(call, entity)
    kinds = [kind for one in found for kind in one.values]
    if kinds:
        await call.ask(lambda admin: admin.quotas.alter(entity, dict.fromkeys(kinds)))
    return Reply(body={"data": [_shown(call, one) for one in found]})


async def _of(call: Call, entity: QuotaEntity) -> list[EntityQuotas]:
    return await call.ask(lambda admin: admin.quotas.find(filter_of(entity, strict=True)))


_ENTITY: Final = (
    Field(name="user", type="string", description="the name of a principal; empty for the default"),
    Field(name="client_id", type="string", description="a client id; empty for the default"),
    Field(
        name="ip", type="string", description="an address of clients, without user and client_id; empty for the default"
    ),
)

_QUOTA: Final = shapes.item("KafkaQuota", *_ENTITY, shapes.mapping("quotas", f"Numbers by {', '.join(QuotaKind)}."))
_QUOTAS: Final = (shapes.rows("data", "The quotas of the entity.", *_QUOTA),)

ROUTES: Final = (
    Route(
        method="GET", path=QUOTAS, handler=_list, summary="All quotas", answer=shapes.listed("KafkaQuotaList", _QUOTA)
    ),
    Route(
        method="POST",
        path=QUOTAS,
        handler=_set,
        summary="Set quotas of an entity, or remove some of them",
        answer=_QUOTAS,
        body=(
            *_ENTITY,
            Field(
                name="quotas",
                type="object",
                description=f"numbers, or null, by {', '.join(QuotaKind)}",
                required=True,
            ),
        ),
    ),
    Route(
        method="DELETE",
        path=QUOTAS,
        handler=_delete,
        summary="Remove all quotas of an entity",
        body=_ENTITY,
        answer=_QUOTAS,
    ),
)
