"""Keys of Kafka that have no effect here. They are accepted, stored, shown and reported, because tools and files set them.

A topic's value that Kafka would refuse is refused here too. A key whose effect users would miss stays unknown; the error names
the alternative (`CURES`).
"""

from collections.abc import Mapping
from typing import Any, Final

from .key import ConfigKey
from .kinds import BOOLEAN, TEXT, ConfigType, Kind, Unit, int64, matching, one_of

# For unknown topic configurations: the alternative.
CURES: Final = {
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and message.timestamp.after.max.ms",
}
_AS_RETENTION: Final = -2  # local.retention.*: the same as retention.*
_THROTTLED_REPLICAS: Final = matching(
    r"|\*|\s*[0-9]+:[0-9]+\s*(,\s*[0-9]+:[0-9]+\s*)*",
    "partition:broker, several separated by commas, or *",
    type=ConfigType.LIST,
)
_FORMAT_VERSION: Final = matching(r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?", "a version of Kafka, like 3.0-IV1")
_NO_REMOTE_STORAGE: Final = "there is no remote storage"


def _row(name: str, reason: str, kind: Kind[Any] = TEXT, default: Any = None, **rest: Any) -> ConfigKey:
    text = f"Without effect: {reason}."
    return ConfigKey(name=name, kind=kind, default=default, documentation=text, no_effect=reason, **rest)


TOPIC_KEYS_WITHOUT_EFFECT: Final[dict[str, ConfigKey]] = {
    row.name: row
    for row in (
        _row(
            "follower.replication.throttled.replicas",
            "exactly the replicas that a reassignment adds are throttled (KIP-73)",
            _THROTTLED_REPLICAS,
            "",
        ),
        _row(
            "leader.replication.throttled.replicas",
            "exactly the replicas that a reassignment adds are throttled (KIP-73)",
            _THROTTLED_REPLICAS,
            "",
        ),
        _row(
            "message.downconversion.enable",
            "batches are served as they are stored, to every client",
            BOOLEAN,
            False,
            broker_key="log.message.downconversion.enable",
            unset_on_brokers=True,
        ),
        _row(
            "message.format.version",
            "records are stored as batches of version 2, as in Kafka since 3.0",
            _FORMAT_VERSION,
            "3.0-IV1",
            broker_key="log.message.format.version",
            unset_on_brokers=True,
        ),
        _row(
            "segment.jitter.ms",
            "segments roll at their age",
            int64(0, unit=Unit.MILLISECONDS),
            0,
            broker_key="log.roll.jitter.ms",
            unset_on_brokers=True,
        ),
        _row("local.retention.bytes", _NO_REMOTE_STORAGE, int64(-2, unit=Unit.BYTES), _AS_RETENTION),
        _row("local.retention.ms", _NO_REMOTE_STORAGE, int64(-2, unit=Unit.MILLISECONDS), _AS_RETENTION),
        _row("remote.log.copy.disable", _NO_REMOTE_STORAGE, BOOLEAN, False),
        _row("remote.log.delete.on.disable", _NO_REMOTE_STORAGE, BOOLEAN, False),
        _row(
            "remote.storage.enable",
            _NO_REMOTE_STORAGE,
            BOOLEAN,
            False,
            # Kafka refuses it, too, where its brokers have no remote storage.
            refused=(True, f"{_NO_REMOTE_STORAGE}: set retention.ms and retention.bytes to what the brokers can hold"),
        ),
    )
}

# The values of keys that are not also topic keys are not read.
BROKER_KEYS_WITHOUT_EFFECT: Final[dict[str, ConfigKey]] = {
    row.name: row
    for row in (
        *(row.of_brokers() for row in TOPIC_KEYS_WITHOUT_EFFECT.values() if row.broker_key),
        _row("process.roles", "every node is a broker, and a voter where controller.quorum.voters names it"),
        _row("controller.listener.names", "the quorum listens where controller.quorum.voters says for this node"),
        _row("num.network.threads", "a broker serves all connections from one event loop"),
        _row("num.io.threads", "a broker serves all connections from one event loop"),
        _row("num.recovery.threads.per.data.dir", "each data folder is recovered in a thread of its own"),
        _row("num.replica.fetchers", "there is one fetcher for each leading broker"),
        _row("socket.send.buffer.bytes", "the system sizes socket buffers"),
        _row("socket.receive.buffer.bytes", "the system sizes socket buffers"),
        _row("log.roll.jitter.hours", "segments roll at their age"),
        _row("ssl.keystore.type", "certificates and keys are read from PEM files", one_of("PEM"), "PEM"),
        _row("ssl.truststore.type", "certificates are read from PEM files", one_of("PEM"), "PEM"),
        _row("inter.broker.protocol.version", "brokers agree on a feature level by themselves"),
        _row("offsets.topic.replication.factor", "group offsets live in the quorum"),
        _row("offsets.topic.num.partitions", "group offsets live in the quorum, in 50 slots"),
        _row("transaction.state.log.replication.factor", "group and transaction state lives in the quorum"),
        _row("transaction.state.log.min.isr", "group and transaction state lives in the quorum"),
        _row("zookeeper.connect", "there is no ZooKeeper; the quorum is controller.quorum.voters"),
        _row("zookeeper.connection.timeout.ms", "there is no ZooKeeper; the quorum is controller.quorum.voters"),
        _row("max.connections.per.ip", "connections are limited together only, by max.connections"),
        _row("log.flush.scheduler.interval.ms", "the broker checks every second what to flush"),
        _row("log.flush.start.offset.checkpoint.interval.ms", "log starts are written with the recovery points"),
        _row("log.cleaner.threads", "one log is compacted at a time"),
        _row("log.cleaner.io.buffer.size", "segments are read and written a megabyte at a time"),
        _row("log.cleaner.io.buffer.load.factor", "log.cleaner.dedupe.buffer.size is the memory of the whole map"),
    )
}


def with_effect(overrides: Mapping[str, str]) -> dict[str, str]:
    """The topic's settings without the keys that have no effect."""
    return {name: text for name, text in overrides.items() if name not in TOPIC_KEYS_WITHOUT_EFFECT}
