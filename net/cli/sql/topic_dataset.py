"""`TopicDataset`: a topic as an Arrow dataset, which DuckDB scans with the columns and the filter of a query."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow
import pyarrow.dataset

from barnabas.net.client.consumer.table_range import Position

from .pushdown import ROWS, Bounds, bounds_of

Read = Callable[..., pyarrow.RecordBatchReader]


class TopicDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """DuckDB asks a dataset for `schema` and `scanner` alone. Made without the constructor of the base, which refuses it."""

    def __init__(self, partitions: Sequence[int], read: Read) -> None:
        """`read(start=..., partitions=..., end=...)` returns the records of a range with all columns."""
        self._partitions = partitions
        self._read = read
        self.scans: list[Bounds] = []  # For tests and explanations: what was read of the topic.

    @property
    def schema(self) -> pyarrow.Schema:
        return ROWS

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Any:
        """All records that can pass the filter, filtered."""
        bounds = bounds_of(filter, self._partitions)
        self.scans.append(bounds)
        batches = _plain(self._read(start=_start(bounds), end=_end(bounds), partitions=bounds.partitions))
        return pyarrow.dataset.Scanner.from_batches(batches, columns=columns, filter=filter)


def _start(bounds: Bounds) -> Position:
    if bounds.start_offset or bounds.start_ms is None:
        return bounds.start_offset
    return f"@{bounds.start_ms}"


def _end(bounds: Bounds) -> Position:
    return "end" if bounds.end_offset is None else bounds.end_offset


def _plain(reader: pyarrow.RecordBatchReader) -> pyarrow.RecordBatchReader:
    def batches() -> Any:
        yield from map(plain_batch, reader)

    return pyarrow.RecordBatchReader.from_batches(ROWS, batches())


def plain_batch(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Records as the SDK reads them, with the schema ROWS."""
    columns = {**dict(zip(ROWS.names, batch.columns, strict=True)), "topic": batch["topic"].dictionary_decode()}
    columns["timestamp"] = batch["timestamp"].cast(ROWS.field("timestamp").type)
    return pyarrow.RecordBatch.from_arrays(list(columns.values()), schema=ROWS)
