"""Who may call the admin API from a browser: a page of somebody else's must not, whatever name it resolves to us. Pure.

A browser on a machine that reaches the admin port is a way in for any page that it shows. Three checks close it:

- Host (DNS rebinding): a page of evil.example whose name resolves to this broker is of the same origin as the API, but its
  requests still say `Host: evil.example`. Only names of this broker pass; an IP address cannot be rebound, so all pass.
- Origin and Sec-Fetch-Site (cross-site requests): what changes state is refused to pages of another origin.
- Content-Type: a form or a "simple" request of another page cannot say application/json without asking first (CORS), and
  nothing here answers such a question.

Programs that are no browsers (curl, Prometheus, clients) send neither Origin nor Sec-Fetch-Site.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Final

from .errors import SHOWN_CHARS, ApiError

ANY_HOST: Final = "*"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110, 9.2.1
PROBES: Final = frozenset({"/healthz", "/readyz"})  # Load balancers ask under any name; the answer is no secret.
_HOST: Final = re.compile(r"(\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(:[0-9]*)?")  # RFC 9110, 7.2
_OWN_SITES: Final = frozenset({"same-origin", "none"})  # "none": typed by the user


def check_host(path: str, header: str | None, names: Collection[str]) -> None:
    """Raises ApiError for a Host that is no name of this broker. HTTP/1.0 has none, and browsers do not speak it."""
    if header is None or path in PROBES or ANY_HOST in names:
        return
    host = _host_of(header)
    if not _is_address(host) and not _is_localhost(host) and host not in {_plain(name) for name in names}:
        raise _forbidden(
            f"the Host {header[:SHOWN_CHARS]!r} is not a name of this broker; use an IP address or one of its names, or "
            "add the name to admin.allowed.hosts"
        )


def check_origin(method: str, headers: Mapping[str, str], scheme: str) -> None:
    """Raises ApiError for a change that a page of another origin asks for."""
    if method in SAFE_METHODS:
        return
    site, origin = headers.get("Sec-Fetch-Site", "none"), headers.get("Origin")
    own = f"{scheme}://{headers.get('Host', '')}".lower()
    if site not in _OWN_SITES or (origin is not None and origin.lower() != own):
        raise _forbidden(
            f"a page of {origin[:SHOWN_CHARS] if origin else 'another site'} may not change anything here; call the API "
            "from a program"
        )


def check_media_type(content_type: str) -> None:
    """Raises ApiError for a body that is not declared as JSON."""
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body has the Content-Type {content_type[:SHOWN_CHARS]}; send JSON with the header "
            "`Content-Type: application/json`",
        )


def _host_of(header: str) -> str:
    """Without the port: `name:port`, `[v6]:port`. Empty for anything else."""
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
