"""A schema registry in memory, over HTTP, in a thread of its own: blocking clients (Confluent's) can use it, too."""

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from aiohttp import web

START_TIMEOUT_S = 10


class RegistryStub:
    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.failures: list[web.Response] = []  # The next answers, whatever is asked.
        self.authorization: list[str | None] = []
        self.wanted_authorization = ""  # Another one is refused.
        self.is_asked = threading.Event()
        self._is_open = asyncio.Event()  # Answers wait for it.
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._is_open.set)

    def shut(self) -> None:
        self._is_open.clear()

    def register(self, subject: str, body: dict[str, Any]) -> int:
        wanted = {"schema": body["schema"], "schemaType": body.get("schemaType", "AVRO")}
        if body.get("references"):
            wanted["references"] = body["references"]
        known = [number for number, schema in self.schemas.items() if schema == wanted]
        schema_id = known[0] if known else len(self.schemas) + 1
        self.schemas[schema_id] = wanted
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        self.authorization.append(request.headers.get("Authorization"))
        self.is_asked.set()
        await self._is_open.wait()
        if self.failures:
            return self.failures.pop(0)
        if self.wanted_authorization and self.authorization[-1] != self.wanted_authorization:
            return web.json_response({"error_code": 40101, "message": "Unauthorized"}, status=401)
        parts = [unquote(part) for part in request.raw_path.partition("?")[0].strip("/").split("/")]
        body = json.loads(await request.text() or "{}")
        match request.method, parts:
            case "GET", ["schemas", "ids", number]:
                found = self.schemas.get(int(number))
                return web.json_response(shown(found, request)) if found else not_found(40403, "Schema not found")
            case "POST", ["subjects", subject, "versions"]:
                return web.json_response({"id": self.register(subject, body)})
            case "POST", ["subjects", subject]:
                return self.lookup(subject, body)
            case "GET", ["subjects", subject, "versions", version]:
                versions = self.subjects.get(subject, [])
                wanted = len(versions) if version == "latest" else int(version)
                if not 0 < wanted <= len(versions):
                    return not_found(40402, "Version not found")
                schema_id = versions[wanted - 1]
                return web.json_response(
                    {
                        "subject": subject,
                        "version": wanted,
                        "id": schema_id,
                        **shown(self.schemas[schema_id], request),
                    }
                )
        return web.Response(status=404, text="no such page")

    def lookup(self, subject: str, body: dict[str, Any]) -> web.Response:
        for version, schema_id in enumerate(self.subjects.get(subject, []), 1):
            if self.schemas[schema_id]["schema"] == body["schema"]:
                found = {"subject": subject, "version": version, "id": schema_id, **self.schemas[schema_id]}
                return web.json_response(found)
        return not_found(40401, "Subject not found")


def shown(schema: dict[str, Any], request: web.Request) -> dict[str, Any]:
    """As Confluent's registry: the source of a Protobuf schema, which is made of the descriptor that was registered, unless the
    descriptor is asked for."""
    if schema["schemaType"] != "PROTOBUF" or request.query.get("format") == "serialized":
        return schema
    return {**schema, "schema": 'syntax = "proto3";'}


def not_found(code: int, message: str) -> web.Response:
    return web.json_response({"error_code": code, "message": message}, status=404)


@contextmanager
def running_registry(tls: ssl.SSLContext | None = None) -> Iterator[RegistryStub]:
    stub = RegistryStub()
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def serve() -> web.AppRunner:
        stub._loop = loop
        stub.open()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", stub.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        host, port = runner.addresses[0][:2]
        stub.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
        return runner

    def run() -> None:
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(START_TIMEOUT_S)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_TIMEOUT_S)
        assert not thread.is_alive()
