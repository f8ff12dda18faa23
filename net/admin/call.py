"""One call of the API, freed of HTTP: what a handler is given, what it returns, and the table entry that names it.

Handlers are functions from `Call` to `Reply`; only `app` knows aiohttp. The table of routes is the single source of the
paths: the server, the check of bodies and `/openapi.json` are made from it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from barnabas.kraft.image import MetadataImage, PartitionImage, TopicImage
from barnabas.net.protocol.requests import Request
from barnabas.net.protocol.responses import ErrorResponse

from .backend import AdminBackend
from .errors import bad_request, kafka_error, not_found, unknown_topic_or_partition

if TYPE_CHECKING:
    from .lags import LagsOfGroups

R = TypeVar("R")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a body. `type` is JSON schema's word."""

    name: str
    type: str
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`body` is JSON unless it is a text."""

    status: int = HTTPStatus.OK
    body: Json | str | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a handler needs to answer."""

    backend: AdminBackend
    base: str  # scheme and authority as the caller sees them, for links
    path: Mapping[str, str]
    lags: "LagsOfGroups"  # for metrics: what the last scrape found
    body: Json = field(default_factory=dict)

    @property
    def image(self) -> MetadataImage:
        return self.backend.image()

    async def ask(self, request: Request, expected: type[R]) -> R:
        """Run a request in the cluster; its error is the error of the call."""
        response = await self.backend.handle(request)
        if isinstance(response, ErrorResponse):
            raise kafka_error(response.error, response.message)
        assert isinstance(response, expected), f"{type(request).__name__} was answered by {type(response).__name__}"
        return response

    def number(self, name: str) -> int:
        """A number in the path."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit()):
            raise bad_request(f"{name} is a number, not {text!r}")
        return int(text)

    def topic(self) -> TopicImage:
        """The topic that the path names."""
        found = self.image.topics.get(self.path["topic_name"])
        if found is None:
            raise unknown_topic_or_partition(f"topic {self.path['topic_name']}")
        return found

    def partition(self) -> tuple[TopicImage, int, PartitionImage]:
        """The topic, the number and the state of the partition that the path names."""
        topic, index = self.topic(), self.number("partition_id")
        if index >= len(topic.partitions):
            raise unknown_topic_or_partition(f"partition {topic.name}-{index}")
        return topic, index, topic.partitions[index]

    def check_cluster(self) -> None:
        """Refuse the id of another cluster."""
        wanted = self.path.get("cluster_id")
        if wanted is not None and wanted != self.image.cluster_id:
            raise not_found(f"cluster {wanted} is not this one, which is {self.image.cluster_id}")

    def url(self, *parts: object) -> str:
        """The address of something in this cluster."""
        encoded = (quote(str(part), safe=":-") for part in parts)
        return "/".join((f"{self.base}/v3/clusters/{self.image.cluster_id}", *encoded))

    def related(self, *parts: object) -> Json:
        """A link to it."""
        return {"related": self.url(*parts)}

    def item(self, kind: str, path: Sequence[object], fields: Json) -> Json:
        """One object in Confluent's envelope."""
        names = "/".join(f"{a}={b}" for a, b in zip(path[::2], path[1::2], strict=False))
        resource = f"crn:///kafka={self.image.cluster_id}" + (f"/{names}" if names else "")
        return {"kind": kind, "metadata": {"self": self.url(*path), "resource_name": resource}} | {
            "cluster_id": self.image.cluster_id,
            **fields,
        }

    def listed(self, kind: str, path: Sequence[object], data: Sequence[Json]) -> Reply:
        """A list in Confluent's envelope. There are no pages: whole lists are what its own proxy answers too."""
        return Reply(body={"kind": kind, "metadata": {"self": self.url(*path), "next": None}, "data": list(data)})


Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: tuple[Field, ...] = ()
    status: int = HTTPStatus.OK


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def check_body(fields: Sequence[Field], body: object) -> Json:
    """Return the body if it has the right shape. Unknown fields pass: Confluent's clients may send more than we use."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    for known in fields:
        value = body.get(known.name)
        if value is None:
            if known.required:
                raise bad_request(f"the field {known.name} is missing ({known.description})")
        elif type(value) not in _PYTHON_TYPES[known.type]:
            raise bad_request(f"the field {known.name} must be of type {known.type}, not {_json_name(value)}")
    return body


def objects(body: Json, name: str) -> list[Json]:
    """A field that is a list of objects."""
    items = body.get(name) or []
    for item in items:
        if not isinstance(item, dict):
            raise bad_request(f"{name} must be a list of objects")
    return list(items)


def text_of(item: Json, name: str) -> str:
    """A field of an inner object that must be a text."""
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string, not {_json_name(value)}")
    return value


def optional_text(item: Json, name: str) -> str | None:
    """The same, where null or nothing is allowed. Numbers and booleans pass as they would be written."""
    value = item.get(name)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise bad_request(f"{name} must be a string, not {_json_name(value)}")


def _json_name(value: object) -> str:
    return {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}.get(
        type(value), "number"
    )
