"""Checks of the listener keys together: security protocols, and hosts that others can connect to. Pure.

A listener never promises more protection than it has: voters do not log in by SASL, so their listener must not have the name of
such a protocol, and where brokers log in to each other, their certificates still say which broker each one is.
"""

import dataclasses
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from barnabas.log.settings import listener_keys
from barnabas.log.settings.addresses import DEFAULT_LISTENER, SECURITY_PROTOCOLS, Listener, ip_of
from barnabas.log.vocabulary.errors import InvalidConfigError

from ..sasl.credentials import Credentials
from ..sasl.jaas import has_other_users, user_and_password

if TYPE_CHECKING:
    from .config import BrokerConfig

SASL: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
TLS: Final = "SSL"  # Kafka's name
ENCRYPTED: Final = frozenset({TLS, "SASL_SSL"})
HTTPS: Final = "HTTPS"  # The name that asks for TLS on the HTTP listener.
MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
KEYSTORE: Final = "ssl.keystore.location"


def binds_all_interfaces(host: str) -> bool:
    """Return whether a server can listen on this address, but no client can connect to it."""
    if host in ("", "*"):
        return True
    address = ip_of(host)
    return _is_zero_as_resolvers_read_it(host) if address is None else address.is_unspecified


def _is_zero_as_resolvers_read_it(host: str) -> bool:
    """Resolvers read `0`, `0x0` and `00.0.0.0` as 0.0.0.0, too. Only numbers are parsed: no name is looked up."""
    try:
        return socket.inet_aton(host) == bytes(4)
    except (OSError, ValueError):  # ValueError: the host contains a zero byte or a character that is not ASCII
        return False


def protocol_of(config: "BrokerConfig", name: str) -> str:
    """The security protocol of a listener: that of the map, else the one that the name says, else PLAINTEXT."""
    found = dict(config.listener_security_protocol_map).get(name)
    return found or (name if name in SECURITY_PROTOCOLS else DEFAULT_LISTENER)


def is_encrypted(config: "BrokerConfig", name: str) -> bool:
    """Does this listener of clients or brokers speak TLS?"""
    return protocol_of(config, name) in ENCRYPTED


def has_logins(config: "BrokerConfig", name: str) -> bool:
    """Must clients of this listener log in by SASL?"""
    return protocol_of(config, name) in SASL


def is_quorum_encrypted(config: "BrokerConfig") -> bool:
    """The voters prove who they are to each other where brokers encrypt what they tell each other."""
    return is_encrypted(config, config.inter_broker_listener())


def accepts_plain_text(config: "BrokerConfig") -> bool:
    """Do the ports of brokers and voters also accept plain text, because the cluster changes to TLS?"""
    return config.tls_transition != "off"


def dials_plain_text(config: "BrokerConfig") -> bool:
    """Does this broker still connect to others in plain text, because they may not accept TLS yet?"""
    return config.tls_transition == "accept"


def are_brokers_certified(config: "BrokerConfig") -> bool:
    """Must whoever speaks as a broker show a broker's certificate?"""
    return is_quorum_encrypted(config) and not accepts_plain_text(config)


def is_admin_encrypted(config: "BrokerConfig") -> bool:
    address = config.admin_address()
    return address is not None and (address.name == HTTPS or is_encrypted(config, address.name))


def check_listeners(config: "BrokerConfig") -> None:
    """Raises InvalidConfigError for a listener whose protocol is not available, and for one that others cannot reach."""
    listeners, protocols = config.client_listeners(), dict(config.listener_security_protocol_map)
    names = [item.name for item in listeners]
    for key, used in (
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
    _check_inter_broker(config)
    _check_logins(config)
    _check_transition(config)
    for item in _present(config.quorum_listener):
        _check_quorum(config, f"quorum.listener={item}", item.name)
    _check_own_keys(config)
    _check_keystore(config)
    _check_authorizer(config)
    _check_hosts(config)


def _check_authorizer(config: "BrokerConfig") -> None:
    """Where brokers encrypt, their certificates tell which broker one is: then all of them must be asked for it."""
    given = {
        "super.users": bool(config.super_users),
        "allow.everyone.if.no.acl.found": config.allow_everyone_if_no_acl_found,
    }
    if config.authorizer_class_name is None:
        for key in (key for key, is_set in given.items() if is_set):
            raise InvalidConfigError(
                f"{key} has no effect without an authorizer; set authorizer.class.name=acl, or remove it"
            )
    elif (
        are_brokers_certified(config)
        and not has_logins(config, config.inter_broker_listener())  # there, brokers are always asked
        and _of_brokers(config).ssl_client_auth == "none"
    ):
        raise InvalidConfigError(
            "authorizer.class.name needs ssl.client.auth=required or requested at the listener of brokers, "
            f"{config.inter_broker_listener()}, because brokers show each other by their certificates who they are"
        )


def _check_inter_broker(config: "BrokerConfig") -> None:
    protocol = config.security_inter_broker_protocol
    if protocol is None:
        return
    if config.inter_broker_listener_name is not None:
        raise InvalidConfigError("set inter.broker.listener.name or security.inter.broker.protocol, not both")
    if not any(protocol_of(config, item.name) == protocol for item in config.client_listeners()):
        raise InvalidConfigError(
            f"security.inter.broker.protocol={protocol}: none of listeners has this protocol; add {protocol}://HOST:PORT"
        )


def _check_logins(config: "BrokerConfig") -> None:
    """Brokers may log in to each other, beside the certificates that they show."""
    name, mechanism = config.inter_broker_listener(), config.sasl_mechanism_inter_broker_protocol
    protocol = protocol_of(config, name)
    where = f"the listener of brokers, {name}, has the protocol {protocol}"
    if not has_logins(config, name):
        if mechanism is not None:
            raise InvalidConfigError(
                f"{MECHANISM}={mechanism} has no effect, because {where}; use SASL_SSL, or remove it"
            )
        return
    if not is_encrypted(config, name):
        raise InvalidConfigError(
            f"{where}: a login alone does not say which broker it is, and the quorum would be in plain text; use SASL_SSL, "
            f"{_or_another(name, protocol)}"
        )
    if mechanism is None:
        raise InvalidConfigError(
            f"{where}, so brokers log in to each other: set {MECHANISM} and {_jaas_key(name, 'SCRAM-SHA-256')}, "
            f"{_or_another(name, protocol)}"
        )
    if mechanism not in mechanisms_of(config, name):
        raise InvalidConfigError(
            f"{MECHANISM}={mechanism}: the listener {name} does not accept it; add it to sasl.enabled.mechanisms"
        )
    broker_login(config)


def _or_another(name: str, protocol: str) -> str:
    return (
        "or add a listener for brokers, like BROKERS://host:port with inter.broker.listener.name=BROKERS and "
        f"{PROTOCOL_MAP}={name}:{protocol},BROKERS:{TLS}"
    )


def broker_login(config: "BrokerConfig") -> Credentials | None:
    """What this broker logs in to others with; None: its certificate is enough. Raises InvalidConfigError, which shows no
    password."""
    name, mechanism = config.inter_broker_listener(), config.sasl_mechanism_inter_broker_protocol
    if mechanism is None:
        return None
    key = _jaas_key(name, mechanism)
    jaas: str | None = config.of_listeners.get(name, {}).get(f"{mechanism.lower()}.{listener_keys.LOGIN}")
    if jaas is None:
        raise InvalidConfigError(f"{MECHANISM}={mechanism} needs {key}: the user and the password of this broker")
    if has_other_users(jaas):
        raise InvalidConfigError(
            f"{key}: users of PLAIN are those of the cluster (barnabas user add) and of sasl.users.file; remove the options "
            "user_*"
        )
    try:
        user, password = user_and_password(jaas)
    except ValueError as error:
        raise InvalidConfigError(f"{key} {error}") from None
    if not user or not password:
        raise InvalidConfigError(f"{key}: the user or the password is empty")
    return Credentials(mechanism=mechanism, user=user, password=password)


def _own_login_key(config: "BrokerConfig") -> str | None:
    mechanism = config.sasl_mechanism_inter_broker_protocol
    return None if mechanism is None else _jaas_key(config.inter_broker_listener(), mechanism)


def _jaas_key(listener: str, mechanism: str) -> str:
    return f"{listener_keys.PREFIX}{listener.lower()}.{mechanism.lower()}.{listener_keys.LOGIN}"


def mechanisms_of(config: "BrokerConfig", name: str) -> tuple[str, ...]:
    """How clients of this listener log in; (): they do not."""
    return config.for_listener(name).sasl_enabled_mechanisms if has_logins(config, name) else ()


def _check_transition(config: "BrokerConfig") -> None:
    if accepts_plain_text(config) and has_logins(config, config.inter_broker_listener()):
        raise InvalidConfigError(
            f"tls.transition={config.tls_transition}: brokers that come in plain text would have to send passwords; change the "
            f"listener of brokers to {TLS} first, then to SASL_SSL by a listener of another name"
        )
    if accepts_plain_text(config) and not is_quorum_encrypted(config):
        raise InvalidConfigError(
            f"tls.transition={config.tls_transition} has no effect, because the listener of brokers, "
            f"{config.inter_broker_listener()}, has no TLS; set its protocol to {TLS} in {PROTOCOL_MAP}, or remove the setting"
        )


def shows_certificate(config: "BrokerConfig") -> bool:
    return config.ssl_keystore_location is not None or config.ssl_keystore_key is not None


def trusted(config: "BrokerConfig") -> tuple[str | None, str | None]:
    """Who signs for others: the file, or the certificates themselves."""
    return config.ssl_truststore_location, config.ssl_truststore_certificates


def _check_keystore(config: "BrokerConfig") -> None:
    for used in (config, *map(config.for_listener, config.of_listeners)):
        _check_inline(used)
    encrypted = [item for item in config.client_listeners() if is_encrypted(config, item.name)]
    encrypted += [item for item in _present(config.admin_address()) if is_admin_encrypted(config)]
    for item in encrypted:
        if not shows_certificate(config.for_listener(item.name)):
            raise InvalidConfigError(
                f"{item} needs a certificate: set {KEYSTORE} to a PEM file with the private key and the certificate"
            )
    if is_quorum_encrypted(config) and not any(trusted(_of_brokers(config))):
        raise InvalidConfigError(
            "brokers that connect to each other by TLS need ssl.truststore.location: a PEM file with the authority that signs "
            "their certificates, and no other; a program with a certificate that it signed for a broker is a broker"
        )


def _check_inline(config: "BrokerConfig") -> None:
    """Keys and certificates in the configuration itself (KIP-651)."""
    key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    if (key is None) is not (chain is None):
        raise InvalidConfigError("set ssl.keystore.key and ssl.keystore.certificate.chain, both or none of them")
    if key is not None and config.ssl_keystore_location is not None:
        raise InvalidConfigError(f"set {KEYSTORE} or ssl.keystore.key, not both")
    if all(trusted(config)):
        raise InvalidConfigError("set ssl.truststore.location or ssl.truststore.certificates, not both")


def pem_files(config: "BrokerConfig") -> list[str]:
    """The files with certificates that any listener uses."""
    names = (item.name for item in (*config.client_listeners(), *_present(config.admin_address())))
    used = [config, *map(config.for_listener, names)]
    paths = ((item.ssl_keystore_location, item.ssl_truststore_location) for item in used)
    return list(dict.fromkeys(path for pair in paths for path in pair if path))


def _of_brokers(config: "BrokerConfig") -> "BrokerConfig":
    """With what the listener of brokers has for itself; the voters use the same certificates."""
    return config.for_listener(config.inter_broker_listener())


def _check_own_keys(config: "BrokerConfig") -> None:
    """Keys of single listeners: such a listener must exist, and have what the key is about."""
    admin = [item.name for item in _present(config.admin_address())]
    names = [item.name for item in config.client_listeners()]
    for listener, own in config.of_listeners.items():
        for key in own:
            whole = f"{listener_keys.PREFIX}{listener.lower()}.{key}"
            if listener not in (*names, *admin):
                raise InvalidConfigError(
                    f"{whole}: no such listener; there are {', '.join((*names, *admin))}, and voters use what the listener of "
                    "brokers has"
                )
            encrypts = is_encrypted(config, listener) if listener in names else is_admin_encrypted(config)
            if key.startswith("ssl.") and not encrypts:
                raise InvalidConfigError(f"{whole} has no effect, because the listener {listener} has no TLS")
            if "sasl." in key and (listener not in names or not has_logins(config, listener)):
                raise InvalidConfigError(f"{whole} has no effect, because no client logs in at the listener {listener}")
            if key.endswith(listener_keys.LOGIN) and whole != _own_login_key(config):
                raise InvalidConfigError(
                    f"{whole} has no effect: brokers log in at their own listener, {config.inter_broker_listener()}, by "
                    f"{MECHANISM}, if that is set"
                )


def check_without_effect(config: "BrokerConfig", given: Mapping[str, str]) -> None:
    """Some keys are ignored. If they ask for protection that is not there, they must not be ignored."""
    protocols = dict(config.listener_security_protocol_map)
    for name in given.get("controller.listener.names", "").split(","):
        _check_protocol("controller.listener.names", name.strip().upper(), protocols)
        _check_quorum(config, "controller.listener.names", name.strip().upper())


def _check_quorum(config: "BrokerConfig", where: str, name: str) -> None:
    if is_encrypted(config, name) and not is_quorum_encrypted(config):
        raise InvalidConfigError(
            f"{where}: the listener {name} asks for {TLS}, but the voters encrypt their connections only where brokers do; "
            f"set security.inter.broker.protocol={TLS}"
        )


def _check_protocol(where: str, name: str, protocols: Mapping[str, str]) -> None:
    protocol = protocols.get(name, name)
    if protocol in SASL:
        raise InvalidConfigError(
            f"{where}: the listener {name} asks for {protocol}, but only the listeners of clients have SASL; use SSL, or a name "
            f"of your own (INTERNAL://host:port) with {PROTOCOL_MAP}=INTERNAL:SSL or INTERNAL:PLAINTEXT"
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
