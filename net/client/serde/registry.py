"""`SchemaRegistry`: a registry with Confluent's HTTP API (Confluent, Karapace, Apicurio, Redpanda).

Schemas never change, so each is asked for once and kept; that there is none of an id is kept for a short time only. The lookups
are synchronous and raise SchemaNotLoaded for what is not here; the load is one task that all callers share, and it goes on if a
caller is cancelled.
"""

import asyncio
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from ...base.near_words import did_you_mean
from ...base.retries import Backoff
from ...wire.surroundings import SURROUNDINGS, new_random
from ..connection.errors import (
    InvalidConfigError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from .serdes import SchemaNotLoaded

MAX_KEPT: Final = 10_000  # schemas, ids and answers "not found" that a client keeps; the oldest leave first
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024  # of a schema
MAX_REFERENCES: Final = 64  # of a schema, directly
REQUEST_TIMEOUT_S: Final = 10.0
MAX_ATTEMPTS: Final = 4  # of a request, through all addresses each time
PAUSE: Final = Backoff(first_ms=100, max_ms=2_000)  # between them
ABSENT_MS: Final = (
    10_000  # so long an id that is not there is not asked for again; a replica of a registry may be behind
)
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
_NOT_FOUND: Final = (SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND)
LOGIN_PREFIX: Final = "schema.registry."
USER_INFO: Final = "schema.registry.basic.auth.user.info"
TOKEN: Final = "schema.registry.bearer.auth.token"
AUTHORITIES: Final = "schema.registry.ssl.truststore.location"
LOGIN_KEYS: Final = (USER_INFO, TOKEN, AUTHORITIES)
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Another schema that a schema uses: the name by which it does, and where the registry has it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """As a registry has it. `kind`: "AVRO", "JSON" or "PROTOBUF"."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"schema": self.text, "schemaType": self.kind}
        if self.references:
            found["references"] = [
                {"name": item.name, "subject": item.subject, "version": item.version} for item in self.references
            ]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """The address of a registry, and the login there: a value that can be pickled and whose text shows no secret."""

    url: str
    user_info: str = field(default="", repr=False)  # USER:PASSWORD
    token: str = field(default="", repr=False)  # of a bearer
    authorities: str = field(default="", repr=False)  # certificates in PEM that are trusted; "": those of the system

    def registry(self, *, auto_register: bool) -> "SchemaRegistry":
        """Raises InvalidConfigError."""
        user, _, password = self.user_info.partition(":")
        return SchemaRegistry(
            self.url,
            auth=(user, password) if self.user_info else None,
            headers={"Authorization": f"Bearer {self.token}"} if self.token else None,
            auto_register=auto_register,
            ssl=ssl.create_default_context(cadata=self.authorities) if self.authorities else None,
        )


def registry_access(url: str, properties: Mapping[str, str]) -> RegistryAccess:
    """With the login of a file of properties, under the names that Kafka's connectors have for it. Raises InvalidConfigError."""
    given = {name: text for name, text in properties.items() if name.startswith(LOGIN_PREFIX)}
    for name in given:
        if name not in LOGIN_KEYS:
            raise InvalidConfigError(
                f"unknown setting {name}{did_you_mean(name, LOGIN_KEYS)}: use {', '.join(LOGIN_KEYS)}"
            )
    user_info, token, file = (given.get(name, "") for name in LOGIN_KEYS)
    if user_info and token:
        raise InvalidConfigError(f"{USER_INFO} and {TOKEN} are two logins at the schema registry: remove one of them")
    if user_info and ":" not in user_info:
        raise InvalidConfigError(f"{USER_INFO} must be USER:PASSWORD")
    return RegistryAccess(url=url, user_info=user_info, token=token, authorities=_certificates(file) if file else "")


def _certificates(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidConfigError(
            f"{AUTHORITIES} is {file!r}, which has no certificates in PEM that can be read ({error})"
        ) from None
    return text


class SchemaRegistry:
    """The schemas of a registry, for Avro, JsonSchema and Protobuf.

        registry = SchemaRegistry("http://localhost:8081")
        Producer(..., value_serializer=Avro(registry, schema))

    `url`: one or several addresses of one registry, with a path if it has one (Apicurio: /apis/ccompat/v7). `auth`: user and
    password. `auto_register`: a producer registers its schema under the subject of its topic; False: it must be there.
    Needs the extra: pip install 'barnabas[schemas]'.
    """

    def __init__(
        self,
        url: str | Iterable[str],
        *,
        auth: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auto_register: bool = True,
        ssl: Any = None,
    ) -> None:
        """`ssl`: an ssl.SSLContext. Raises InvalidConfigError."""
        self._urls = [_checked(item) for item in ([url] if isinstance(url, str) else url)]
        if not self._urls:
            raise InvalidConfigError("a schema registry needs at least one address, such as http://localhost:8081")
        self._headers = {"Accept": f"{_MEDIA_TYPE}, application/json", **(headers or {})}
        if auth is not None:
            self._headers["Authorization"] = f"Basic {b64encode(':'.join(auth).encode()).decode()}"
        self._ssl = ssl
        self._auto_register = auto_register
        self._random = new_random()
        around = SURROUNDINGS.get()
        self._now_ms = _monotonic_ms if around is None else around.clock.now_ms
        self._schemas: dict[int, Schema] = {}
        self._absent: dict[int, tuple[str, int]] = {}  # what the registry said, and when
        self._ids: dict[tuple[str, Schema], int] = {}
        self._versions: dict[tuple[str, Schema], int] = {}
        self._references: dict[tuple[str, int], Schema] = {}
        self._serialized: dict[int | tuple[str, int], Schema] = {}
        self._loads: dict[object, asyncio.Task[None]] = {}

    # --- lookups ------------------------------------------------------------------------------------------------------

    def schema(self, schema_id: int) -> Schema:
        """The schema with the id `schema_id`. Raises SchemaNotLoaded, and SchemaNotFoundError if the registry has no schema of
        this id."""
        found = self._schemas.get(schema_id)
        if found is not None:
            return found
        message, since_ms = self._absent.get(schema_id, ("", 0))
        if message and self._now_ms() - since_ms < ABSENT_MS:
            raise SchemaNotFoundError(message)  # a new one: an error that is raised again keeps every traceback
        raise SchemaNotLoaded(partial(self._once, ("id", schema_id), partial(self._load_schema, schema_id)))

    def schema_id(self, subject: str, schema: Schema) -> int:
        """The id of a schema in a subject. Raises SchemaNotLoaded."""
        found = self._ids.get((subject, schema))
        if found is None:
            key = ("subject", subject, schema)
            raise SchemaNotLoaded(partial(self._once, key, partial(self._load_id, subject, schema)))
        return found

    def version(self, subject: str, schema: Schema) -> int:
        """The version of a schema in a subject, for references to it. Raises SchemaNotLoaded."""
        found = self._versions.get((subject, schema))
        if found is None:
            key = ("version", subject, schema)
            raise SchemaNotLoaded(partial(self._once, key, partial(self._load_version, subject, schema)))
        return found

    def referenced(self, reference: Reference) -> Schema:
        """The schema that `reference` names. Raises SchemaNotLoaded."""
        place = (reference.subject, reference.version)
        found = self._references.get(place)
        if found is None:
            raise SchemaNotLoaded(partial(self._once, ("reference", *place), partial(self._load_reference, *place)))
        return found

    def serialized(self, place: int | Reference) -> Schema:
        """A Protobuf schema, `place` is its id or a reference: its text is the descriptor in base64. Raises SchemaNotLoaded."""
        key = place if isinstance(place, int) else (place.subject, place.version)
        found = self._serialized.get(key)
        if found is None:
            raise SchemaNotLoaded(partial(self._once, ("serialized", key), partial(self._load_serialized, key)))
        return found

    async def latest(self, subject: str) -> Schema:
        """The newest schema of a subject, asked for each time. Raises SchemaRegistryError."""
        return (await self.latest_with_id(subject))[1]

    async def latest_with_id(self, subject: str) -> tuple[int, Schema]:
        """As `latest`, of `subject`, with the id that is written before data of this schema. Raises SchemaRegistryError."""
        answer = await self._ask("GET", f"{_path_of(subject)}/versions/latest")
        return _number(answer, "id"), _schema_of(answer)

    # --- loads --------------------------------------------------------------------------------------------------------

    async def _once(self, key: object, load: Callable[[], Awaitable[None]]) -> None:
        """All that want the same wait for one task, which a cancelled caller does not end."""
        task = self._loads.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.ensure_future(_run(load))
            self._loads[key] = task
            task.add_done_callback(partial(self._done, key))
        await asyncio.shield(task)

    def _done(self, key: object, task: asyncio.Task[None]) -> None:
        if self._loads.get(key) is task:
            del self._loads[key]
        if not task.cancelled():
            task.exception()  # Told to those who wait; if nobody does any more, the next call asks again.

    async def _load_schema(self, schema_id: int) -> None:
        try:
            answer = await self._ask("GET", f"/schemas/ids/{schema_id}")
        except SchemaNotFoundError as error:
            _keep(self._absent, schema_id, (error.message, self._now_ms()))
            return
        _keep(self._schemas, schema_id, _schema_of(answer))

    async def _load_reference(self, subject: str, version: int) -> None:
        answer = await self._ask("GET", f"{_path_of(subject)}/versions/{version}")
        _keep(self._references, (subject, version), _schema_of(answer))

    async def _load_serialized(self, key: int | tuple[str, int]) -> None:
        path = f"/schemas/ids/{key}" if isinstance(key, int) else f"{_path_of(key[0])}/versions/{key[1]}"
        _keep(self._serialized, key, _schema_of(await self._ask("GET", f"{path}?format=serialized")))

    async def _load_id(self, subject: str, schema: Schema) -> None:
        path = f"{_path_of(subject)}/versions" if self._auto_register else _path_of(subject)
        _keep(self._ids, (subject, schema), _number(await self._registered(path, subject, schema), "id"))

    async def _load_version(self, subject: str, schema: Schema) -> None:
        if self._auto_register:
            await self._registered(f"{_path_of(subject)}/versions", subject, schema)
        answer = await self._registered(_path_of(subject), subject, schema)
        _keep(self._versions, (subject, schema), _number(answer, "version"))

    async def _registered(self, path: str, subject: str, schema: Schema) -> dict[str, Any]:
        try:
            return await self._ask("POST", path, schema.to_json())
        except SchemaNotFoundError as error:
            raise SchemaNotFoundError(
                f"the subject {subject} does not have this schema: register it, or set auto_register=True ({error})"
            ) from None

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Raises SchemaRegistryUnavailableError after all attempts, and other SchemaRegistryErrors at once."""
        error = SchemaRegistryUnavailableError("")
        for attempt in range(1, MAX_ATTEMPTS + 1):
            for url in self._urls:
                try:
                    return await self._exchange(method, url + path, body)
                except SchemaRegistryUnavailableError as refused:
                    error = refused
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(PAUSE.delay_ms(attempt, self._random.random) / 1000)
        raise error

    async def _exchange(self, method: str, url: str, body: object) -> dict[str, Any]:
        import aiohttp  # Slow to import, and few clients use a registry.

        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        headers = self._headers if body is None else {**self._headers, "Content-Type": _MEDIA_TYPE}
        data = None if body is None else json.dumps(body)
        told = f"{method} {_without_user(url)}"
        try:
            # A session for each request: there are few, and nothing stays open that somebody would have to close.
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, data=data, headers=headers, ssl=self._ssl or True) as response,
            ):
                raw = await _limited(response.content)
                return _answer(response.status, raw, told)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SchemaRegistryUnavailableError(f"the schema registry does not answer {told}: {reason}") from error


async def _run(load: Callable[[], Awaitable[None]]) -> None:
    await load()


async def _limited(content: Any) -> bytes:
    found = bytearray()
    async for chunk in content.iter_chunked(65_536):
        found += chunk
        if len(found) > MAX_ANSWER_BYTES:
            raise SchemaRegistryError(f"the registry's answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(found)


def _answer(status: int, raw: bytes, request: str) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    if status < 300 and isinstance(answer, dict):
        return answer
    told = answer if isinstance(answer, dict) else {}
    message = f"{request}: HTTP {status} {told.get('message') or raw[:200].decode('utf-8', 'replace')}".strip()
    if status == 404 and told.get("error_code") in _NOT_FOUND:
        raise SchemaNotFoundError(message)
    if status >= 500 or status == 429:
        raise SchemaRegistryUnavailableError(f"the schema registry cannot answer now: {message}")
    if status in (401, 403):
        raise SchemaRegistryError(
            f"the schema registry refuses this user: {message}; check `auth`, or {LOGIN_PREFIX}* in the file of --command-config"
        )
    if status < 300 or status == 404:
        raise SchemaRegistryError(f"this is no answer of a schema registry: {message}; check the path of its URL")
    raise SchemaRegistryError(f"the schema registry refuses the request: {message}")


def _monotonic_ms() -> int:
    """Not a loop's: a registry may be made before there is one, and be used on several."""
    return int(time.monotonic() * 1000)


def _path_of(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


def _number(answer: dict[str, Any], name: str) -> int:
    found = answer.get(name)
    if isinstance(found, int):
        return found
    raise SchemaRegistryError(f"the registry's answer has no {name}: {str(answer)[:200]}")


def _schema_of(answer: dict[str, Any]) -> Schema:
    """Raises SchemaRegistryError."""
    try:
        references = tuple(
            Reference(name=str(item["name"]), subject=str(item["subject"]), version=int(item["version"]))
            for item in answer.get("references") or ()
        )
        schema = Schema(text=str(answer["schema"]), kind=answer.get("schemaType") or "AVRO", references=references)
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaRegistryError(f"the registry's answer is no schema: {str(answer)[:200]}") from error
    if len(schema.references) > MAX_REFERENCES:
        raise SchemaRegistryError(f"a schema refers to {len(references)} others; {MAX_REFERENCES} are allowed")
    return schema


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    kept.pop(key, None)
    while len(kept) >= MAX_KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def _without_user(url: str) -> str:
    """For messages: a broker shows them to those who read records, and the address may have a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _checked(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InvalidConfigError(f"the address {url!r} of a schema registry must begin with http:// or https://")
    return url.rstrip("/")
