"""A real `PartitionLog` on a simulated disk, in the form in which the ISR simulation looks at logs: a record is a batch."""

from typing import Any, ClassVar

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import iter_records, read_marker
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition

from .disk import SimulatedDisk
from .isr_log import Value, chain

DIRECTORY = "/data/t-0"
SEGMENT_BYTES = 1_500  # some fifteen batches
READ_BYTES = 1 << 20


class DiskLog(PartitionLog):
    """`records` and hashes are read from the log again when it has changed. A marker has a negative number, by its offset."""

    rotten: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, disk: SimulatedDisk, topic_partition: TopicPartition, *, flush_messages: int, min_isr: int,
                 **settings: Any) -> None:  # fmt: skip
        disk.make_dirs(DIRECTORY)
        config = LogConfig(
            segment_bytes=SEGMENT_BYTES, index_interval_bytes=300, flush_messages=flush_messages,
            min_insync_replicas=min_isr,
        )  # fmt: skip
        super().__init__(disk, DIRECTORY, topic_partition=topic_partition, topic_id="t1", config=config, now_ms=0,
                         **settings)  # fmt: skip
        self.damage.rotten = self.rotten  # type: ignore[attr-defined]  # these disks have none
        self._seen: tuple[int, int] = (-1, -1)
        self._records: list[tuple[int, Value]] = []
        self._hashes = [0]
        self.markers: dict[int, tuple[int, int, bool]] = {}  # by offset: producer, epoch, whether it commits

    @property
    def records(self) -> list[tuple[int, Value]]:
        """(leader epoch, value) by offset."""
        self._look()
        return self._records

    def hash_at(self, offset: int) -> int:
        self._look()
        return self._hashes[offset]

    def _look(self) -> None:
        if self._seen == (self.truncations, self.log_end_offset):
            return
        if self._seen[0] != self.truncations:
            self._records, self._hashes, self.markers = [], [0], {}
        self._seen = (self.truncations, self.log_end_offset)
        while len(self._records) < self.log_end_offset:
            data = self.read(len(self._records), max_bytes=READ_BYTES, up_to_offset=self.log_end_offset).read()
            for header in iter_headers(data):
                batch = data[header.position : header.position + header.size_bytes]
                value = (header.producer_id, -1 - header.base_offset)
                if header.is_control:
                    marker = read_marker(batch)
                    assert marker is not None
                    self.markers[header.base_offset] = (header.producer_id, header.producer_epoch, marker.is_commit)
                else:
                    (record,) = iter_records(batch)
                    value = (header.producer_id, int(record.value or b""))
                self._records.append((header.leader_epoch, value))
                self._hashes.append(chain(self._hashes[-1], header.leader_epoch, (header.crc, value[1])))
