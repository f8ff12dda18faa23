"""The part of a Kubernetes API server that Spark's driver uses in client mode, on a real socket: it keeps what is created."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"


class FakeKubernetes(ThreadingHTTPServer):
    """Pods never run: what counts is what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((HOST, 0), _Handler)
        self.created: dict[str, list[dict[str, Any]]] = {}  # by kind, such as pods
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"

    def pods(self) -> list[dict[str, Any]]:
        return self.created.get("pods", [])


class _Handler(BaseHTTPRequestHandler):
    server: FakeKubernetes
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Not on stderr: the requests are in `asked`."""

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _take(self) -> bytes:
        self.server.asked.append(f"{self.command} {self.path}")
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        body = json.loads(self._take())
        kind = urlsplit(self.path).path.rpartition("/")[2]
        body.setdefault("metadata", {})["uid"] = f"uid-{len(self.server.asked)}"
        body["metadata"].setdefault("resourceVersion", "1")
        body["metadata"].setdefault("namespace", "default")
        self.server.created.setdefault(kind, []).append(body)
        self._answer(201, body)

    def do_GET(self) -> None:
        self._take()
        kind = urlsplit(self.path).path.rpartition("/")[2]
        if kind in ("pods", "configmaps", "persistentvolumeclaims"):
            found = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}}
            self._answer(200, {**found, "items": self.server.created.get(kind, [])})
        else:
            self._answer(404, {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})

    def do_DELETE(self) -> None:
        self._take()
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    do_PATCH = do_PUT = do_POST


@contextmanager
def fake_kubernetes() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
