"""What one broker says of its machine, its load and its clients, for `barnabas doctor`. Each broker answers for itself."""

from typing import Final

from barnabas.log.vocabulary.message import Items, Message


class DescribeBrokerRequest(Message, frozen=True, kw_only=True):
    """The figures of the broker that is asked."""

    node_id: int
    history: bool = False  # the answer has the last hour, too


class PartitionRate(Message, frozen=True, kw_only=True):
    """Bytes of clients per second, as in the log."""

    topic: str
    partition: int
    in_per_s: int
    out_per_s: int


class ProducerHabits(Message, frozen=True, kw_only=True):
    """How a client produces; from a part of its requests in the last one to two minutes."""

    client_id: str
    client_host: str  # of the first of these requests
    requests_per_s: float
    batches: int
    record_count: int
    size_bytes: int
    few_acks: int  # of these batches: with acks=0 or acks=1
    not_idempotent: int  # of these batches, with acks=all


class ClientSoftware(Message, frozen=True, kw_only=True):
    name: str
    version: str
    greetings: int  # since the start of the broker


class CertificateEnd(Message, frozen=True, kw_only=True):
    path: str
    subject: str
    ends_ms: int  # wall clock


HISTORY_STEP_MS: Final = 10_000


class HistoryPoint(Message, frozen=True, kw_only=True):
    """Ten seconds of a broker. Latencies are quantiles in milliseconds; -1: there was nothing to measure."""

    at_ms: int  # their end, by the wall clock of the broker
    produce_p50_ms: float
    produce_p99_ms: float
    produce_queue_p99_ms: float  # until a handler has the request
    produce_log_p99_ms: float
    produce_followers_p99_ms: float  # of acks=all
    fetch_log_p99_ms: float  # of consumers, without the wait for new records
    commit_p99_ms: float  # of the quorum, on the controller
    group_append_p99_ms: float  # commits of offsets and changes of groups
    loop_p99_ms: float  # how late the event loop was
    requests_per_s: float
    errors_per_s: float
    in_per_s: int  # bytes of all connections, also those of brokers
    out_per_s: int
    connections: int
    memory_bytes: int


class DescribeBrokerResponse(Message, frozen=True, kw_only=True):
    """-1: unknown."""

    node_id: int
    version: str
    python: str
    wall_ms: int
    started_ms: int
    cpu_s: float
    memory_bytes: int
    memory_limit_bytes: int
    descriptors: int
    descriptor_limit: int
    loop_delay_ms: int  # the longest of the last one to two minutes
    connections: int
    max_connections: int
    connections_per_s: float  # accepted and refused ones
    in_per_s: int
    out_per_s: int
    busiest: Items[PartitionRate] = ()
    producers: Items[ProducerHabits] = ()
    software: Items[ClientSoftware] = ()
    certificates: Items[CertificateEnd] = ()
    history: Items[HistoryPoint] = ()  # the oldest first
