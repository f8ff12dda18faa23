"""Rows into an Iceberg table, each micro-batch once and at once, without Spark's JVM knowing the format.

As for Delta, tasks write Parquet files into the folder of the table, and the driver names all of them in one commit. The number
of the micro-batch is a property of the table, under the sink id, which changes in the same commit: a micro-batch that is repeated
finds it. A commit holds only if the table is as it was read, so two drivers cannot commit the same one.

pyiceberg reads and writes metadata, with a catalog in SQL. Iceberg's own runtime for Spark does not load in Spark 4.3.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from barnabas.net.programs.pipeline.spec import IcebergSink

from ..faults import PipelineFault
from .files import ADDED, MAX_COMMITS, compute, write_files

INSTALL: Final = "an Iceberg table needs pyiceberg: pip install 'barnabas[iceberg]'"
CATALOG_NAME: Final = "barnabas"  # in the catalog's tables, as other programs must name it
CATALOG_FILE: Final = "catalog.db"  # in the warehouse, if no other catalog is given
_LOCAL: Final = "file://"
_RETRIES: Final = "commit.retry.num-retries"  # a property of tables
_LACKING: Final = (T.NullType, T.DayTimeIntervalType, T.YearMonthIntervalType, T.CalendarIntervalType, T.VariantType)


class IcebergWriter:
    def __init__(
        self,
        warehouse: str,
        sink: IcebergSink,
        *,
        sink_id: str,
        columns: T.StructType,
        is_complete: bool,
        written_batches: Callable[[], int],
    ) -> None:
        """`is_complete`: each micro-batch replaces the whole table. `written_batches`: those of this sink id that are noted.
        Raises PipelineFault for columns that a table cannot have, and without pyiceberg."""
        _check_columns(columns)
        self._schema = _stored(to_arrow_schema(columns, timezone="UTC"))
        self._table_name = sink.table
        self._mark = f"barnabas.batch.{sink_id}"
        self._prefix = f"part-{sink_id}"
        self._is_complete = is_complete
        self._written_batches = written_batches
        self._warehouse, self._address = warehouse, sink.catalog
        _require()

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Raises PipelineFault where the table does not fit the rows. Another writer may commit in between: then the same files
        are committed behind its own."""
        from pyiceberg.exceptions import CommitFailedException

        files: list[str] | None = None
        for attempt in range(1, MAX_COMMITS + 1):
            table = self._open()
            if not self._is_new(table, batch_id):
                if files is None:
                    compute(batch)
                return
            self._check(table)
            if files is None:
                files = self._write_files(batch, batch_id, _folder_of(table))
            try:
                self._commit(table, files, batch_id)
            except CommitFailedException:
                if attempt == MAX_COMMITS:
                    raise
            else:
                return

    def _is_new(self, table: Any, batch_id: int) -> bool:
        """Raises PipelineFault for a table that has lost what was written."""
        written = table.properties.get(self._mark)
        if written is None and (noted := self._written_batches()):
            raise PipelineFault(
                f"sink.iceberg: {self._table_name} has nothing of the {noted} micro-batches that are written: restore the table,"
                " or `barnabas pipeline reset` first, to write all rows again"
            )
        return written is None or int(written) < batch_id

    def _write_files(self, batch: DataFrame, batch_id: int, folder: str) -> list[str]:
        """Their paths. In tasks; the rows are not seen by readers yet."""
        schema, prefix = self._schema, f"{self._prefix}-{batch_id}"
        Path(folder).mkdir(parents=True, exist_ok=True)
        numbered = batch.toDF(*(f"c{number}" for number in range(len(schema))))  # Spark would split names at dots

        def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_files(rows, schema, folder, (), prefix)

        return [f"{folder}/{row.path}" for row in numbered.mapInArrow(write, ADDED).collect()]

    def _commit(self, table: Any, files: list[str], batch_id: int) -> None:
        from pyiceberg.expressions import AlwaysTrue

        # pyiceberg would put the same files behind the commit of another writer, who may be a driver with the same micro-batch.
        once = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})  # not in the catalog
        noted = {self._mark: str(batch_id)}
        with table.transaction() as change:
            with change.update_schema() as columns:
                columns.union_by_name(self._schema)
            change.set_properties(**noted)
            if self._is_complete and table.current_snapshot() is not None:
                change.delete(AlwaysTrue(), snapshot_properties=noted)
            if files:
                change.add_files(files, snapshot_properties=noted, check_duplicate_files=False)

    # --- the table ----------------------------------------------------------------------------------------------------

    @cached_property
    def _catalog(self) -> Any:
        """Not before the first micro-batch: a plan makes no folder, and no table in a database."""
        return _catalog(self._warehouse, self._address)

    def _open(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError

        with suppress(NoSuchTableError, NoSuchNamespaceError):
            return self._catalog.load_table(self._table_name)
        self._catalog.create_namespace_if_not_exists(self._table_name.rpartition(".")[0])
        with suppress(TableAlreadyExistsError):  # of another writer, in this instant
            return self._catalog.create_table(self._table_name, self._schema)
        return self._catalog.load_table(self._table_name)

    def _check(self, table: Any) -> None:
        """Raises PipelineFault."""
        if not table.spec().is_unpartitioned():
            raise PipelineFault(
                f"sink.iceberg: {self._table_name} is partitioned, which this writer cannot: use a table without partitions"
            )
        known = {field.name.lower(): field.name for field in table.schema().fields}
        given = {field.name for field in self._schema}
        for name in given:
            if known.get(name.lower(), name) != name:
                raise PipelineFault(
                    f"sink.iceberg: column {name!r} differs from {known[name.lower()]!r} of {self._table_name} only in upper and"
                    " lower case: rename it"
                )
        needed = [field.name for field in table.schema().fields if field.required]
        if needed:
            raise PipelineFault(
                f"sink.iceberg: column {needed[0]!r} of {self._table_name} is required, which files alone do not promise: make"
                " it optional"
            )
        self._check_types(table)

    def _check_types(self, table: Any) -> None:
        """Raises PipelineFault. A wider type would be taken, and the whole column changed; a pipeline adds columns only."""
        known = {field.name: field.field_type for field in table.schema().fields}
        wanted = {field.name: field.field_type for field in _schema_of(self._schema).fields}
        for name, kind in wanted.items():
            if name in known and _shape(known[name]) != _shape(kind):
                raise PipelineFault(
                    f"sink.iceberg: column {name!r} is {known[name]} in {self._table_name} and {kind} in the result: cast it"
                )


def _require() -> None:
    """Raises PipelineFault."""
    try:
        import pyiceberg.catalog.sql  # noqa: F401
    except ImportError as error:
        raise PipelineFault(f"{INSTALL} ({error})") from error


def _catalog(warehouse: str, address: str) -> Any:
    """Raises PipelineFault."""
    from pyiceberg.catalog.sql import SqlCatalog

    from .synced_io import NAME

    folder = Path(warehouse).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    address = address or f"sqlite:///{folder / CATALOG_FILE}"
    try:
        return SqlCatalog(CATALOG_NAME, uri=address, warehouse=str(folder), **{"py-io-impl": NAME})
    except Exception as error:  # noqa: BLE001 - of SQLAlchemy, of the driver of any database, of pyiceberg
        # The address may have a password, and SQLAlchemy's errors may quote it.
        raise PipelineFault(f"sink.catalog: the catalog cannot be opened ({type(error).__name__})") from None


def _folder_of(table: Any) -> str:
    """Where its files are. Raises PipelineFault for an object store."""
    location = str(table.location()).removeprefix(_LOCAL)
    if "://" in location:
        raise PipelineFault(
            f"sink.iceberg: {table.location()} is no folder that all machines of Spark share: object stores are not supported"
        )
    return f"{location}/data"


def _schema_of(schema: pa.Schema) -> Any:
    """With ids of its own, which say nothing of the table's."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    return _pyarrow_to_schema_without_ids(schema)


def _shape(kind: Any) -> Any:
    """A type without the ids of the fields in it, and in the order of their names."""
    from pyiceberg.types import ListType, MapType, StructType

    match kind:
        case StructType():
            return {field.name: _shape(field.field_type) for field in kind.fields}
        case ListType():
            return [_shape(kind.element_type)]
        case MapType():
            return (_shape(kind.key_type), _shape(kind.value_type))
        case _:
            return str(kind)


# --- columns --------------------------------------------------------------------------------------------------------------


def _check_columns(columns: T.StructType) -> None:
    """Raises PipelineFault for columns that no table can have."""
    seen: dict[str, str] = {}
    for field in columns:
        if other := seen.get(field.name.lower()):
            raise PipelineFault(
                f"sink.iceberg: columns {other!r} and {field.name!r} have one name, without upper and lower case: rename one"
            )
        seen[field.name.lower()] = field.name
        if lacking := _lacking(field.dataType):
            raise PipelineFault(
                f"sink.iceberg: column {field.name!r} has the type {lacking.simpleString()}, which Iceberg lacks: cast it"
            )


def _lacking(kind: T.DataType) -> T.DataType | None:
    parts: list[T.DataType]
    match kind:
        case T.StructType():
            parts = [field.dataType for field in kind]
        case T.ArrayType():
            parts = [kind.elementType]
        case T.MapType():
            parts = [kind.keyType, kind.valueType]
        case _:
            return kind if isinstance(kind, _LACKING) else None
    return next((found for part in parts if (found := _lacking(part)) is not None), None)


def _stored(schema: pa.Schema) -> pa.Schema:
    """Every field may be null, and Iceberg has no whole numbers of 8 and 16 bits."""
    return pa.schema([_field(field) for field in schema])


def _field(field: pa.Field, *, is_key: bool = False) -> pa.Field:
    return pa.field(field.name, _type(field.type), nullable=not is_key)


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_field(kind.field(number)) for number in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field, is_key=True), _field(kind.item_field))
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind
