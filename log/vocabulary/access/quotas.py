"""Quotas in Kafka's model (KIP-13, 124, 546, 599, 612): how much of a broker an entity may use. Pure values.

An entity is a user, a client id, a user with a client id, or the address of clients; each part may be the default, which holds
for all names without a quota of their own. Which of several quotas holds for a client is in net/server/quotas.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address
from typing import Final

from ..errors import InvalidRequestError
from ..message import Items, Message

DEFAULT: Final = ""  # as the name of an entity: all that have no quota of their own
MAX_QUOTAS: Final = 10_000  # values of a cluster: every broker holds them, 3 MB of each image and snapshot
MAX_CHANGES_PER_REQUEST: Final = 1_000  # one quorum command
# Of the numbers of Kafka, an int64 is the largest; a client waits at most 12 days for a unit of the smallest.
MIN_VALUE: Final = 0.000_001
MAX_VALUE: Final = float(1 << 63)
MAX_NAME_LENGTH: Final = 1_000  # characters: as those of principals and of resources


class QuotaKind(StrEnum):
    """Kafka's names of the limits."""

    __hash__ = str.__hash__  # that of Enum runs in Python, several times for each request

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


_WHOLE: Final = (QuotaKind.PRODUCE, QuotaKind.FETCH, QuotaKind.CONNECTION)

USER: Final = "user"  # Kafka's names of the parts of an entity
CLIENT_ID: Final = "client-id"
IP: Final = "ip"


class QuotaEntity(Message, frozen=True, kw_only=True):
    """None: it has no such part."""

    user: str | None = None  # the name of a principal
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> dict[str, str]:
        """Its names by kind."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return {kind: name for kind, name in named if name is not None}

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name!r}" if name else f"default {kind}" for kind, name in self.parts.items())


class QuotaPart(Message, frozen=True, kw_only=True):
    """One condition of a filter. `name` None: any name, or the default."""

    kind: str
    name: str | None = None


class QuotaFilter(Message, frozen=True, kw_only=True):
    """Finds the entities that meet every condition; strict: those that have no other part."""

    parts: Items[QuotaPart] = ()
    strict: bool = False

    def matches(self, entity: QuotaEntity) -> bool:
        found = entity.parts
        if self.strict and len(found) != len({part.kind for part in self.parts}):
            return False
        return all(part.kind in found and part.name in (None, found[part.kind]) for part in self.parts)


def filter_of(entity: QuotaEntity, *, strict: bool = False) -> QuotaFilter:
    """Finds the entities with the parts of this one; strict: this one alone."""
    return QuotaFilter(
        parts=tuple(QuotaPart(kind=kind, name=name) for kind, name in entity.parts.items()), strict=strict
    )


class QuotaChange(Message, frozen=True, kw_only=True):
    """One value of one entity."""

    entity: QuotaEntity
    kind: str  # a QuotaKind
    value: float | None  # None: removed


class EntityQuotas(Message, frozen=True, kw_only=True):
    """All values of one entity, by QuotaKind."""

    entity: QuotaEntity
    values: dict[str, float]


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """From Kafka's pairs of a kind and a name, where None is the default. Raises InvalidRequestError."""
    fields = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
    found: dict[str, str] = {}
    for kind, name in parts:
        if kind not in fields:
            raise InvalidRequestError(f"quotas exist for {', '.join(fields)}, not for {kind[:MAX_NAME_LENGTH]!r}")
        if fields[kind] in found:
            raise InvalidRequestError(f"the entity names {kind} twice; name it once")
        if name == DEFAULT:
            raise InvalidRequestError(f"the name of the {kind} is empty; for the default, it must be null")
        found[fields[kind]] = DEFAULT if name is None else name
    return QuotaEntity(**found)


def check_change(change: QuotaChange) -> None:
    """Raises InvalidRequestError: such a quota could never hold."""
    _check_entity(change.entity)
    kinds = (
        [QuotaKind.CONNECTION]
        if change.entity.ip is not None
        else [kind for kind in QuotaKind if kind is not QuotaKind.CONNECTION]
    )
    if change.kind not in kinds:
        raise InvalidRequestError(
            f"{change.entity} has no quota {change.kind[:MAX_NAME_LENGTH]!r}; choose one of {', '.join(kinds)}"
        )
    value = change.value
    if value is None:
        return
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequestError(f"{change.kind} must be greater than 0, not {value}; remove it for no limit")
    if not MIN_VALUE <= value <= MAX_VALUE:
        raise InvalidRequestError(
            f"{change.kind} must be between {MIN_VALUE:.6f} and {MAX_VALUE:.0f}, not {value:g}; remove it for no limit"
        )
    if change.kind in _WHOLE and value != int(value):
        raise InvalidRequestError(f"{change.kind} must be a whole number, not {value}")


def _check_entity(entity: QuotaEntity) -> None:
    if not entity.parts:
        raise InvalidRequestError(f"name the entity of a quota: {USER}, {CLIENT_ID}, both of them, or {IP}")
    if any(len(name) > MAX_NAME_LENGTH for name in entity.parts.values()):
        raise InvalidRequestError(f"the name of an entity has at most {MAX_NAME_LENGTH} characters")
    if entity.ip is None:
        return
    if entity.user is not None or entity.client_id is not None:
        raise InvalidRequestError(f"the quota of an {IP} holds for all its clients: name no {USER} and no {CLIENT_ID}")
    if entity.ip != DEFAULT:
        try:
            is_normal = str(ip_address(entity.ip)) == entity.ip
        except ValueError:
            is_normal = False
        if not is_normal:
            raise InvalidRequestError(
                f"{entity.ip!r} is not the address of clients; write it as 10.0.0.1 or 2001:db8::1"
            )
