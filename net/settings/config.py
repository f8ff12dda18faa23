"""The configuration of a broker: Kafka's keys, their defaults, and where each value came from.

Every field of `BrokerConfig` that carries a setting is a key: `num_partitions` is `num.partitions`. A value comes from a
flag, else from the environment (`BARNABAS_NUM_PARTITIONS`), else from the file, else it is the default. How values are
read and checked is in `config_values`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from barnabas.consumer_groups.model.settings import MAX_GROUP_SIZE
from barnabas.log.vocabulary.errors import InvalidConfigError

from .config_values import (
    BOOLEAN,
    LIST,
    LISTENER,
    LISTENERS,
    MAX_DOUBLE,
    PROTOCOL_BY_LISTENER,
    TEXT,
    VOTERS,
    Listener,
    Setting,
    Voter,
    decimal,
    large_number,
    of_topics,
    parse_properties,
    setting,
    some_of,
    topic_default,
    unknown_key,
    whole_number,
)
from .listeners import check_listeners, check_without_effect

DEFAULT_BASE_PORT: Final = 9092
PORTS_PER_NODE: Final = 10  # room for more kinds of port than the three of today
LOOPBACK: Final = "127.0.0.1"
ENVIRONMENT_PREFIX: Final = "BARNABAS_"
MAX_NODE_ID: Final = 6_000  # the largest whose ports still exist with the default base port
COUNT: Final = whole_number(1)
BYTES: Final = whole_number(1)
ELECTION_TIMEOUT: Final = whole_number(100)  # a fifth of it is the heartbeat, which a busy loop must be able to keep
MILLISECONDS: Final = large_number(1)
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_WEEK_HOURS: Final = 168


# Keys of Kafka's own server.properties that a user brings along and that mean nothing here, or not yet: taken, reported at
# the start, without effect. Any other key has an effect, which tests/tidy/test_configuration.py looks after.
IGNORED_KEYS: Final[dict[str, str]] = {
    "process.roles": "every node is a broker, and a voter where controller.quorum.voters names it",
    "controller.listener.names": "the quorum listens where controller.quorum.voters says for this node",
    "num.network.threads": "a broker serves all connections from one event loop",
    "num.io.threads": "a broker serves all connections from one event loop",
    "num.recovery.threads.per.data.dir": "each data folder is recovered in a thread of its own",
    "num.replica.fetchers": "there is one fetcher for each leading broker",
    "socket.send.buffer.bytes": "the system sizes socket buffers",
    "socket.receive.buffer.bytes": "the system sizes socket buffers",
    "log.roll.jitter.ms": "segments roll at their age",
    "log.roll.jitter.hours": "segments roll at their age",
    "security.inter.broker.protocol": "brokers speak plain text to each other",
    "inter.broker.protocol.version": "brokers agree on a feature level by themselves",
    "log.message.format.version": "records are stored as batches of version 2, as in Kafka since 3.0",
    "log.message.downconversion.enable": "batches are served as they are stored, to every client",
    "offsets.topic.replication.factor": "group offsets live in the quorum",
    "offsets.topic.num.partitions": "group offsets live in the quorum, in 50 slots",
    "transaction.state.log.replication.factor": "group and transaction state lives in the quorum",
    "transaction.state.log.min.isr": "group and transaction state lives in the quorum",
    "zookeeper.connect": "there is no ZooKeeper; the quorum is controller.quorum.voters",
    "zookeeper.connection.timeout.ms": "there is no ZooKeeper; the quorum is controller.quorum.voters",
    "metadata.log.max.record.bytes.between.snapshots": "snapshots of the metadata are due by records, not by bytes",
    "max.connections.per.ip": "connections are limited together only, by max.connections",
    "log.flush.scheduler.interval.ms": "what is due for a flush is looked for every second",
    "log.flush.start.offset.checkpoint.interval.ms": "log starts are written with the recovery points",
    "log.cleaner.threads": "one log is compacted at a time",
    "log.cleaner.io.buffer.size": "segments are read and written a megabyte at a time",
    "log.cleaner.io.buffer.load.factor": "log.cleaner.dedupe.buffer.size is the memory of the whole map",
}
# By the topics' name of a key: the one value that there is, and why there is no other yet. The others are refused, since a
# topic that does not do what it was made for is worse than none.
ONLY_VALUES: Final[dict[str, tuple[str, str]]] = {
    "preallocate": ("false", "segments grow as they are written"),
}
# Other spellings that users know, and the key each stands for.
ALIASES: Final[dict[str, str]] = {"broker.id": "node.id", "log.dir": "log.dirs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One key as DescribeConfigs shows it."""

    key: str
    type: str
    default: str | None
    documentation: str
    topic_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of one broker, read and checked."""

    # --- who and where
    node_id: int = setting(0, whole_number(0, MAX_NODE_ID), "Number of this broker, from 0.")
    listeners: tuple[Listener, ...] = setting(
        (), LISTENERS, "Addresses to listen on: comma-separated NAME://host:port."
    )
    advertised_listeners: tuple[Listener, ...] = setting(
        (), LISTENERS, "Addresses that clients and brokers connect to."
    )
    inter_broker_listener_name: str | None = setting(None, TEXT, "Listener for connections between brokers.")
    listener_security_protocol_map: tuple[tuple[str, str], ...] = setting(
        (),
        PROTOCOL_BY_LISTENER,
        "Protocols of listeners: comma-separated NAME:PLAINTEXT; TLS and SASL are not available yet.",
    )
    admin_listener: Listener | None = setting(None, LISTENER, "Address of the HTTP admin API; `none` disables it.")
    admin_allowed_hosts: tuple[str, ...] = setting(
        (), LIST, "Additional Host header names that the HTTP API accepts, comma-separated; `*`: any name."
    )
    broker_rack: str | None = setting(None, TEXT, "Rack or zone; replicas are spread over racks.")
    controller_quorum_voters: tuple[Voter, ...] = setting(
        (), VOTERS, "Voters of the quorum: comma-separated id@host:port."
    )
    quorum_listener: Listener | None = setting(
        None, LISTENER, "Quorum address of a node that becomes a voter later; default: the port after the client port."
    )
    log_dirs: tuple[str, ...] = setting((), LIST, "Data folders, comma-separated; partitions are spread over them.")
    metadata_log_dir: str | None = setting(
        None, TEXT, "Folder of the quorum's journal; default: inside the first data folder."
    )

    # --- topics
    num_partitions: int = setting(1, COUNT, "Partitions of a new topic if the request does not set them.")
    default_replication_factor: int = setting(
        -1,
        whole_number(-1, 32_767),
        "Replicas of a new topic if the request does not set them; -1: three, or all brokers if fewer.",
    )
    min_insync_replicas: int = topic_default("min.insync.replicas", "With fewer in-sync replicas, acks=all is refused.")
    auto_create_topics_enable: bool = setting(True, BOOLEAN, "Create a topic when a client first asks for it.")
    delete_topic_enable: bool = setting(True, BOOLEAN, "Allow topics to be deleted.")
    unclean_leader_election_enable: bool = topic_default(
        "unclean.leader.election.enable",
        "Elect a replica that is not in sync if no other is alive; this may lose acknowledged records.",
    )
    auto_leader_rebalance_enable: bool = setting(True, BOOLEAN, "Return leadership to preferred replicas.")
    leader_imbalance_check_interval_seconds: int = setting(
        300, large_number(1), "Interval in seconds of the check for auto.leader.rebalance.enable."
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        whole_number(0, 100),
        "Percentage of preferred leaderships that a broker may lack before they are returned to it.",
    )

    # --- the cluster
    broker_heartbeat_interval_ms: int = setting(500, COUNT, "Interval of a broker's heartbeats to the controller.")
    broker_session_timeout_ms: int = setting(
        3_000, COUNT, "Time without a heartbeat before the controller fences a broker."
    )
    controlled_shutdown_enable: bool = setting(True, BOOLEAN, "Move leaderships to other brokers before a stop.")
    controlled_shutdown_timeout_ms: int = setting(30_000, COUNT, "Maximum wait of a shutdown for leaderships to move.")
    controller_quorum_election_timeout_ms: int = setting(
        1_000,
        ELECTION_TIMEOUT,
        "Time without a message from the quorum leader before an election; must be the same on all voters.",
    )
    controller_quorum_request_timeout_ms: int = setting(2_000, COUNT, "Maximum wait for a response of the controller.")

    # --- replication
    replica_lag_time_max_ms: int = setting(30_000, MILLISECONDS, "Lag after which a follower leaves the ISR.")
    replica_fetch_max_bytes: int = setting(1024 * 1024, BYTES, "Maximum bytes of one partition in a follower's fetch.")
    replica_fetch_min_bytes: int = setting(1, BYTES, "Minimum bytes that a follower's fetch waits for.")
    replica_fetch_wait_max_ms: int = setting(
        500, COUNT, "Maximum time that a follower's fetch waits for replica.fetch.min.bytes."
    )
    replica_fetch_response_max_bytes: int = setting(10 * 1024 * 1024, BYTES, "Maximum bytes of a follower's fetch.")
    replica_fetch_backoff_ms: int = setting(1_000, COUNT, "Maximum pause after failed fetches.")
    replica_socket_timeout_ms: int = setting(
        10_000, COUNT, "Maximum time to wait for the response to a follower's fetch."
    )
    leader_replication_throttled_rate: int = setting(
        2**63 - 1,
        MILLISECONDS,
        "Maximum bytes per second that this broker sends to replicas that a reassignment adds.",
    )
    follower_replication_throttled_rate: int = setting(
        2**63 - 1,
        MILLISECONDS,
        "Maximum bytes per second that this broker fetches for replicas that a reassignment adds.",
    )
    reassignment_throttled_rate: int = setting(
        2**63 - 1,
        MILLISECONDS,
        "Sets both throttled rates; the cluster removes its value when the last reassignment has ended.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, MILLISECONDS, "Interval at which high watermarks are written."
    )

    # --- logs (defaults of topics)
    log_segment_bytes: int = topic_default("segment.bytes", "Maximum size of a segment file.")
    log_roll_ms: int | None = setting(
        None, of_topics("segment.ms"), "Maximum age of the active segment; takes precedence over log.roll.hours."
    )
    log_roll_hours: int = setting(_WEEK_HOURS, COUNT, "Maximum age of the active segment in hours.")
    log_retention_ms: int | None = setting(
        None, of_topics("retention.ms"), "Age at which segments are deleted; -1: never."
    )
    log_retention_minutes: int | None = setting(None, whole_number(-1), "log.retention.ms in minutes; -1: never.")
    log_retention_hours: int = setting(_WEEK_HOURS, whole_number(-1), "log.retention.ms in hours; -1: never.")
    log_retention_bytes: int = topic_default("retention.bytes", "Maximum size of a partition; -1: no limit.")
    log_retention_check_interval_ms: int = setting(300_000, MILLISECONDS, "Interval of checks for old segments.")
    log_cleanup_policy: tuple[str, ...] = topic_default(
        "cleanup.policy", "delete: remove old segments; compact: keep only the last record of each key; or both."
    )
    log_cleaner_enable: bool = setting(True, BOOLEAN, "Compact the logs of topics with cleanup.policy=compact.")
    log_cleaner_backoff_ms: int = setting(15_000, MILLISECONDS, "Time to wait when no log needs compaction.")
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * 1024 * 1024,
        large_number(1024 * 1024),
        "Memory for keys, 200 bytes each; a log with more keys needs more runs.",
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        MAX_DOUBLE, decimal(1.0), "Maximum bytes per second that compaction reads."
    )
    log_cleaner_min_cleanable_ratio: float = topic_default(
        "min.cleanable.dirty.ratio", "Compact a log if a larger ratio of it is not compacted yet."
    )
    log_cleaner_min_compaction_lag_ms: int = topic_default(
        "min.compaction.lag.ms", "Minimum time that a record stays uncompacted."
    )
    log_cleaner_max_compaction_lag_ms: int = topic_default(
        "max.compaction.lag.ms", "Maximum time before a record becomes eligible for compaction."
    )
    log_cleaner_delete_retention_ms: int = topic_default(
        "delete.retention.ms", "Time that a compacted topic keeps tombstones."
    )
    log_index_interval_bytes: int = topic_default("index.interval.bytes", "Bytes between index entries.")
    log_index_size_max_bytes: int = topic_default("segment.index.bytes", "Index size at which a new segment begins.")
    log_flush_interval_messages: int = topic_default(
        "flush.messages", "Records after which a log is flushed; 1: before it is acknowledged, more: in the background."
    )
    log_flush_interval_ms: int | None = topic_default(
        "flush.ms", "Time after which a log is flushed, in the background (looked at every second).", nullable=True
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, MILLISECONDS, "Interval at which recovery points and log start offsets are written to disk."
    )
    log_scrub_io_max_bytes_per_second: int = setting(
        10 * 1024 * 1024,
        whole_number(0),
        "Maximum bytes per second for re-reading old segments to detect disk damage (not a key of Kafka's); 0: off.",
    )
    log_scrub_interval_ms: int = setting(
        3_600_000, MILLISECONDS, "Pause after all old segments have been re-read (not a key of Kafka's)."
    )
    log_segment_delete_delay_ms: int = topic_default("file.delete.delay.ms", "Time that a removed file stays on disk.")
    log_preallocate: bool = topic_default(
        "preallocate", "Allocate the whole segment when it is created; only false is supported yet."
    )
    log_message_timestamp_type: str = topic_default(
        "message.timestamp.type",
        "Which clock sets the timestamp: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    log_message_timestamp_before_max_ms: int = topic_default(
        "message.timestamp.before.max.ms", "Maximum time that a record's timestamp may be behind the broker's clock."
    )
    log_message_timestamp_after_max_ms: int = topic_default(
        "message.timestamp.after.max.ms", "Maximum time that a record's timestamp may be ahead of the broker's clock."
    )
    compression_type: str = topic_default(
        "compression.type", "Codec of stored batches; producer: that of the producer."
    )
    compression_gzip_level: int = topic_default("compression.gzip.level", "Level of gzip: 1 to 9; -1: default of gzip.")
    compression_lz4_level: int = topic_default("compression.lz4.level", "Compression level of lz4; 9: the fast mode.")
    compression_zstd_level: int = topic_default("compression.zstd.level", "Compression level of zstd.")
    message_max_bytes: int = topic_default("max.message.bytes", "Maximum size of a record batch in bytes.")

    # --- the network
    socket_request_max_bytes: int = setting(
        100 * 1024 * 1024, whole_number(1024), "Maximum size of a request in bytes."
    )
    max_connections: int = setting(10_000, COUNT, "Maximum number of simultaneous connections.")
    connections_max_idle_ms: int = setting(600_000, MILLISECONDS, "Idle time before a connection is closed.")
    queued_max_requests: int = setting(500, COUNT, "Maximum requests in flight on one connection.")
    queued_max_request_bytes: int = setting(
        8 * 1024 * 1024,
        large_number(1),
        "Bytes of responses buffered for one connection; above it, the broker stops reading the connection.",
    )
    network_memory_max_bytes: int = setting(
        128 * 1024 * 1024,
        large_number(1024 * 1024),
        "Bytes for unfinished requests, batches that wait for their check and unread responses, of all clients together"
        " (not Kafka's). Clients beyond it are not read until there is room. At least socket.request.max.bytes.",
    )
    fetch_max_bytes: int = setting(55 * 1024 * 1024, whole_number(1024), "Maximum bytes of a response to a fetch.")

    # --- idempotent producers
    producer_id_expiration_ms: int = setting(
        24 * _HOUR_MS, COUNT, "Time without records before a partition removes the state of an idempotent producer."
    )

    # --- groups
    group_consumer_session_timeout_ms: int = setting(45_000, COUNT, "Time without a heartbeat before removal.")
    group_consumer_heartbeat_interval_ms: int = setting(5_000, COUNT, "Interval of the heartbeats of members.")
    group_consumer_max_size: int = setting(
        MAX_GROUP_SIZE,
        COUNT,
        "Maximum members of a group of the consumer protocol; with 10,000, a rebalance may stop the broker for a second.",
    )
    group_consumer_assignors: str = setting(
        "uniform,range,roundrobin,sticky,cooperative-sticky",
        some_of("uniform", "range", "roundrobin", "sticky", "cooperative-sticky"),
        "Assignors of the coordinator that members may request; the first one is the default.",
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000,
        whole_number(0),
        "Maximum time between two assignments of a group of more than 10 members, which waits 2 ms per member.",
    )
    group_max_size: int = setting(
        MAX_GROUP_SIZE,
        COUNT,
        "Maximum members of a group of the classic protocol; with 10,000, a rebalance may stop the broker for a second.",
    )
    group_max_per_slot: int = setting(1_000, COUNT, "Maximum groups in each of the 50 slots of group ids.")
    group_min_session_timeout_ms: int = setting(1_000, COUNT, "Minimum session timeout that a member may request.")
    group_max_session_timeout_ms: int = setting(1_800_000, COUNT, "Maximum session timeout that a member may request.")
    group_initial_rebalance_delay_ms: int = setting(
        200, whole_number(0), "Time that the first member of an empty classic group waits for more members."
    )
    offset_metadata_max_bytes: int = setting(4096, whole_number(0), "Maximum bytes of metadata of an offset.")
    offsets_retention_minutes: int = setting(10_080, COUNT, "Time that offsets outlive the members of a group.")
    offsets_retention_check_interval_ms: int = setting(600_000, COUNT, "Interval of the check for expired offsets.")

    # --- not keys
    sources: Mapping[str, str] = field(default_factory=dict)  # key -> "flag" | "environment" | "file"; absent: default
    ignored: tuple[str, ...] = ()  # keys of Kafka that were given and mean nothing here

    def client_listeners(self) -> tuple[Listener, ...]:
        """Where to listen; by default on loopback, on the port that the rule of ports gives this node."""
        if self.listeners:
            return self.listeners
        return (Listener(name="PLAINTEXT", host=LOOPBACK, port=client_port(self.node_id)),)

    def voters(self) -> tuple[Voter, ...]:
        """The voters; by default this node is a cluster of its own."""
        if self.controller_quorum_voters:
            return self.controller_quorum_voters
        return (Voter(node_id=self.node_id, host=LOOPBACK, port=quorum_port(self.node_id)),)

    def admin_address(self) -> Listener | None:
        """Where the admin API listens; None where it was switched off."""
        if self.admin_listener is None and "admin.listener" not in self.sources:
            return Listener(name="ADMIN", host=LOOPBACK, port=admin_port(self.node_id))
        return self.admin_listener

    def data_folders(self) -> tuple[str, ...]:
        """Absolute paths of the data folders."""
        return tuple(str(Path(item).absolute()) for item in self.log_dirs or (f"barnabas-data/{self.node_id}",))

    def metadata_folder(self) -> str:
        """Absolute path of the quorum's folder."""
        given = self.metadata_log_dir
        return str(Path(given).absolute()) if given else f"{self.data_folders()[0]}/__cluster_metadata"

    def inter_broker_listener(self) -> str:
        """The name of the listener that other brokers use."""
        return self.inter_broker_listener_name or self.client_listeners()[0].name

    def retention_ms(self) -> int:
        """Kafka's precedence: milliseconds before minutes before hours; -1: never."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return _scaled(self.log_retention_minutes, _MINUTE_MS)
        return _scaled(self.log_retention_hours, _HOUR_MS)

    def roll_ms(self) -> int:
        """Age of a segment at which a new one begins."""
        return self.log_roll_ms if self.log_roll_ms is not None else self.log_roll_hours * _HOUR_MS

    def topic_defaults(self) -> dict[str, str]:
        """What this configuration says about topics, by the topics' names of keys. What it leaves alone is absent."""
        found = {
            definition.topic_key: text
            for definition in definitions()
            if definition.topic_key
            and definition.key in self.sources
            and (text := self.text(definition.key)) is not None
        }
        if any(key.startswith("log.retention.") and key[14:] in ("ms", "minutes", "hours") for key in self.sources):
            found["retention.ms"] = str(self.retention_ms())
        if "log.roll.ms" in self.sources or "log.roll.hours" in self.sources:
            found["segment.ms"] = str(self.roll_ms())
        return found

    def text(self, key: str) -> str | None:
        """The value of a key as it would be written in a file; None: not set."""
        return _shown(_setting_of(key), getattr(self, _attribute(key)))


def client_port(node_id: int, base_port: int = DEFAULT_BASE_PORT) -> int:
    """The port for clients of a node, by the rule for several nodes on one machine. A base port of 0 stays 0."""
    return base_port and base_port + PORTS_PER_NODE * node_id


def quorum_port(node_id: int, base_port: int = DEFAULT_BASE_PORT) -> int:
    """The port of the quorum."""
    return base_port and client_port(node_id, base_port) + 1


def admin_port(node_id: int, base_port: int = DEFAULT_BASE_PORT) -> int:
    """The port of the HTTP admin API."""
    return base_port and client_port(node_id, base_port) + 2


@cache
def definitions() -> tuple[Definition, ...]:
    """Every key, in the order of the fields."""
    return tuple(
        Definition(
            key=key,
            type=known.kind.name,
            default=_shown(known, default),
            documentation=known.documentation,
            topic_key=known.topic_key,
        )
        for key, known, default in _settings()
    )


def load(path: str | None, overrides: Mapping[str, str], environment: Mapping[str, str]) -> BrokerConfig:
    """Read the configuration. Raises InvalidConfigError, which names the key, the value and what is allowed."""
    given: dict[str, tuple[str, str]] = {}
    for source, values in (
        ("file", _read_file(path) if path else {}),
        ("environment", _from_environment(environment)),
        ("flag", overrides),
    ):
        given |= {ALIASES.get(key, key): (source, text) for key, text in values.items()}
    ignored = tuple(key for key in given if key in IGNORED_KEYS)
    effective = {key: pair for key, pair in given.items() if key not in IGNORED_KEYS}
    values_by_field = {_attribute(key): parse_value(key, text) for key, (_, text) in effective.items()}
    sources = {key: source for key, (source, _) in effective.items()}
    config = BrokerConfig(**values_by_field, sources=sources, ignored=ignored)
    check_without_effect({key: given[key][1] for key in ignored}, dict(config.listener_security_protocol_map))
    return _checked(config)


def parse_value(key: str, text: str) -> Any:
    """The value of a key. Raises InvalidConfigError for an unknown key and for a value that is not allowed."""
    known = _setting_of(key)
    text = text.strip()
    if (known.nullable and not text) or (key == "admin.listener" and text == "none"):
        return None
    try:
        value = known.kind.read(text)
    except ValueError as error:
        raise InvalidConfigError(f"{key}={text}: {_reason(error)}allowed is {known.kind.allowed}") from None
    check_available(key, text, topic_key=known.topic_key)
    return value


def check_available(key: str, text: str, *, topic_key: str | None) -> None:
    """Raises InvalidConfigError for a value that is Kafka's and has no effect here yet. `text` can be read."""
    if topic_key not in ONLY_VALUES:
        return
    only, reason = ONLY_VALUES[topic_key]
    if {item.strip().lower() for item in text.split(",") if item.strip()} != {only}:
        raise InvalidConfigError(f"{key}={text}: not available yet: {reason}; use {only}")


def _reason(error: ValueError) -> str:
    """Python's own words for a number that is none help nobody; ours do."""
    words = str(error)
    return "" if words.startswith(("invalid literal", "could not convert")) else f"{words}; "


def _checked(config: BrokerConfig) -> BrokerConfig:
    """Refuse what is wrong only in combination."""
    check_listeners(config)
    if config.broker_heartbeat_interval_ms >= config.broker_session_timeout_ms:
        raise InvalidConfigError(
            f"broker.heartbeat.interval.ms={config.broker_heartbeat_interval_ms} must be smaller than "
            f"broker.session.timeout.ms={config.broker_session_timeout_ms}"
        )
    if config.replica_fetch_wait_max_ms >= config.replica_socket_timeout_ms:
        raise InvalidConfigError(
            f"replica.fetch.wait.max.ms={config.replica_fetch_wait_max_ms} must be smaller than "
            f"replica.socket.timeout.ms={config.replica_socket_timeout_ms}"
        )
    if config.network_memory_max_bytes < config.socket_request_max_bytes:
        raise InvalidConfigError(
            f"network.memory.max.bytes={config.network_memory_max_bytes} must not be smaller than "
            f"socket.request.max.bytes={config.socket_request_max_bytes}, or the largest request could never be read"
        )
    return config


def _read_file(path: str) -> dict[str, str]:
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"the configuration file {path} cannot be read: {error}") from error
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    names = {ENVIRONMENT_PREFIX + key.replace(".", "_").upper(): key for key in (*_by_key(), *ALIASES, *IGNORED_KEYS)}
    return {key: environment[name] for name, key in names.items() if name in environment}


def _settings() -> Iterator[tuple[str, Setting, Any]]:
    for item in dataclasses.fields(BrokerConfig):
        known = item.metadata.get("setting")
        if known is not None:
            yield item.name.replace("_", "."), known, item.default


@cache
def _by_key() -> dict[str, Setting]:
    return {key: known for key, known, _ in _settings()}


def _setting_of(key: str) -> Setting:
    found = _by_key().get(key)
    if found is None:
        raise unknown_key(key, (*_by_key(), *ALIASES))
    return found


def _attribute(key: str) -> str:
    _setting_of(key)  # no attribute that is not a key may be set from outside
    return key.replace(".", "_")


def _shown(known: Setting, value: Any) -> str | None:
    return None if value is None or value == () else known.kind.show(value)


def _scaled(value: int, unit_ms: int) -> int:
    return value if value < 0 else value * unit_ms
