"""`TableDataSource`: the format of a pipeline's SQL tables, whole or along a column that grows. It is for pipelines only.

Spark makes instances in every process, so nothing connects here, and psycopg is imported only where something is read.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from barnabas.net.programs.connect.relations.relation import SqlColumn, SqlRelation, open_relation

FORMAT = "barnabas-sql-table"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How a relation is read. All fields are values, so that Spark can send them to tasks."""

    database: str
    base: str  # relative files begin here
    table: str
    query: str
    columns: tuple[SqlColumn, ...]
    partition_by: str = ""
    partitions: int = 1
    increasing: str = ""
    is_from_end: bool = False  # the first run begins behind the rows that are there
    max_rows: int = 0

    def relation(self) -> SqlRelation:
        return open_relation(self.database, Path(self.base), table=self.table, query=self.query)

    def column(self, name: str) -> SqlColumn:
        return next(column for column in self.columns if column.name == name)

    def to_options(self) -> dict[str, str]:
        return {"table": msgspec.json.encode(self).decode()}

    def schema(self) -> str:
        """In Spark's SQL."""
        return ", ".join(f"`{column.name.replace('`', '``')}` {column.type_name}" for column in self.columns)


class TableDataSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def _table(self) -> TableOptions:
        return msgspec.json.decode(self.options["table"], type=TableOptions)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .table_reader import TableReader

        return TableReader(self._table(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .table_stream_reader import TableStreamReader

        return TableStreamReader(self._table(), schema)
