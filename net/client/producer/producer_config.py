"""The producer's settings and their checks. Pure."""

import logging
from dataclasses import dataclass

from barnabas.log.format.compression import Compression

from ..connection.errors import InvalidConfigError
from .idempotence import MAX_IN_FLIGHT

logger = logging.getLogger("barnabas.producer")

ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
MAX_REQUEST_BYTES = 1024 * 1024  # Kafka's max.request.size: what brokers take unless configured otherwise.
FIRST_BATCH_BYTES = 65_536
# Half of what a topic takes by default. Beyond it the costs per record hardly fall, and a request has room for two partitions.
LARGEST_BATCH_BYTES = 512 * 1024
TAKEN_OVER_LATER = "(taken over later)"
TRANSACTION_TIMEOUT_MS = (
    60_000  # Kafka's transaction.timeout.ms: readers of committed records wait as long for a dead producer.
)
MIN_BATCH_SIZE = 256  # Below this the header of a batch is most of what is sent.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Of a batch before compression, with its header: when nothing waits, and at most."""

    first: int
    largest: int

    @classmethod
    def of(cls, batch_size: int | None, max_batch_size: int | None) -> "BatchSizes":
        """As asked for: a `batch_size` alone is both."""
        if batch_size is None:
            largest = LARGEST_BATCH_BYTES if max_batch_size is None else max_batch_size
            return cls(first=min(FIRST_BATCH_BYTES, largest), largest=largest)
        largest = batch_size if max_batch_size is None else max_batch_size
        if largest < batch_size:
            raise InvalidConfigError(f"max_batch_size ({largest}) must be at least batch_size ({batch_size})")
        return cls(first=batch_size, largest=largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    acks: int
    linger_ms: float
    batch_size: int
    max_batch_size: int
    compression: Compression
    buffer_memory: int
    max_in_flight: int
    max_request_bytes: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    max_block_ms: int
    enable_idempotence: bool
    transactional_id: str | None = None  # TAKEN_OVER_LATER: `Producer.take_over` names it
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS

    def __post_init__(self) -> None:
        if self.batch_size < MIN_BATCH_SIZE:
            raise InvalidConfigError(f"batch_size is {self.batch_size}; use {MIN_BATCH_SIZE} or more")
        if self.buffer_memory < self.batch_size:
            raise InvalidConfigError(
                f"buffer_memory ({self.buffer_memory}) must hold at least one batch ({self.batch_size} bytes)"
            )
        if self.delivery_timeout_ms < self.request_timeout_ms + self.linger_ms:
            raise InvalidConfigError(
                f"delivery_timeout_ms ({self.delivery_timeout_ms}) must be at least request_timeout_ms + linger_ms"
            )
        if self.transactional_id is not None:
            self._check_transactions()

    def _check_transactions(self) -> None:
        if not self.transactional_id:
            raise InvalidConfigError("transactional_id is empty; omit it for a producer without transactions")
        if not self.enable_idempotence:
            raise InvalidConfigError("a producer with a transactional_id is idempotent; omit enable_idempotence")


def acks_of(acks: str | int) -> int:
    found = ACKS.get(acks)
    if found is None:
        raise InvalidConfigError(f'acks is {acks!r}; use "all", 1 or 0')
    return found


def idempotence_of(asked: bool | None, *, acks: int, max_in_flight: int) -> bool:
    """Whether batches are numbered; None: wherever the other settings allow it (KIP-679).

    Raises InvalidConfigError where it was asked for and they do not.
    """
    if acks != ACKS["all"]:
        obstacle = f"acks is {acks}, but must be all"
    elif max_in_flight > MAX_IN_FLIGHT:
        obstacle = f"max_in_flight is {max_in_flight}, but brokers remember only {MAX_IN_FLIGHT} batches"
    else:
        return asked is not False
    if asked:
        raise InvalidConfigError(f"enable_idempotence: {obstacle}")
    if asked is None:
        logger.info("the producer is not idempotent: %s; a retry may write a record twice", obstacle)
    return False


def compression_named(name: str) -> Compression:
    try:
        return Compression[name.upper()]
    except KeyError as error:
        raise InvalidConfigError(f"compression is {name!r}; use none, gzip, snappy, lz4 or zstd") from error
