"""`ClientQuotas`: which quota holds for a client, and how long the client must wait after what it has used (KIP-13, KIP-219).

Of several quotas for a kind, the most specific one holds, in Kafka's order. A quota of a user is shared by all clients of the
user; one that names client ids, or their default, holds for each client id. A client may use more than its quota once: the
bucket goes below zero, and the client waits until it is paid. So, over any time t, an entity gets at most rate * (t + burst), one
request, and for byte rates what its parallel connections send while it owes less than MAX_THROTTLE_MS.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from barnabas.log.vocabulary.access.quotas import DEFAULT, MAX_NAME_LENGTH, QuotaEntity, QuotaKind
from barnabas.log.vocabulary.errors import ThrottlingQuotaExceededError

from .token_bucket import TokenBucket

# With a bucket: the one that was idle longest is forgotten. Each group of entities has its own places: clients choose their ids
# and may have many addresses, and must not be able to displace the debt of a user.
MAX_ENTITIES: Final = 10_000
# What a client is told at most: those that send regardless give up after 30 s without a response.
MAX_THROTTLE_MS: Final = 25_000

_NAMED, _IS_DEFAULT, _ABSENT = range(3)
Quotas = Mapping[QuotaEntity, Mapping[str, float]]


class EntityKey(NamedTuple):
    """Whose bucket: names of clients, never the default. None: the quota has no such part."""

    kind: QuotaKind
    user: str | None
    client_id: str | None


@dataclass(slots=True)
class Entity:
    """What an entity may use, and how long its clients have waited."""

    bucket: TokenBucket
    throttled_ms: float = 0.0
    throttled: int = 0  # requests that were answered with a throttle time


class ClientQuotas:
    """Of one broker. `is_active` is the only thing that a request without quotas looks at."""

    def __init__(self, burst_s: Mapping[QuotaKind, float]) -> None:
        """`burst_s`: how many seconds of its quota an idle entity saves."""
        self.is_active = False  # there are quotas of users or client ids
        self.limits_connections = False
        self.throttled_ms: dict[QuotaKind, float] = dict.fromkeys(QuotaKind, 0.0)
        self.refused = 0  # requests and connections
        self._burst_s = burst_s
        self._quotas: Quotas = {}
        self._values: dict[tuple[str | None, str | None], Mapping[str, float]] = {}
        self._places: dict[QuotaKind, list[tuple[int, int]]] = {}  # where there is a value, the most specific one first
        self._of_ips: dict[str, float] = {}
        # By whom they share their quota: users, client ids, addresses.
        self._users: OrderedDict[EntityKey, Entity] = OrderedDict()
        self._client_ids: OrderedDict[EntityKey, Entity] = OrderedDict()
        self._ips: OrderedDict[EntityKey, Entity] = OrderedDict()

    def follow(self, quotas: Quotas) -> None:
        """The quotas of the newest image: the same object until one changes. They hold for the next request of each client."""
        if quotas is self._quotas:
            return
        self._quotas = quotas
        self._values = {(one.user, one.client_id): values for one, values in quotas.items() if one.ip is None}
        self._places = {
            kind: sorted({_place(one) for one, values in quotas.items() if one.ip is None and kind in values})
            for kind in QuotaKind
        }
        self._of_ips = {
            one.ip: values[QuotaKind.CONNECTION]
            for one, values in quotas.items()
            if one.ip is not None and QuotaKind.CONNECTION in values
        }
        self.is_active = bool(self._values)
        self.limits_connections = bool(self._of_ips)

    # --- what clients use --------------------------------------------------------------------------------------------

    def charge(self, kind: QuotaKind, user: str, client_id: str, amount: float, now_ms: float) -> float:
        """The client has used this much. Returns the milliseconds for which it must wait, at most MAX_THROTTLE_MS."""
        entity = self._entity(kind, user, client_id, now_ms)
        if entity is None:
            return 0.0
        owed_ms = entity.bucket.charge(amount, now_ms)
        if kind is QuotaKind.REQUEST:  # it is charged when the work is done: nothing refuses the next request
            entity.bucket.forgive(MAX_THROTTLE_MS)
        if not owed_ms:
            return 0.0
        throttle_ms = min(owed_ms, MAX_THROTTLE_MS)
        entity.throttled += 1
        entity.throttled_ms += throttle_ms
        self.throttled_ms[kind] += throttle_ms
        return throttle_ms

    def is_refused(self, kind: QuotaKind, user: str, client_id: str, now_ms: float) -> bool:
        """The entity owes more than MAX_THROTTLE_MS: its clients have many connections, or ignore what they are told."""
        entity = self._entity(kind, user, client_id, now_ms)
        if entity is None:
            return False
        entity.bucket.refill(now_ms)
        is_refused = entity.bucket.owed_ms > MAX_THROTTLE_MS
        self.refused += is_refused
        return is_refused

    def burst(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """The most that the client can use at once without waiting; None: no quota holds."""
        found = self._quota(kind, user, client_id)
        return None if found is None else found[1] * self._burst_s[kind]

    def take_mutations(self, user: str, client_id: str, partitions: int, now_ms: float) -> None:
        """Raises ThrottlingQuotaExceededError while the client owes any. A request may use more than is left (KIP-599)."""
        entity = self._entity(QuotaKind.MUTATION, user, client_id, now_ms)
        if entity is None:
            return
        entity.bucket.refill(now_ms)
        owed_ms = entity.bucket.owed_ms
        if owed_ms:
            self.refused += 1
            raise ThrottlingQuotaExceededError(
                f"the quota of {QuotaKind.MUTATION}={entity.bucket.rate_per_s:g} is used up: create and delete partitions"
                f" more slowly, and try again in {int(owed_ms) + 1} ms"
            )
        entity.bucket.charge(partitions, now_ms)

    def give_back_mutations(self, user: str, client_id: str, partitions: int, now_ms: float) -> None:
        """The controller has refused what they were taken for."""
        entity = self._entity(QuotaKind.MUTATION, user, client_id, now_ms)
        if entity is not None:
            entity.bucket.charge(-partitions, now_ms)

    def admit_connection(self, ip: str, now_ms: float) -> bool:
        """KIP-612: a connection more from this address."""
        rate_per_s = self._of_ips.get(ip, self._of_ips.get(DEFAULT))
        if rate_per_s is None:
            return True
        bucket = self._kept(EntityKey(QuotaKind.CONNECTION, None, ip), rate_per_s, now_ms).bucket
        bucket.refill(now_ms)
        if bucket.tokens < 1:
            self.refused += 1
            return False
        bucket.charge(1, now_ms)
        return True

    # --- what is kept of them ----------------------------------------------------------------------------------------

    def entities(self) -> Iterator[tuple[EntityKey, Entity]]:
        return chain(self._users.items(), self._client_ids.items(), self._ips.items())

    def _entity(self, kind: QuotaKind, user: str, client_id: str, now_ms: float) -> Entity | None:
        found = self._quota(kind, user, client_id)
        return None if found is None else self._kept(found[0], found[1], now_ms)

    def _kept(self, key: EntityKey, rate_per_s: float, now_ms: float) -> Entity:
        burst_s = self._burst_s[key.kind]
        if key.client_id is None:
            entities = self._users
        else:
            entities = self._ips if key.kind is QuotaKind.CONNECTION else self._client_ids
        entity = entities.get(key)
        if entity is None:
            if len(entities) >= MAX_ENTITIES:
                entities.popitem(last=False)
            entity = Entity(TokenBucket(rate_per_s=rate_per_s, burst_s=burst_s, now_ms=now_ms))
            entities[key] = entity
        else:
            entities.move_to_end(key)
            if entity.bucket.rate_per_s != rate_per_s:
                entity.bucket.change(rate_per_s=rate_per_s, burst_s=burst_s, now_ms=now_ms)
        return entity

    def _quota(self, kind: QuotaKind, user: str, client_id: str) -> tuple[EntityKey, float] | None:
        """Whose bucket, and its tokens per second; in Kafka's order of precedence."""
        users, client_ids = (user, DEFAULT, None), (client_id, DEFAULT, None)
        for of_user, of_client in self._places.get(kind, ()):
            value = self._values.get((users[of_user], client_ids[of_client]), _NONE).get(kind)
            if value is not None:
                rate_per_s = value * 10 if kind is QuotaKind.REQUEST else value  # percent of a thread's time, in ms
                # Memory is bounded: ids that differ only behind this length share a quota.
                kept_id = None if of_client == _ABSENT else client_id[:MAX_NAME_LENGTH]
                return EntityKey(kind, None if of_user == _ABSENT else user, kept_id), rate_per_s
        return None


def _place(entity: QuotaEntity) -> tuple[int, int]:
    """What its user and its client id are: named, the default, or absent. In the order of precedence."""
    user, client_id = (
        _ABSENT if name is None else _IS_DEFAULT if name == DEFAULT else _NAMED
        for name in (entity.user, entity.client_id)
    )
    return user, client_id


_NONE: Final[Mapping[str, float]] = {}
