"""Feature levels of a cluster (`metadata.version`): which records its quorum may hold.

A broker that reads a record that it does not know stops. Therefore records of a level are accepted only when every registered
broker supports the level. The first of them raises the level of the cluster (`FeatureLevelRecord`) in the same command. From then
on, a broker of an older version cannot register, and an older voter stops at the first record that it does not know. The level
never falls: a cluster can return to an older version before its first transaction, and not afterwards.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from barnabas.log.vocabulary.errors import UnsupportedVersionError

from .delta import MetadataDelta
from .records import FeatureLevelRecord

FIRST_LEVEL: Final = 1
TRANSACTIONS_LEVEL: Final = 2  # the records of transactions and their pending offsets
SECURITY_LEVEL: Final = 3  # the records of users and permissions
QUOTAS_LEVEL: Final = 4  # the records of quotas
SHARE_GROUPS_LEVEL: Final = 5  # the records of share groups
PREPARED_LEVEL: Final = 6  # the state Prepared of transactions
TWO_PHASE_LEVEL: Final = 7  # permissions with the operation TWO_PHASE_COMMIT
NEWEST_LEVEL: Final = TWO_PHASE_LEVEL  # of this version


class _Registered(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def max_feature_level(self) -> int: ...


def brokers_below(level: int, brokers: Iterable[_Registered]) -> tuple[int, ...]:
    """The node ids of the brokers that do not support the level."""
    return tuple(sorted(broker.node_id for broker in brokers if broker.max_feature_level < level))


def raised_level(view: MetadataDelta, level: int, what: str) -> tuple[FeatureLevelRecord, ...]:
    """What has to be committed before the first record of this level. Raises UnsupportedVersionError: a broker does not know such
    records; `what` tells users what they are."""
    if view.feature_level >= level:
        return ()
    below = brokers_below(level, view.brokers().values())
    if below:
        raise UnsupportedVersionError(f"brokers {list(below)} do not support {what}: upgrade or unregister them first")
    return (FeatureLevelRecord(feature_level=level),)
