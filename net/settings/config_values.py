"""The values of a broker's configuration: how each kind is written, read, checked and shown. The keys are in `config`.

A value that cannot be read raises InvalidConfigError with what is allowed; `config` adds the key and where it came from.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from barnabas.log.settings.config import DEFINITIONS, parse_boolean, parse_decimal, parse_whole
from barnabas.log.vocabulary.errors import InvalidConfigError

V = TypeVar("V")

DEFAULT_LISTENER: Final = "PLAINTEXT"
SECURITY_PROTOCOLS: Final = (DEFAULT_LISTENER, "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # Kafka's
MAX_PORT: Final = 65_535
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1
MAX_DOUBLE: Final = sys.float_info.max  # as Kafka says "without limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address that a broker listens on or is reached at. An empty host means every interface; port 0 any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One voter of the quorum and the address of its quorum port."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.node_id}@{_bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[V]):
    """A type of value. `name` is Kafka's word for it in DescribeConfigs."""

    name: str
    allowed: str  # in words, for the message that refuses a value
    read: Callable[[str], V]  # raises ValueError
    show: Callable[[V], str] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known about one key beside its name: it travels in the metadata of the field that holds the value."""

    kind: Kind[Any]
    documentation: str
    topic_key: str | None = None  # this key is the default of that key of topics
    nullable: bool = False  # an empty value means "not set"


def setting(default: Any, kind: Kind[Any], documentation: str, **rest: Any) -> Any:
    """A dataclass field that is a configuration key (its name with dots for underscores)."""
    known = Setting(kind=kind, documentation=documentation, nullable=default is None, **rest)
    return dataclasses.field(default=default, metadata={"setting": known})


def of_topics(topic_key: str) -> Kind[Any]:
    """The values of a topic's key: a broker's key that gives its default takes the same ones, read by the same parser."""
    definition = DEFINITIONS[topic_key]
    return Kind(
        name=definition.type.name, allowed=definition.allowed, read=definition.value_of, show=definition.text_of
    )


def topic_default(topic_key: str, documentation: str, *, nullable: bool = False, **rest: Any) -> Any:
    """A `setting` that is the default of that key of topics; a nullable one leaves it alone where it is not set."""
    definition = DEFINITIONS[topic_key]
    default = None if nullable else definition.value_of(definition.default)
    return setting(default, of_topics(topic_key), documentation, topic_key=topic_key, **rest)


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
    addresses = [item if ":" in item else f"{item}:9092" for item in _items(text)]
    if not addresses:
        raise ValueError("no address is given")
    return tuple(parse_address(item) for item in addresses)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _read_listener(text: str) -> Listener:
    name, separator, address = text.partition("://")
    if not separator:
        name, address = DEFAULT_LISTENER, text
    host, port = parse_address(address)
    if not name.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{name!r} is not a listener's name")
    return Listener(name=name.upper(), host=host, port=port)


def _read_listeners(text: str) -> tuple[Listener, ...]:
    listeners = tuple(_read_listener(item) for item in _items(text))
    if not listeners:
        raise ValueError("no listener is given")
    _refuse_twice("listener name", (item.name for item in listeners))
    return listeners


def _read_protocols(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in _items(text):
        name, colon, protocol = (part.strip().upper() for part in item.partition(":"))
        if not colon or not name or protocol not in SECURITY_PROTOCOLS:
            raise ValueError(f"{item!r} is not NAME:PROTOCOL")
        pairs.append((name, protocol))
    _refuse_twice("listener name", (name for name, _ in pairs))
    return tuple(pairs)


def _read_voter(text: str) -> Voter:
    node_id, at, address = text.partition("@")
    if not at or not (node_id.isascii() and node_id.isdigit()):
        raise ValueError(f"{text!r} is not id@host:port")
    host, port = parse_address(address)
    return Voter(node_id=int(node_id), host=host, port=port)


def _read_voters(text: str) -> tuple[Voter, ...]:
    voters = tuple(_read_voter(item) for item in _items(text))
    _refuse_twice("voter", (item.node_id for item in voters))
    return voters


def _refuse_twice(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name} is given twice")
        seen.add(name)


def _read_list(text: str) -> tuple[str, ...]:
    items = tuple(_items(text))
    if not items:
        raise ValueError("the list is empty")
    return items


def _comma_list(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def whole_number(low: int, high: int = MAX_INT32, name: str = "INT") -> Kind[int]:
    """An integer from `low` to `high`, both inclusive."""

    def read(text: str) -> int:
        value = parse_whole(text)
        if not low <= value <= high:
            raise ValueError("out of range")
        return value

    upper = f" to {high}" if high not in (MAX_INT32, MAX_INT64) else " or more"
    return Kind(name=name, allowed=f"a whole number, {low}{upper}", read=read)


def large_number(low: int) -> Kind[int]:
    """A 64-bit integer, `low` or more: times and sizes."""
    return whole_number(low, MAX_INT64, "LONG")


def decimal(low: float, high: float = MAX_DOUBLE) -> Kind[float]:
    """A number from `low` to `high`, both inclusive, with or without decimals."""

    def read(text: str) -> float:
        value = parse_decimal(text)
        if not low <= value <= high:
            raise ValueError("out of range")
        return value

    upper = f" to {high:g}" if high != MAX_DOUBLE else " or more"
    return Kind(name="DOUBLE", allowed=f"a number, {low:g}{upper}", read=read)


def some_of(*choices: str) -> Kind[str]:
    """Some of the words, as a comma-separated list."""

    def read(text: str) -> str:
        items = _read_list(text)
        if not set(items) <= set(choices):
            raise ValueError(f"{text!r} has an item that is not a choice")
        return ",".join(items)

    return Kind(name="LIST", allowed="a comma-separated list of " + ", ".join(choices), read=read)


BOOLEAN: Final = Kind(
    name="BOOLEAN", allowed="true or false", read=parse_boolean, show=lambda value: str(value).lower()
)
TEXT: Final = Kind(name="STRING", allowed="a string", read=str)
LIST: Final = Kind(name="LIST", allowed="a comma-separated list", read=_read_list, show=_comma_list)
LISTENER: Final = Kind(name="STRING", allowed="host:port or NAME://host:port", read=_read_listener)
LISTENERS: Final = Kind(
    name="LIST",
    allowed="NAME://host:port or host:port, several separated by commas, each name once",
    read=_read_listeners,
    show=_comma_list,
)
PROTOCOL_BY_LISTENER: Final = Kind(
    name="LIST",
    allowed=f"NAME:PROTOCOL, several separated by commas, each name once; protocols are {', '.join(SECURITY_PROTOCOLS)}",
    read=_read_protocols,
    show=lambda pairs: ",".join(f"{name}:{protocol}" for name, protocol in pairs),
)
VOTERS: Final = Kind(
    name="LIST",
    allowed="id@host:port, several separated by commas, each id once",
    read=_read_voters,
    show=_comma_list,
)


_SECURITY_KEYS: Final = ("ssl.", "sasl.", "listener.name.", "authorizer.", "super.users", "allow.everyone.if.no.acl")


def unknown_key(key: str, known: Iterable[str]) -> InvalidConfigError:
    """The error for a key that nobody knows; it names the nearest one that is known."""
    import difflib  # here, because every start of a broker imports this module and few meet an unknown key

    if key.startswith(_SECURITY_KEYS):
        return InvalidConfigError(
            f"unknown configuration key {key}: TLS, SASL and access control are not available yet"
        )
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    cure = f"did you mean {near[0]}?" if near else "see `barnabas broker start --help` for where the keys are listed"
    return InvalidConfigError(f"unknown configuration key {key}: {cure}")


def parse_properties(text: str) -> dict[str, str]:
    """Read a Java-style properties file: `key=value`, `key: value`, `#` and `!` comments, `\\` continues a line.

    Raises InvalidConfigError for a line without a key and for a key that stands twice with different values: which one
    was meant is not ours to guess.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        cut = min((line.find(mark) for mark in "=:" if mark in line), default=len(line))
        key, value = line[:cut].strip(), line[cut + 1 :].strip()
        if not key or cut == len(line):
            raise InvalidConfigError(f"line {number} is not key=value: {line!r}")
        if found.get(key, value) != value:
            raise InvalidConfigError(f"line {number}: {key} is given twice, as {found[key]!r} and {value!r}; keep one")
        found[key] = value
    return found


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    pending = ""
    start = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending
