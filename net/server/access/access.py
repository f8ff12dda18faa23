"""What one client may do: the decisions of the authorizer about its principal, remembered until a permission changes.

`AccessControl` follows the metadata and holds an `Access` for each client; an `Access` decides, raises the error of a refusal,
and has it written to the audit.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.vocabulary.access.acls import CLUSTER_NAME, OPERATIONS, Acl, AclResource, Operation, ResourceKind
from barnabas.log.vocabulary.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from barnabas.log.vocabulary.principal import Principal

from .authorizer import AccessRules, Authorizer

MAX_CLIENTS: Final = 10_000  # principals at their addresses whose decisions are remembered; then all are forgotten
MAX_DECISIONS: Final = 100_000  # of all clients, about 30 MB; then all are forgotten, as clients choose the names
MAX_REMEMBERED_LENGTH: Final = (
    256  # characters of a name: those of topics are shorter, and clients may send others of any length
)

_ERRORS: Final[dict[ResourceKind, type[AuthorizationError]]] = {
    ResourceKind.TOPIC: TopicAuthorizationError,
    ResourceKind.GROUP: GroupAuthorizationError,
    ResourceKind.CLUSTER: ClusterAuthorizationError,
    ResourceKind.TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
}


class Client(Protocol):
    """What a decision depends on; every request context has it."""

    @property
    def client_host(self) -> str: ...
    @property
    def principal(self) -> Principal: ...
    @property
    def certified_node(self) -> int | None: ...


class Audit(Protocol):
    def denied(self, client: Client, operation: str, kind: str, name: str) -> None:
        """A client was refused something."""

    def changed(self, client: Client, change: str, *, target: str, outcome: str) -> None:
        """An administrative request was executed, or has failed."""


class Access:
    """Decides for one client, by the newest permissions at each decision: a request may have waited since the last one.

    A broker that a certificate names, and a super user, may do everything (see `require_broker`).
    """

    __slots__ = ("_authorizer", "_control", "_decided", "client", "is_super", "name")

    def __init__(self, control: "AccessControl", authorizer: Authorizer, client: Client) -> None:
        self.client = client
        self.name = str(client.principal)
        self.is_super = client.certified_node is not None or authorizer.is_super_user(self.name)
        self._control = control
        self._authorizer = authorizer
        self._decided: dict[tuple[Operation, ResourceKind, str], bool] = {}

    @property
    def remembered(self) -> int:
        """The number of decisions that this client's next ones may need no more."""
        return len(self._decided)

    @property
    def image(self) -> MetadataImage:
        return self._control.image()

    @property
    def is_known(self) -> bool:
        """Is it known what this client may do? After its start, a broker has the permissions of an earlier time, or none."""
        return self.is_super or self._control.is_current()

    @property
    def creates_topics(self) -> bool:
        return self._control.creates_topics

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        if self.is_super:
            return True
        authorizer = self._newest()
        key = (operation, kind, name)
        found = self._decided.get(key)
        if found is None:
            found = authorizer.may(self.name, self._host, operation, kind, name)
            self._remember(key, found)
        return found

    def may_topic(self, operation: Operation, name: str) -> bool:
        return self.is_super or self.may(operation, ResourceKind.TOPIC, name)

    def may_cluster(self, operation: Operation) -> bool:
        return self.is_super or self.may(operation, ResourceKind.CLUSTER, CLUSTER_NAME)

    def may_create(self, topic: str) -> bool:
        return self.may_cluster(Operation.CREATE) or self.may_topic(Operation.CREATE, topic)

    def may_any(self, operation: Operation, kind: ResourceKind) -> bool:
        return self.is_super or self._remembered(
            (operation, kind, "\0any"), lambda newest: newest.may_any(self.name, self._host, operation, kind)
        )

    def may_all(self, operation: Operation, kind: ResourceKind, prefix: str) -> bool:
        return self.is_super or self._remembered(
            (operation, kind, f"\0all {prefix}"),
            lambda newest: newest.may_all(self.name, self._host, operation, kind, prefix),
        )

    def operations(self, kind: ResourceKind, name: str) -> int:
        """The operations that the client may do, one bit each (KIP-430)."""
        return sum(1 << operation for operation in OPERATIONS[kind] if self.may(operation, kind, name))

    def require(self, operation: Operation, kind: ResourceKind, name: str) -> None:
        """Raises an AuthorizationError."""
        if not self.may(operation, kind, name):
            raise self.refusal(operation, kind, name)

    def require_cluster(self, operation: Operation) -> None:
        """Raises ClusterAuthorizationError."""
        self.require(operation, ResourceKind.CLUSTER, CLUSTER_NAME)

    def require_broker(self, node_id: int | None = None) -> None:
        """Only brokers may do this, and a broker only as itself: `node_id` is whom the request speaks for.

        Where brokers show certificates to each other, the certificate decides, and no permission replaces it. Elsewhere, the
        principal needs CLUSTER_ACTION. Raises ClusterAuthorizationError.
        """
        certified = self.client.certified_node
        if not self._control.brokers_are_certified:
            self.require_cluster(Operation.CLUSTER_ACTION)
        elif certified is None or node_id not in (None, certified):
            raise self.refusal(Operation.CLUSTER_ACTION, ResourceKind.CLUSTER, CLUSTER_NAME)

    def refusal(self, operation: Operation, kind: ResourceKind, name: str) -> AuthorizationError:
        """The error for a client that may not do this, once it is in the audit."""
        self._control.audit.denied(self.client, operation.name, kind.name, name)
        return _ERRORS[kind](
            f"{self.name} has no permission to {operation.name} {kind.name} {name!r}: ask an administrator of the cluster for it"
        )

    def changed(self, change: str, *, target: str, outcome: str) -> None:
        """Tell the audit of an administrative change by this client."""
        self._control.audit.changed(self.client, change, target=target, outcome=outcome)

    @property
    def _host(self) -> str:
        return self.client.client_host

    def _remembered(self, key: tuple[Operation, ResourceKind, str], decide: Callable[[Authorizer], bool]) -> bool:
        """Names with a zero byte are of no resource."""
        newest = self._newest()
        found = self._decided.get(key)
        if found is None:
            found = decide(newest)
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[Operation, ResourceKind, str], decision: bool) -> None:
        if len(key[2]) > MAX_REMEMBERED_LENGTH:
            return
        self._control.count_decision()
        self._decided[key] = decision

    def _newest(self) -> Authorizer:
        """Forgets the decisions of earlier permissions."""
        authorizer = self._control.authorizer()
        if authorizer is not self._authorizer:
            self._authorizer = authorizer
            self._decided.clear()
        return authorizer

    def forget(self) -> None:
        self._decided.clear()


class AccessControl:
    """One for each broker."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        rules: AccessRules,
        audit: Audit,
        *,
        brokers_are_certified: bool,
        callers_may_be_brokers: bool = False,
        creates_topics: bool = True,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self.image = image
        self.is_current = is_current  # has the image what was committed before this process started?
        self.audit = audit
        self.brokers_are_certified = brokers_are_certified
        self.callers_may_be_brokers = callers_may_be_brokers  # of HTTP, by the certificates that they show
        self.creates_topics = creates_topics  # auto.create.topics.enable
        self._rules = rules
        self._acls: dict[AclResource, tuple[Acl, ...]] | None = None  # of the decisions
        self._authorizer = Authorizer({}, rules)
        self._clients: dict[tuple[Principal, str, int | None], Access] = {}
        self._decisions = 0  # that are remembered; at most MAX_DECISIONS

    @property
    def client_count(self) -> int:
        return len(self._clients)

    def count_decision(self) -> None:
        """Called before a decision is remembered."""
        if self._decisions >= MAX_DECISIONS:
            for access in self._clients.values():
                access.forget()
            self._decisions = 0
        self._decisions += 1

    def authorizer(self) -> Authorizer:
        """Of the newest permissions."""
        acls = self.image().acls
        if acls is not self._acls:
            self._acls = acls
            self._authorizer = Authorizer(acls, self._rules)
            self._clients.clear()
            self._decisions = 0
        return self._authorizer

    def of(self, client: Client) -> Access:
        """What a client may do now: a change of permissions holds for its next request."""
        authorizer = self.authorizer()
        key = (client.principal, client.client_host, client.certified_node)
        found = self._clients.get(key)
        if found is None:
            if len(self._clients) >= MAX_CLIENTS:
                self._clients.clear()
                self._decisions = 0
            found = self._clients[key] = Access(self, authorizer, _Known(*key))
        return found


class _Known:
    """A client, without its connection."""

    __slots__ = ("certified_node", "client_host", "principal")

    def __init__(self, principal: Principal, client_host: str, certified_node: int | None) -> None:
        self.principal = principal
        self.client_host = client_host
        self.certified_node = certified_node


def require_read(access: Access, topics: Iterable[str]) -> None:
    """Of topics that the client has not named: an error names only what it may describe. Raises TopicAuthorizationError."""
    for name in sorted(topics):
        if not access.may_topic(Operation.READ, name):
            known = access.may_topic(Operation.DESCRIBE, name)
            raise access.refusal(Operation.READ, ResourceKind.TOPIC, name if known else "*")


def permitted(names: Iterable[str], access: Access, operation: Operation, kind: ResourceKind) -> list[str]:
    """Those of the names with which the client may do this."""
    return [name for name in names if access.may(operation, kind, name)]
