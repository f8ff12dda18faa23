"""A dispatcher with a guard, whose handlers note what reaches them; clients, permissions and an image as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace
from unit.net.shell_world import Client, broker, image_of, partition, topic

from barnabas.kraft.metadata.feature_levels import NEWEST_LEVEL
from barnabas.kraft.metadata.image import MetadataImage, SlotImage
from barnabas.log.vocabulary.access.acls import Acl, AclResource, Operation, Permission, ResourceKind
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.server.access.access import AccessControl
from barnabas.net.server.access.authorizer import AccessRules
from barnabas.net.server.access.guard import RULES, Guard
from barnabas.net.server.dispatcher import Dispatcher, Reply, RequestContext

ALICE = "User:alice"
ROOT = "User:root"
TOPICS = {"t": "0a" * 16, "secret": "0b" * 16}
KINDS = (ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER, ResourceKind.TRANSACTIONAL_ID)


def allow(operation: Operation, kind: ResourceKind, name: str = "*", **rest: Any) -> Acl:
    name = "kafka-cluster" if kind is ResourceKind.CLUSTER else name
    return Acl(kind=kind, name=name, principal=ALICE, operation=operation, **rest)


def everything(permission: Permission = Permission.ALLOW) -> tuple[Acl, ...]:
    return tuple(allow(Operation.ALL, kind, permission=permission) for kind in KINDS)


def by_resource(acls: Iterable[Acl]) -> dict[AclResource, tuple[Acl, ...]]:
    found: dict[AclResource, tuple[Acl, ...]] = {}
    for acl in acls:
        found[acl.resource] = (*found.get(acl.resource, ()), acl)
    return found


class NotedAudit:
    def __init__(self) -> None:
        self.denials: list[tuple[str, str, str]] = []
        self.changes: list[tuple[str, str, str]] = []

    def denied(self, client: Any, operation: str, kind: str, name: str) -> None:
        self.denials.append((operation, kind, name))

    def changed(self, client: Any, change: str, *, target: str, outcome: str) -> None:
        self.changes.append((change, target, outcome))


class AccessWorld:
    def __init__(
        self,
        *acls: Acl,
        respond: Callable[[Any], Any] = lambda request: None,
        certified: bool = False,
        everyone: bool = False,
    ) -> None:
        self.image = MetadataImage()
        self.levels = (NEWEST_LEVEL, NEWEST_LEVEL)  # that the brokers support
        self.set(*acls)
        self.audit = NotedAudit()
        self.reached: list[Any] = []
        self._respond = respond
        rules = AccessRules(super_users=frozenset({ROOT}), allows_everyone_without_acl=everyone)
        self.is_current = True
        control = AccessControl(
            lambda: self.image,
            rules,
            self.audit,
            brokers_are_certified=certified,
            is_current=lambda: self.is_current,
        )
        self.control = control
        self.dispatcher = Dispatcher(dict.fromkeys(RULES, self._handle), Guard(control))

    def set(self, *acls: Acl) -> None:
        image = image_of(
            *(replace(broker(number), max_feature_level=level) for number, level in enumerate(self.levels)),
            topics=tuple(topic(name, partition(0), topic_id=topic_id) for name, topic_id in TOPICS.items()),
            slots={number: SlotImage(coordinator=1, coordinator_epoch=3) for number in range(50)},
            offset=10,
        )
        self.image = replace(image, acls=by_resource(acls))

    def _handle(self, request: Any, context: RequestContext, reply: Reply) -> None:
        self.reached.append(request)
        response = self._respond(request)
        if response is not None:
            reply(response)

    def client(self, principal: str = ALICE, node_id: int | None = None) -> Client:
        client = Client()
        client.principal = Principal(name=principal.removeprefix("User:"))
        client.certified_node = node_id
        return client

    def ask(self, request: Any, client: Client | None = None) -> Client:
        """The client, with the reply if there is one."""
        asking = client or self.client()
        self.dispatcher.dispatch(request, asking, asking.reply)
        return asking
