"""The permissions of one broker: from its configuration to the control that its dispatcher and its HTTP API ask."""

from collections.abc import Callable

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.acls import Operation

from ..base.clock import Clock
from ..base.settings.config import BrokerConfig
from ..base.settings.listeners import are_brokers_certified
from ..metadata.events.event_log import EventLog
from ..server.access.access import AccessControl
from ..server.access.audit import AuditLog, silent
from ..server.access.authorizer import AccessRules
from ..server.access.guard import Guard
from ..server.dispatcher import RequestContext
from .logins import believes_certificates


def audit_of(config: BrokerConfig, clock: Clock, events: EventLog) -> AuditLog:
    """Without an authorizer, the audit writes no lines: logins become events, and failures are logged by the listener."""
    if config.authorizer_class_name is None:
        return AuditLog(clock.now_ms, silent, record=events.record)
    return AuditLog(clock.now_ms, record=events.record)


def access_of(
    config: BrokerConfig, image: Callable[[], MetadataImage], audit: AuditLog, is_current: Callable[[], bool]
) -> AccessControl | None:
    """None: there is no authorizer, so every client may do everything."""
    if config.authorizer_class_name is None:
        return None
    rules = AccessRules(
        super_users=frozenset(config.super_users),
        allows_everyone_without_acl=config.allow_everyone_if_no_acl_found,
    )
    admin = config.admin_address()
    return AccessControl(
        image,
        rules,
        audit,
        brokers_are_certified=are_brokers_certified(config),
        callers_may_be_brokers=admin is not None and believes_certificates(config, admin.name),
        creates_topics=config.auto_create_topics_enable,
        is_current=is_current,
    )


def may_read_of(access: AccessControl | None) -> Callable[[RequestContext, str], bool]:
    """Whether a client may read a topic now: for sessions that outlive a change of permissions."""
    if access is None:
        return lambda client, topic: True
    return lambda client, topic: access.of(client).may_topic(Operation.READ, topic)


def guard_of(access: AccessControl | None) -> Guard | None:
    return None if access is None else Guard(access)
