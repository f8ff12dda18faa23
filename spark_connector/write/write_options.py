"""`WriteOptions`: the options of a sink: topic, delivery guarantee, and the producer's settings. Pure.

    topic       the topic of all rows; without it, each row's column `topic` names its topic
    delivery    at_least_once (default): as Spark's Kafka sink; a task that Spark runs again writes its rows again
                effectively_once: rows are written in transactions, which are decided once per micro-batch (see
                `sink_commit`)
    sinkId      the name under which effectively_once records what is written; default: the query's id, which is part of the
                checkpoint, or a new id for a batch. Set it to write a batch job's rows once, however often the job runs.
                The sink records numbers of micro-batches: a new checkpoint restarts them, so set a new sinkId with it
    batchId     of a batch job: the number of a micro-batch, for foreachBatch. With the same sinkId, a number that is already
                written, or a smaller one, writes nothing (Delta Lake's txnAppId and txnVersion); default: 0

Producer settings have Kafka's names. The sink always uses an idempotent producer with acks=all, so that no row is lost
unnoticed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.log.vocabulary.topic_partition import check_topic_name

from ..common.options import ClientSettings, Options, client_settings

Delivery = Literal["at_least_once", "effectively_once"]
DELIVERIES: tuple[Delivery, ...] = ("at_least_once", "effectively_once")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLIENT_ID = "barnabas-spark-sink"
METADATA_MAX_AGE_MS = 300_000  # Kafka's default: a producer learns of changes from errors.
BATCH_SIZE = 256 * 1024  # Rows arrive in thousands, so batches larger than a service's add no latency.
MAX_SINK_ID_LENGTH = 200
JOB_BATCH_ID = 0  # A batch job is one micro-batch.
TRANSACTION_TIMEOUT_MS = 900_000  # The default of transaction.max.timeout.ms of brokers: the longest that they allow.
_SINK_ID = re.compile(r"[a-zA-Z0-9._:-]+")
_FIXED = {"acks": ("all", "-1"), "enable.idempotence": ("true",)}
_NAMES = (
    "topic",
    "delivery",
    "sinkId",
    "batchId",
    "includeHeaders",
    "batch.size",
    "buffer.memory",
    "compression.type",
    "delivery.timeout.ms",
    "linger.ms",
    "max.block.ms",
    "max.request.size",
    "transaction.timeout.ms",
    *_FIXED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Equal settings share one producer per process, so this is a dictionary key. It has only the settings that users of a sink
    may choose, and is pickled into tasks; the producer's own ProducerConfig has all settings, validated."""

    batch_size: int
    buffer_memory: int
    compression: str
    delivery_timeout_ms: int
    linger_ms: int
    max_block_ms: int
    max_request_bytes: int
    transaction_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    client: ClientSettings
    producer: ProducerSettings
    topic: str | None
    delivery: Delivery
    sink_id: str | None
    batch_id: int

    @property
    def is_effectively_once(self) -> bool:
        return self.delivery == "effectively_once"


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Raises InvalidConfigError, which names the option and the remedy; InvalidTopicError."""
    options = Options(given, known=_NAMES)
    options.boolean(
        "includeHeaders", default=True
    )  # As Spark's Kafka sink: a column of headers is written without asking.
    for name, allowed in _FIXED.items():
        if (options.text(name) or allowed[0]).lower() not in allowed:
            raise InvalidConfigError(
                f"{name} is always {allowed[0]} in this sink, so that no row is lost: remove the option"
            )
    topic = options.text("topic")
    delivery = (options.text("delivery") or DELIVERIES[0]).lower()
    if delivery not in DELIVERIES:
        raise InvalidConfigError(f"delivery is {delivery!r}; use {' or '.join(DELIVERIES)}")
    if options.has("batchId") and not options.has("sinkId"):
        raise InvalidConfigError("batchId counts the micro-batches of a sinkId: set sinkId, too, or remove batchId")
    return WriteOptions(
        client=client_settings(options, client_id=CLIENT_ID, metadata_max_age_ms=METADATA_MAX_AGE_MS),
        producer=_producer_settings(options),
        topic=None if topic is None else check_topic_name(topic.strip()),
        delivery=delivery,
        sink_id=_sink_id(options, delivery),
        batch_id=options.integer("batchId", JOB_BATCH_ID, least=0),
    )


def _sink_id(options: Options, delivery: str) -> str | None:
    sink_id = options.text("sinkId")
    if sink_id is None:
        return None
    if delivery != "effectively_once":
        raise InvalidConfigError("sinkId requires delivery=effectively_once: set that, or remove sinkId")
    if len(sink_id) > MAX_SINK_ID_LENGTH or not _SINK_ID.fullmatch(sink_id):
        raise InvalidConfigError(
            f"sinkId is {sink_id!r}; use 1 to {MAX_SINK_ID_LENGTH} characters of a-z A-Z 0-9 . _ : -"
        )
    return sink_id


def _producer_settings(options: Options) -> ProducerSettings:
    compression = (options.text("compression.type") or "none").lower()
    if compression not in CODECS:
        raise InvalidConfigError(f"compression.type is {compression!r}; use {', '.join(CODECS)}")
    settings = ProducerSettings(
        batch_size=options.integer("batch.size", BATCH_SIZE, least=256),
        buffer_memory=options.integer("buffer.memory", 64 << 20),
        compression=compression,
        delivery_timeout_ms=options.integer("delivery.timeout.ms", 120_000),
        linger_ms=options.integer("linger.ms", 0, least=0),
        max_block_ms=options.integer("max.block.ms", 60_000),
        max_request_bytes=options.integer("max.request.size", 1 << 20, least=1024),
        transaction_timeout_ms=options.integer("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
    )
    if settings.buffer_memory < settings.batch_size:
        raise InvalidConfigError(
            f"buffer.memory {settings.buffer_memory} must hold at least one batch (batch.size {settings.batch_size})"
        )
    least_ms = options.integer("request.timeout.ms", 30_000) + settings.linger_ms
    if settings.delivery_timeout_ms < least_ms:
        raise InvalidConfigError(
            f"delivery.timeout.ms {settings.delivery_timeout_ms} must be at least request.timeout.ms + linger.ms ({least_ms})"
        )
    return settings
