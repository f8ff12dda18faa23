"""The configuration of one partition's log: Kafka's topic keys, each declared with the field that holds its value.

Each row also names the broker key that sets the default: `log.` and the topic's key, or `broker_key`. The fields are in
alphabetical order, as in Kafka's documentation. Keys without effect are in `without_effect`, keys that only brokers have in
`broker_keys`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ..format.compression import GZIP_DEFAULT_LEVEL, LZ4_DEFAULT_LEVEL, ZSTD_DEFAULT_LEVEL
from ..vocabulary.errors import InvalidConfigError
from .key import Change, ConfigKey, rows_of, topic_key
from .kinds import BOOLEAN, COUNT, MAX_INT64, RATIO, Unit, int32, int64, one_of, some_of

UNLIMITED: Final = -1  # retention.bytes and retention.ms
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_TIME: Final = int64(0, unit=Unit.MILLISECONDS)
_TIME_NOT_0: Final = int64(1, unit=Unit.MILLISECONDS)
MIN_SEGMENT_BYTES: Final = 14  # Kafka's bound until 4.0; tests use small segments


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """The values of a topic's keys, and the table of these keys: `segment_bytes` is `segment.bytes`.

    Without slots: every append asks for the values that follow from others, so they are computed once.
    """

    cleanup_policy: tuple[str, ...] = topic_key(
        ("delete",),
        some_of("delete", "compact"),
        "delete: remove old segments; compact: keep only the last record of each key; or both.",
    )
    compression_gzip_level: int = topic_key(
        GZIP_DEFAULT_LEVEL,
        int32(1, 9, also=-1),
        "Compression level if compression.type is gzip: 1 to 9, or -1 for the default of gzip.",
        broker_key="compression.gzip.level",
    )
    compression_lz4_level: int = topic_key(
        LZ4_DEFAULT_LEVEL,
        int32(1, 17),
        "Compression level if compression.type is lz4; 9 is the fast mode, as in Kafka.",
        broker_key="compression.lz4.level",
    )
    compression_type: str = topic_key(
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "Codec of stored batches; producer: keep the codec of the producer.",
        broker_key="compression.type",
    )
    compression_zstd_level: int = topic_key(
        ZSTD_DEFAULT_LEVEL,
        int32(-131_072, 22),
        "Compression level if compression.type is zstd.",
        broker_key="compression.zstd.level",
    )
    delete_retention_ms: int = topic_key(
        _DAY_MS,
        _TIME,
        "Time that a compacted topic keeps tombstones after their compaction.",
        broker_key="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = topic_key(
        60_000, _TIME, "Time that a removed file stays on disk.", broker_key="log.segment.delete.delay.ms"
    )
    flush_messages: int = topic_key(
        MAX_INT64,
        int64(1, unit=Unit.RECORDS),
        "Flush to disk after this many records; 1: before a record is acknowledged, more: in the background.",
        broker_key="log.flush.interval.messages",
        cluster_reason="every in-sync replica must flush before it acknowledges, or none",
    )
    flush_ms: int = topic_key(
        MAX_INT64,
        _TIME,
        "Flush to disk at least this often, in the background (checked every second).",
        broker_key="log.flush.interval.ms",
        unset_on_brokers=True,
    )
    index_interval_bytes: int = topic_key(
        4096, int32(0, unit=Unit.BYTES), "Approximate bytes of the log between two index entries."
    )
    # The two lags can conflict with the values that topics set, so a change at run time would have to check all topics.
    max_compaction_lag_ms: int = topic_key(
        MAX_INT64,
        _TIME_NOT_0,
        "Maximum time before a record becomes eligible for compaction.",
        broker_key="log.cleaner.max.compaction.lag.ms",
        change=Change.AT_START,
    )
    max_message_bytes: int = topic_key(
        1_048_588,
        int32(0, unit=Unit.BYTES),
        "Maximum size of a record batch, including 12 bytes of overhead.",
        broker_key="message.max.bytes",
    )
    message_timestamp_after_max_ms: int = topic_key(
        _HOUR_MS, _TIME, "Maximum time that a record's timestamp may be ahead of the broker's clock."
    )
    message_timestamp_before_max_ms: int = topic_key(
        MAX_INT64, _TIME, "Maximum time that a record's timestamp may be behind the broker's clock."
    )
    message_timestamp_type: str = topic_key(
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "Which clock sets the timestamp: the producer's (CreateTime) or the broker's (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = topic_key(
        0.5,
        RATIO,
        "Compact a log if the ratio of it that is not compacted yet is larger.",
        broker_key="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = topic_key(
        0,
        _TIME,
        "Minimum time that a record stays uncompacted.",
        broker_key="log.cleaner.min.compaction.lag.ms",
        change=Change.AT_START,
    )
    min_insync_replicas: int = topic_key(
        1,
        COUNT,
        "With fewer in-sync replicas, acks=all is refused.",
        broker_key="min.insync.replicas",
        cluster_reason="it decides how many copies an acknowledged record has, and which replicas may lead",
    )
    preallocate: bool = topic_key(
        False,
        BOOLEAN,
        "Allocate the whole segment when it is created; only false is supported.",
        change=Change.AT_START,
        refused=(True, "not available yet, because segments grow as they are written; use false"),
    )
    retention_bytes: int = topic_key(
        UNLIMITED,
        int64(-1, unit=Unit.BYTES),
        "Size of the partition at which its oldest segments are deleted; -1: no limit.",
    )
    retention_ms: int = topic_key(
        7 * _DAY_MS,
        int64(-1, unit=Unit.MILLISECONDS),
        "Age of its newest record at which a segment is deleted; -1: never.",
        unset_on_brokers=True,
    )
    segment_bytes: int = topic_key(
        1_073_741_824,
        int32(MIN_SEGMENT_BYTES, unit=Unit.BYTES),
        "Size of a segment file at which a new segment begins.",
    )
    segment_index_bytes: int = topic_key(
        10_485_760,
        int32(12, unit=Unit.BYTES),
        "Index size at which a new segment begins.",
        broker_key="log.index.size.max.bytes",
    )
    segment_ms: int = topic_key(
        7 * _DAY_MS,
        _TIME_NOT_0,
        "Segment age at which a new segment begins.",
        broker_key="log.roll.ms",
        unset_on_brokers=True,
    )
    unclean_leader_election_enable: bool = topic_key(
        False,
        BOOLEAN,
        "Elect a replica that is not in sync if no other is alive; this may lose acknowledged records.",
        broker_key="unclean.leader.election.enable",
        cluster_reason="it decides whether a replica that lacks acknowledged records may lead",
    )

    @classmethod
    def from_map(cls, overrides: Mapping[str, str], defaults: "LogConfig | None" = None) -> "LogConfig":
        """Return `defaults` with these keys changed. Raises InvalidConfigError for an unknown key or a wrong value."""
        values = {(row := topic_row(name)).field_name: row.parse(text) for name, text in overrides.items()}
        config = replace(defaults or cls(), **values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms must not be above max.compaction.lag.ms={config.max_compaction_lag_ms}, not "
                f"{config.min_compaction_lag_ms}"
            )
        return config

    def to_map(self) -> dict[str, str]:
        """All keys with their values, as a user would write them."""
        return {name: row.kind.show(getattr(self, row.field_name)) for name, row in TOPIC_KEYS.items()}

    @property
    def compression_level(self) -> int:
        """The level for the codec of compression.type; it does not apply to any other codec."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type, 0)

    @cached_property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def max_segment_ms(self) -> int:
        """Only sealed segments are compacted, so a short compaction lag also limits the age of the active segment."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @cached_property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def takes_batches_as_sent(self) -> bool:
        """Uncompressed batches are stored without a look at their records."""
        return self.compression_type == "producer" and not self.is_compacted


TOPIC_KEYS: Final[dict[str, ConfigKey]] = {
    row.name: replace(row, broker_key=row.broker_key or f"log.{row.name}") for row in rows_of(LogConfig)
}


def topic_row(name: str) -> ConfigKey:
    """Raises InvalidConfigError, which names the most similar known key."""
    found = TOPIC_KEYS.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, TOPIC_KEYS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "see `barnabas topic describe` for the known ones"
    raise InvalidConfigError(f"unknown topic configuration {name}; {hint}")
