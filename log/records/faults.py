"""What can be wrong with the records in a batch: one list, so that both implementations report the same. Pure."""

from enum import IntEnum

from ..vocabulary.errors import CorruptRecordError


class Fault(IntEnum):
    CUT_NUMBER = 1
    LONG_NUMBER = 2
    RECORD_BEYOND_BATCH = 3
    EMPTY_RECORD = 4
    TIMESTAMP_RANGE = 5
    OFFSET_ORDER = 6
    FIELD_BEYOND_RECORD = 7
    HEADER_COUNT = 8
    NO_HEADER_NAME = 9
    RECORD_NOT_FILLED = 10
    BYTES_LEFT = 11


_REASONS = {
    Fault.CUT_NUMBER: "a number is truncated",
    Fault.LONG_NUMBER: "a number has more than 64 bits",
    Fault.RECORD_BEYOND_BATCH: "its length is negative, or extends beyond the end of the batch",
    Fault.EMPTY_RECORD: "it is empty",
    Fault.TIMESTAMP_RANGE: "its timestamp has more than 64 bits",
    Fault.OFFSET_ORDER: "its offset does not follow that of the record before, or is beyond the end of the batch",
    Fault.FIELD_BEYOND_RECORD: "a field extends beyond the end of the record",
    Fault.HEADER_COUNT: "the number of its headers is negative, or larger than the record",
    Fault.NO_HEADER_NAME: "a header has no name",
    Fault.RECORD_NOT_FILLED: "it is longer than its fields",
    Fault.BYTES_LEFT: "the batch has bytes after its last record",
}


class DamagedRecordsError(CorruptRecordError):
    """The records of one batch cannot be read, although its CRC is right or was not checked."""

    def __init__(self, fault: Fault, *, base_offset: int, number: int, position: int) -> None:
        self.fault = fault
        self.base_offset = base_offset  # of the batch
        self.number = number  # of the record in its batch, from 0
        self.position = position  # of the field in the decompressed records of the batch
        super().__init__(
            f"record {number} of the batch at offset {base_offset} cannot be read at byte {position} of its records:"
            f" {_REASONS[fault]}; skip the batch, or write its records again"
        )


def damaged(fault: int, base_offset: int, number: int, position: int) -> DamagedRecordsError:
    """As the compiled reader calls it: by position."""
    return DamagedRecordsError(Fault(fault), base_offset=base_offset, number=number, position=position)
