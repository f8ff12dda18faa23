"""Idempotence: the state of each producer in a partition, so that a retry is appended once, in order (KIP-98).

Pure. `check` judges a batch before it is appended, `update` notes it afterwards, on a leader and on a follower alike,
so that a new leader knows what the old one knew. Transactions: where each open one begins, and the epoch of the coordinator that
ended the last one, so that a coordinator that was replaced ends no other.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from crc32c import crc32c
from msgspec import Struct

from ..format.record_batch import BatchHeader
from ..vocabulary.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from ..vocabulary.transaction_messages import NOT_STARTED

REMEMBERED_BATCHES = 5  # max.in.flight.requests.per.connection of an idempotent producer: any of them may be retried.
MAX_PRODUCERS = 20_000  # per partition, 15 MB at most; the producer that was silent for longest is forgotten first.
EXPIRATION_MS = 86_400_000  # Kafka's default of producer.id.expiration.ms
HEARD_SINCE = 0  # since producers were looked through for silent ones
NO_OPEN_TRANSACTION = -1
SEQUENCES = 2**31  # Sequence numbers wrap to 0.
NO_COORDINATOR_EPOCH = -1
TRANSACTION_VERSION_2 = 2  # a marker raises the epoch of the producer (KIP-890)
# Kafka's version 1 keeps only one batch of each producer, so a restart would narrow the window. The checksum of version 2 did
# not cover the count: without producers it was 0, so zeros of a file that a power loss had torn were a snapshot of no producer.
# Version 4 has the epochs of coordinators and the ends that were not replicated. A version of Barnabas that does not know it
# removes such a snapshot and replays the log. Version 5 also says where the epoch of a producer is known from; it is written only
# if that is the middle of one, so that other logs are not replayed after a downgrade.
_SNAPSHOT_VERSION = 5
_WITHOUT_KNOWN_FROM = 4
_WITHOUT_COORDINATORS = 3
_WITHOUT_CHECKED_COUNT = 2
_SNAPSHOT_HEAD = struct.Struct(">hII")
_COUNT = struct.Struct(">I")
_PRODUCERS = {  # by version: id, epoch, last update, open transaction, count of batches, coordinator's epoch, known from
    _SNAPSHOT_VERSION: struct.Struct(">qhqqBii"),
    _WITHOUT_KNOWN_FROM: struct.Struct(">qhqqBi"),
    _WITHOUT_COORDINATORS: struct.Struct(">qhqqB"),
    _WITHOUT_CHECKED_COUNT: struct.Struct(">qhqqB"),
}
_FROM_ITS_START = -1
_LATER_FIELDS = [NO_COORDINATOR_EPOCH, _FROM_ITS_START]  # of layouts that lack them
_BATCH = struct.Struct(">iqiq")
_ENDED = struct.Struct(">qq")


class AppendedBatch(Struct, frozen=True, kw_only=True):
    """One of the last batches of a producer."""

    first_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def last_sequence(self) -> int:
        return (self.first_sequence + self.offset_delta) % SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """What compaction keeps of a producer."""

    epoch: int
    last_offset: int | None  # of its last batch with records; None when only a marker is known


@dataclass(slots=True, kw_only=True)
class ProducerEntry:
    epoch: int
    last_update_ms: int  # by the timestamps of its records, hence by the producer's clock
    silent_since_ms: int = HEARD_SINCE  # by our own clock: records of last year may come today, and be repeated today
    open_transaction_offset: int = NO_OPEN_TRANSACTION
    # What the coordinator told this leader when the open transaction began; unknown after a change of leaders or a restart.
    transaction_started_ms: int = NOT_STARTED
    coordinator_epoch: int = NO_COORDINATOR_EPOCH  # of the last marker
    batches: tuple[AppendedBatch, ...] = ()  # the last REMEMBERED_BATCHES; a tuple takes a tenth of a deque's memory
    # Where the log began to know this epoch, if in the middle: what lies before may be missing.
    known_from: int | None = None

    @property
    def next_sequence(self) -> int | None:
        """None where no batch is known: any may come."""
        return (self.batches[-1].last_sequence + 1) % SEQUENCES if self.batches else None


def is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes later than `other`. Sequence numbers wrap: of their circle, one half lies behind each."""
    return 0 < (sequence - other) % SEQUENCES < SEQUENCES // 2


class EndedTransaction(NamedTuple):
    first_offset: int
    last_offset: int  # inclusive: that of the marker


class OpenTransactions:
    """Those that keep the last stable offset of a log back: that are open, or whose end is not replicated yet.

    An end that is only in the leader's log may be lost with it, and then the transaction is open again. If readers had passed it,
    the last stable offset would go back, and the next leader could decide otherwise (Kafka: `unreplicatedTxns`). Finding the
    first costs the same with one open transaction and with 20,000.
    """

    def __init__(self, opened: Iterable[tuple[int, int]] = (), unreplicated: Iterable[EndedTransaction] = ()) -> None:
        """`opened`: (producer id, first offset), in any order."""
        # By producer id. First offsets rise, because a transaction begins at the end of the log. Not a dict: its first key is
        # found by a walk over all that were removed before it.
        self._opened: OrderedDict[int, int] = OrderedDict(sorted(opened, key=lambda item: item[1]))
        # Both offsets rise: one that began after a later ended one holds nothing back that the other does not. It is bounded by
        # the markers between the high watermark and the log end, since each look removes what is replicated.
        self._unreplicated: deque[EndedTransaction] = deque(unreplicated)

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction begins; None if there is none."""
        return next(iter(self._opened.values()), None)

    @property
    def open_count(self) -> int:
        return len(self._opened)

    def opened(self) -> Iterator[tuple[int, int]]:
        """(producer id, first offset) of each open transaction, the oldest first; to be read at once."""
        return iter(self._opened.items())

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the first transaction begins that is open, or whose end is at or after the high watermark."""
        if not (self._opened or self._unreplicated):
            return None  # as in most logs, at most times
        ended = self._unreplicated
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
        undecided = self.first_undecided_offset
        if not ended:
            return undecided
        return ended[0].first_offset if undecided is None else min(ended[0].first_offset, undecided)

    @property
    def unreplicated(self) -> Iterator[EndedTransaction]:
        return iter(self._unreplicated)

    def begin(self, producer_id: int, first_offset: int) -> None:
        assert producer_id not in self._opened
        self._opened[producer_id] = first_offset

    def end(self, producer_id: int, last_offset: int) -> int | None:
        """Its marker is in the log now. Return where the transaction began; None if none was open."""
        first_offset = self._opened.pop(producer_id, None)
        if first_offset is None:
            return None
        while self._unreplicated and self._unreplicated[-1].first_offset >= first_offset:
            self._unreplicated.pop()
        self._unreplicated.append(EndedTransaction(first_offset, last_offset))
        return first_offset

    def clear(self) -> None:
        self._opened.clear()
        self._unreplicated.clear()


class ProducerState:
    """All producers of one partition, in the order of their last batch."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.transactions = OpenTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, record_count: int, *, is_transactional: bool = False
    ) -> AppendedBatch | None:
        """Return the batch that this one repeats, or None when it may be appended. Raises what the producer must be
        told.

        A producer that is not known may begin anywhere: retention or `MAX_PRODUCERS` may have made us forget it
        (KIP-360).
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return None
        if epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {producer_id} has epoch {epoch}, a newer one has epoch {entry.epoch}"
            )
        repeated = self._check_sequence(
            entry, producer_id, epoch, first_sequence, record_count, is_transactional=is_transactional
        )
        if repeated is None and entry.open_transaction_offset >= 0:
            self._check_continues(entry, producer_id, epoch, is_transactional=is_transactional)
        return repeated

    @staticmethod
    def _check_continues(entry: ProducerEntry, producer_id: int, epoch: int, *, is_transactional: bool) -> None:
        """Records of the next transaction must not share the fate of the one that is open: its marker comes first."""
        opened = f"producer {producer_id} has a transaction open since offset {entry.open_transaction_offset}"
        if not is_transactional:
            raise InvalidTxnStateError(
                f"{opened}, and sent a batch outside of it: end the transaction first, or send the batch from another producer"
            )
        if epoch > entry.epoch:
            raise InvalidTxnStateError(
                f"{opened} in epoch {entry.epoch}, and sent a batch of epoch {epoch}: wait until the transaction has ended"
            )

    def _check_sequence(
        self,
        entry: ProducerEntry,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        record_count: int,
        *,
        is_transactional: bool,
    ) -> AppendedBatch | None:
        if epoch > entry.epoch:
            if first_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence}, not 0"
                )
            return None
        expected = entry.next_sequence
        if expected is None:
            return None
        last_sequence = (first_sequence + record_count - 1) % SEQUENCES
        for batch in entry.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        if first_sequence != expected:
            if not is_transactional and _is_older(entry, first_sequence, last_sequence):
                raise DuplicateSequenceError(
                    f"producer {producer_id} repeats sequence {first_sequence}, older than its last {REMEMBERED_BATCHES} batches"
                )
            self._refuse(producer_id, entry.batches, first_sequence, expected)
        return None

    def check_marker(
        self, producer_id: int, epoch: int, *, coordinator_epoch: int, transaction_version: int = 1
    ) -> None:
        """Raises what a transaction coordinator must be told whose marker is too old.

        With version 2 of transactions, the marker has a newer epoch than the records that it ends. With the epoch of what is
        open, it repeats the end of the transaction before, and would end the next one.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        is_repeated = epoch == entry.epoch and entry.open_transaction_offset >= 0
        if epoch < entry.epoch or (is_repeated and transaction_version >= TRANSACTION_VERSION_2):
            raise InvalidProducerEpochError(
                f"a marker ends a transaction of producer {producer_id} in epoch {epoch}, but the producer writes in epoch"
                f" {entry.epoch} now: that transaction has ended"
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"a marker of producer {producer_id} comes from coordinator epoch {coordinator_epoch}, and epoch"
                f" {entry.coordinator_epoch} has taken over"
            )

    def started(self, producer_id: int, epoch: int, started_ms: int) -> None:
        """The coordinator's stamp of a transaction whose first batch was appended just now, or was refused after all."""
        entry = self._producers.get(producer_id)
        if entry is not None and entry.epoch == epoch and entry.open_transaction_offset >= 0:
            entry.transaction_started_ms = started_ms

    def find(self, producer_id: int) -> ProducerEntry | None:
        """What is known of a producer; to be read, not to be kept."""
        return self._producers.get(producer_id)

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def expected_sequence(self, producer_id: int, epoch: int) -> int | None:
        """The sequence that the next batch of the producer has to begin with in this epoch; None when any may."""
        entry = self._producers.get(producer_id)
        if entry is None or epoch < entry.epoch:
            return None
        if epoch > entry.epoch:
            return 0
        return entry.next_sequence

    def missing_sequence(self, producer_id: int, epoch: int, first_sequence: int, *, since_offset: int) -> int | None:
        """The sequence that is missing before this one, of a producer whose last batch lies before `since_offset`."""
        expected, entry = self.expected_sequence(producer_id, epoch), self._producers.get(producer_id)
        if expected is None or entry is None or not is_behind(first_sequence, expected):
            return None
        is_older = not entry.batches or entry.batches[-1].last_offset < since_offset
        return expected if is_older else None

    @staticmethod
    def _refuse(producer_id: int, batches: tuple[AppendedBatch, ...], first: int, expected: int) -> NoReturn:
        """What is not one of the last batches, exactly as it was, nor older than all of them, has not been appended as far as
        this log knows. If the producer was told that it has, it would drop the records."""
        if is_behind(expected, first):
            raise OutOfOrderSequenceError(
                f"producer {producer_id} sent sequence {first} where {expected} follows: it is none of the batches that are "
                f"known, from {batches[0].first_sequence} on"
            )
        raise OutOfOrderSequenceError(f"producer {producer_id} sent sequence {first} where {expected} follows")

    def update(
        self, header: BatchHeader, *, first_offset: int, coordinator_epoch: int = NO_COORDINATOR_EPOCH
    ) -> int | None:
        """Note a batch that is in the log now; for a control batch return where the transaction that it ends began.
        `coordinator_epoch` is that of a marker."""
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        entry = self._producers.pop(producer_id, None)
        if entry is None:
            entry = ProducerEntry(epoch=header.producer_epoch, last_update_ms=header.max_timestamp_ms)
        elif header.producer_epoch > entry.epoch:
            # An open transaction stays open, as in Kafka: only a marker ends one. Otherwise, records that were not decided on
            # would count as committed. A leader refuses such a batch (`check`), but earlier versions have appended it.
            entry.epoch, entry.batches, entry.known_from = header.producer_epoch, (), None
        self._producers[producer_id] = entry  # at the end: the one that was heard of last
        entry.last_update_ms = max(entry.last_update_ms, header.max_timestamp_ms)
        entry.silent_since_ms = HEARD_SINCE
        ended = self._note(entry, header, first_offset, coordinator_epoch)
        if len(self._producers) > MAX_PRODUCERS:  # when it is known whether this one has a transaction open
            self._forget_oldest()
        return ended

    def _note(self, entry: ProducerEntry, header: BatchHeader, first_offset: int, coordinator_epoch: int) -> int | None:
        producer_id = header.producer_id
        if header.is_control:
            entry.coordinator_epoch = max(entry.coordinator_epoch, coordinator_epoch)
            entry.open_transaction_offset = NO_OPEN_TRANSACTION
            entry.transaction_started_ms = NOT_STARTED
            entry.batches = entry.batches and (_nothing_after(entry.batches[-1]),)
            return self.transactions.end(producer_id, first_offset + header.last_offset_delta)
        appended = AppendedBatch(
            first_sequence=header.base_sequence, last_offset=first_offset + header.last_offset_delta,
            offset_delta=header.last_offset_delta, timestamp_ms=header.max_timestamp_ms,
        )  # fmt: skip
        if not entry.batches or entry.known_from is not None:  # else the epoch is known from its start
            entry.known_from = _known_from(entry, appended)
        entry.batches = (*entry.batches[1 - REMEMBERED_BATCHES :], appended)
        if header.is_transactional and entry.open_transaction_offset < 0:
            entry.open_transaction_offset = first_offset
            self.transactions.begin(producer_id, first_offset)
        return None

    def expire(self, now_ms: int, *, expiration_ms: int = EXPIRATION_MS) -> None:
        """Remove producers that sent nothing for that time and have no open transaction. Called periodically: the time counts
        from the first call after the last batch, or after a start."""
        for entry in reversed(self._producers.values()):
            if entry.silent_since_ms != HEARD_SINCE:
                break
            entry.silent_since_ms = now_ms
        silent = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.open_transaction_offset < 0 and entry.silent_since_ms <= now_ms - expiration_ms
        ]
        for producer_id in silent:
            del self._producers[producer_id]

    def last_batches(self) -> dict[int, LastBatch]:
        """By producer id, of every producer that is not forgotten."""
        return {
            producer_id: LastBatch(
                epoch=entry.epoch, last_offset=entry.batches[-1].last_offset if entry.batches else None
            )
            for producer_id, entry in self._producers.items()
        }

    def entries(self) -> Iterator[tuple[int, ProducerEntry]]:
        """(producer id, what is known of it) of every producer that is not forgotten; to be read, not to be kept."""
        return iter(self._producers.items())

    def clear(self) -> None:
        self._producers.clear()
        self.transactions.clear()

    def _forget_oldest(self) -> None:
        """Of those without an open transaction; there may be none, because transactional ids are limited elsewhere."""
        if self.transactions.open_count >= len(self._producers):
            return
        for producer_id, entry in self._producers.items():
            if entry.open_transaction_offset < 0:
                del self._producers[producer_id]
                return

    def to_snapshot(self) -> bytes:
        is_all_known = all(entry.known_from is None for entry in self._producers.values())
        version = _WITHOUT_KNOWN_FROM if is_all_known else _SNAPSHOT_VERSION
        body = b"".join(self._snapshot_parts(version))
        count = len(self._producers)
        return _SNAPSHOT_HEAD.pack(version, crc32c(body, crc32c(_COUNT.pack(count))), count) + body

    def _snapshot_parts(self, version: int) -> Iterator[bytes]:
        layout = _PRODUCERS[version]
        for producer_id, entry in self._producers.items():
            known_from = _FROM_ITS_START if entry.known_from is None else entry.known_from
            yield layout.pack(
                producer_id, entry.epoch, entry.last_update_ms, entry.open_transaction_offset, len(entry.batches),
                entry.coordinator_epoch, *([known_from] if version == _SNAPSHOT_VERSION else []),
            )  # fmt: skip
            for batch in entry.batches:
                yield _BATCH.pack(batch.first_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms)
        ended = list(self.transactions.unreplicated)
        yield _COUNT.pack(len(ended))
        for transaction in ended:
            yield _ENDED.pack(*transaction)

    @classmethod
    def from_snapshot(cls, data: bytes) -> "ProducerState":
        """Raises CorruptRecordError; the caller then replays the log instead."""
        if len(data) < _SNAPSHOT_HEAD.size:
            raise CorruptRecordError("a producer snapshot is cut")
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        body = data[_SNAPSHOT_HEAD.size :]
        checked = crc32c(_COUNT.pack(count)) if version != _WITHOUT_CHECKED_COUNT else 0
        is_known = version in _PRODUCERS and (count or version != _WITHOUT_CHECKED_COUNT)
        if not is_known or crc32c(body, checked) != crc:
            raise CorruptRecordError(f"a producer snapshot of version {version} is damaged or foreign")
        try:
            state, position = cls._read_producers(data, count, version)
            ended, position = _read_ended(data, position) if version > _WITHOUT_COORDINATORS else ([], position)
        except struct.error as error:
            raise CorruptRecordError(f"a producer snapshot has fewer than {count} producers") from error
        if position != len(data):  # of version 2 the CRC does not cover the count; a forgotten producer repeats itself
            raise CorruptRecordError(f"a producer snapshot has more than {count} producers")
        opened = {producer_id: entry.open_transaction_offset for producer_id, entry in state.entries()}
        state.transactions = OpenTransactions((item for item in opened.items() if item[1] >= 0), ended)
        return state

    @classmethod
    def _read_producers(cls, data: bytes, count: int, version: int) -> "tuple[ProducerState, int]":
        state = cls()
        position = _SNAPSHOT_HEAD.size
        layout = _PRODUCERS[version]
        for _ in range(count):
            producer_id, epoch, last_update_ms, opened, batch_count, *rest = layout.unpack_from(data, position)
            position += layout.size
            coordinator_epoch, known_from = rest + _LATER_FIELDS[len(rest) :]
            entry = ProducerEntry(epoch=epoch, last_update_ms=last_update_ms, open_transaction_offset=opened,
                                  coordinator_epoch=coordinator_epoch,
                                  known_from=None if known_from == _FROM_ITS_START else known_from)  # fmt: skip
            batches = []
            for _ in range(batch_count):
                first_sequence, last_offset, offset_delta, timestamp_ms = _BATCH.unpack_from(data, position)
                position += _BATCH.size
                batches.append(AppendedBatch(first_sequence=first_sequence, last_offset=last_offset,
                                             offset_delta=offset_delta, timestamp_ms=timestamp_ms))  # fmt: skip
            entry.batches = tuple(batches[-REMEMBERED_BATCHES:])
            state._producers[producer_id] = entry
        return state, position


def _is_older(entry: ProducerEntry, first_sequence: int, last_sequence: int) -> bool:
    """Whether a batch lies before all that are remembered, so that it is there. Answers of our protocol come in any order: that
    to a request which also waits for a slow partition may be lost after many later batches of this one. Not for transactions:
    an ended one of the same epoch may have had these sequences, and librdkafka uses those of an aborted one again. Nor before
    the first batch of a producer that was forgotten: that one is taken even if the batch ahead of it was refused."""
    oldest = entry.batches[0]
    return (
        len(entry.batches) == REMEMBERED_BATCHES
        and is_behind(oldest.first_sequence, first_sequence)
        and is_behind(oldest.first_sequence, last_sequence)
        and (entry.known_from is None or not is_behind(entry.known_from, first_sequence))
    )


def _known_from(entry: ProducerEntry, appended: AppendedBatch) -> int | None:
    """After this batch. Sequences wrap, so what lies a quarter of their circle behind it is no longer told from what comes."""
    if not entry.batches:
        return appended.first_sequence or None
    began = entry.known_from
    return None if began is None or (appended.first_sequence - began) % SEQUENCES > SEQUENCES // 4 else began


def _nothing_after(batch: AppendedBatch) -> AppendedBatch:
    """An empty batch that ends with this one: what is sent after the end of a transaction belongs to another one, and repeats
    nothing, whatever its sequence."""
    return AppendedBatch(
        first_sequence=(batch.last_sequence + 1) % SEQUENCES,
        last_offset=batch.last_offset,
        offset_delta=-1,
        timestamp_ms=batch.timestamp_ms,
    )


def _read_ended(data: bytes, position: int) -> tuple[list[EndedTransaction], int]:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    end = position + count * _ENDED.size
    if end > len(data):
        raise struct.error
    return [EndedTransaction(*fields) for fields in _ENDED.iter_unpack(data[position:end])], end
