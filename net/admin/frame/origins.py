"""Protect the admin API from foreign web pages in a browser, also against DNS rebinding. Pure.

A browser that can reach the admin port lets any page that it shows send requests there. Three checks prevent this:

- Host (DNS rebinding): a page of evil.example whose name resolves to this broker has the same origin as the API, but its
  requests still carry `Host: evil.example`. Only names of this broker pass; an IP address cannot be rebound, so all pass.
- Origin and Sec-Fetch-Site (cross-site requests): pages of another origin may not change state.
- Content-Type: a form or a "simple" request of another page cannot send application/json without a CORS preflight request, and
  this server answers preflight requests only as said below.

Pages of `admin.allowed.origins` may produce records (CORS), for example to tell what happens in a browser, and nothing else.

Programs other than browsers (curl, Prometheus, clients) send neither Origin nor Sec-Fetch-Site.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Final

from .errors import SHOWN_CHARS, ApiError

ANY_HOST: Final = "*"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110, 9.2.1
PROBES: Final = frozenset({"/healthz", "/readyz"})  # Load balancers use any host name; the answer is not secret.
_HOST: Final = re.compile(r"(\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]*)?")  # RFC 9110, 7.2
ANY_ORIGIN: Final = "*"
_RECORDS: Final = re.compile(r"/v3/clusters/[^/]+/topics/[^/]+/records(:batch)?")
_PREFLIGHT_AGE_S: Final = 600
_OWN_SITES: Final = frozenset({"same-origin", "none"})  # "none": the user entered the address


def check_host(path: str, header: str | None, names: Collection[str]) -> None:
    """Raises ApiError for a Host that is not a name of this broker. HTTP/1.0, which browsers do not use, has no Host."""
    if header is None or path in PROBES or ANY_HOST in names:
        return
    host = _host_of(header)
    if not _is_address(host) and not _is_localhost(host) and host not in {_plain(name) for name in names}:
        raise _forbidden(
            f"the Host {header[:SHOWN_CHARS]!r} is not a name of this broker; use an IP address or one of its names, or "
            "add the name to admin.allowed.hosts"
        )


def check_origin(method: str, headers: Mapping[str, str], scheme: str) -> None:
    """Raises ApiError for a change requested by a page of another origin."""
    if method in SAFE_METHODS:
        return
    site, origin = headers.get("Sec-Fetch-Site", "none"), headers.get("Origin")
    own = f"{scheme}://{headers.get('Host', '')}".lower()
    if site not in _OWN_SITES or (origin is not None and origin.lower() != own):
        raise _forbidden(
            f"a page of {origin[:SHOWN_CHARS] if origin else 'another site'} may not change state here; call the API "
            "from a program instead"
        )


def is_admitted(path: str, origin: str, allowed: Collection[str]) -> bool:
    """Whether a page of this origin may produce records here. `path` is not decoded."""
    if _RECORDS.fullmatch(path) is None or not origin.isascii():  # others cannot be told in a header of the answer
        return False
    return ANY_ORIGIN in allowed or origin.lower().rstrip("/") in {known.lower().rstrip("/") for known in allowed}


def cross_origin_headers(origin: str, *, preflight: bool = False) -> dict[str, str]:
    """Of an answer to an admitted page. Browsers send no cookies or kept passwords with such requests."""
    told = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
    if preflight:
        told |= {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "authorization, content-type",
            "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
        }
    return told


def check_media_type(content_type: str) -> None:
    """Raises ApiError for a body whose Content-Type is not JSON."""
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body has the Content-Type {content_type[:SHOWN_CHARS]}; send JSON with the header "
            "`Content-Type: application/json`",
        )


def _host_of(header: str) -> str:
    """Remove the port from `name:port` or `[v6]:port`. Empty for any other form."""
    found = _HOST.fullmatch(header.strip())
    return "" if found is None else _plain(found["v6"] or found["name"] or "")


def _plain(name: str) -> str:
    return name.strip().rstrip(".").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_localhost(host: str) -> bool:
    """RFC 6761, 6.3: these names never leave the machine."""
    return host == "localhost" or host.endswith(".localhost")


def _forbidden(message: str) -> ApiError:
    return ApiError(HTTPStatus.FORBIDDEN, HTTPStatus.FORBIDDEN, message)
