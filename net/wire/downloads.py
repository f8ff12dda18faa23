"""Requests over HTTP for tokens and for the keys that check them: neither may pass where others could read or replace them.

A server may send a byte now and then: each read has a time limit, and so has the whole. Every step of a redirect is decided on
before it is taken: a look at the last address only would miss a step in plain text between two that are encrypted, and the first
request's headers would have been sent along. Blocks: call it in a thread.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..base.settings.exposure import is_loopback

if TYPE_CHECKING:  # imported where they are used: processes start faster without them
    import http.client
    import urllib.request

FETCH_TIMEOUT_S: Final = 10.0  # of connecting, and of each read
TOTAL_TIMEOUT_S: Final = 20.0  # of all steps together; a login and the start of a broker wait for it


def is_protected(url: str) -> bool:
    """Can nobody on the way read or change what goes there and comes from there?"""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


class _Deadline:
    """Ends the connection that a download has, when its time is up. A context."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._watched: socket.socket | None = None
        self._timer = threading.Timer(limit_s, self._expire)
        self._timer.daemon = True
        self.is_over = False

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._forget()

    def watch(self, sock: socket.socket) -> None:
        """Another connection, of a redirect, takes the place of the one before. Raises TimeoutError."""
        with self._lock:
            self._forget()
            if self.is_over:
                raise self.error()
            self._watched = socket.fromfd(sock.fileno(), sock.family, sock.type)  # TLS is in use by the other thread

    def error(self) -> TimeoutError:
        return TimeoutError(f"no complete answer within {self._limit_s:g} s")

    def _expire(self) -> None:
        with self._lock:
            self.is_over = True
            if self._watched is not None:
                with suppress(OSError):  # The server may have closed it.
                    self._watched.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        if self._watched is not None:
            self._watched.close()
            self._watched = None


def download(
    request: "urllib.request.Request",
    most_bytes: int,
    may_lead_to: Callable[[str], bool],
    *,
    limit_s: float = TOTAL_TIMEOUT_S,
) -> bytes:
    """The answer, or its first bytes. `may_lead_to` decides about the address of a redirect. Raises OSError, also HTTPError of
    `urllib`, and TimeoutError after `limit_s`; ValueError: no answer of HTTP, or a redirect that is not followed."""
    import http.client

    with _Deadline(limit_s) as deadline:
        try:
            with _opener(may_lead_to, deadline).open(request, timeout=min(FETCH_TIMEOUT_S, limit_s)) as answer:
                found = bytes(answer.read(most_bytes))
        except http.client.HTTPException as error:
            if deadline.is_over:
                raise deadline.error() from error
            raise ValueError(f"no valid answer of HTTP: {error!r}") from error
        except OSError as error:
            if deadline.is_over:
                raise deadline.error() from error
            raise
        if deadline.is_over:
            raise deadline.error()
        return found


def _opener(may_lead_to: Callable[[str], bool], deadline: _Deadline) -> "urllib.request.OpenerDirector":
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(
            self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
        ) -> urllib.request.Request | None:
            if not may_lead_to(newurl):
                fp.close()
                raise ValueError(f"it leads to {newurl}")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    class Http(urllib.request.HTTPHandler):
        def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> "http.client.HTTPResponse":
            return super().do_open(_watched(http_class, deadline), req, **options)

    class Https(urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> "http.client.HTTPResponse":
            return super().do_open(_watched(http_class, deadline), req, **options)

    # In plain text, only this machine is asked, and no proxy elsewhere.
    proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme != "http"}
    return urllib.request.build_opener(Redirects, Http, Https, urllib.request.ProxyHandler(proxies))


def _watched(kind: Any, deadline: _Deadline) -> Any:
    """A class of connections that end when the time is up."""

    class Watched(kind):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            deadline.watch(self.sock)

    return Watched
