"""A real `PartitionLog` on a simulated disk, in the form in which the ISR simulation looks at logs: a record is a batch."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import iter_records, read_marker
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.settings.config import LogConfig
from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.testing.simulation.disk import SimulatedDisk

from .isr_log import Value, chain

DIRECTORY = "/data/t-0"
SEGMENT_BYTES = 1_500  # some fifteen batches
READ_BYTES = 1 << 20


@dataclass(slots=True)
class Contents:
    """By offset, from 0 on."""

    records: list[tuple[int, Value]] = field(default_factory=list)
    hashes: list[int] = field(default_factory=lambda: [0])  # one more: of what lies before each offset
    markers: dict[int, tuple[int, int, bool]] = field(default_factory=dict)  # producer, epoch, whether it commits

    def up_to(self, end_offset: int) -> "Contents":
        markers = {offset: marker for offset, marker in self.markers.items() if offset < end_offset}
        return Contents(self.records[:end_offset], self.hashes[: end_offset + 1], markers)


class DiskLog(PartitionLog):
    """`records` and hashes are read from the log again when it has changed. A marker has a negative number, by its offset.

    `deleted` has what was committed before some log start: no log has that any more.
    """

    rotten: ClassVar[frozenset[int]] = frozenset()

    def __init__(self, disk: SimulatedDisk, topic_partition: TopicPartition, *, flush_messages: int, min_isr: int,
                 deleted: Contents, **settings: Any) -> None:  # fmt: skip
        disk.make_dirs(DIRECTORY)
        config = LogConfig(
            segment_bytes=SEGMENT_BYTES, index_interval_bytes=300, flush_messages=flush_messages,
            min_insync_replicas=min_isr,
        )  # fmt: skip
        super().__init__(disk, DIRECTORY, topic_partition=topic_partition, topic_id="t1", config=config, now_ms=0,
                         **settings)  # fmt: skip
        self.damage.rotten = self.rotten  # type: ignore[attr-defined]  # these disks have none
        self._seen: tuple[int, int, int] = (-1, -1, -1)
        self._contents = Contents()
        self._deleted = deleted

    @property
    def records(self) -> list[tuple[int, Value]]:
        """(leader epoch, value) by offset."""
        self._look()
        return self._contents.records

    @property
    def markers(self) -> dict[int, tuple[int, int, bool]]:
        self._look()
        return self._contents.markers

    def hash_at(self, offset: int) -> int:
        self._look()
        return self._contents.hashes[offset]

    def contents(self) -> Contents:
        self._look()
        return self._contents

    def _look(self) -> None:
        seen = (self.truncations, self.log_start_offset, self.log_end_offset)
        if self._seen == seen:
            return
        # What lay before the log start may have differed from what was committed: a follower is truncated to where its log agrees
        # with that of the leader, from the leader's log start on.
        if self._seen[:2] != seen[:2]:
            self._contents = self._deleted.up_to(self.log_start_offset)
        self._seen = seen
        found = self._contents
        while len(found.records) < self.log_end_offset:
            data = self.read(len(found.records), max_bytes=READ_BYTES, up_to_offset=self.log_end_offset).read()
            for header in iter_headers(data):
                batch = data[header.position : header.position + header.size_bytes]
                value = (header.producer_id, -1 - header.base_offset)
                if header.is_control:
                    marker = read_marker(batch)
                    assert marker is not None
                    found.markers[header.base_offset] = (header.producer_id, header.producer_epoch, marker.is_commit)
                else:
                    (record,) = iter_records(batch)
                    value = (header.producer_id, int(record.value or b""))
                found.records.append((header.leader_epoch, value))
                found.hashes.append(chain(found.hashes[-1], header.leader_epoch, (header.crc, value[1])))
