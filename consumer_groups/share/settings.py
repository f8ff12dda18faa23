"""Settings of a share group on the leaders of its partitions. Defaults of configuration keys come from the table of keys."""

from dataclasses import dataclass
from typing import Final

from barnabas.log.settings.broker_keys import BrokerKeys

_KEYS: Final = BrokerKeys()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """Of one group, on the leaders of its partitions."""

    record_lock_duration_ms: int = _KEYS.group_share_record_lock_duration_ms
    delivery_count_limit: int = _KEYS.group_share_delivery_count_limit
    # Offsets between the first record that is not final and the last one that was given out: each may need a state of its own.
    max_record_locks: int = _KEYS.group_share_partition_max_record_locks
