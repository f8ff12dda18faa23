"""What the arguments of the clients and of their methods mean: `help(Producer)` and its relatives show those of their own."""

import inspect
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar

Kind = TypeVar("Kind", bound=type)

ARGUMENTS: Final[Mapping[str, str]] = {
    # --- of all clients ---
    "bootstrap": "addresses of brokers, host:port: a string with commas, or several; any one that answers is enough",
    "client_id": "the name of this client in logs, metrics and quotas of the brokers",
    "request_timeout_ms": "time to answer one request",
    "retry_backoff_ms": "the first pause before a request is repeated; it grows with each attempt",
    "client": "connections to share: `client` of another one; the first that is closed closes them",
    "network": "another network, for tests",
    "clock": "another clock, for tests",
    "rng": "another source of random numbers, for tests",
    "security": "security_protocol, ssl_cafile, ssl_certfile, ssl_keyfile, ssl_password, ssl_ca_pem, ssl_certificate_pem, "
    "ssl_key_pem, ssl_check_hostname, sasl_mechanism, sasl_plain_username, sasl_plain_password, sasl_oauth_token_provider",
    # --- of producers ---
    "acks": '"all": all in-sync replicas have a record before it is acknowledged; 1: its leader has it; 0: no answer',
    "linger_ms": "time that a record waits for others in its batch; 0: only while a request to their broker is in flight",
    "batch_size": "bytes of a batch before compression; None: 65536, and batches grow under load",
    "max_batch_size": "bytes that a batch grows to under load; None: 524288, or `batch_size` if that is set",
    "compression": '"none", "gzip", "snappy", "lz4" or "zstd"',
    "buffer_memory": "bytes of records that wait to be sent or acknowledged; `send` waits while there are so many",
    "max_in_flight": "requests in flight to one broker",
    "enable_idempotence": "a retry writes nothing twice; None: unless `acks` or `max_in_flight` forbid it",
    "max_request_bytes": "the largest record or batch",
    "delivery_timeout_ms": "time to deliver a record, retries included",
    "max_block_ms": "time that `send` waits for room in the buffer or for a topic, and a transaction for its coordinator",
    "transactional_id": "the name of the producer in transactions: another one of this name fences it",
    "transaction_timeout_ms": "time after which the coordinator aborts an open transaction",
    "key_serializer": 'makes bytes of keys: a format such as Json(), a function, "json" or "text"',
    "value_serializer": "makes bytes of values, as `key_serializer` of keys",
    "on_error": "called with (error, partition, count) for a batch that failed; None: it is logged",
    # --- of consumers ---
    "topics": "names, or lists of names",
    "group": "the consumer group; None: this consumer reads all partitions by itself",
    "pattern": "a regular expression (RE2) of topics, instead of names",
    "instance_id": "makes the member static: it keeps its partitions across a restart",
    "auto_offset_reset": 'where to begin without a committed offset: "latest", "earliest", or "none": an error',
    "auto_commit": "commits in the background; None: if there is a group",
    "auto_commit_interval_ms": "the interval of these commits",
    "on_assigned": "a function or coroutine function that gets the list of partitions that came",
    "on_revoked": "the same, of partitions that go; their offsets can still be committed",
    "on_lost": "the same, of partitions that others may have already; None: `on_revoked`",
    "group_protocol": '"consumer" (KIP-848) or "classic"',
    "assignor": "how partitions are assigned to members: a name, or with the classic protocol an Assignor, or several",
    "heartbeat_interval_ms": "the interval of heartbeats with the classic protocol; else the coordinator says it",
    "session_timeout_ms": "time without heartbeats after which a member is expelled; -1: what the group says (classic: 45000)",
    "rebalance_timeout_ms": "time to give up partitions in a rebalance; -1: `max_poll_interval_ms`",
    "max_poll_interval_ms": "time between two polls before the member leaves its group",
    "fetch_min_bytes": "bytes that a broker waits for before it answers a fetch",
    "fetch_max_bytes": "bytes of one answer, of all partitions together",
    "fetch_max_wait_ms": "time that a broker waits for `fetch_min_bytes`",
    "partition_max_bytes": "bytes of one answer, of one partition; a larger batch comes whole",
    "max_buffered_bytes": "bytes fetched in advance",
    "isolation_level": '"read_uncommitted", or "read_committed": no records of open and aborted transactions',
    "missing_topic_timeout_ms": "time until a wait for a topic that does not exist is an error; -1: no limit",
    "rack": "the rack of the application: records come from an in-sync replica there, if there is one",
    "key_deserializer": "makes objects of the bytes of keys, as `key_serializer` of producers makes bytes",
    "value_deserializer": "makes objects of the bytes of values",
    "on_bad_record": 'for records that a deserializer cannot read: "stop", "skip" or a function',
    # --- of admin clients ---
    "timeout_ms": "time for one operation, with all its requests and retries",
}

MAX_INT32: Final = 2**31 - 1  # most numbers go to brokers as four bytes; of milliseconds these are 24 days
MAX_MEMORY_BYTES: Final = 2**50
# Of the clients' numbers: the smallest and the largest. Others are limited where they are used, by other arguments as well.
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "request_timeout_ms": (1, MAX_INT32),
    "retry_backoff_ms": (0, MAX_INT32),
    "timeout_ms": (1, MAX_INT32),
    # --- of producers ---
    "linger_ms": (0, MAX_INT32),
    "batch_size": (1, MAX_INT32),
    "max_batch_size": (1, MAX_INT32),
    "buffer_memory": (1, MAX_MEMORY_BYTES),
    "max_in_flight": (1, MAX_INT32),
    "max_request_bytes": (1, MAX_INT32),
    "delivery_timeout_ms": (0, MAX_INT32),
    "max_block_ms": (0, MAX_INT32),
    "transaction_timeout_ms": (1, MAX_INT32),
    # --- of consumers ---
    "auto_commit_interval_ms": (1, MAX_INT32),
    "heartbeat_interval_ms": (1, MAX_INT32),
    "session_timeout_ms": (-1, MAX_INT32),
    "rebalance_timeout_ms": (-1, MAX_INT32),
    "max_poll_interval_ms": (1, MAX_INT32),
    "missing_topic_timeout_ms": (-1, MAX_INT32),
    "fetch_min_bytes": (0, MAX_INT32),
    "fetch_max_bytes": (1, MAX_INT32),
    "fetch_max_wait_ms": (0, MAX_INT32),
    "partition_max_bytes": (1, MAX_INT32),
    "max_buffered_bytes": (1, MAX_MEMORY_BYTES),
    "max_records": (1, MAX_INT32),
    "max_deliveries": (1, MAX_INT32),
}

PARTITION_OF_A_RECORD: Final = "the number of a partition; None: chosen by the key, or to fill batches"
# Of methods, where the docstring of a method does not name them. A class has other meanings of its own (`explained`).
OF_METHODS: Final[Mapping[str, str]] = {
    "timeout": "seconds to wait; None: without a limit",
    "timeout_ms": "time to wait",
    "topic": "the name of a topic",
    "partition": "TopicPartition(topic, number), or a tuple such as ('orders', 0)",
    "partitions": "TopicPartition(topic, number) each, or tuples such as ('orders', 0)",
    # --- of records ---
    "value": "bytes, None (a tombstone), or what `value_serializer` accepts",
    "values": "the values of the records, as for `send`",
    "key": "bytes, None, or what `key_serializer` accepts; records of one key go to one partition",
    "keys": "as many keys; None: no record has one",
    "headers": "pairs of a name and bytes (or None)",
    "timestamp_ms": "milliseconds since 1970",
    "table": "an Arrow table, or anything with the PyCapsule interface",
    "columns": "the other arguments of `send_table`, by name",
    "options": "the other arguments, by name",
    "transactional_id": "the name of the producer in transactions",
    "prepared_for": "a text for the process that decides, such as the id of its own transaction",
    # --- of consumers ---
    "topics": ARGUMENTS["topics"],
    "pattern": ARGUMENTS["pattern"],
    "isolation_level": ARGUMENTS["isolation_level"],
    "max_records": "the most records of one call",
    "max_bytes": "about the most bytes of one call",
    "within_ms": "time to wait for more records after the first",
    "batch_size": "the most records of one list",
    "offset": "the number of a record in its partition",
    "topic_id": "the id of the topic that the offset is of",
    "offsets": "{partition: offset of the next record to read}; None: behind all records returned so far",
    "times_ms": "{partition: milliseconds since 1970}",
    "record": "a record that the consumer has returned",
    "kind": '"accept", "release" or "reject"',
    "reason": "a text for the headers of the dead letter",
    "group": "the name of the consumer group",
    # --- of admin clients ---
    "name": "the name of a topic",
    "replication_factor": "replicas of each partition",
    "configs": "{key: value} of the topic, values as texts",
    "assignment": "the brokers of each new partition: [[0, 1], [1, 2]]",
    "validate_only": "check it, and change nothing",
    "include_internal": "with the topics of the cluster itself",
    "timestamps_ms": "{partition: milliseconds since 1970}; -1: the end, -2: the start",
    "before_offset": "the first offset that stays",
    "changes": "{key: value}, values as texts; None: back to the default",
    "resource": "the name of a topic or group, or the number of a broker",
    "resource_type": '"topic", "broker" or "group"',
    "target": "the number of a broker",
    "replicas": "the numbers of brokers",
    "throttle_bytes_per_s": "the limit of copying for each broker; 0: none",
    "node_id": "the number of a broker",
    "cancel": "take it back: the broker keeps what it still has",
    "path": "the folder, as the broker's configuration names it",
    "group_id": "the name of a group",
    "user": "the name of a user",
}


def explained(kind: Kind | None = None, /, *, like: type | None = None, **meanings: str) -> Any:
    """Of a class: `help` shows a line for each argument that the docstring of its method does not name. `like`: a class whose
    methods of the same names are the same; the docstrings that are missing are its."""
    if kind is None:
        return lambda other: explained(other, like=like, **meanings)
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        twin = getattr(like, name, None)
        if isinstance(member, property) and not member.__doc__:
            member.__doc__ = getattr(twin, "__doc__", None)
        elif isinstance(member, FunctionType):
            text = member.__doc__ or getattr(twin, "__doc__", None) or ""
            member.__doc__ = _with_arguments(text, member, meanings)
    return kind


def _with_arguments(text: str, function: FunctionType, meanings: Mapping[str, str]) -> str:
    code = inspect.unwrap(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: count + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
    unnamed = [name for name in names if name != "self" and not re.search(rf"\b{name}\b", text)]
    lines = [f"    {name}: {meaning}" for name in unnamed if (meaning := meanings.get(name) or OF_METHODS.get(name))]
    return "\n".join((inspect.cleandoc(text), "", "Arguments:", *lines)) if lines else text


def documented(init: Callable[..., Any]) -> str:
    """The docstring of a client's `__init__`: its own if it has one, else one line for each argument."""
    if init.__doc__:
        return init.__doc__
    names = [name for name in inspect.signature(init).parameters if name != "self"]
    return "\n".join(("Arguments:", *(f"    {name}: {ARGUMENTS[name]}" for name in names)))
