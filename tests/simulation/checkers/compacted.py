"""What must hold of a compacted topic: the last value of each key is never lost, and replicas agree where both have a record.

Each replica compacts its own log in its own time, so the logs need not be equal.
"""

from typing import Any, NamedTuple

from barnabas.log.format.record_batch import iter_headers
from barnabas.log.format.record_codec import iter_records

from .violation import Violation

READ_BYTES = 1 << 20


class KeyedRecord(NamedTuple):
    leader_epoch: int
    key: bytes
    value: bytes | None


class CompactedChecker:
    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], dict[int, tuple[bytes, bytes | None]]] = {}  # partition -> by offset

    def acked_by_all(
        self, partition: tuple[str, int], base_offset: int, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        known = self.acknowledged.setdefault(partition, {})
        for offset, told in enumerate(zip(keys, values, strict=True), start=base_offset):
            if known.setdefault(offset, told) != told:
                raise Violation(f"{partition}: offset {offset} was acknowledged for {known[offset]} and for {told}")

    def check(self, partition: tuple[str, int], logs: list[Any]) -> int:
        """`logs` are those of all replicas, at rest. Returns how many records compaction has taken out of them."""
        gone = 0
        seen: dict[int, KeyedRecord] = {}
        for log in logs:
            records = read_records(log)
            gone += log.log_end_offset - log.log_start_offset - len(records)
            for offset, record in records.items():
                if seen.setdefault(offset, record) != record:
                    raise Violation(f"{partition}: at {offset} one replica has {seen[offset]}, another one {record}")
            self._check_last_values(partition, records)
        return gone

    def _check_last_values(self, partition: tuple[str, int], records: dict[int, KeyedRecord]) -> None:
        last = {record.key: offset for offset, record in records.items()}
        for offset, (key, value) in self.acknowledged.get(partition, {}).items():
            record = records.get(offset)
            if record is None and last.get(key, -1) < offset:
                raise Violation(f"{partition}: {key!r}={value!r} at {offset} is lost, and nothing newer has its key")
            if record is not None and (record.key, record.value) != (key, value):
                raise Violation(f"{partition}: {key!r}={value!r} was acknowledged at {offset}, where {record} is")


def read_records(log: Any) -> dict[int, KeyedRecord]:
    """By offset, in their order."""
    found: dict[int, KeyedRecord] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes=READ_BYTES, up_to_offset=log.log_end_offset).slice
        data = data if isinstance(data, bytes) else data.read()
        if not data:
            raise Violation(f"{log.topic_partition}: nothing from {offset} on, its end is {log.log_end_offset}")
        for header in iter_headers(data, verify_crc=True):
            for record in iter_records(data[header.position : header.position + header.size_bytes]):
                found[record.offset] = KeyedRecord(header.leader_epoch, record.key or b"", record.value)
            offset = header.next_offset
    return found
