"""A server that sends a byte now and then: each of them is in time, and the download still ends."""

import datetime
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from barnabas.net.base.local.certificates import broker_certificate, make_authority
from barnabas.net.wire.downloads import download

LIMIT_S = 0.5
EACH_S = 0.02  # well within the limit of one read
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@contextmanager
def dripping(at_once: bytes, drop: bytes, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, threading.Event]]:
    """A port that sends a part at once, and then a byte at a time until the client has gone, which sets the event."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop, gone = threading.Event(), threading.Event()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection if tls is None else tls.wrap_socket(connection, server_side=True) as stream:
                    stream.recv(65_536)
                    stream.sendall(at_once)
                    try:
                        while not stop.wait(EACH_S):
                            stream.sendall(drop)
                    except OSError:
                        gone.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1], gone
    finally:
        stop.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


def fetch(url: str, limit_s: float = LIMIT_S) -> bytes:
    return download(urllib.request.Request(url), 1_000_000, lambda url: True, limit_s=limit_s)


@pytest.mark.parametrize(
    ("at_once", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (HEAD, b"x"),
        (HEAD.replace(b"Content-Length: 1000000", b"X: y"), b"x"),
    ],
    ids=["no status", "headers without end", "a body of a known length", "a body until the end"],
)
def test_a_server_that_drips_has_a_total_limit(at_once: bytes, drop: bytes) -> None:
    with dripping(at_once, drop) as (port, gone):
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match="no complete answer within 0.5 s"):
            fetch(f"http://127.0.0.1:{port}/")
        assert time.monotonic() - began_s < 20 * LIMIT_S, "the server would go on for hours"
        assert gone.wait(30), "the connection is closed"


def test_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(tmp_path, "test", now=now)
    shown = tmp_path / "server.pem"
    shown.write_bytes(broker_certificate(authority, 0, ["127.0.0.1"], now=now))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(shown)
    with dripping(HEAD, b"x", tls) as (port, _), pytest.raises(TimeoutError, match="no complete answer"):
        fetch(f"https://127.0.0.1:{port}/")


def test_redirects_share_the_limit() -> None:
    with dripping(HEAD, b"x") as (port, _):
        moved = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:%d/\r\n\r\n" % port
        with dripping(moved, b"") as (first, _), pytest.raises(TimeoutError, match="no complete answer"):
            fetch(f"http://127.0.0.1:{first}/")


def test_an_answer_in_time_is_whole() -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"x") as (port, _):
        assert fetch(f"http://127.0.0.1:{port}/", limit_s=60.0) == b"xxxxx"
