"""The configurations that the controller itself reads: of a topic, else the cluster-wide default, else its settings."""

from .controller_settings import ControllerSettings
from .delta import MetadataDelta
from .partition_change import ElectionRules

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"
REASSIGNMENT_THROTTLE = "reassignment.throttled.rate"  # bytes per second; of all brokers, while replicas move
CLUSTER_DEFAULT = ""  # the resource name of the configuration of all brokers


def topic_setting(view: MetadataDelta, topic: str, key: str) -> str | None:
    return view.topic_config(topic).get(key, view.broker_config(CLUSTER_DEFAULT).get(key))


def election_rules(
    view: MetadataDelta,
    settings: ControllerSettings,
    topic: str,
    *,
    active: frozenset[int],
    lost: frozenset[int] = frozenset(),
    full: frozenset[int] = frozenset(),
) -> ElectionRules:
    unclean = topic_setting(view, topic, UNCLEAN_LEADER_ELECTION)
    return ElectionRules(
        active=active,
        min_insync_replicas=min_insync(topic_setting(view, topic, MIN_INSYNC_REPLICAS), settings),
        unclean=settings.unclean_leader_election if unclean is None else unclean.lower() == "true",
        lost=lost,
        full=full,
    )


def min_insync(value: str | None, settings: ControllerSettings) -> int:
    """A value that is not a number cannot be set here, but an old log may have one and must stay readable."""
    if value is None or not value.isdecimal():
        return settings.min_insync_replicas
    return max(1, int(value))
