"""`ChangeBatchReader`: spark.read of the format "postgres-changes": rows of the tables, as one snapshot of the server shows them.

One task reads all of them, with several connections: a snapshot lasts as long as the connection that has exported it, so tasks of
other processes cannot share it.
"""

from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from barnabas.net.client.connection.loop_thread import loop_thread
from barnabas.net.programs.connect.postgres.table_rows import TableRows

from .change_columns import batches_of
from .change_options import ChangeOptions


class ChangeBatchReader(DataSourceReader):
    def __init__(self, options: ChangeOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        loop, rows = loop_thread(), TableRows(self._options.settings)
        try:
            loop.call(rows.open())
            while (records := loop.call(rows.next())) is not None:
                yield from batches_of(((record.key, record.value or b"") for record in records), self._schema)
        finally:
            loop.call(rows.close())
