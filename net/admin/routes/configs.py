"""Configurations of topics and brokers: list, get, set, reset, and change several at once (`configs:alter`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from barnabas.log.settings.table import CLUSTER_SETTINGS
from barnabas.log.vocabulary.errors import ErrorCode
from barnabas.net.client.admin.admin import BROKER as BROKER_RESOURCE
from barnabas.net.client.admin.admin import TOPIC as TOPIC_RESOURCE
from barnabas.net.wire.protocol.responses import ConfigEntry

from ..frame import shapes
from ..frame.call import Call, Field, Json, Reply, Route, objects, optional_text, text_of
from ..frame.errors import bad_request, kafka_error, not_found
from .clusters import BROKER, CLUSTER, broker_of
from .topics import TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of resource that has a configuration."""

    label: str
    resource_type: int
    find: Callable[[Call], str]  # the name of the resource in the path; "" means the defaults of all brokers

    def path(self, resource: str) -> tuple[object, ...]:
        if self.resource_type == TOPIC_RESOURCE:
            return ("topics", resource, "configs")
        return ("brokers", resource, "configs") if resource else ("broker-configs",)


_TOPICS: Final = _Kind(label="Topic", resource_type=TOPIC_RESOURCE, find=lambda call: call.topic().name)
_BROKERS: Final = _Kind(label="Broker", resource_type=BROKER_RESOURCE, find=lambda call: str(broker_of(call).node_id))
_DEFAULTS: Final = _Kind(label="Cluster", resource_type=BROKER_RESOURCE, find=lambda call: "")


async def _entries(call: Call, kind: _Kind, resource: str) -> list[ConfigEntry]:
    return await call.ask(lambda admin: admin.describe_configs(resource, resource_type=kind.resource_type))


def _shown(call: Call, kind: _Kind, resource: str, entry: ConfigEntry) -> Json:
    sources = {"topic": "DYNAMIC_TOPIC_CONFIG", "broker": "STATIC_BROKER_CONFIG", "default": "DEFAULT_CONFIG"}
    owners: dict[str, Json] = {"Topic": {"topic_name": resource}, "Broker": {"broker_id": _number(resource)}}
    owner = owners.get(kind.label, {})
    return call.item(
        f"Kafka{kind.label}Config",
        (*kind.path(resource), entry.key),
        {
            **owner,
            "name": entry.key,
            "value": None if entry.sensitive else entry.value,
            "default_value": None if entry.sensitive else entry.default,
            "is_default": entry.source == "default",
            # Of one broker a setting of the cluster cannot be changed, but of the cluster it can.
            "is_read_only": entry.read_only and not (kind is _DEFAULTS and entry.key in CLUSTER_SETTINGS),
            "is_sensitive": entry.sensitive,
            "source": sources.get(entry.source, entry.source),
            "documentation": entry.documentation,
            "synonyms": [],
        },
    )


def _shape(kind: _Kind) -> tuple[Field, ...]:
    owners = {
        "Topic": (shapes.text("topic_name", "The topic."),),
        "Broker": (shapes.whole("broker_id", "The broker."),),
    }
    return shapes.item(
        f"Kafka{kind.label}Config",
        *owners.get(kind.label, ()),
        shapes.text("name", "The key."),
        shapes.text("value", "Its value; null: it is hidden, or there is none.", null=True),
        shapes.text("default_value", "Without a value of its own; null: hidden, or none.", null=True),
        shapes.flag("is_default", "It is the default."),
        shapes.flag("is_read_only", "It is read when the broker starts."),
        shapes.flag("is_sensitive", "Its value is hidden."),
        shapes.text(
            "source",
            "Where the value comes from: DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG or others.",
        ),
        shapes.text("documentation", "What it does."),
        shapes.rows("synonyms", "Empty."),
    )


def _number(resource: str) -> int | None:
    return int(resource) if resource.isdigit() else None


def _routes(kind: _Kind, path: str) -> tuple[Route, ...]:
    """The routes of one kind of resource: the same calls for each kind."""

    async def list_all(call: Call) -> Reply:
        resource = kind.find(call)
        data = [_shown(call, kind, resource, entry) for entry in await _entries(call, kind, resource)]
        return call.listed(f"Kafka{kind.label}ConfigList", kind.path(resource), data)

    async def get(call: Call) -> Reply:
        resource, name = kind.find(call), call.path["name"]
        for entry in await _entries(call, kind, resource):
            if entry.key == name:
                return Reply(body=_shown(call, kind, resource, entry))
        raise not_found(f"there is no configuration key {name}")

    async def change(call: Call, changes: Mapping[str, str | None]) -> Reply:
        resource, validate_only = kind.find(call), bool(call.body.get("validate_only"))
        await call.ask(
            lambda admin: admin.alter_config(
                resource, changes, resource_type=kind.resource_type, validate_only=validate_only
            )
        )
        return Reply(status=HTTPStatus.NO_CONTENT)

    async def put(call: Call) -> Reply:
        value = optional_text(call.body, "value")
        return await change(call, {call.path["name"]: value})

    async def reset(call: Call) -> Reply:
        return await change(call, {call.path["name"]: None})

    async def alter(call: Call) -> Reply:
        return await change(call, _changes(objects(call.body, "data")))

    what = kind.label.lower()
    answer = _shape(kind)
    one = f"{path}/{{name}}"
    value = (Field(name="value", type="any", description="the new value, a string"),)
    data = (
        Field(
            name="data",
            type="array",
            description="[{name, value, operation: SET|DELETE}]",
            required=True,
            fields=_CHANGE,
        ),
        Field(name="validate_only", type="boolean", description="validate only, change nothing"),
    )
    done = HTTPStatus.NO_CONTENT
    return (
        Route(
            method="GET",
            path=path,
            handler=list_all,
            summary=f"Configs of a {what}",
            answer=shapes.listed(f"Kafka{kind.label}ConfigList", answer),
        ),
        Route(
            method="POST",
            path=f"{path}:alter",
            handler=alter,
            summary=f"Change configs of a {what}",
            body=data,
            status=done,
        ),
        Route(method="GET", path=one, handler=get, summary=f"One config of a {what}", answer=answer),
        Route(method="PUT", path=one, handler=put, summary=f"Set a config of a {what}", body=value, status=done),
        Route(method="DELETE", path=one, handler=reset, summary=f"Reset a config of a {what}", status=done),
    )


_CHANGE: Final = (
    Field(name="name", type="string", description="the key", required=True),
    Field(name="value", type="any", description="the new value, a string"),
    Field(name="operation", type="string", description="SET or DELETE"),
)


def _changes(items: Sequence[Json]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for item in items:
        name, value = _change(item)
        if name in changes:
            raise kafka_error(ErrorCode.INVALID_REQUEST, f"{name} appears twice in one request; give it once")
        changes[name] = value
    return changes


def _change(item: Json) -> tuple[str, str | None]:
    operation = optional_text(item, "operation") or "SET"
    if operation not in ("SET", "DELETE"):
        raise bad_request(f"operation must be SET or DELETE, not {operation}")
    value = None if operation == "DELETE" else optional_text(item, "value")
    return text_of(item, "name"), value


ROUTES = (
    *_routes(_TOPICS, f"{TOPIC}/configs"),
    *_routes(_BROKERS, f"{BROKER}/configs"),
    *_routes(_DEFAULTS, f"{CLUSTER}/broker-configs"),
)
