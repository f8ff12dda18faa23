"""The sinks of a pipeline: rows of a micro-batch, or of a batch, into a topic, Parquet, Delta, a table, or onto stdout.

A sink is given the number of the micro-batch. With the sink id, which a reset changes, it knows what it has written before.
"""

import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from barnabas.net.programs.pipeline.spec import (
    CHANGE_COLUMNS,
    CHANGE_ORDER,
    DeltaSink,
    IcebergSink,
    ParquetSink,
    PipelineSpec,
    TableSink,
    TopicSink,
)

from .database import Database, TableWriter
from .faults import PipelineFault
from .lakes.delta import DeltaWriter
from .lakes.iceberg import IcebergWriter
from .schema_sinks import check_schema, encoded, register, schema_for
from .sources import FORMAT, World
from .values import quoted

WriteBatch = Callable[[DataFrame, int], None]
ToRecords = Callable[[DataFrame], DataFrame]
_SIMPLE_TYPES: dict[type[T.DataType], tuple[str, str]] = {  # in PostgreSQL, in SQLite
    T.BooleanType: ("BOOLEAN", "BOOLEAN"),
    T.ByteType: ("SMALLINT", "INTEGER"),
    T.ShortType: ("SMALLINT", "INTEGER"),
    T.IntegerType: ("INTEGER", "INTEGER"),
    T.LongType: ("BIGINT", "INTEGER"),
    T.FloatType: ("REAL", "REAL"),
    T.DoubleType: ("DOUBLE PRECISION", "REAL"),
    T.DateType: ("DATE", "TEXT"),
    T.TimestampType: ("TIMESTAMPTZ", "TEXT"),
    T.TimestampNTZType: ("TIMESTAMP", "TEXT"),
    T.BinaryType: ("BYTEA", "BLOB"),
}
_WRITTEN = "_spark_metadata"  # of a stream's folder
_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


def batch_writer(world: World, spec: PipelineSpec, result: DataFrame) -> WriteBatch | None:
    """None for Parquet as a stream, which Spark writes itself. Raises PipelineFault for columns that do not exist."""
    sink, sink_id = spec.sink, f"{spec.name}-{world.state.generation()}"
    match sink:
        case TopicSink():
            _check_columns(result, [sink.key] if sink.key else [], "sink.key")
            return topic_writer(world, sink, sink_id, _records_of(world, sink, result.schema))
        case TableSink():
            _check_columns(result, sink.key, "sink.key")
            if sink.applies_changes:
                _check_columns(result, ("change_op", *CHANGE_ORDER), 'sink.write = "changes"')
            return table_writer(world, sink, sink_id, result)
        case DeltaSink():
            _check_columns(result, sink.partition_by, "sink.partition_by")
            return _lake_writer(
                world, DeltaWriter, world.path(sink.folder), sink, _of_a_lake(world, spec, result, sink_id)
            )
        case IcebergSink():
            return _lake_writer(
                world, IcebergWriter, world.path(sink.warehouse), sink, _of_a_lake(world, spec, result, sink_id)
            )
        case ParquetSink():
            _check_columns(result, sink.partition_by, "sink.partition_by")
            return parquet_writer(world, sink) if world.is_batch else None
        case _:
            if world.is_remote and not world.is_batch:
                raise PipelineFault(
                    "sink.console: a Spark Connect server would print the rows of a stream there, not here: use another sink, or"
                    " --master local[*]"
                )
            return print_rows


def _lake_writer(world: World, kind: Any, folder: str, sink: Any, options: dict[str, Any]) -> WriteBatch:
    """A writer is not sent to a Spark Connect server: what makes it is."""
    writer = kind(folder, sink, **options)
    if not world.is_remote:
        write: WriteBatch = writer.write
        return write
    written = options["written_batches"]()  # the server may not see the state folder
    sent = {**options, "written_batches": lambda: written}
    return lambda batch, batch_id: kind(folder, sink, **sent).write(batch, batch_id)


def _of_a_lake(world: World, spec: PipelineSpec, result: DataFrame, sink_id: str) -> dict[str, Any]:
    """What the writers of Delta and Iceberg tables know of the pipeline."""
    return {
        "sink_id": sink_id,
        "columns": result.schema,
        "is_complete": spec.output_mode == "complete",
        "written_batches": lambda: world.state.read_progress().batches,
    }


def _check_columns(result: DataFrame, names: Any, key: str) -> None:
    for name in names:
        if name not in result.columns:
            raise PipelineFault(f"{key} names {name!r}, but the result has the columns {', '.join(result.columns)}")


# --- topics ---------------------------------------------------------------------------------------------------------------


def topic_writer(world: World, sink: TopicSink, sink_id: str, to_records: ToRecords) -> WriteBatch:
    """Always through foreachBatch: Spark 4.3 refuses the output mode update to sinks in Python."""
    options = {**world.connection, "topic": sink.topic}
    if sink.delivery == "exactly_once":
        options |= {"delivery": "effectively_once", "sinkId": sink_id}

    def write(batch: DataFrame, batch_id: int) -> None:
        records = to_records(batch)
        numbered = {"batchId": str(batch_id)} if "sinkId" in options else {}
        records.write.format(FORMAT).options(**options, **numbered).mode("append").save()

    return write


def _records_of(world: World, sink: TopicSink, columns: T.StructType) -> ToRecords:
    """Raises PipelineFault, SchemaRegistryError."""
    if sink.is_records:
        return lambda rows: rows
    registry = world.registry(sink.registry)
    if registry is None:
        return lambda rows: as_json(rows, sink.key)
    schema = schema_for(sink, columns, world.read_schema(sink.schema) if sink.schema else None)
    check_schema(registry, schema, columns)
    if not world.is_plan:
        register(registry, schema, sink.topic)
    return lambda rows: as_records(rows, encoded(columns, registry, schema, sink.topic), sink.key)


def as_json(rows: DataFrame, key: str) -> DataFrame:
    """A row as a record: its columns as JSON, one of them as the key."""
    return as_records(rows, F.to_json(F.struct("*")), key)


def as_records(rows: DataFrame, value: Column, key: str) -> DataFrame:
    """Rows as records, one of their columns as the key."""
    value = value.alias("value")
    return rows.select(value) if not key else rows.select(F.col(key).cast("string").alias("key"), value)


# --- tables ---------------------------------------------------------------------------------------------------------------


def table_writer(world: World, sink: TableSink, sink_id: str, result: DataFrame) -> WriteBatch:
    """Raises PipelineFault where the columns do not fit the table."""
    kind, _, place = sink.database.partition(":")
    address = f"sqlite:{world.path(place)}" if kind == "sqlite" else sink.database
    database = Database(address)
    hidden = CHANGE_COLUMNS if sink.applies_changes else ()
    columns = {field.name: type_in(database, field.dataType) for field in result.schema if field.name not in hidden}
    writer = TableWriter(
        database,
        table=sink.table,
        columns=columns,
        key=sink.key,
        sink_id=sink_id,
        has_changes=sink.applies_changes,
    )
    writer.check()
    if world.state.wants_empty_sink and not world.is_plan:
        writer.empty_once()

    def write(batch: DataFrame, batch_id: int) -> None:
        ordered = batch.orderBy(*CHANGE_ORDER) if sink.applies_changes else batch
        values = [value_in(database, field) for field in batch.schema if field.name not in hidden]
        rows = ordered.select(*values, *(("change_op", *CHANGE_ORDER) if sink.applies_changes else ()))
        writer.write(batch_id, map(tuple, rows.toLocalIterator()))

    return write


def type_in(database: Database, kind: T.DataType) -> str:
    """What the database stores without loss; other types are text, nested ones JSON."""
    if isinstance(kind, T.DecimalType) and not database.is_sqlite:
        return f"NUMERIC({kind.precision}, {kind.scale})"
    return _SIMPLE_TYPES.get(type(kind), ("TEXT", "TEXT"))[database.is_sqlite]


def value_in(database: Database, field: T.StructField) -> Column:
    column = F.col(quoted(field.name))
    kind = field.dataType
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        return F.to_json(column).alias(field.name)
    if isinstance(kind, T.TimestampType):
        return F.date_format(column, _TIME_FORMAT).alias(field.name)
    is_known = type(kind) in _SIMPLE_TYPES or isinstance(kind, T.StringType)
    if (is_known and not (database.is_sqlite and isinstance(kind, T.DateType | T.TimestampNTZType))) or (
        isinstance(kind, T.DecimalType) and not database.is_sqlite
    ):
        return column
    return column.cast("string").alias(field.name)


# --- Parquet and stdout ---------------------------------------------------------------------------------------------------


def parquet_writer(world: World, sink: ParquetSink) -> WriteBatch:
    """A batch replaces its folder when it is repeated, but never a folder that it has not made."""
    folder = world.path(sink.folder)

    def write(batch: DataFrame, batch_id: int) -> None:
        if world.state.claimed_folder() != folder and exists(world, folder):
            raise PipelineFault(
                f"sink.parquet: {folder} exists: a batch writes a new folder, so remove it or name another"
            )
        world.state.claim_folder(folder)
        writer = batch.write.mode("overwrite")
        (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).parquet(folder)

    return write


def claim_stream_folder(world: World, sink: ParquetSink, checkpoint: str) -> None:
    """Spark notes the numbers of the written micro-batches in the folder, and leaves out those that it finds there. So a folder
    and a checkpoint belong together from the first micro-batch on. Raises PipelineFault."""
    folder = world.path(sink.folder)
    claimed, is_written = world.state.claimed_folder(), exists(world, f"{folder}/{_WRITTEN}")
    if not claimed and is_written and not exists(world, f"{checkpoint}/offsets"):
        raise PipelineFault(
            f"sink.parquet: {folder} has rows of another run, and Spark would leave out as many micro-batches of this one: name"
            " another folder, or remove this one"
        )
    if claimed and claimed != folder:
        raise PipelineFault(
            f"sink.parquet: this pipeline has written its rows to {claimed}: name that folder, or `barnabas pipeline reset`"
            " first, to write all rows to the other one"
        )
    if claimed and not is_written and world.state.read_progress().batches:
        raise PipelineFault(
            f"sink.parquet: {folder} has lost what this pipeline has written: restore it, or `barnabas pipeline reset` first, to"
            " write all rows again"
        )
    world.state.claim_folder(folder)


def exists(world: World, folder: str) -> bool:
    """Where Spark's driver runs, on any of its file systems."""
    if world.is_remote:
        try:
            return bool(world.spark.read.format("binaryFile").load(folder).schema)
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return False
            raise
    context = world.spark.sparkContext
    assert context._jvm is not None and context._jsc is not None
    path = context._jvm.org.apache.hadoop.fs.Path(folder)
    return bool(path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path))


def print_rows(batch: DataFrame, batch_id: int) -> None:
    """Each row as a line of JSON."""
    for row in as_json(batch, "").toLocalIterator():
        sys.stdout.write(f"{row.value}\n")
    sys.stdout.flush()
