"""What a cleaning must know about transactions: which batches were aborted, and which markers are no longer needed. Pure.

Both are determined from the batches in the order of their offsets. An aborted batch is removed at once; its marker stays as long
as a pass still finds a batch of its transaction, since a reader of the old segments may still need it. (Kafka, KIP-98.)
"""

from collections.abc import Iterable

from ..format.record_batch import BatchHeader
from ..segment.transaction_index import AbortedTransaction


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda found: found.first_offset, reverse=True)
        self._aborted: dict[
            int, AbortedTransaction
        ] = {}  # by producer id: its aborted transaction that is open at this point
        self._with_aborted_batches: set[int] = set()
        self._with_committed_batches: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of this batch, which is no control batch, belong to an aborted transaction."""
        self._open_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._with_aborted_batches.add(header.producer_id)
            return True
        self._with_committed_batches.add(header.producer_id)
        return False

    def is_needless(self, header: BatchHeader, *, is_abort: bool) -> bool:
        """Whether this marker ends a transaction of which no batch was seen."""
        self._open_up_to(header.last_offset)
        producer_id = header.producer_id
        if not is_abort:
            had_batches = producer_id in self._with_committed_batches
            self._with_committed_batches.discard(producer_id)
            return not had_batches
        transaction = self._aborted.pop(producer_id, None)
        if producer_id not in self._with_aborted_batches:
            return True
        self._with_aborted_batches.discard(producer_id)
        if transaction is not None:
            self._kept.append(transaction)
        return False

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers stayed since the last call: entries of the new segment's index."""
        kept, self._kept = self._kept, []
        return kept

    def _open_up_to(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            transaction = self._upcoming.pop()
            self._aborted[transaction.producer_id] = transaction
