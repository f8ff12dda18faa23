"""`PipelineSpec`: a pipeline as values, from its sources through its steps to its sink. `parsing` makes it from a file. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

ValueFormat = Literal["json", "csv", "changes", "avro", "protobuf", "json_schema", "access_log", "text", "raw"]
SchemaFormat = Literal["avro", "protobuf", "json_schema"]
OutputMode = Literal["append", "update", "complete"]
Delivery = Literal["exactly_once", "at_least_once"]
ErrorAction = Literal["stop", "skip", "dead-letter"]

INPUT = "input"  # the view of the only source, and of the result of a step without a name
# Columns of each row beside the fields of its value: where it comes from. A field of a value cannot have such a name.
RECORD_COLUMNS = ("record_key", "record_topic", "record_partition", "record_offset", "record_timestamp")
FILE_COLUMNS = ("record_file",)
DATABASE_COLUMNS = ("record_key", "record_table")  # the key is JSON, the table schema.table
# Of values that are changes of a table: c, u, d, r or t, and what orders the changes of all partitions.
CHANGE_ORDER = ("change_generation", "change_lsn", "change_order")
CHANGE_COLUMNS = ("change_op", *CHANGE_ORDER, "change_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Rows that are later than the newest time in `column` minus `delay` may be left out by windows and joins."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueField:
    name: str
    type_name: str  # in Spark's SQL


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpec:
    """How the bytes of a value become columns."""

    format: ValueFormat
    fields: tuple[ValueField, ...] = ()  # empty with json: inferred from a sample
    required: tuple[str, ...] = ()  # fields whose absence makes a record a bad one
    pattern: str = "combined"  # of access_log
    delimiter: str = ","  # of csv
    has_header: bool = False  # csv: lines that repeat the names of the fields are left out
    schema: str = ""  # a file: of avro and json_schema a schema, of protobuf a descriptor set
    registry: str = ""  # avro, json_schema: the address of the schema registry that has the schemas of the values
    subject: str = ""  # avro, json_schema: of the registry, for the newest schema; "": that of the only topic
    message: str = ""  # protobuf: the full name of the message
    is_framed: bool = False  # protobuf: values begin with the id of a schema, as Confluent's serializers write them
    sample_records: int = 1_000  # json without fields: how many records the schema is inferred from


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    topics: tuple[str, ...] = ()  # either these
    name_pattern: str = ""  # or this (RE2, whole names)
    start: Literal["earliest", "latest"] = "earliest"
    max_records: int = 0  # of a micro-batch; 0: no limit
    skips_lost: bool = False  # records that retention removed before they were read; else they are an error
    group: str = ""  # of a stream: its positions are published under this name, for those who watch lags
    bootstrap: str = ""  # of another cluster; "": that of the pipeline
    config: str = ""  # a file with TLS and the login of the other cluster
    collect: tuple[str, ...] = ()  # patterns of log files, whose lines a collector beside the driver sends to the topic
    first_line: str = ""  # with collect, RE2: records of several lines begin with a line in which this is found


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    path: str  # a folder, or a pattern of files
    is_parquet: bool = False  # else each line is a value
    max_files: int = 0  # of a micro-batch; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSource:
    """Tables of a PostgreSQL server: their rows in a batch, every change of them in a stream."""

    dsn: str  # may have a password
    publication: str
    tables: tuple[str, ...]  # patterns of schema.table
    slot: str = ""  # of a stream
    spool: str = ""  # of a stream, a folder; "": in the state folder
    snapshot: Literal["initial", "never"] = "initial"
    max_changes: int = 0  # of a micro-batch; 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSource:
    """Rows of a database: all of them, or, along a column that grows, those that come."""

    database: str  # sqlite:FILE or postgresql:CONNECTION; may have a password
    table: str = ""  # either this
    query: str = ""  # or this
    fields: tuple[ValueField, ...] = ()  # types of columns for which SQLite has none
    increasing: str = ""  # of a stream; "": all rows, read again with each micro-batch
    start: Literal["earliest", "latest"] = "earliest"
    max_rows: int = 0  # of a micro-batch; 0: no limit
    partition_by: str = ""  # tasks read ranges of this column
    partitions: int = 1

    def types(self) -> dict[str, str]:
        return {field.name: field.type_name for field in self.fields}


Origin = TopicSource | FileSource | PostgresSource | SqlSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    name: str  # of its view
    origin: Origin
    value: ValueSpec | None  # None for Parquet and SQL, which have columns already
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStep:
    name: str
    statement: str
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """`module:function`, from DataFrame to DataFrame."""

    name: str
    module: str
    function: str
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    topic: str
    key: str = ""  # the column that becomes the record's key
    is_records: bool = False  # the result has the columns of a record: value, and if you like key, partition, headers
    registry: str = ""  # of values with a schema: the address of the schema registry; "": values are JSON
    schema_format: SchemaFormat = "avro"  # with a registry
    schema: str = ""  # a file, of Protobuf a descriptor set; "": made from the columns of the result
    message: str = ""  # of Protobuf: its full name
    delivery: Delivery = "exactly_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSink:
    folder: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink:
    folder: str
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSink:
    table: str  # NAMESPACE.NAME
    warehouse: str  # a folder
    catalog: str = ""  # in SQL, as SQLAlchemy names it; may have a password; "": a file of SQLite in the warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    table: str
    database: str  # sqlite:FILE or postgresql:CONNECTION
    key: tuple[str, ...] = ()  # the columns by which rows are replaced; empty: rows are appended
    applies_changes: bool = False  # rows have CHANGE_COLUMNS: deletes delete, truncations empty the table


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """JSON lines on stdout, for trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """What happens with a record whose value does not fit its schema."""

    action: ErrorAction = "stop"
    topic: str = ""  # of dead letters


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often in a row a driver that fails is started again, and how long the pauses are."""

    attempts: int = 5
    first_ms: int = 1_000
    max_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    name: str
    is_batch: bool
    bootstrap: str  # "": of the command line
    sources: tuple[SourceSpec, ...]
    steps: tuple[SqlStep | PythonStep, ...]
    sink: TopicSink | ParquetSink | DeltaSink | IcebergSink | TableSink | ConsoleSink
    output_mode: OutputMode
    trigger: str  # "": as soon as there are records
    errors: ErrorPolicy
    restarts: RestartPolicy
    state_folder: str  # "": beside the file
    checkpoint: str  # "": in the state folder
    spark_settings: Mapping[str, str]
    has_named_sources: bool = False  # [sources.NAME], not [source]

    def result_view(self) -> str:
        """The view that goes to the sink."""
        if self.steps:
            return self.steps[-1].name
        return self.sources[0].name


def placed(text: str, base: Path) -> str:
    """A path of the file: relative to the folder of the file, unless it is absolute or names a file system."""
    return text if "://" in text else str(base / text)


def on_this_machine(text: str, base: Path) -> Path | None:
    """None: on a file system of other machines."""
    address = placed(text, base)
    if "://" not in address:
        return Path(address)
    parts = urlsplit(address)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
