"""One call of the API, independent of HTTP: the input of a handler, its result, and its entry in the route table.

Handlers are functions from `Call` to `Reply`; only `app` uses aiohttp. The table of routes is the single source of the paths:
the server, the validation of bodies and `/openapi.json` are derived from it.
"""

import asyncio
import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import quote

from barnabas.kraft.metadata.image import MetadataImage, PartitionImage, TopicImage
from barnabas.log.settings.kinds import MAX_INT32
from barnabas.log.vocabulary.access.acls import Operation, ResourceKind
from barnabas.log.vocabulary.topic_partition import no_such_topic
from barnabas.net.client.admin.admin import Admin
from barnabas.net.server.access.access import Access
from barnabas.net.wire.protocol.requests import Request

from .backend import AdminBackend
from .errors import SHOWN_CHARS, ApiError, bad_request, not_found, unknown_topic_or_partition

if TYPE_CHECKING:
    from .feed import Feed, Follower
    from .lags import LagsOfGroups
    from .places import Places

R = TypeVar("R")
HERE_TIMEOUT_MS: Final = 30_000  # the time that a broker itself looks for the controller
Json = dict[str, Any]
_LARGE_NUMBER: Final = re.compile(r"[0-9]{1,15}")  # milliseconds since 1970 have 13 digits
_NUMBER: Final = re.compile(
    r"[0-9]{1,10}"
)  # more digits do not fit into int32, and int() raises for thousands of digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a body. `type` is a JSON schema type or "any"; `fields` are those of the object, or of each list item."""

    name: str
    type: str
    description: str
    required: bool = False
    fields: tuple["Field", ...] = ()
    # What follows is for the document alone.
    items: str = ""  # the type of the items of a list, if they are no objects
    nullable: bool = False
    only: str = ""  # the one value that it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`body` is sent as JSON, or as it is if it is a string or bytes."""

    status: int = HTTPStatus.OK
    body: Json | str | bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: "Follower | None" = None  # server-sent events, instead of a body


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The input of a handler."""

    backend: AdminBackend
    base: str  # scheme and authority of the caller's request, for links
    path: Mapping[str, str]
    lags: "LagsOfGroups"  # for metrics: the result of the last scrape
    feed: "Feed"  # of the overview, for the streams of all callers
    reads: asyncio.Semaphore  # the calls that may read records at a time
    decoding: "Decodes"  # of records that were written with a schema registry
    tails: "Places"  # of readers that wait for records
    body: Json = field(default_factory=dict)
    query: Json = field(default_factory=dict)  # the parameters that the route declares
    known_etags: str = ""  # what the caller has of a file: its If-None-Match
    wants_events: bool = False  # server-sent events
    last_event_id: str = ""  # of a browser that follows again
    access: Access | None = None  # of the caller; None: everyone may do everything

    def shows_topic(self, name: str) -> bool:
        """May the caller know of this topic?"""
        access = self.access
        return access is None or access.may_cluster(Operation.ALTER) or access.may_topic(Operation.DESCRIBE, name)

    def shows_group(self, name: str) -> bool:
        """May the caller know of this group?"""
        access = self.access
        return (
            access is None
            or access.may_cluster(Operation.ALTER)
            or access.may(Operation.DESCRIBE, ResourceKind.GROUP, name)
        )

    def shows_some(self, kind: ResourceKind) -> bool:
        """May the caller know of anything of this kind? If not, a list is empty, and the cluster is not asked for it."""
        access = self.access
        return access is None or access.may_cluster(Operation.ALTER) or access.may_any(Operation.DESCRIBE, kind)

    @property
    def user(self) -> str:
        """Who calls; "": it is not known, as the cluster has no permissions."""
        return "" if self.access is None else self.access.name

    @property
    def image(self) -> MetadataImage:
        return self.backend.image()

    async def ask(self, question: Callable[[Admin], Awaitable[R]]) -> R:
        """Query the cluster with an admin client of this call only: its metadata is as new as the call."""
        async with self.backend.admin() as admin:
            return await question(admin)

    async def ask_here(self, request: Request) -> Any:
        """Query this broker only."""
        return await self.backend.here.call(request, timeout_ms=HERE_TIMEOUT_MS)

    def number(self, name: str) -> int:
        """A number in the path."""
        text = self.path[name]
        if not _NUMBER.fullmatch(text) or int(text) > MAX_INT32:
            raise bad_request(f"{name} must be an integer between 0 and {MAX_INT32}, not {text[:SHOWN_CHARS]!r}")
        return int(text)

    def topic(self) -> TopicImage:
        """The topic in the path."""
        found = self.image.topics.get(self.path["topic_name"])
        if found is None:
            raise unknown_topic_or_partition(no_such_topic(self.path["topic_name"]))
        return found

    def partition(self) -> tuple[TopicImage, int, PartitionImage]:
        """Topic, partition number and partition state from the path."""
        topic, index = self.topic(), self.number("partition_id")
        if index >= len(topic.partitions):
            raise unknown_topic_or_partition(f"partition {topic.name}-{index} does not exist")
        return topic, index, topic.partitions[index]

    def check_cluster(self) -> None:
        """Raise an error if the path has the id of another cluster."""
        wanted = self.path.get("cluster_id")
        if wanted is not None and wanted != self.image.cluster_id:
            raise not_found(f"cluster {wanted} is not here; the id of this cluster is {self.image.cluster_id}")

    def url(self, *parts: object) -> str:
        """The URL of an object in this cluster."""
        encoded = (quote(str(part), safe=":-") for part in parts)
        return "/".join((f"{self.base}/v3/clusters/{self.image.cluster_id}", *encoded))

    def related(self, *parts: object) -> Json:
        """A link to an object in this cluster."""
        return {"related": self.url(*parts)}

    def item(self, kind: str, path: Sequence[object], fields: Json) -> Json:
        """Wrap one object in Confluent's envelope."""
        names = "/".join(f"{a}={b}" for a, b in zip(path[::2], path[1::2], strict=False))
        resource = f"crn:///kafka={self.image.cluster_id}" + (f"/{names}" if names else "")
        return {"kind": kind, "metadata": {"self": self.url(*path), "resource_name": resource}} | {
            "cluster_id": self.image.cluster_id,
            **fields,
        }

    def listed(self, kind: str, path: Sequence[object], data: Sequence[Json]) -> Reply:
        """Wrap a list in Confluent's envelope. Lists are not paged; Confluent's proxy returns whole lists too."""
        return Reply(body={"kind": kind, "metadata": {"self": self.url(*path), "next": None}, "data": list(data)})


class Decodes(Protocol):
    """net/admin/console/decoding.py implements it."""

    async def fill(self, topic: str, rows: Sequence[Json]) -> None:
        """Raises ApiError."""

    async def encode_key(self, topic: str, text: str) -> tuple[int, bytes]:
        """Raises ApiError."""


Handler = Callable[[Call], Awaitable[Reply]]
DocumentsHandler = Callable[[Call, Sequence[Json | ApiError]], Awaitable[Sequence[Json | ApiError]]]
"""Answers several bodies of one request, some of which may be wrong: an outcome for each, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP method of one path."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: tuple[Field, ...] = ()
    query: tuple[Field, ...] = ()  # integers and strings; a route that declares some refuses others
    answer: tuple[Field, ...] = ()  # for the document; (): no JSON object
    media: str = "application/json"  # of the answer, for the document
    also_media: tuple[str, ...] = ()  # other forms of the answer, as text
    status: int = HTTPStatus.OK
    also: tuple[int, ...] = ()  # other statuses with the same answer
    documents: DocumentsHandler | None = (
        None  # it also takes several bodies in one request, and answers each with a line
    )
    is_large: bool = False  # GET only: the answer may have megabytes


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def check_query(fields: Sequence[Field], query: Mapping[str, str]) -> Json:
    """Validate and return the query. A route that declares no parameters ignores them, as Confluent's API does."""
    if not fields:
        return {}
    known = {item.name: item for item in fields}
    found: Json = {}
    for name, text in query.items():
        if name not in known:
            raise bad_request(f"unknown parameter {name[:SHOWN_CHARS]}: {_nearest(name, sorted(known))}")
        if known[name].type == "integer":
            if not _LARGE_NUMBER.fullmatch(text):
                raise bad_request(f"the parameter {name} must be an integer, not {text[:SHOWN_CHARS]!r}")
            found[name] = int(text)
        else:
            found[name] = text
    return found


def check_body(fields: Sequence[Field], body: object) -> Json:
    """Validate and return the body. Unknown fields are refused, because a misspelt field would have no effect."""
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    _check_fields(fields, body, "")
    return body


def _check_fields(fields: Sequence[Field], body: Json, where: str) -> None:
    names = {known.name for known in fields}
    for name in body:
        if name not in names:
            raise bad_request(f"unknown field {where}{name[:SHOWN_CHARS]}: {_nearest(name, sorted(names))}")
    for known in fields:
        value = body.get(known.name)
        if value is None:
            if known.required:
                raise bad_request(f"the field {where}{known.name} is missing ({known.description})")
        else:
            _check_value(known, value, where + known.name)


def _nearest(name: str, known: Sequence[str]) -> str:
    longer = [item for item in known if name and item.startswith(name)]
    near = longer or difflib.get_close_matches(name[:SHOWN_CHARS], known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"the fields are {', '.join(known)}"


def _check_value(known: Field, value: object, where: str) -> None:
    if known.type == "any":
        return
    if type(value) not in _PYTHON_TYPES[known.type]:
        raise bad_request(f"the field {where} must be of type {known.type}, not {_json_name(value)}")
    if isinstance(value, int) and not -MAX_INT32 <= value <= MAX_INT32:
        raise bad_request(f"the field {where} must be an integer of at most {MAX_INT32}")
    for item in value if isinstance(value, list) and known.fields else ():
        if not isinstance(item, dict):
            raise bad_request(f"{where} must be a list of objects")
        _check_fields(known.fields, item, f"{where}.")
    if isinstance(value, dict) and known.fields:
        _check_fields(known.fields, value, f"{where}.")


def objects(body: Json, name: str) -> list[Json]:
    """A field that `check_body` has validated as a list of objects."""
    return list(body.get(name) or [])


def text_of(item: Json, name: str) -> str:
    """A field of an inner object that must be a string."""
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string, not {_json_name(value)}")
    return value


def optional_text(item: Json, name: str) -> str | None:
    """Like `text_of`, but null or a missing field is allowed. Numbers and booleans are converted to their text."""
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
