"""Answers of the HTTP API of a real broker, each compared with its schema in `/openapi.json`."""

import asyncio
import json
import re
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from integration.cluster import Cluster
from jsonschema import Draft202012Validator

METHODS: Final = ("get", "post", "put", "patch", "delete")
CLUSTER: Final = "/v3/clusters/{cluster_id}"


def closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    return found | ({"additionalProperties": False} if found.get("additionalProperties") is True else {})


class Caller:
    """Calls operations by their paths as the document has them, and checks what they answer."""

    def __init__(self, cluster: Cluster, node: int = 0) -> None:
        host, _, port = cluster.nodes[node].property("admin.listener").rpartition("//")[2].rpartition(":")
        is_secure = bool(cluster.logins)
        self.base = f"{'https' if is_secure else 'http'}://{host}:{port}"
        self._headers = {"Content-Type": "application/json"}
        self._tls: ssl.SSLContext | None = None
        if is_secure:
            self._tls = ssl.create_default_context(cafile=cluster.login["ssl_cafile"])
            login = f"admin:{cluster.login['sasl_plain_password']}".encode()
            self._headers["Authorization"] = "Basic " + b64encode(login).decode()
        self.document = json.loads(self._sent("GET", "/openapi.json", None)[2])
        self._cluster_id = json.loads(self._sent("GET", "/v3/clusters", None)[2])["data"][0]["cluster_id"]
        self.answered: set[tuple[str, str]] = set()

    @property
    def operations(self) -> set[tuple[str, str]]:
        return {
            (method.upper(), path)
            for path, methods in self.document["paths"].items()
            for method in methods
            if method in METHODS
        }

    async def __call__(self, method: str, path: str, body: Any = None, query: str = "", **names: object) -> Any:
        """The answer, which is as the document says. Errors are errors of the test. `path` without the cluster: `topics`."""
        status, answer = await asyncio.to_thread(self.ask, method, path, body, query, names)
        assert status < 300, (method, path, answer)
        return answer

    def ask(self, method: str, path: str, body: Any, query: str, names: Mapping[str, object]) -> tuple[int, Any]:
        if not path.startswith("/"):
            path = f"{CLUSTER}/{path}".rstrip("/")
        filled = path
        for name, value in ({"cluster_id": self._cluster_id} | dict(names)).items():
            filled = filled.replace("{" + name + "}", str(value))
        assert "{" not in filled, filled
        status, media, text = self._sent(method, filled + query, body)
        responses = self.document["paths"][path][method.lower()]["responses"]
        told = responses.get(str(status), responses["default"] if status >= 300 else None)
        assert told is not None, f"{method} {path} answered {status}, which the document does not name"
        content = told.get("content", {})
        assert bool(text) == bool(content), (method, path, status, text[:200])
        if status < 300:
            self.answered.add((method, path))
        if not text:
            return status, None
        assert media in content, (method, path, media)
        if media != "application/json":
            return status, text
        answer = json.loads(text)
        self.check(method, path, answer, content[media]["schema"])
        return status, answer

    def check(self, method: str, path: str, answer: Any, schema: Any) -> None:
        whole = {**closed(schema), "components": self.document["components"]}
        wrong = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(whole).iter_errors(answer)]
        assert not wrong, (method, path, wrong[:5])

    def _sent(self, method: str, path: str, body: Any) -> tuple[int, str, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
                media = re.split(r"[; ]", answer.headers.get("Content-Type", ""))[0]
                if media == "text/event-stream":
                    return answer.status, media, answer.readline()
                return answer.status, media, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers.get_content_type(), error.read()
