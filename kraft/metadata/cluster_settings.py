"""Settings that have one value for the whole cluster, because a guarantee depends on them or a failover would change them.

The value is the cluster-wide default configuration in the quorum. The first controller that finds no value writes the value of
its own file: when a cluster forms, and at the first start after an upgrade. From then on, the files of brokers and controllers
have no effect on these keys; a change alters the cluster-wide default, and a removal is refused, because then it would be
undefined which file applies. A broker whose file differs is reported (net/base/settings/cluster_settings).
"""

from barnabas.log.settings.table import CLUSTER_SETTINGS

from .controller_settings import ControllerSettings
from .delta import MetadataDelta
from .records import BROKER_RESOURCE, ConfigRecord
from .topic_settings import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION

NUM_PARTITIONS = "num.partitions"
DEFAULT_REPLICATION_FACTOR = "default.replication.factor"
FLUSH_MESSAGES = "log.flush.interval.messages"
PRODUCER_ID_EXPIRATION = "producer.id.expiration.ms"

MAX_FILE_VALUE_LENGTH = 64  # of a registration: the longest allowed value is a 64-bit number


def first_values(settings: ControllerSettings) -> dict[str, str]:
    """The values that a controller writes into a cluster without values."""
    return {
        MIN_INSYNC_REPLICAS: str(settings.min_insync_replicas),
        UNCLEAN_LEADER_ELECTION: "true" if settings.unclean_leader_election else "false",
        DEFAULT_REPLICATION_FACTOR: str(settings.default_replication_factor),
        NUM_PARTITIONS: str(settings.default_partitions),
        FLUSH_MESSAGES: str(settings.flush_messages),
        PRODUCER_ID_EXPIRATION: str(settings.producer_id_expiration_ms),
    }


def unset_values(view: MetadataDelta, settings: ControllerSettings) -> tuple[ConfigRecord, ...]:
    """The records that set every setting that has no value."""
    known = view.broker_config(CLUSTER_DEFAULT)
    if known.keys() >= CLUSTER_SETTINGS.keys():
        return ()
    return tuple(
        ConfigRecord(resource_type=BROKER_RESOURCE, resource=CLUSTER_DEFAULT, key=key, value=value)
        for key, value in first_values(settings).items()
        if key not in known
    )


def cluster_number(view: MetadataDelta, key: str, otherwise: int) -> int:
    """The value of a numeric setting; `otherwise` until the first value is written."""
    try:
        return int(view.broker_config(CLUSTER_DEFAULT).get(key, ""))
    except ValueError:
        return otherwise


def file_settings_of(given: dict[str, str]) -> dict[str, str]:
    """The stored part of a broker's settings in its registration; the input may be malformed or of a newer version."""
    return {
        key: value for key, value in given.items() if key in CLUSTER_SETTINGS and len(value) <= MAX_FILE_VALUE_LENGTH
    }
