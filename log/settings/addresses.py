"""Network addresses as configuration values: listeners, voters, and the addresses that a client starts with. Pure."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..vocabulary.node_address import NodeAddress, bracketed
from .kinds import ConfigType, Kind, comma_list, items_of

DEFAULT_LISTENER: Final = "PLAINTEXT"
SECURITY_PROTOCOLS: Final = (DEFAULT_LISTENER, "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # Kafka's
MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address that a broker listens on or is reached at. An empty host means every interface; port 0 any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{bracketed(self.host)}:{self.port}"


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as. One of IPv4 in the form of IPv6 (::ffff:192.0.2.7) is one of IPv4. None: a name, and
    no name is looked up."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        raise ValueError(f"{text!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "/" in host or " " in host:
        raise ValueError(f"{text!r} is not host:port (an IPv6 address goes in brackets)")
    return host, int(port)


def parse_bootstrap(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port[,host:port...]`, the port defaulting to 9092. Raises ValueError."""
    addresses = [item if ":" in item else f"{item}:9092" for item in items_of(text)]
    if not addresses:
        raise ValueError("the list of addresses is empty")
    return tuple(parse_address(item) for item in addresses)


def _read_listener(text: str) -> Listener:
    name, separator, address = text.partition("://")
    if not separator:
        name, address = DEFAULT_LISTENER, text
    host, port = parse_address(address)
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{name!r} is not a listener name (letters, digits, - and _)")
    return Listener(name=name.upper(), host=host, port=port)


def _read_listeners(text: str) -> tuple[Listener, ...]:
    listeners = tuple(_read_listener(item) for item in items_of(text))
    if not listeners:
        raise ValueError("the list of listeners is empty")
    _refuse_twice("listener name", (item.name for item in listeners))
    return listeners


def _read_protocols(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in items_of(text):
        name, colon, protocol = (part.strip().upper() for part in item.partition(":"))
        if not colon or not name or protocol not in SECURITY_PROTOCOLS:
            raise ValueError(f"{item!r} is not NAME:PROTOCOL")
        pairs.append((name, protocol))
    _refuse_twice("listener name", (name for name, _ in pairs))
    return tuple(pairs)


def _read_voter(text: str) -> NodeAddress:
    node_id, at, address = text.partition("@")
    if not at or not (node_id.isascii() and node_id.isdigit()):
        raise ValueError(f"{text!r} is not id@host:port")
    host, port = parse_address(address)
    return NodeAddress(node_id=int(node_id), host=host, port=port)


def _read_voters(text: str) -> tuple[NodeAddress, ...]:
    voters = tuple(_read_voter(item) for item in items_of(text))
    _refuse_twice("voter", (item.node_id for item in voters))
    return voters


def _refuse_twice(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name} is given twice")
        seen.add(name)


LISTENER: Final = Kind(type=ConfigType.STRING, allowed="host:port or NAME://host:port", read=_read_listener)
LISTENERS: Final = Kind(
    type=ConfigType.LIST,
    allowed="NAME://host:port or host:port, several separated by commas, each name once",
    read=_read_listeners,
    show=comma_list,
)
PROTOCOL_BY_LISTENER: Final = Kind(
    type=ConfigType.LIST,
    allowed=f"NAME:PROTOCOL, several separated by commas, each name once; protocols are {', '.join(SECURITY_PROTOCOLS)}",
    read=_read_protocols,
    show=lambda pairs: comma_list(f"{name}:{protocol}" for name, protocol in pairs),
)
VOTERS: Final = Kind(
    type=ConfigType.LIST,
    allowed="id@host:port, several separated by commas, each id once",
    read=_read_voters,
    show=comma_list,
)
