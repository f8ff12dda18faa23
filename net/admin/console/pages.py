"""The files of the web console, at `/` and `/console/`. They contain no data: what they show comes from the API.

The browser may run only these files and connect only to this broker (Content-Security-Policy): markup in a record or in a name is
text, and stays text.
"""

import hashlib
from functools import lru_cache
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from ..frame import shapes
from ..frame.call import Call, Reply, Route
from ..frame.errors import not_found

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered 304 by its ETag
}


@lru_cache(maxsize=1)
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and ETag by name: 60 KB, read once."""
    found: dict[str, tuple[bytes, str, str]] = {}
    for item in files(__package__).joinpath("static").iterdir():
        suffix = item.name[item.name.rfind(".") :]
        if suffix in _TYPES:
            content = item.read_bytes()
            found[item.name] = content, _TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return found


def _file(call: Call, name: str) -> Reply:
    if call.backend.console == "off":
        raise not_found("the console is disabled: admin.console=off")
    known = _files().get(name)
    if known is None:
        raise not_found(f"the console has no file {name[:80]!r}")
    content, content_type, etag = known
    headers = {**_HEADERS, "ETag": etag}
    if etag in call.known_etags:
        return Reply(status=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Reply(body=content, content_type=content_type, headers=headers)


async def _index(call: Call) -> Reply:
    return _file(call, "index.html")


async def _named(call: Call) -> Reply:
    return _file(call, call.path["file"])


async def _settings(call: Call) -> Reply:
    """What the pages need before anything else."""
    if call.backend.console == "off":
        raise not_found("the console is disabled: admin.console=off")
    return Reply(
        body={
            "cluster_id": call.image.cluster_id,
            "node_id": call.backend.node_id,
            "can_change": call.backend.console == "on",
            "has_registry": bool(call.backend.schema_registry),
            "is_secure": call.backend.access is not None,
        },
        headers={"Cache-Control": "no-store"},
    )


_SETTINGS: Final = (
    shapes.text("cluster_id", "The cluster."),
    shapes.whole("node_id", "This broker."),
    shapes.flag("can_change", "admin.console=on."),
    shapes.flag("has_registry", "admin.schema.registry.url is set."),
    shapes.flag("is_secure", "The cluster has permissions."),
)

ROUTES = (
    Route(method="GET", path="/", handler=_index, summary="The web console", media="text/html"),
    Route(
        method="GET",
        path="/console/settings",
        handler=_settings,
        summary="What the console needs first",
        answer=_SETTINGS,
    ),
    Route(
        method="GET", path="/console/{file}", handler=_named, summary="A file of the console", media="text/javascript"
    ),
)
