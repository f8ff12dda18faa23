"""`TableReader`: all rows of a table or a query, in one task or in several, each of which reads a range of a column."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from barnabas.net.programs.connect.relations.relation import Between, RelationError, SqlColumn, ranges_of

from ..common.schema import arrow_schema
from .table_source import TableOptions


class SqlRange(InputPartition):
    """Rows for one task; None for all of them."""

    def __init__(self, between: Between | None) -> None:
        super().__init__(between)
        self.between = between


class TableReader(DataSourceReader):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Asked for by each query, and by each micro-batch of a stream that looks rows up."""
        name, count = self._options.partition_by, self._options.partitions
        if not name or count == 1:
            return [SqlRange(None)]
        relation = self._options.relation()
        with relation.connected() as connection:
            limits = relation.limits(connection, self._options.column(name), None)
        return [SqlRange(between) for between in ranges_of(name, limits, None, count)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, SqlRange)
        yield from read_rows(self._options, self._schema, partition.between, is_ordered=False)


def read_rows(
    options: TableOptions, schema: StructType, between: Between | None, *, is_ordered: bool
) -> Iterator[pyarrow.RecordBatch]:
    """Raises RelationError for a value that does not fit the type of its column."""
    columns = [options.column(field.name) for field in schema]
    types = arrow_schema(schema)
    relation = options.relation()
    with relation.connected() as connection:
        for rows in relation.rows(connection, columns, between, is_ordered=is_ordered):
            yield _batch(relation.key, columns, rows, types)


def _batch(
    key: str, columns: Sequence[SqlColumn], rows: Sequence[tuple[Any, ...]], types: pyarrow.Schema
) -> pyarrow.RecordBatch:
    if not columns:  # of a count
        return pyarrow.RecordBatch.from_struct_array(pyarrow.array([{}] * len(rows), pyarrow.struct([])))
    arrays = [
        _array(key, column, values, field.type)
        for column, values, field in zip(columns, zip(*rows, strict=True), types, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=types)


def _array(key: str, column: SqlColumn, values: Sequence[Any], kind: pyarrow.DataType) -> pyarrow.Array:
    try:
        return pyarrow.array(_decimals(values) if pyarrow.types.is_decimal(kind) else values, kind)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, ArithmeticError) as error:
        value = next((value for value in values if not _fits(value, kind)), None)
        raise RelationError(
            key,
            f"column {column.name} has {value!r:.100}, which is no {column.type_name}: correct the row, or declare another type"
            f" in a query (CAST({column.name} AS ...), with SQLite also under fields)",
        ) from error


def _decimals(values: Sequence[Any]) -> list[Any]:
    """SQLite keeps decimal numbers as whole or as binary ones; their shortest text is what was stored."""
    from decimal import Decimal

    return [Decimal(str(value)) if isinstance(value, int | float) else value for value in values]


def _fits(value: Any, kind: pyarrow.DataType) -> bool:
    try:
        pyarrow.array(_decimals([value]) if pyarrow.types.is_decimal(kind) else [value], kind)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, ArithmeticError):
        return False
    return True
