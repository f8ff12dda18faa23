"""`BatchReader`: spark.read. Ranges are fixed when Spark plans the DataFrame, so a DataFrame always has the same records."""

from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..common.connection import shared_client
from .boundaries import Boundaries
from .offsets import split
from .read_options import ReadOptions
from .read_task import RangePartition, ReadTask, read_partition


class BatchReader(DataSourceReader):
    """No `pushFilters`: Spark 4.3 reuses pushed filters for later queries of the same DataFrame and returns wrong results."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._task = ReadTask.of(options)

    def partitions(self) -> list[InputPartition]:
        loop, client = shared_client(self._options.client)
        boundaries = Boundaries(client, self._options)
        ranges, topic_ids = loop.call(boundaries.batch_ranges())
        pieces = split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [RangePartition(piece, topic_ids[piece.partition.topic]) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_partition(self._task, partition, self._schema)
