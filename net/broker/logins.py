"""The logins of a broker, from its configuration."""

from collections.abc import Callable

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.principal import Principal, parse_principal

from ..base.clock import Clock
from ..base.sasl.oauthbearer import Tokens
from ..base.sasl.verifiers import UserFile
from ..base.settings.config import BrokerConfig
from ..base.settings.listeners import are_brokers_certified, broker_login, trusted
from ..server.access.audit import AuditLog
from ..server.logins.authenticator import Authenticator, LoginSettings
from ..server.logins.users import KnownUsers


def authenticator_of(
    config: BrokerConfig,
    users: UserFile,
    clock: Clock,
    image: Callable[[], MetadataImage],
    audit: AuditLog | None = None,
    tokens: Tokens | None = None,
    is_current: Callable[[], bool] = lambda: True,
) -> Authenticator:
    settings = LoginSettings(
        failure_delay_ms=config.connection_failed_authentication_delay_ms,
        max_session_ms=config.connections_max_reauth_ms,
    )
    return Authenticator(
        KnownUsers(image, users, broker_login(config)),
        settings,
        wall_ms=clock.wall_ms,
        audit=audit,
        tokens=tokens,
        is_current=is_current,
    )


def broker_users(config: BrokerConfig, listener: str) -> frozenset[Principal]:
    """The users of this listener who are brokers, if their certificates say so, too."""
    login = broker_login(config)
    if login is None or listener != config.inter_broker_listener():
        return frozenset()
    return frozenset({Principal(name=login.user), *map(parse_principal, config.super_users)})


def believes_certificates(config: BrokerConfig, listener: str) -> bool:
    """May a certificate make a client of this listener a broker? Where brokers also log in, only where they do it. Elsewhere, the
    listener must trust the same authorities as that of brokers: who signs for clients may sign for the name of a broker, too."""
    if not are_brokers_certified(config):
        return False
    of_brokers = config.inter_broker_listener()
    if broker_login(config) is not None:
        return listener == of_brokers
    return trusted(config.for_listener(listener)) == trusted(config.for_listener(of_brokers))
