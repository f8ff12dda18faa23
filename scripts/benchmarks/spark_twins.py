"""What the connector is measured against: the least that Spark's Python data sources can do. Spark's workers import this.

gen     one record batch, again and again: what the API costs with Arrow and nothing behind it, in batches and as a stream
tuples  a topic read by the connector's own reader and handed over row by row, as a source without Arrow does
count   an Arrow writer that counts the rows it is given
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from barnabas.spark_connector.common.schema import arrow_schema, source_schema
from barnabas.spark_connector.read.reader import BatchReader
from barnabas.spark_connector.source import BarnabasDataSource

ROWS = 10_000  # of a record batch, as in the connector


class GenSource(DataSource):
    """Options: rows, partitions, size (bytes of a value); for a stream, `rows` of a micro-batch, and `batches`."""

    @classmethod
    def name(cls) -> str:
        return "gen"

    def schema(self) -> StructType:
        return source_schema(includes_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return GenReader(*(int(self.options[name]) for name in ("rows", "partitions", "size")), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return GenStreamReader(self.reader(schema), int(self.options["batches"]))


class GenReader(DataSourceReader):
    def __init__(self, rows: int, partitions: int, size: int, schema: StructType) -> None:
        self._rows, self._partitions, self._size, self._schema = rows, partitions, size, schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        batch = self._batch(partition.value)
        for _ in range(self._rows // self._partitions // ROWS):
            yield batch

    def _batch(self, number: int) -> pyarrow.RecordBatch:
        columns = {
            "key": [None] * ROWS,
            "value": [b"x" * self._size] * ROWS,
            "topic": ["gen"] * ROWS,
            "partition": [number] * ROWS,
            "offset": range(ROWS),
            "timestamp": [0] * ROWS,
            "timestampType": [0] * ROWS,
        }
        schema = arrow_schema(self._schema)
        arrays = [pyarrow.array(columns[field.name], field.type) for field in schema]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


class GenStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are the numbers of micro-batches."""

    def __init__(self, reader: DataSourceReader, batches: int) -> None:
        self._reader, self._batches = reader, batches

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Any:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._reader.read(partition)  # type: ignore[return-value]


class TupleSource(BarnabasDataSource):
    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(super().reader(schema))


class TupleReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        assert isinstance(reader, BatchReader)
        self._reader = reader

    def partitions(self) -> Any:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        for batch in self._reader.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class CountSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "count"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountWriter()


class CountWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))
