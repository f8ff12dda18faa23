"""The logins of a broker, from its configuration."""

from collections.abc import Callable

from barnabas.kraft.metadata.image import MetadataImage

from ..access.audit import AuditLog
from ..base.clock import Clock
from ..logins.authenticator import Authenticator, LoginSettings
from ..logins.users import KnownUsers
from ..sasl.oauthbearer import Tokens
from ..sasl.verifiers import UserFile
from ..settings.config import BrokerConfig


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
        KnownUsers(image, users),
        settings,
        wall_ms=clock.wall_ms,
        audit=audit,
        tokens=tokens,
        is_current=is_current,
    )
