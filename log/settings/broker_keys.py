"""The configuration keys that only brokers have.

Each key is declared with the field that holds its value: the field `num_partitions` is the key `num.partitions` (see `key`).
Keys that set a default for topics are in `config`. `change` says which keys can change at run time.
"""

from dataclasses import dataclass
from typing import Final

from ..vocabulary.node_address import NodeAddress
from .addresses import LISTENER, LISTENERS, PROTOCOL_BY_LISTENER, VOTERS, Listener
from .key import Change, key
from .kinds import (
    BOOLEAN,
    COUNT,
    LIST,
    MAX_DOUBLE,
    MAX_INT64,
    PASSWORD,
    TEXT,
    Kind,
    Unit,
    decimal,
    int32,
    int64,
    one_of,
    optional,
    some_of,
)
from .principal_rules import DEFAULT_RULES, PRINCIPAL_RULES, SUPER_USERS, PrincipalRules

MAX_NODE_ID: Final = 6_000  # the largest id whose ports are valid with the default base port
# Members of one group, of either protocol. At the end of a rebalance, of an assignment, or of all sessions at once, one step of
# the event loop writes a record for each member: 0.1 s with 2,000 members, 0.8 s with 10,000.
MAX_GROUP_SIZE: Final = 2_000
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"  # Kafka's name
BARNABAS_AUTHORIZER: Final = "acl"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"  # Kafka's names
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
_MIB: Final = 1024 * 1024
_HOUR_MS: Final = 3_600_000
_WEEK_HOURS: Final = 168

_BYTES: Final = int32(1, unit=Unit.BYTES)
_TIME: Final = int32(1, unit=Unit.MILLISECONDS)
_LONG_TIME: Final = int64(1, unit=Unit.MILLISECONDS)
_RATE: Final = int64(1, unit=Unit.BYTES_PER_SECOND)
# A fifth of it is the heartbeat interval, which a busy loop must keep.
_WINDOW: Final = int32(1, 3_600, unit=Unit.SECONDS)
_ELECTION_TIMEOUT: Final = int32(100, unit=Unit.MILLISECONDS)
_JOURNAL: Final = int64(64 * 1024, unit=Unit.BYTES)  # smaller ones only pack the same state repeatedly
_LOG_FORMAT: Final = one_of("text", "json")
_NAME: Final[Kind[str | None]] = optional(TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerKeys:
    """The values of these keys, and the table of the keys."""

    # --- identity and addresses
    node_id: int = key(0, int32(0, MAX_NODE_ID), "Number of this broker, from 0.")
    listeners: tuple[Listener, ...] = key((), LISTENERS, "Addresses to listen on; default: loopback.")
    advertised_listeners: tuple[Listener, ...] = key(
        (), LISTENERS, "Addresses under which clients and other brokers reach this broker; default: listeners."
    )
    inter_broker_listener_name: str | None = key(
        None, _NAME, "Listener for connections between brokers; default: the first one."
    )
    listener_security_protocol_map: tuple[tuple[str, str], ...] = key(
        (), PROTOCOL_BY_LISTENER, "Protocols of listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."
    )
    security_inter_broker_protocol: str | None = key(
        None,
        optional(one_of("PLAINTEXT", "SSL", "SASL_SSL")),
        "Connect brokers through the first listener with this protocol; excludes inter.broker.listener.name.",
    )
    sasl_mechanism_inter_broker_protocol: str | None = key(
        None,
        optional(one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
        "How brokers log in to each other, where their listener has the protocol SASL_SSL.",
    )
    admin_listener: Listener | None = key(  # noqa: RUF009 - `key` makes a field
        None, optional(LISTENER, "none"), "Address of the HTTP admin API; default: loopback; none: disabled."
    )
    allow_plaintext_listeners: bool = key(
        False,
        BOOLEAN,
        "Allow listeners in plain text on addresses that other machines can reach. Others may read and "
        "change what is sent; without logins and permissions, a program that connects can do everything.",
    )
    allow_anonymous_admin: bool = key(
        False,
        BOOLEAN,
        "Without an authorizer: let callers of the HTTP API on other machines be anonymous, although clients must log in or "
        "show a certificate.",
    )
    admin_allowed_hosts: tuple[str, ...] = key(
        (), LIST, "Additional Host header names that the HTTP API accepts; `*`: any name."
    )

    admin_allowed_origins: tuple[str, ...] = key(
        (),
        LIST,
        "Origins of web pages that may produce records through the HTTP API, and do nothing else: "
        "`https://shop.example`; `*`: any page.",
    )
    admin_console: str = key(
        "on",
        one_of("off", "readonly", "on"),
        "Web console at `/` of the HTTP API. `readonly`: its pages have no actions. The API itself takes the same calls in all "
        "cases: permissions decide what a user may do.",
    )

    admin_schema_registry_url: str | None = key(
        None,
        optional(PASSWORD),  # it may have a user and a password
        "Address of a schema registry with Confluent's HTTP API, such as `http://registry:8081`: the console and the "
        "HTTP API show Avro, JSON Schema and Protobuf decoded. Default: none.",
    )
    metrics_public: bool = key(
        False,
        BOOLEAN,
        "Where there is an authorizer: let programs read `/metrics`, which has names of topics and groups, without a permission.",
    )
    metrics_max_partitions: int = key(
        1_000,
        int32(0, 100_000),
        "Partitions of this broker with counters of bytes and records of their own in `/metrics`: the first ones with traffic "
        "since its start. All others are counted together, with an empty topic.",
    )

    # --- TLS
    ssl_keystore_location: str | None = key(
        None, _NAME, "PEM file with this broker's private key, its certificate, and those that sign it, in this order."
    )
    ssl_key_password: str | None = key(None, optional(PASSWORD), "Password of an encrypted private key.")
    ssl_truststore_location: str | None = key(
        None, _NAME, "PEM file of trusted authorities; default: those of the system."
    )
    ssl_keystore_key: str | None = key(
        None,
        optional(PASSWORD),
        "Instead of `ssl.keystore.location`: the private key itself, in PEM format (PKCS#8); its line breaks may be spaces.",
    )
    ssl_keystore_certificate_chain: str | None = key(
        None, optional(PASSWORD), "With `ssl.keystore.key`: the certificate, and those that sign it, in PEM format."
    )
    ssl_truststore_certificates: str | None = key(
        None,
        optional(PASSWORD),
        "Instead of `ssl.truststore.location`: the trusted authorities themselves, in PEM format.",
    )
    ssl_client_auth: str = key(
        "none",
        one_of("none", "requested", "required"),
        "Demand a certificate of clients. With `requested`, a client may have none, but not one that is not trusted.",
    )
    ssl_principal_mapping_rules: PrincipalRules = key(  # noqa: RUF009 - `key` makes a field
        DEFAULT_RULES,
        PRINCIPAL_RULES,
        "Names of the users whose certificates have a certain subject; the first rule that matches counts. RE2's patterns.",
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        ("TLSv1.2", "TLSv1.3"), some_of("TLSv1.2", "TLSv1.3"), "Versions of TLS that this broker speaks."
    )

    tls_transition: str = key(
        "off",
        one_of("off", "accept", "use"),
        "For the change of a running cluster to TLS. `accept`: the ports of brokers and voters accept TLS and plain text, and "
        "this broker connects to others in plain text; `use`: by TLS.",
    )

    # --- permissions
    authorizer_class_name: str | None = key(
        None,
        optional(one_of(STANDARD_AUTHORIZER, BARNABAS_AUTHORIZER)),
        "Demand permissions of clients (ACLs); both names mean the same. Default: every client may do everything.",
    )
    super_users: tuple[str, ...] = key(
        (), SUPER_USERS, "Principals that need no permissions, separated by semicolons: `User:admin;User:CN=ops`."
    )
    allow_everyone_if_no_acl_found: bool = key(
        False, BOOLEAN, "With an authorizer: allow everyone what concerns a resource without any permission."
    )

    # --- SASL
    sasl_enabled_mechanisms: tuple[str, ...] = key(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        some_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        "How clients of SASL listeners log in. PLAIN sends the password, which is checked with the user's SCRAM credential.",
    )
    sasl_users_file: str | None = key(
        None,
        _NAME,
        "File of users that this broker accepts beside those of the cluster, as for the first start; see `barnabas user`.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = key(
        None, _NAME, "Keys (JWKS) of the service that signs tokens: file:///path, or https://."
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = key(
        3_600_000, _LONG_TIME, "Time after which a broker reads these keys again."
    )
    sasl_oauthbearer_expected_issuer: str | None = key(None, _NAME, "What the claim `iss` of a token must be.")
    sasl_oauthbearer_expected_audience: tuple[str, ...] = key(
        (),
        LIST,
        "The claim `aud` of a token must contain one of these; default: tokens for all audiences are accepted.",
    )
    sasl_oauthbearer_sub_claim_name: str = key("sub", TEXT, "The claim of a token that names the user.")
    sasl_oauthbearer_clock_skew_seconds: int = key(
        30, int32(0, 3_600, unit=Unit.SECONDS), "Difference between the clocks of brokers and of the signing service."
    )
    connections_max_reauth_ms: int = key(
        0, int64(0, unit=Unit.MILLISECONDS), "Time after which clients must log in again; 0: never."
    )
    connection_failed_authentication_delay_ms: int = key(
        100,
        int32(0, 10_000, unit=Unit.MILLISECONDS),
        "Delay of the answer to a failed login; it grows with more failures.",
    )

    # --- placement
    broker_rack: str | None = key(None, _NAME, "Rack or zone of this broker; replicas are spread over racks.")
    replica_selector_class: str = key(
        RACK_AWARE_SELECTOR,
        one_of(RACK_AWARE_SELECTOR, LEADER_SELECTOR),
        "Who serves a consumer with client.rack: an in-sync replica of its rack (Kafka's default: only the leader).",
    )
    broker_machine: str | None = key(
        None, _NAME, "Name of a machine that brokers share (not Kafka's): one replica on each."
    )
    controller_quorum_voters: tuple[NodeAddress, ...] = key(
        (), VOTERS, "Initial voters of the quorum; default: this node. `barnabas cluster voters` changes them later."
    )
    quorum_listener: Listener | None = key(  # noqa: RUF009 - `key` makes a field
        None,
        optional(LISTENER),
        "Quorum address of a node that becomes a voter later; default: the port after the client port.",
    )
    log_dirs: tuple[str, ...] = key(
        (), LIST, "Data folders; partitions are spread over them; default: `barnabas-data/<node.id>`."
    )
    metadata_log_dir: str | None = key(
        None, _NAME, "Folder of the quorum's journal; default: inside the first data folder."
    )

    log_format: str = key("text", _LOG_FORMAT, "Form of the broker's log: lines of text, or JSON objects.")

    # --- topics
    num_partitions: int = key(
        1,
        COUNT,
        "Partitions of a new topic if the request does not set them.",
        cluster_reason="a controller failover must not change the number of partitions of new topics",
    )
    default_replication_factor: int = key(
        -1,
        int32(-1, 32_767),
        "Replicas of a new topic if the request does not set them; -1: three, or all brokers if fewer.",
        cluster_reason="a controller failover must not change the number of replicas of new topics",
    )
    auto_create_topics_enable: bool = key(
        True,
        BOOLEAN,
        "Create a topic when a client first asks for it: producers do, consumers of the SDK do not, Kafka consumers may.",
    )
    delete_topic_enable: bool = key(True, BOOLEAN, "Allow topics to be deleted.")
    auto_leader_rebalance_enable: bool = key(True, BOOLEAN, "Return leadership to preferred replicas.")
    leader_imbalance_check_interval_seconds: int = key(
        300, int64(1, unit=Unit.SECONDS), "Interval of the check for auto.leader.rebalance.enable."
    )
    leader_imbalance_per_broker_percentage: int = key(
        10,
        int32(0, 100, unit=Unit.PERCENT),
        "Percentage of preferred leaderships that a broker may lack before they are returned to it.",
    )

    # --- the cluster
    broker_heartbeat_interval_ms: int = key(500, _TIME, "Interval of a broker's heartbeats to the controller.")
    broker_session_timeout_ms: int = key(
        3_000, _TIME, "Time without a heartbeat before the controller fences a broker; it notices kill -9 at once."
    )
    controlled_shutdown_enable: bool = key(True, BOOLEAN, "Move leaderships to other brokers before a stop.")
    controlled_shutdown_timeout_ms: int = key(30_000, _TIME, "Maximum wait of a shutdown for leaderships to move.")
    controller_quorum_election_timeout_ms: int = key(
        1_000,
        _ELECTION_TIMEOUT,
        "Time without the quorum leader before an election; up to 5 times longer while elections fail. The same on all voters.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = key(8 * _MIB, _JOURNAL, "Journal size before a snapshot.")
    controller_quorum_request_timeout_ms: int = key(2_000, _TIME, "Maximum wait for a response of the controller.")

    # --- replication
    replica_lag_time_max_ms: int = key(30_000, _LONG_TIME, "Lag after which a follower leaves the ISR.")
    replica_fetch_max_bytes: int = key(_MIB, _BYTES, "Maximum bytes of one partition in a follower's fetch.")
    replica_fetch_min_bytes: int = key(1, _BYTES, "Minimum bytes that a follower's fetch waits for.")
    replica_fetch_wait_max_ms: int = key(
        500, _TIME, "Maximum time that a follower's fetch waits for replica.fetch.min.bytes."
    )
    replica_fetch_response_max_bytes: int = key(10 * _MIB, _BYTES, "Maximum bytes of a follower's fetch.")
    replica_fetch_backoff_ms: int = key(1_000, _TIME, "Maximum pause after failed fetches.")
    replica_socket_timeout_ms: int = key(10_000, _TIME, "Maximum time to wait for the response to a follower's fetch.")
    leader_replication_throttled_rate: int = key(
        MAX_INT64,
        _RATE,
        "Maximum rate at which this broker sends to replicas that a reassignment adds.",
        change=Change.WHILE_RUNNING,
    )
    follower_replication_throttled_rate: int = key(
        MAX_INT64,
        _RATE,
        "Maximum rate at which this broker fetches for replicas that a reassignment adds.",
        change=Change.WHILE_RUNNING,
    )
    reassignment_throttled_rate: int = key(
        MAX_INT64,
        _RATE,
        "Sets both throttled rates; the cluster removes its value when the last reassignment has ended.",
        change=Change.WHILE_RUNNING,
    )
    replica_high_watermark_checkpoint_interval_ms: int = key(
        5_000, _LONG_TIME, "Interval at which high watermarks are written."
    )

    # --- logs
    log_roll_hours: int = key(
        _WEEK_HOURS,
        int32(1, unit=Unit.HOURS),
        "log.roll.ms in hours; log.roll.ms takes precedence.",
        topic_key="segment.ms",
        topic_units=_HOUR_MS,
    )
    log_retention_minutes: int | None = key(
        None,
        optional(int32(-1, unit=Unit.MINUTES)),
        "log.retention.ms in minutes; log.retention.ms takes precedence; -1: never.",
        topic_key="retention.ms",
        topic_units=60_000,
    )
    log_retention_hours: int = key(
        _WEEK_HOURS,
        int32(-1, unit=Unit.HOURS),
        "log.retention.ms in hours; log.retention.ms and log.retention.minutes take precedence; -1: never.",
        topic_key="retention.ms",
        topic_units=_HOUR_MS,
    )
    log_retention_check_interval_ms: int = key(300_000, _LONG_TIME, "Interval of checks for old segments.")
    log_cleaner_enable: bool = key(True, BOOLEAN, "Compact the logs of topics with cleanup.policy=compact.")
    log_cleaner_backoff_ms: int = key(15_000, _LONG_TIME, "Time to wait when no log needs compaction.")
    log_cleaner_dedupe_buffer_size: int = key(
        128 * _MIB,
        int64(_MIB, unit=Unit.BYTES),
        "Memory for keys, 200 bytes each; a log with more keys needs more runs.",
    )
    log_cleaner_io_max_bytes_per_second: float = key(
        MAX_DOUBLE, decimal(1.0, unit=Unit.BYTES_PER_SECOND), "Maximum rate at which compaction reads."
    )
    log_flush_offset_checkpoint_interval_ms: int = key(
        60_000, _LONG_TIME, "Interval at which recovery points and log start offsets are written to disk."
    )
    log_scrub_io_max_bytes_per_second: int = key(
        10 * _MIB,
        int32(0, unit=Unit.BYTES_PER_SECOND),
        "Maximum rate of re-reading old segments to detect disk damage (not in Kafka); 0: off.",
    )
    log_scrub_interval_ms: int = key(
        _HOUR_MS, _LONG_TIME, "Pause after all old segments have been re-read (not in Kafka)."
    )

    # --- the network
    socket_request_max_bytes: int = key(100 * _MIB, int32(1024, unit=Unit.BYTES), "Maximum size of a request.")
    max_connections: int = key(10_000, COUNT, "Maximum number of simultaneous connections.")
    connections_max_idle_ms: int = key(600_000, _LONG_TIME, "Idle time before a connection is closed.")
    queued_max_requests: int = key(500, COUNT, "Maximum requests in flight on one connection.")
    queued_max_request_bytes: int = key(
        8 * _MIB,
        int64(1, unit=Unit.BYTES),
        "Bytes of responses buffered for one connection; above it, the broker stops reading the connection.",
    )
    network_memory_max_bytes: int = key(
        128 * _MIB,
        int64(_MIB, unit=Unit.BYTES),
        "Bytes for unfinished requests, batches that wait for their check and unread responses, of all clients together"
        " (not Kafka's). Clients beyond it are not read until there is room. At least socket.request.max.bytes.",
    )
    fetch_max_bytes: int = key(55 * _MIB, int32(1024, unit=Unit.BYTES), "Maximum bytes of a response to a fetch.")
    max_incremental_fetch_session_cache_slots: int = key(
        1_000,
        int32(0),
        "Maximum number of fetch sessions; a reader without one sends all of its partitions with every request.",
    )

    # --- quotas
    quota_window_num: int = key(11, COUNT, "Windows of its quota that an idle client can save, and use at once.")
    quota_window_size_seconds: int = key(1, _WINDOW, "Length of a window of quotas.")
    controller_quota_window_num: int = key(11, COUNT, "As quota.window.num, for controller_mutation_rate.")
    controller_quota_window_size_seconds: int = key(
        1, _WINDOW, "As quota.window.size.seconds, for controller_mutation_rate."
    )

    # --- idempotent producers
    producer_id_expiration_ms: int = key(
        24 * _HOUR_MS,
        _TIME,
        "Time without records before a partition removes the state of an idempotent producer.",
        cluster_reason="every leader of a partition must recognize retries for the same time",
    )

    # --- groups
    group_consumer_session_timeout_ms: int = key(
        45_000, _TIME, "Time without a heartbeat before a member is removed from its group."
    )
    group_consumer_heartbeat_interval_ms: int = key(5_000, _TIME, "Interval of the heartbeats of members.")
    group_consumer_max_size: int = key(
        MAX_GROUP_SIZE,
        COUNT,
        "Maximum members of a group of the consumer protocol; with 10,000, a rebalance may stop the broker for a second.",
    )
    group_consumer_assignors: tuple[str, ...] = key(
        ("uniform", "range", "roundrobin", "sticky", "cooperative-sticky"),
        some_of("uniform", "range", "roundrobin", "sticky", "cooperative-sticky"),
        "Assignors of the coordinator that members may request; the first one is the default.",
    )
    group_consumer_assignment_interval_ms: int = key(
        1_000,
        int32(0, unit=Unit.MILLISECONDS),
        "Maximum time between two assignments of a group of more than 10 members, which waits 2 ms per member.",
    )
    group_max_size: int = key(
        MAX_GROUP_SIZE,
        COUNT,
        "Maximum members of a group of the classic protocol; with 10,000, a rebalance may stop the broker for a second.",
    )
    group_max_per_slot: int = key(1_000, COUNT, "Maximum groups in each of the 50 slots of group ids.")
    group_min_session_timeout_ms: int = key(1_000, _TIME, "Minimum session timeout that a member may request.")
    group_max_session_timeout_ms: int = key(1_800_000, _TIME, "Maximum session timeout that a member may request.")
    group_initial_rebalance_delay_ms: int = key(
        200,
        int32(0, unit=Unit.MILLISECONDS),
        "Time that the first member of an empty classic group waits for more members.",
    )
    group_share_heartbeat_interval_ms: int = key(5_000, _TIME, "Interval of the heartbeats of members of share groups.")
    group_share_session_timeout_ms: int = key(45_000, _TIME, "As group.consumer.session.timeout.ms, for share groups.")
    group_share_max_size: int = key(200, COUNT, "Maximum members of a share group.")
    group_share_max_share_sessions: int = key(2_000, COUNT, "Maximum members of share groups that read from a broker.")
    group_share_record_lock_duration_ms: int = key(
        30_000,
        int32(100, 3_600_000, unit=Unit.MILLISECONDS),
        "Time that a member of a share group may take to acknowledge a record before it is given out again.",
    )
    group_share_delivery_count_limit: int = key(
        5, int32(1, 100), "Deliveries of a record to a share group after which it is archived."
    )
    group_share_partition_max_record_locks: int = key(
        2_000,
        int32(10, 10_000),
        "Maximum records of a partition that are given out to a share group, counted from the first that is not acknowledged.",
    )
    offset_metadata_max_bytes: int = key(4096, int32(0, unit=Unit.BYTES), "Maximum bytes of metadata of an offset.")
    offsets_retention_minutes: int = key(
        10_080, int32(1, unit=Unit.MINUTES), "Time that offsets outlive the members of a group."
    )
    offsets_retention_check_interval_ms: int = key(600_000, _TIME, "Interval of the check for expired offsets.")
    transaction_max_timeout_ms: int = key(900_000, _TIME, "Longest transaction timeout that a producer may ask for.")
    transaction_two_phase_commit_enable: bool = key(True, BOOLEAN, "Allow prepared transactions: they have no timeout.")
    transactional_id_expiration_ms: int = key(
        604_800_000, _TIME, "Time after which an unused transactional id is forgotten."
    )
