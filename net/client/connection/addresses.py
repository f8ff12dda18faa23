"""Addresses as users write them: "host:port,host:port", also "[::1]:9092". Pure."""

from collections.abc import Iterable
from typing import Any

from .errors import InvalidConfigError

DEFAULT_PORT = 9092  # The client port of node 0.
Address = tuple[str, int]


def parse_bootstrap(bootstrap: str | Iterable[str] | None) -> tuple[Address, ...]:
    """Return the addresses in the order given. Raises InvalidConfigError, which shows the invalid part."""
    if bootstrap is None:
        raise InvalidConfigError('bootstrap is None; use "host:port,host:port"')
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else _listed(bootstrap)
    addresses = tuple(_parse(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise InvalidConfigError('bootstrap contains no address; use "host:port,host:port"')
    return addresses


def _listed(bootstrap: Any) -> list[str]:
    parts: list[str] = list(bootstrap) if isinstance(bootstrap, Iterable) else [bootstrap]
    for part in parts:
        if not isinstance(part, str):
            raise InvalidConfigError(f'bootstrap address {part!r} is not a str; use "host:port"')
    return parts


def _parse(text: str) -> Address:
    if "://" in text:
        raise InvalidConfigError(
            f"bootstrap address {text!r} is a URL; give host:port alone, such as localhost:{DEFAULT_PORT}"
        )
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        raise InvalidConfigError(f"bootstrap address {text!r}: write an IPv6 address in brackets, as in [::1]:9092")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise InvalidConfigError(f"bootstrap address {text!r} is invalid; use host:port")
    return host, int(port) if port else DEFAULT_PORT
