"""What an idempotent producer of the simulation knows: its sequences, and the batch of each partition that has no answer yet."""

from collections import defaultdict

from barnabas.log.format.record_codec import ProducerFields
from barnabas.log.vocabulary.errors import ErrorCode

OUT_OF_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH)
_IDS_PER_PRODUCER = 1_000_000
Partition = tuple[str, int]


class Numbered:
    def __init__(self, number: int) -> None:
        self.producer_id = number * _IDS_PER_PRODUCER
        self.pending: dict[Partition, bytes] = {}
        self._sequences: dict[Partition, int] = defaultdict(int)

    def next(self, partition: Partition) -> ProducerFields:
        return ProducerFields(producer_id=self.producer_id, producer_epoch=0, base_sequence=self._sequences[partition])

    def written(self, partition: Partition, record_count: int) -> None:
        del self.pending[partition]
        self._sequences[partition] += record_count

    def begin_anew(self) -> None:
        """The topic was made again, or a disk has lost what it had: under another id nothing can be mistaken."""
        self.producer_id += 1
        self.pending.clear()
        self._sequences.clear()
