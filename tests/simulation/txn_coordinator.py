"""A linearizable model of transactional producers and of their coordinator, for a simulation of one partition.

A producer writes some records, and the coordinator decides. The decision is kept here for ever, as in the quorum; its marker is
sent until the leader has acknowledged it. Markers raise the producer epoch, as in version 2 of transactions (KIP-890). Now and
then another coordinator takes over, and the former one goes on for a while with decisions of its own, which nobody has made.
"""

from dataclasses import dataclass, field
from random import Random

from barnabas.log.format.record_codec import ProducerFields, encode_batch, encode_marker

FIRST_PRODUCER = 100
PRODUCERS = 3
NOW_MS = 1_700_000_000_000

Data = tuple[int, int]  # producer, number


@dataclass(slots=True, eq=False)
class Transaction:
    values: list[Data] = field(default_factory=list)
    is_commit: bool | None = None  # None: undecided


@dataclass(slots=True, eq=False)
class TransactionalProducer:
    producer_id: int
    epoch: int = 0
    next_sequence: int = 0
    next_number: int = 0
    transaction: Transaction = field(default_factory=Transaction)
    outstanding: Data | None = None  # sent, and not acknowledged yet
    fenced_below: int = -1  # the coordinator epoch of its last acknowledged marker


class ModelTransactions:
    """`fates` knows the transaction of each record, `decisions` what was decided, by producer and epoch of the marker."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.coordinator_epoch = 1
        self.producers = {
            number: TransactionalProducer(number) for number in range(FIRST_PRODUCER, FIRST_PRODUCER + PRODUCERS)
        }
        self.fates: dict[Data, Transaction] = {}
        self.decisions: dict[tuple[int, int], bool] = {}

    def step(self, producer: TransactionalProducer) -> tuple[bytes, tuple[int, ...], bool]:
        """What to send next, the token of its acknowledgement, and whether it is a marker."""
        transaction = producer.transaction
        if transaction.is_commit is None:
            self._go_on(producer)
        if transaction.is_commit is not None:
            return self._marker(producer, transaction.is_commit, self.coordinator_epoch)
        assert producer.outstanding is not None
        fields = ProducerFields(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=producer.next_sequence,
            is_transactional=True,
        )  # fmt: skip
        batch = encode_batch([b"%d" % producer.outstanding[1]], timestamps_ms=NOW_MS, producer=fields)
        return batch, producer.outstanding, False

    def _go_on(self, producer: TransactionalProducer) -> None:
        dice, transaction = self.rng.random(), producer.transaction
        if producer.outstanding is not None:
            if dice < 0.05:
                self._decide(producer, False)  # its time is over; what is on its way may still arrive
            return
        if transaction.values and dice < 0.3:
            self._decide(producer, self.rng.random() < 0.5)
            return
        if transaction.values and dice < 0.4:
            producer.epoch += 1  # as no client does: it begins a new epoch inside of its transaction
            producer.next_sequence = 0
        producer.next_number += 1
        producer.outstanding = (producer.producer_id, producer.next_number)
        transaction.values.append(producer.outstanding)
        self.fates[producer.outstanding] = transaction

    def _decide(self, producer: TransactionalProducer, is_commit: bool) -> None:
        producer.transaction.is_commit = is_commit
        producer.outstanding = None
        self.decisions[producer.producer_id, producer.epoch + 1] = is_commit

    @staticmethod
    def _marker(
        producer: TransactionalProducer, is_commit: bool, coordinator_epoch: int
    ) -> tuple[bytes, tuple[int, ...], bool]:
        epoch = producer.epoch + 1
        batch = encode_marker(
            producer_id=producer.producer_id, producer_epoch=epoch, is_commit=is_commit,
            coordinator_epoch=coordinator_epoch, timestamp_ms=NOW_MS,
        )  # fmt: skip
        return batch, (producer.producer_id, epoch, coordinator_epoch), True

    def replaced(self) -> None:
        """Another coordinator has taken over."""
        self.coordinator_epoch += 1

    def of_a_zombie(self, producer: TransactionalProducer) -> bytes | None:
        """A marker that nobody has decided on, from a coordinator that the partition knows to be replaced."""
        if producer.fenced_below < 1:
            return None
        return self._marker(producer, self.rng.random() < 0.5, producer.fenced_below - 1)[0]

    def data_acknowledged(self, value: Data) -> None:
        producer = self.producers[value[0]]
        if producer.outstanding == value:
            producer.outstanding = None
            producer.next_sequence += 1

    def marker_acknowledged(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        producer = self.producers[producer_id]
        producer.fenced_below = max(producer.fenced_below, coordinator_epoch)
        if producer.transaction.is_commit is not None and producer.epoch + 1 == epoch:
            producer.transaction = Transaction()
            producer.epoch, producer.next_sequence = epoch, 0
