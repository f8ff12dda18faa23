"""Checks of the listener keys together: security protocols, and hosts that others can connect to. Pure.

Listeners with the names of Kafka's encrypted or authenticated protocols are refused, because every listener speaks plain text
so far: a server.properties file that was written for Kafka must not run without the protection that it asks for.
"""

import dataclasses
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.log.settings.addresses import DEFAULT_LISTENER, Listener
from barnabas.log.vocabulary.errors import InvalidConfigError

if TYPE_CHECKING:
    from .config import BrokerConfig

# Kafka's security protocols other than PLAINTEXT, and the name that asks for TLS on an HTTP listener.
PROTECTED: Final = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL", "HTTPS"})
PROTOCOL_MAP: Final = "listener.security.protocol.map"
NOT_AVAILABLE: Final = "TLS and SASL are not available yet"


def binds_all_interfaces(host: str) -> bool:
    """Return whether a server can listen on this address, but no client can connect to it."""
    if host in ("", "*"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _is_zero_as_resolvers_read_it(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_unspecified


def _is_zero_as_resolvers_read_it(host: str) -> bool:
    """Resolvers read `0`, `0x0` and `00.0.0.0` as 0.0.0.0, too. Only numbers are parsed: no name is looked up."""
    try:
        return socket.inet_aton(host) == bytes(4)
    except (OSError, ValueError):  # ValueError: the host contains a zero byte or a character that is not ASCII
        return False


def check_listeners(config: "BrokerConfig") -> None:
    """Raises InvalidConfigError for a listener with a protected protocol, and for one that others cannot reach."""
    listeners, protocols = config.client_listeners(), dict(config.listener_security_protocol_map)
    names = [item.name for item in listeners]
    for key, used in (
        ("listeners", listeners),
        ("advertised.listeners", config.advertised_listeners),
        ("quorum.listener", _present(config.quorum_listener)),
        ("admin.listener", _present(config.admin_address())),
    ):
        for item in used:
            _check_protocol(f"{key}={item}", item.name, protocols)
    for item in listeners:
        if protocols and item.name not in protocols and item.name != DEFAULT_LISTENER:
            raise InvalidConfigError(
                f"listeners={item}: {PROTOCOL_MAP} does not name this listener; add {item.name}:PLAINTEXT"
            )
    wanted = config.inter_broker_listener_name
    if wanted is not None and wanted not in names:
        raise InvalidConfigError(
            f"inter.broker.listener.name={wanted}: no such listener; listeners has {', '.join(names)}"
        )
    for item in config.advertised_listeners:
        if item.name not in names:
            raise InvalidConfigError(f"advertised.listeners: {item.name} is not one of listeners ({', '.join(names)})")
    _check_hosts(config)


def check_without_effect(given: Mapping[str, str], protocols: Mapping[str, str]) -> None:
    """Some keys are ignored because they ask for plain text. If they ask for TLS or SASL, they must not be ignored."""
    between_brokers = given.get("security.inter.broker.protocol", DEFAULT_LISTENER).strip().upper()
    if between_brokers != DEFAULT_LISTENER:
        raise InvalidConfigError(
            f"security.inter.broker.protocol={between_brokers}: {NOT_AVAILABLE}; use {DEFAULT_LISTENER}"
        )
    for name in given.get("controller.listener.names", "").split(","):
        _check_protocol("controller.listener.names", name.strip().upper(), protocols)


def _check_protocol(where: str, name: str, protocols: Mapping[str, str]) -> None:
    protocol = protocols.get(name, name)
    if protocol in PROTECTED:
        raise InvalidConfigError(
            f"{where}: the listener {name} asks for {protocol}, but {NOT_AVAILABLE}, so it would be served in plain "
            f"text; use PLAINTEXT or a name of your own (INTERNAL://host:port), or accept plain text with "
            f"{PROTOCOL_MAP}={name}:PLAINTEXT"
        )


def _check_hosts(config: "BrokerConfig") -> None:
    for item in config.advertised_listeners:
        if binds_all_interfaces(item.host):
            raise InvalidConfigError(f"advertised.listeners={item}: clients cannot connect to this address; {_CURE}")
    advertised = {item.name for item in config.advertised_listeners}
    for item in config.client_listeners():
        # An empty host means the name of this machine, as in Kafka (`advertise_name`).
        if item.host and binds_all_interfaces(item.host) and item.name not in advertised:
            raise InvalidConfigError(
                f"listeners={item}: the listener binds every interface, and the broker would advertise {item.host}, to which "
                f"clients cannot connect; add {item.name}://HOST:{item.port} to advertised.listeners with a HOST that "
                f"clients and brokers can reach, or write {item.name}://:{item.port} to use this machine's name"
            )
    for voter in config.controller_quorum_voters:
        if binds_all_interfaces(voter.host):
            raise InvalidConfigError(f"controller.quorum.voters={voter}: other voters cannot connect to it; {_CURE}")
    if config.quorum_listener is not None and binds_all_interfaces(config.quorum_listener.host):
        raise InvalidConfigError(f"quorum.listener={config.quorum_listener}: voters cannot connect to it; {_CURE}")


_CURE: Final = "use a host that others can reach"


def advertise_name(config: "BrokerConfig", machine: str) -> "BrokerConfig":
    """Advertise this machine's name for listeners without a host, as Kafka does."""
    advertised = {item.name for item in config.advertised_listeners}
    by_name = tuple(
        dataclasses.replace(item, host=machine)
        for item in config.client_listeners()
        if not item.host and item.name not in advertised
    )
    return dataclasses.replace(config, advertised_listeners=(*config.advertised_listeners, *by_name))


def needs_name(config: "BrokerConfig") -> bool:
    """Return whether a listener is to be advertised with this machine's name."""
    advertised = {item.name for item in config.advertised_listeners}
    return any(not item.host and item.name not in advertised for item in config.client_listeners())


def reachable_host(config: "BrokerConfig", host: str) -> str:
    """`host`, or the host at which others reach this broker if `host` binds all interfaces."""
    if not binds_all_interfaces(host):
        return host
    wanted = config.inter_broker_listener()
    known = (*config.advertised_listeners, *config.client_listeners())
    found = [item.host for item in sorted(known, key=lambda item: item.name != wanted)]
    return next((item for item in found if not binds_all_interfaces(item)), host)


def own_names(config: "BrokerConfig", machine: str) -> frozenset[str]:
    """The host names that the HTTP API accepts: those of this broker, and those of `admin.allowed.hosts`."""
    known = (*config.advertised_listeners, *config.client_listeners(), *_present(config.admin_address()))
    return frozenset({machine, *(item.host for item in known if item.host), *config.admin_allowed_hosts})


def _present(item: Listener | None) -> Iterable[Listener]:
    return () if item is None else (item,)
