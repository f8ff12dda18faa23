"""Requests over HTTP for tokens and for the keys that check them: neither may pass where others could read or replace them.

Every step of a redirect is decided on before it is taken: a look at the last address only would miss a step in plain text between
two that are encrypted, and the first request's headers would have been sent along. Blocks: call it in a thread.
"""

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..settings.exposure import is_loopback

if TYPE_CHECKING:  # imported where they are used: processes start faster without them
    import urllib.request

FETCH_TIMEOUT_S: Final = 10.0


def is_protected(url: str) -> bool:
    """Can nobody on the way read or change what goes there and comes from there?"""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def download(request: "urllib.request.Request", most_bytes: int, may_lead_to: Callable[[str], bool]) -> bytes:
    """The answer, or its first bytes. `may_lead_to` decides about the address of a redirect. Raises OSError, also HTTPError of
    `urllib`; ValueError: no answer of HTTP, or a redirect that is not followed."""
    import http.client
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(
            self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
        ) -> urllib.request.Request | None:
            if not may_lead_to(newurl):
                fp.close()
                raise ValueError(f"it leads to {newurl}")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    # In plain text, only this machine is asked, and no proxy elsewhere.
    proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme != "http"}
    opener = urllib.request.build_opener(Redirects, urllib.request.ProxyHandler(proxies))
    try:
        with opener.open(request, timeout=FETCH_TIMEOUT_S) as answer:
            return bytes(answer.read(most_bytes))
    except http.client.HTTPException as error:
        raise ValueError(f"no valid answer of HTTP: {error!r}") from error
