"""Listeners in plain text accept connections of this machine only, unless the operator allows more. So does the HTTP API, if it
would serve everyone while clients must show who they are. Pure.

Any program that reaches such a port can do what operators do.

A host name counts as another machine's: nothing is looked up, and what a name means may change after the check.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from barnabas.log.settings.addresses import ip_of
from barnabas.log.vocabulary.errors import InvalidConfigError

from .listeners import accepts_plain_text, has_logins, is_admin_encrypted, is_encrypted, is_quorum_encrypted

if TYPE_CHECKING:
    from .config import BrokerConfig

ALLOW: Final = "allow.plaintext.listeners"
ALLOW_ANONYMOUS: Final = "allow.anonymous.admin"


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    address = ip_of(host)
    return address is not None and address.is_loopback


def check_exposure(config: "BrokerConfig") -> None:
    """Raises InvalidConfigError for a port in plain text, or an HTTP API for everyone, that other machines can reach."""
    _check_admin(config)
    if config.allow_plaintext_listeners:
        return
    for key, address, host in _in_plain_text(config):
        if not is_loopback(host):
            raise InvalidConfigError(
                f"{key}={address}: other machines can reach this listener in plain text, and a program that connects can read, "
                f"change and delete everything. Use SSL (docs/security.md), listen on {_HERE}, or set {ALLOW}=true if the "
                "network is trusted"
            )


def _check_admin(config: "BrokerConfig") -> None:
    admin = config.admin_address()
    if admin is None or is_loopback(admin.host) or config.authorizer_class_name is not None:
        return
    is_certified = is_admin_encrypted(config) and config.for_listener(admin.name).ssl_client_auth == _REQUIRED
    strict = next((item for item in config.client_listeners() if _demands_identity(config, item.name)), None)
    if is_certified or strict is None or config.allow_anonymous_admin:
        return
    raise InvalidConfigError(
        f"admin.listener={admin}: other machines can reach the HTTP API, which would serve everyone, while clients of {strict} "
        "must show who they are. Set authorizer.class.name=acl, or ssl.client.auth=required for it (docs/security.md), listen on "
        f"{_HERE}, or set {ALLOW_ANONYMOUS}=true if the network is trusted"
    )


def _demands_identity(config: "BrokerConfig", listener: str) -> bool:
    """Of clients. What brokers demand of each other at a listener of their own does not count."""
    if listener == config.inter_broker_listener() and len(config.client_listeners()) > 1:
        return False
    by_certificate = is_encrypted(config, listener) and config.for_listener(listener).ssl_client_auth == _REQUIRED
    return has_logins(config, listener) or by_certificate


_HERE: Final = "127.0.0.1"
_REQUIRED: Final = "required"


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
