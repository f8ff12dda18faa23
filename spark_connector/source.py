"""`BarnabasDataSource`: the format "barnabas" of spark.read, readStream, write and writeStream.

Spark creates a new instance in every process that plans or runs tasks, and pickles the readers and writers: so constructors
here are cheap and open no connections, and the modules of the four sides are imported only when they are needed.
"""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .common.schema import check_projection, source_schema
from .read.read_options import includes_headers, parse_read_options
from .write.write_options import parse_write_options


class BarnabasDataSource(DataSource):
    """Like Spark's Kafka source and sink, for topics of Barnabas; see docs/spark.md for options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "barnabas"

    def schema(self) -> StructType:
        return source_schema(includes_headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from .read.reader import BatchReader

        check_projection(schema)
        return BatchReader(parse_read_options(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .read.stream_reader import StreamReader

        check_projection(schema)
        return StreamReader(parse_read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .write.writer import BatchWriter

        return BatchWriter(parse_write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .write.writer import StreamWriter

        return StreamWriter(parse_write_options(self.options), schema)
