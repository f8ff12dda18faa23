"""ApiVersions' answer: what is served, in which versions. Pure."""

from typing import Any

from .apis import SERVED
from .compiler import types_of


def versions_response(error: int = 0) -> Any:
    """The ranges are told with an error too, so that a client of the future can come again (KIP-511)."""
    types = types_of("ApiVersionsResponse")
    keys = [
        types["ApiVersion"](api_key=key, min_version=served.versions.first, max_version=served.versions.last)
        for key, served in sorted(SERVED.items())
    ]
    return types["ApiVersionsResponse"](error_code=error, api_keys=keys)
