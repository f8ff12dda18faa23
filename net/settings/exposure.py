"""Listeners in plain text accept connections of this machine only, unless the operator allows more. Pure.

Any client that reaches such a port can do what operators do.

A host name counts as another machine's: nothing is looked up, and what a name means may change after the check.
"""

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from barnabas.log.vocabulary.errors import InvalidConfigError

from .listeners import accepts_plain_text, is_admin_encrypted, is_encrypted, is_quorum_encrypted

if TYPE_CHECKING:
    from .config import BrokerConfig

ALLOW: Final = "allow.plaintext.listeners"


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def check_exposure(config: "BrokerConfig") -> None:
    """Raises InvalidConfigError for a port in plain text that other machines can reach."""
    if config.allow_plaintext_listeners:
        return
    for key, address, host in _in_plain_text(config):
        if not is_loopback(host):
            raise InvalidConfigError(
                f"{key}={address}: other machines can reach this listener in plain text, and a program that connects can read, "
                f"change and delete everything. Use SSL (docs/security.md), listen on {_HERE}, or set {ALLOW}=true if the "
                "network is trusted"
            )


_HERE: Final = "127.0.0.1"


def _in_plain_text(config: "BrokerConfig") -> Iterator[tuple[str, object, str]]:
    """Key, address and host of each port that accepts plain text."""
    for item in config.client_listeners():
        is_between_brokers = item.name == config.inter_broker_listener()
        if not is_encrypted(config, item.name) or (is_between_brokers and accepts_plain_text(config)):
            yield "listeners", item, item.host
    admin = config.admin_address()
    if admin is not None and not is_admin_encrypted(config):
        yield "admin.listener", admin, admin.host
    if is_quorum_encrypted(config) and not accepts_plain_text(config):
        return
    for voter in config.voters():
        if voter.node_id == config.node_id:
            yield "controller.quorum.voters", voter, voter.host
    if config.quorum_listener is not None:
        yield "quorum.listener", config.quorum_listener, config.quorum_listener.host
