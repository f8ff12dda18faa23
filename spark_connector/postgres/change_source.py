"""`PostgresChangesDataSource`: the format "postgres-changes" of spark.read and readStream; see docs/connect.md for options.

Spark makes instances in every process, so nothing connects here, and psycopg is imported only where something is read.
"""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from barnabas.net.client.arrow.extra import require

from .change_columns import COLUMNS, check_projection
from .change_options import parse_change_options

FORMAT = "postgres-changes"


class PostgresChangesDataSource(DataSource):
    """Rows of PostgreSQL, and every change of them."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        check_projection(schema)
        options = parse_change_options(self.options, is_stream=False)
        require("psycopg", extra="postgres", feature=f'format("{FORMAT}")')
        from .change_batch import ChangeBatchReader

        return ChangeBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_projection(schema)
        options = parse_change_options(self.options, is_stream=True)
        require("psycopg", extra="postgres", feature=f'format("{FORMAT}")')
        from .change_stream_reader import ChangeStreamReader

        return ChangeStreamReader(options, schema)
