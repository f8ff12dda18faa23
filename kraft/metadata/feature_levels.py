"""Feature levels of a cluster (`metadata.version`): which records its quorum may hold.

A broker that reads a record that it does not know stops. Therefore records of a level are accepted only when every registered
broker supports the level. The first of them raises the level of the cluster (`FeatureLevelRecord`) in the same command. From then
on, a broker of an older version cannot register, and an older voter stops at the first record that it does not know. The level
never falls: a cluster can return to an older version before its first transaction, and not afterwards.
"""

from collections.abc import Iterable
from typing import Final, Protocol

FIRST_LEVEL: Final = 1
TRANSACTIONS_LEVEL: Final = 2  # the records of transactions and their pending offsets
NEWEST_LEVEL: Final = TRANSACTIONS_LEVEL  # of this version


class _Registered(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def max_feature_level(self) -> int: ...


def brokers_below(level: int, brokers: Iterable[_Registered]) -> tuple[int, ...]:
    """The node ids of the brokers that do not support the level."""
    return tuple(sorted(broker.node_id for broker in brokers if broker.max_feature_level < level))
