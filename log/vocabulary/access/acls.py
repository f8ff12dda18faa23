"""Permissions in Kafka's model: which principal may do what with which resources, from which host. Pure values.

A permission names one resource, all whose names begin with a prefix, or all of a kind. The numbers are Kafka's, so that values
travel unchanged in both protocols. What a set of permissions means is in net/server/access/authorizer.
"""

from enum import IntEnum
from typing import Final

from ..errors import InvalidRequestError
from ..message import Items, Message
from ..principal import USER, parse_principal


class Operation(IntEnum):
    ANY = 1  # in filters
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15  # KIP-939: prepare a transaction, which no timeout ends; feature level 7


class ResourceKind(IntEnum):
    ANY = 1  # in filters
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternKind(IntEnum):
    ANY = 1  # in filters
    MATCH = 2  # in filters: every pattern that holds for a resource with this name
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    ANY = 1  # in filters
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"  # the only resource of the kind CLUSTER
WILDCARD: Final = "*"  # a literal name: every resource of the kind; a host: every host
EVERYONE: Final = f"{USER}:{WILDCARD}"  # a principal: every one
MAX_ACLS: Final = (
    10_000  # of a cluster: every broker holds them, and a filter looks at all of them in some milliseconds
)
MAX_ACLS_PER_REQUEST: Final = 1_000
MAX_FILTERS_PER_REQUEST: Final = 20  # each may look at all permissions
MAX_NAME_LENGTH: Final = (
    1_000  # characters: more than any name of a topic, a group or a host that is accepted elsewhere
)

# The operations that exist for a kind of resource, in Kafka's order of their numbers.
OPERATIONS: Final[dict[ResourceKind, tuple[Operation, ...]]] = {
    ResourceKind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceKind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
}

AclResource = tuple[int, int, str]  # kind, kind of pattern, name: what permissions are found by


class Acl(Message, frozen=True, kw_only=True):
    """One permission."""

    kind: ResourceKind
    name: str
    principal: str  # in Kafka's notation; EVERYONE
    operation: Operation
    pattern: PatternKind = PatternKind.LITERAL
    host: str = WILDCARD  # an address
    permission: Permission = Permission.ALLOW

    @property
    def resource(self) -> AclResource:
        return int(self.kind), int(self.pattern), self.name

    def __str__(self) -> str:
        name = f"{self.name}*" if self.pattern is PatternKind.PREFIXED else self.name
        host = "" if self.host == WILDCARD else f" from {self.host}"
        return f"{self.permission.name} {self.principal}{host} {self.operation.name} {self.kind.name} {name}"


class AclFilter(Message, frozen=True, kw_only=True):
    """None, ANY: of every permission."""

    kind: ResourceKind = ResourceKind.ANY
    pattern: PatternKind = PatternKind.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.kind in (ResourceKind.ANY, acl.kind)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern is PatternKind.MATCH and self.name is not None:
            if acl.pattern is PatternKind.PREFIXED:
                return self.name.startswith(acl.name)
            return acl.name in (self.name, WILDCARD)
        is_kind = self.pattern in (PatternKind.ANY, PatternKind.MATCH, acl.pattern)
        return is_kind and self.name in (None, acl.name)


class AclsOfFilter(Message, frozen=True, kw_only=True):
    """The permissions that one filter has found."""

    acls: Items[Acl]


def check_acl(acl: Acl) -> None:
    """Raises InvalidRequestError: such a permission could never hold."""
    kinds = f"{acl.kind.name} {acl.name!r}"
    if acl.kind is ResourceKind.ANY or acl.pattern not in (PatternKind.LITERAL, PatternKind.PREFIXED):
        raise InvalidRequestError(
            "a permission names a kind of resource, and a literal name or a prefix; ANY is for filters"
        )
    if acl.operation is Operation.ANY or acl.permission is Permission.ANY:
        raise InvalidRequestError("a permission names an operation, and allows or denies it; ANY is for filters")
    if not 0 < len(acl.name) <= MAX_NAME_LENGTH:
        raise InvalidRequestError(f"the name of a resource has 1 to {MAX_NAME_LENGTH} characters, not {len(acl.name)}")
    if acl.kind is ResourceKind.CLUSTER and (acl.name != CLUSTER_NAME or acl.pattern is not PatternKind.LITERAL):
        raise InvalidRequestError(f"the only resource of the kind CLUSTER is the literal {CLUSTER_NAME!r}, not {kinds}")
    if acl.operation is not Operation.ALL and acl.operation not in OPERATIONS[acl.kind]:
        known = ", ".join(operation.name for operation in OPERATIONS[acl.kind])
        raise InvalidRequestError(
            f"{acl.operation.name} does not exist for {acl.kind.name}; choose ALL, or one of {known}"
        )
    if not 0 < len(acl.host) <= MAX_NAME_LENGTH:
        raise InvalidRequestError(f"the host has 1 to {MAX_NAME_LENGTH} characters; write {WILDCARD} for every host")
    parse_principal(acl.principal)
