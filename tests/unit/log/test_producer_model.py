"""The state of producers against a model that remembers every batch: what is refused, repeated, or open (KIP-98)."""

from dataclasses import dataclass, field
from random import Random

import pytest

from barnabas.log.format.record_batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader
from barnabas.log.segment.producer_state import REMEMBERED_BATCHES, SEQUENCES, ProducerState, is_behind
from barnabas.log.vocabulary.errors import (
    BarnabasError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from barnabas.log.vocabulary.transaction_messages import NOT_STARTED

STEPS = 120
PLAIN, TRANSACTIONAL = (1, 2), (3, 4)
NEAR_THE_END = SEQUENCES - 8


@dataclass
class Producer:
    epoch: int
    coordinator_epoch: int = -1
    first_sequence: int = 0  # of the first batch that is known of this epoch
    next_sequence: int | None = None
    batches: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # of this epoch: first sequence, count, first offset
    after_marker: int = 0  # how many of them lie before the last marker
    open_at: int | None = None


class Model:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.state = ProducerState()
        self.producers: dict[int, Producer] = {}
        self.ended: list[tuple[int, int]] = []  # first offset, offset of the marker
        self.end = self.high_watermark = 0

    def header(self, producer_id: int, epoch: int, sequence: int, count: int, attributes: int) -> BatchHeader:
        return BatchHeader(
            position=0, base_offset=self.end, size_bytes=100, leader_epoch=0, crc=0, attributes=attributes,
            last_offset_delta=count - 1, base_timestamp_ms=5, max_timestamp_ms=5, producer_id=producer_id,
            producer_epoch=epoch, base_sequence=sequence, record_count=count,
        )  # fmt: skip

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch(self) -> None:
        rng, producer_id = self.rng, self.rng.choice(PLAIN + TRANSACTIONAL)
        known = self.producers.get(producer_id)
        epoch = max(0, (0 if known is None else known.epoch) + rng.choice([-1, 0, 0, 0, 0, 0, 0, 0, 1]))
        count = rng.randint(1, 3)
        sequence = rng.choice([0, NEAR_THE_END]) if known is None else 0
        if known is not None and known.next_sequence is not None and rng.random() < 0.9:
            sequence = known.next_sequence
        if known is not None and known.batches and rng.random() < 0.4:
            sequence, count, _ = rng.choice(known.batches)
        elif rng.random() < 0.1:
            sequence = (sequence + rng.choice([-1, 1, 2])) % SEQUENCES
        is_transactional = producer_id in TRANSACTIONAL
        if known is not None and known.open_at is not None and rng.random() < 0.1:
            remembered = {batch[:2] for batch in known.batches[known.after_marker :][-REMEMBERED_BATCHES:]}
            is_transactional = sequence != known.next_sequence and (sequence, count) not in remembered
        if known is not None and not known.first_sequence and sequence > SEQUENCES // 2:
            return  # a producer that begins with 0 has sent nothing before it
        expected = self.verdict(known, epoch, sequence, count, is_transactional=is_transactional)
        try:
            repeated = self.state.check(producer_id, epoch, sequence, count, is_transactional=is_transactional)
        except BarnabasError as error:
            assert type(error) is expected
            return
        if repeated is not None:
            assert repeated.first_offset == expected
            return
        assert expected is None
        attributes = TRANSACTIONAL_MASK if is_transactional else 0
        assert (
            self.state.update(self.header(producer_id, epoch, sequence, count, attributes), first_offset=self.end)
            is None
        )
        self.note(producer_id, epoch, sequence, count, is_transactional=is_transactional)

    def verdict(
        self, known: Producer | None, epoch: int, sequence: int, count: int, *, is_transactional: bool
    ) -> type[BarnabasError] | int | None:
        """The error, the offset of the batch that this one repeats, or None if it is new."""
        if known is None:
            return None
        if epoch < known.epoch:
            return InvalidProducerEpochError
        if epoch > known.epoch and sequence != 0:
            return OutOfOrderSequenceError
        if epoch == known.epoch and known.next_sequence is not None:
            for first, size, offset in known.batches[known.after_marker :][-REMEMBERED_BATCHES:]:
                if (first, size) == (sequence, count):
                    return offset
            if sequence != known.next_sequence:
                return self.refusal(known, sequence, count, is_transactional=is_transactional)
        is_other = epoch > known.epoch or not is_transactional
        return InvalidTxnStateError if known.open_at is not None and is_other else None

    def refusal(self, known: Producer, sequence: int, count: int, *, is_transactional: bool) -> type[BarnabasError]:
        """Only what was surely appended is called a duplicate: the producer drops it."""
        remembered = known.batches[known.after_marker :][-REMEMBERED_BATCHES:]
        if is_transactional or len(remembered) < REMEMBERED_BATCHES or known.after_marker:
            return OutOfOrderSequenceError
        before = (remembered[0][0] - known.first_sequence) % SEQUENCES
        at = (sequence - known.first_sequence) % SEQUENCES
        return DuplicateSequenceError if at + count <= before else OutOfOrderSequenceError

    def note(self, producer_id: int, epoch: int, sequence: int, count: int, *, is_transactional: bool) -> None:
        known = self.producers.setdefault(producer_id, Producer(epoch=epoch, first_sequence=sequence))
        if epoch > known.epoch:
            known.epoch, known.batches, known.after_marker, known.first_sequence = epoch, [], 0, sequence
        known.batches.append((sequence, count, self.end))
        known.next_sequence = (sequence + count) % SEQUENCES
        if is_transactional and known.open_at is None:
            known.open_at = self.end
        self.end += count

    # --- markers ------------------------------------------------------------------------------------------------------

    def marker(self) -> None:
        rng, producer_id = self.rng, self.rng.choice(TRANSACTIONAL)
        known = self.producers.get(producer_id)
        epoch = max(0, (0 if known is None else known.epoch) + rng.choice([-1, 0, 0, 0, 1]))
        coordinator_epoch = max(0, (0 if known is None else known.coordinator_epoch) + rng.choice([-1, 0, 0, 1]))
        version = rng.choice([1, 1, 2])
        expected: type[BarnabasError] | None = None
        if known is not None:
            is_repeated = version == 2 and epoch == known.epoch and known.open_at is not None
            if epoch < known.epoch or is_repeated:
                expected = InvalidProducerEpochError
            elif coordinator_epoch < known.coordinator_epoch:
                expected = TransactionCoordinatorFencedError
        try:
            self.state.check_marker(
                producer_id, epoch, coordinator_epoch=coordinator_epoch, transaction_version=version
            )
        except BarnabasError as error:
            assert type(error) is expected
            return
        assert expected is None
        header = self.header(producer_id, epoch, -1, 1, CONTROL_MASK | TRANSACTIONAL_MASK)
        began = self.state.update(header, first_offset=self.end, coordinator_epoch=coordinator_epoch)
        known = self.producers.setdefault(producer_id, Producer(epoch=epoch))
        assert began == known.open_at
        if known.open_at is not None:
            self.ended.append((known.open_at, self.end))
        if epoch > known.epoch:
            known.epoch, known.batches, known.next_sequence = epoch, [], None
        known.open_at, known.coordinator_epoch = None, max(known.coordinator_epoch, coordinator_epoch)
        known.after_marker = len(known.batches)
        self.end += 1

    # --- what must hold -----------------------------------------------------------------------------------------------

    def step(self) -> None:
        dice = self.rng.random()
        if dice < 0.75:
            self.batch()
        elif dice < 0.9:
            self.marker()
        elif dice < 0.95:
            self.high_watermark = self.rng.randint(self.high_watermark, self.end)
        else:
            self.state = ProducerState.from_snapshot(self.state.to_snapshot())
        self.check()

    def check(self) -> None:
        transactions = self.state.transactions
        opened = {producer_id: it.open_at for producer_id, it in self.producers.items() if it.open_at is not None}
        assert dict(transactions.opened()) == opened and transactions.open_count == len(opened)
        assert transactions.first_undecided_offset == min(opened.values(), default=None)
        unreplicated = [first for first, marker in self.ended if marker >= self.high_watermark]
        unstable = min([*opened.values(), *unreplicated], default=None)
        assert transactions.first_unstable_offset(self.high_watermark) == unstable
        assert len(self.state) == len(self.producers)
        for producer_id, known in self.producers.items():
            expected = self.state.expected_sequence
            assert expected(producer_id, known.epoch) == known.next_sequence
            assert expected(producer_id, known.epoch + 1) == 0 and expected(producer_id, known.epoch - 1) is None
            last = self.state.last_batches()[producer_id]
            assert last.epoch == known.epoch
            assert last.last_offset == (sum(known.batches[-1][1:]) - 1 if known.batches else None)


@pytest.mark.parametrize("seed", range(150))
def test_producers_are_told_what_the_log_holds(seed: int) -> None:
    model = Model(seed)
    for _ in range(STEPS):
        model.step()


def test_of_the_circle_of_sequences_one_half_lies_behind_each() -> None:
    for first in (0, 7, SEQUENCES - 1):
        for ahead, is_later in (
            (0, False),
            (1, True),
            (SEQUENCES // 2 - 1, True),
            (SEQUENCES // 2, False),
            (-1, False),
        ):
            assert is_behind((first + ahead) % SEQUENCES, first) == is_later


def test_an_empty_log_knows_no_producer_and_no_transaction() -> None:
    model = Model(0)
    while not (model.state.transactions.open_count and list(model.state.transactions.unreplicated)):
        model.batch()
        model.marker()
    model.state.clear()
    assert not len(model.state) and model.state.transactions.first_unstable_offset(0) is None
    assert not model.state.transactions.open_count


def test_the_stamp_of_a_coordinator_belongs_to_the_transaction_that_is_open() -> None:
    state, header = ProducerState(), Model(0).header

    def stamp() -> int:
        entry = state.find(3)
        assert entry is not None
        return entry.transaction_started_ms

    state.started(3, 4, 70)  # nothing is known of the producer
    state.update(header(3, 4, 0, 1, 0), first_offset=0)
    state.started(3, 4, 71)
    assert stamp() == NOT_STARTED
    state.update(header(3, 4, 1, 1, TRANSACTIONAL_MASK), first_offset=1)
    state.started(3, 5, 72)
    assert stamp() == NOT_STARTED
    state.started(3, 4, 73)
    assert stamp() == 73
    state.update(header(3, 4, -1, 1, CONTROL_MASK | TRANSACTIONAL_MASK), first_offset=2)
    assert stamp() == NOT_STARTED

    state = ProducerState()
    state.update(header(3, 4, 0, 1, TRANSACTIONAL_MASK), first_offset=0)
    state.started(3, 4, 74)
    assert stamp() == 74, "a transaction may begin at offset 0"
