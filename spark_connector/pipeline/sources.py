"""The sources of a pipeline as views: topics, files, SQL tables or changes of them, as streams or batches; bad values apart."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from barnabas.net.client.serde.registry import RegistryAccess, registry_access
from barnabas.net.programs.connect.relations.relation import RelationError, described_columns
from barnabas.net.programs.pipeline.spec import (
    DATABASE_COLUMNS,
    FILE_COLUMNS,
    RECORD_COLUMNS,
    ErrorPolicy,
    FileSource,
    PostgresSource,
    SourceSpec,
    SqlSource,
    TopicSource,
    ValueField,
    ValueSpec,
    placed,
)
from barnabas.net.programs.pipeline.state import StateFolder

from ..common.connection import properties_of, security_of, shared_client
from ..postgres.change_source import PostgresChangesDataSource
from ..read.boundaries import Boundaries
from ..read.offsets import OffsetRange
from ..read.read_options import parse_read_options
from ..tables.table_source import TableDataSource, TableOptions
from .avro_values import latest_schema
from .faults import BAD_RECORD, PipelineFault
from .schema_values import Schema
from .values import REASON, fields_and, quoted, with_parsed

FORMAT = "barnabas"
_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key string, value binary>>"
)
_HEADERS = "headers"
_PLACES = {TopicSource: RECORD_COLUMNS, FileSource: FILE_COLUMNS, PostgresSource: DATABASE_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all parts of a driver are given."""

    spark: SparkSession
    state: StateFolder
    base: Path  # relative paths begin here
    connection: Mapping[str, str]  # options of the format: brokers, TLS, logins
    is_batch: bool
    is_plan: bool = False  # nothing is written, also not at a schema registry
    registry_login: Mapping[str, str] = field(default_factory=dict)  # properties, see `registry_access`
    is_remote: bool = (
        False  # the session is in a Spark Connect server: no JVM here, and micro-batches are written there
    )

    def path(self, text: str) -> str:
        return placed(text, self.base)

    def config(self, file: str) -> Path:
        """Raises PipelineFault."""
        path = Path(self.path(file))
        if not path.is_file():
            raise PipelineFault(f"there is no file {path}, which the key config of a source names")
        return path

    def registry(self, url: str) -> RegistryAccess | None:
        """None without an address. Raises InvalidConfigError."""
        return registry_access(url, self.registry_login) if url else None

    def read_schema(self, file: str) -> bytes:
        """Raises PipelineFault."""
        path = Path(self.path(file))
        try:
            return path.read_bytes()
        except OSError as error:
            raise PipelineFault(f"the schema {path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A source: its rows, and its records that do not fit, as they are sent to the topic of dead letters."""

    rows: DataFrame
    dead_letters: DataFrame | None = None
    seen: Observation | None = None  # of a batch: how many records there were, and how many bad ones


def open_source(world: World, source: SourceSpec, errors: ErrorPolicy, pipeline: str) -> Opened:
    """Raises PipelineFault, or an error of the cluster."""
    if isinstance(source.origin, SqlSource):
        return _sql_rows(world, source, source.origin)
    if source.value is None:
        return Opened(rows=_watermarked(_parquet(world, source), source))
    value = _with_fields(world, source, source.value)
    place = _PLACES[type(source.origin)]
    try:
        schema = _schema_of(world, source, value)
        parsed = with_parsed(_records(world, source, is_published=True), value, schema)
        bad = parsed
        if errors.action == "dead-letter" and isinstance(source.origin, TopicSource) and source.origin.group:
            bad = with_parsed(_records(world, source, is_published=False), value, schema)
    except PipelineFault as error:
        raise PipelineFault(f"source {source.name}: {error}") from error
    counts = (F.count(F.lit(1)).alias("records"), F.count_if(F.col(REASON).isNotNull()).alias("bad"))
    seen = Observation(_observed_name(source)) if world.is_batch else None
    counted = parsed.observe(seen or _observed_name(source), *counts)
    good = _good(counted, errors, place)
    dead_letters = _dead_letters(bad, place, pipeline) if errors.action == "dead-letter" else None
    return Opened(rows=_watermarked(fields_and(place, good), source), dead_letters=dead_letters, seen=seen)


def _observed_name(source: SourceSpec) -> str:
    """The name of the metrics of a source in Spark's progress reports."""
    return f"source_{source.name}"


def _watermarked(rows: DataFrame, source: SourceSpec) -> DataFrame:
    if source.watermark is None:
        return rows
    return rows.withWatermark(source.watermark.column, source.watermark.delay)


# --- bad values -----------------------------------------------------------------------------------------------------------


def _good(parsed: DataFrame, errors: ErrorPolicy, place: tuple[str, ...]) -> DataFrame:
    fits = F.col(REASON).isNull()
    if errors.action == "stop":
        words = (
            (F.lit(name.removeprefix("record_")), F.col(name).cast("string")) for name in place if name != "record_key"
        )
        where = F.concat_ws(" ", *(word for pair in words for word in pair))
        message = F.concat(F.lit(f"{BAD_RECORD}{{"), F.col(REASON), F.lit(" ("), where, F.lit(f")}}{BAD_RECORD}"))
        return parsed.where(F.when(fits, F.lit(True)).otherwise(F.raise_error(message).cast("boolean")))
    return parsed.where(fits)


def _dead_letters(parsed: DataFrame, place: tuple[str, ...], pipeline: str) -> DataFrame:
    """Records with key, value and headers as they were, and headers that say why they are here, and where they come from."""
    found = {"barnabas-error": F.col(REASON), "barnabas-pipeline": F.lit(pipeline)}
    for name in place:
        if name not in ("record_key", "record_timestamp"):
            found[f"barnabas-{name.replace('_', '-')}"] = F.col(name).cast("string")
    added = F.array(
        *(F.struct(F.lit(key).alias("key"), text.cast("binary").alias("value")) for key, text in found.items())
    )
    key, headers = F.lit(None).cast("binary"), added
    if place == RECORD_COLUMNS:
        key = F.col("record_key")
        headers = F.when(F.col(_HEADERS).isNull(), added).otherwise(F.concat(F.col(_HEADERS), added))
    return parsed.where(F.col(REASON).isNotNull()).select(key.alias("key"), "value", headers.alias(_HEADERS))


# --- where rows come from -------------------------------------------------------------------------------------------------


def topic_options(world: World, origin: TopicSource) -> dict[str, str]:
    subscription = {"subscribePattern": origin.name_pattern} if origin.name_pattern else {}
    connection = world.connection
    if origin.bootstrap:  # The login of the pipeline's own cluster is not for another one.
        security = security_of(properties_of(world.config(origin.config))) if origin.config else {}
        connection = {"bootstrap.servers": origin.bootstrap, **security}
    return {**connection, **(subscription or {"subscribe": ",".join(origin.topics)})}


def _records(world: World, source: SourceSpec, *, is_published: bool) -> DataFrame:
    """The column `value`, and the columns of the place. `is_published`: positions are those of the source's group. The query of
    dead letters has positions of its own, which would overwrite them."""
    origin = source.origin
    if isinstance(origin, FileSource):
        reader: Any = world.spark.read if world.is_batch else world.spark.readStream
        if origin.max_files:
            reader = reader.option("maxFilesPerTrigger", str(origin.max_files))
        lines: DataFrame = reader.format("text").load(world.path(origin.path))
        return lines.select(F.col("value").cast("binary"), F.col("_metadata.file_path").alias(FILE_COLUMNS[0]))
    if isinstance(origin, PostgresSource):
        return _changes(world, source, origin)
    assert isinstance(origin, TopicSource), "the rows of a database have no values"
    check_topics(world, origin)
    reader = world.spark.read if world.is_batch else world.spark.readStream
    options = {**topic_options(world, origin), "includeHeaders": "true"}
    options["failOnDataLoss"] = "false" if origin.skips_lost else "true"
    options["startingOffsets"] = "earliest" if world.is_batch else origin.start
    if origin.group and is_published and not world.is_batch:
        options["groupId"] = origin.group
    if origin.max_records and not world.is_batch:
        options["maxOffsetsPerTrigger"] = str(origin.max_records)
    records: DataFrame = reader.format(FORMAT).schema(_COLUMNS).options(**options).load()
    names = dict(zip(("key", "topic", "partition", "offset", "timestamp"), RECORD_COLUMNS, strict=True))
    return records.select("value", _HEADERS, *(F.col(name).alias(place) for name, place in names.items()))


def _changes(world: World, source: SourceSpec, origin: PostgresSource) -> DataFrame:
    """Options of the format have the checks, so this only names the folder: of a generation, so that a reset begins a new one. A
    field whose column is dropped or renamed meanwhile would be null."""
    options = {"dsn": origin.dsn, "publication": origin.publication, "tables": ",".join(origin.tables)}
    reader: Any = world.spark.read if world.is_batch else world.spark.readStream
    if not world.is_batch:
        spools = Path(world.path(origin.spool)) if origin.spool else world.state.path / "spool"
        options |= {"slot": origin.slot, "snapshot": origin.snapshot}
        options["spoolLocation"] = str((spools / f"{source.name}-{world.state.generation()}").absolute())
        if source.value is not None and source.value.format == "changes":
            options["requiredColumns"] = json.dumps([field.name for field in source.value.fields])
        if origin.max_changes:
            options["maxChangesPerTrigger"] = str(origin.max_changes)
    changes: DataFrame = reader.format(PostgresChangesDataSource.name()).options(**options).load()
    key, table = (F.col(column).alias(place) for column, place in zip(("key", "table"), DATABASE_COLUMNS, strict=True))
    return changes.select(F.col("value").cast("binary"), key, table)


def table_options(world: World, source: SourceSpec, origin: SqlSource) -> TableOptions:
    """Raises PipelineFault for what `barnabas pipeline validate` tells, too."""
    try:
        columns = described_columns(origin, world.base)
    except RelationError as error:
        raise PipelineFault(f"source {source.name}.{error.key}: {error}") from error
    except ImportError as error:
        raise PipelineFault(f"PostgreSQL needs psycopg ({error}): pip install 'barnabas[postgres]'") from error
    return TableOptions(
        database=origin.database,
        base=str(world.base),
        table=origin.table,
        query=origin.query,
        columns=columns,
        partition_by=origin.partition_by,
        partitions=origin.partitions,
        increasing=origin.increasing,
        is_from_end=origin.start == "latest",
        max_rows=origin.max_rows,
    )


def _sql_rows(world: World, source: SourceSpec, origin: SqlSource) -> Opened:
    """Beside a stream, a table without a column that grows is read with each micro-batch."""
    options = table_options(world, source, origin)
    world.spark.dataSource.register(TableDataSource)
    reader: Any = world.spark.readStream if origin.increasing else world.spark.read
    rows: DataFrame = (
        reader.format(TableDataSource.name()).schema(options.schema()).options(**options.to_options()).load()
    )
    if not world.is_batch:
        return Opened(rows=_watermarked(rows, source))
    seen = Observation(_observed_name(source))
    counted = rows.observe(seen, F.count(F.lit(1)).alias("records"), F.lit(0).alias("bad"))
    return Opened(rows=_watermarked(counted, source), seen=seen)


def _parquet(world: World, source: SourceSpec) -> DataFrame:
    assert isinstance(source.origin, FileSource)
    path = world.path(source.origin.path)
    rows = world.spark.read.parquet(path)
    if world.is_batch:
        return rows
    reader = world.spark.readStream.schema(rows.schema)
    if source.origin.max_files:
        reader = reader.option("maxFilesPerTrigger", str(source.origin.max_files))
    return reader.parquet(path)


def check_topics(world: World, origin: TopicSource) -> list[OffsetRange]:
    """The partitions, with what is in them now. Raises UnknownTopicOrPartitionError, and if no broker answers."""
    options = parse_read_options(topic_options(world, origin), is_stream=False)
    loop, client = shared_client(options.client)
    ranges, _ = loop.call(Boundaries(client, options).batch_ranges())
    if not ranges:
        raise PipelineFault(f"no topic matches the pattern {origin.name_pattern!r}: create one, or change the pattern")
    return ranges


# --- schemas --------------------------------------------------------------------------------------------------------------


def _schema_of(world: World, source: SourceSpec, value: ValueSpec) -> Schema | None:
    """The content of the file, or the newest schema of the registry, which each start asks for. None: the format has none."""
    if value.format not in ("avro", "protobuf", "json_schema"):
        return None
    registry = world.registry(value.registry)
    if value.schema:
        content = world.read_schema(value.schema)
    else:
        assert isinstance(source.origin, TopicSource) and registry is not None
        kind = "JSON" if value.format == "json_schema" else "AVRO"
        content = latest_schema(registry, value.subject or f"{source.origin.topics[0]}-value", kind).encode()
    return Schema(
        content=content, format=value.format, registry=registry, message=value.message, is_framed=value.is_framed
    )


# --- fields that are inferred ---------------------------------------------------------------------------------------------


def _with_fields(world: World, source: SourceSpec, value: ValueSpec) -> ValueSpec:
    """JSON without declared fields: those of the last start, and new ones of a sample. A known field keeps its type."""
    if value.format != "json" or value.fields:
        return value
    stored = world.state.read_schema(source.name)
    known = StructType.fromJson(json.loads(stored)) if stored else StructType()
    sampled = _sampled(world, source, value.sample_records)
    names = {field.name.lower() for field in known}
    merged = StructType([*known, *(field for field in sampled if field.name.lower() not in names)])
    if not merged.fields:
        raise PipelineFault(
            f"source {source.name}: there is no JSON object yet to infer the fields from: declare"
            ' value.fields = { id = "bigint" }, or run again when there is one'
        )
    world.state.write_schema(source.name, merged.json())
    fields = tuple(ValueField(name=field.name, type_name=_in_sql(field.dataType)) for field in merged)
    missing = [name for name in value.required if name not in merged.fieldNames()]
    if missing:
        raise PipelineFault(f"source {source.name}: required names {missing[0]}, which no record of the sample has")
    return replace(value, fields=fields)


def _in_sql(kind: DataType) -> str:
    """As a schema in SQL names the type. `simpleString` does not quote the names of nested fields."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {_in_sql(field.dataType)}' for field in kind)}>"
    return f"array<{_in_sql(kind.elementType)}>" if isinstance(kind, ArrayType) else kind.simpleString()


def _sampled(world: World, source: SourceSpec, count: int) -> StructType:
    """The first and the last records, so that fields are found that only old or only new ones have."""
    assert not isinstance(source.origin, PostgresSource), "its changes have declared fields"
    if isinstance(source.origin, FileSource):
        lines = world.spark.read.text(world.path(source.origin.path)).limit(count)
    else:
        assert isinstance(source.origin, TopicSource), "other rows have columns"
        ranges = check_topics(world, source.origin)
        each = max(1, count // (2 * len(ranges)))
        first = _between(world, source.origin, ranges, lambda found: (found.start, min(found.end, found.start + each)))
        last = _between(world, source.origin, ranges, lambda found: (max(found.start, found.end - each), found.end))
        lines = first.union(last)
    texts = [row.text for row in lines.selectExpr("CAST(value AS STRING) AS text").collect()]
    objects = [text for text in texts if text is not None and text.lstrip().startswith("{")]
    reader = world.spark.read.option("mode", "DROPMALFORMED")
    if world.is_remote:
        return reader.json(world.spark.createDataFrame([(text,) for text in objects], "value string")).schema
    return reader.json(world.spark.sparkContext.parallelize(objects)).schema


def _between(
    world: World,
    origin: TopicSource,
    ranges: list[OffsetRange],
    limits: Callable[[OffsetRange], tuple[int, int]],
) -> DataFrame:
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for found in ranges:
        place = found.partition
        start, end = limits(found)
        starts.setdefault(place.topic, {})[str(place.partition)] = start
        ends.setdefault(place.topic, {})[str(place.partition)] = end
    options = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    reader = world.spark.read.format(FORMAT).schema("value binary")
    return reader.options(**topic_options(world, origin), **options).load()
