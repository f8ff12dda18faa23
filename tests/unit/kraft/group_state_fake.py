"""A trivial group state: it keeps the records of each slot, and knows each slot's coordinator epoch."""

from __future__ import annotations

from barnabas.kraft.group_state.group_state import GROUP_RECORDS
from barnabas.kraft.group_state.offsets_log import SlotLog
from barnabas.kraft.metadata.image import SLOT_COUNT
from barnabas.kraft.metadata.records import OffsetCommitRecord, Record, RecordBatch, encode_batch


class FakeGroupState:
    def __init__(self) -> None:
        self.records: list[list[Record]] = [[] for _ in range(SLOT_COUNT)]
        self.epochs = [0] * SLOT_COUNT
        self.deleted_topics: list[str] = []

    def replay(self, record: Record, index: int) -> bool:
        assert isinstance(record, GROUP_RECORDS)
        if record.coordinator_epoch < self.epochs[record.slot]:
            return False
        self.records[record.slot].append(record)
        return True

    def records_of(self, slot: int) -> list[Record]:
        return list(self.records[slot])

    def batches_of(self, slot: int) -> list[bytes]:
        return [encode_batch(RecordBatch(controller_epoch=0, records=(record,))) for record in self.records[slot]]

    def view(self, slot: int) -> list[Record]:
        return list(self.records[slot])

    def read_log(self, slot: int, log_offset: int, limit: int) -> SlotLog:
        return SlotLog(start_offset=0, end_offset=len(self.records[slot]))

    def copy(self) -> FakeGroupState:
        copied = FakeGroupState()
        copied.records = [list(records) for records in self.records]
        copied.epochs = list(self.epochs)
        return copied

    def on_slot_moved(self, slot: int, coordinator_epoch: int) -> None:
        assert coordinator_epoch >= self.epochs[slot]
        self.epochs[slot] = coordinator_epoch

    def delete_topic(self, name: str) -> None:
        self.deleted_topics.append(name)
        self.records = [
            [record for record in records if not (isinstance(record, OffsetCommitRecord) and record.topic == name)]
            for records in self.records
        ]
