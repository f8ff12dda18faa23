"""The logins of a broker, from its configuration."""

from collections.abc import Callable

from barnabas.kraft.metadata.image import MetadataImage

from ..access.access import AccessControl
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
    access: AccessControl | None = None,
    tokens: Tokens | None = None,
    is_current: Callable[[], bool] = lambda: True,
) -> Authenticator:
    settings = LoginSettings(
        failure_delay_ms=config.connection_failed_authentication_delay_ms,
        max_session_ms=config.connections_max_reauth_ms,
    )
    audit = None if access is None else access.audit
    # Without an authorizer there is no audit; failures are logged.
    recorded = audit if isinstance(audit, AuditLog) else None
    return Authenticator(
        KnownUsers(image, users),
        settings,
        wall_ms=clock.wall_ms,
        audit=recorded,
        tokens=tokens,
        is_current=is_current,
    )
