"""The sources in a pipeline's file: topics, files or tables of PostgreSQL, how values become columns, watermarks. Pure."""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from barnabas.log.settings.addresses import parse_bootstrap
from barnabas.log.vocabulary.errors import InvalidRegularExpressionError, InvalidTopicError
from barnabas.log.vocabulary.name_pattern import name_pattern
from barnabas.log.vocabulary.topic_partition import check_topic_name
from barnabas.net.base.near_words import did_you_mean

from .document_table import DocumentTable
from .field_parsing import read_fields
from .spec import (
    CHANGE_COLUMNS,
    INPUT,
    FileSource,
    Origin,
    PostgresSource,
    SourceSpec,
    SqlSource,
    TopicSource,
    ValueSpec,
    Watermark,
)
from .sql_source_parsing import read_sql_source, refuse_sql_parts

FORMATS: Final = ("json", "csv", "changes", "avro", "protobuf", "json_schema", "access_log", "text", "raw")
ACCESS_PATTERNS: Final = ("combined", "common")
MAX_GROUP_CHARS: Final = 249  # as of a topic's name: it is a label of metrics
MAX_SAMPLE: Final = 100_000  # records that the driver reads at the start
_INTERVAL: Final = re.compile(r"\d{1,9} (millisecond|second|minute|hour|day|week)s?")
_DATABASE_FORMATS: Final = ("changes", "text", "raw")
_TABLE: Final = re.compile(r"[^\s.]+\.[^\s.]+")
_VIEW: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def is_view_name(name: str) -> bool:
    return _VIEW.fullmatch(name) is not None


def read_sources(document: DocumentTable) -> tuple[SourceSpec, ...]:
    kinds = document.given("source", "sources")
    if len(kinds) != 1:
        document.refuse(
            "", "a pipeline has either the table source, or sources with a table for each name: write one of them"
        )
    if "sources" not in kinds:
        table = document.table("source")
        return () if table is None else (_source(INPUT, table),)
    tables = document.table("sources")
    if tables is not None and not tables.names():
        document.refuse("sources", "is empty: add [sources.NAME] for each source")
    found: list[SourceSpec] = []
    for name in tables.names() if tables else ():
        assert tables is not None
        if not is_view_name(name):
            tables.refuse_key(name, "is the name of a view: use letters, digits and '_', and begin with a letter")
        if name.lower() in {source.name.lower() for source in found}:
            tables.refuse_key(
                name, "is the name of another source, too: Spark does not tell upper case from lower case"
            )
        table = tables.table(name)
        if table is not None:
            found.append(_source(name, table))
    return tuple(found)


def _source(name: str, table: DocumentTable) -> SourceSpec:
    kinds = table.given("topics", "pattern", "files", "postgres", "database")
    if len(kinds) != 1:
        table.refuse(
            "",
            "a source has one of topics (a list), pattern (a regular expression), files (a path), database (with a table or a"
            " query) and postgres (a connection, for changes)",
        )
    readers: dict[str, Callable[[DocumentTable], Origin]] = {
        "files": _files,
        "postgres": _postgres,
        "database": read_sql_source,
    }
    origin: Origin = readers.get(kinds[0] if len(kinds) == 1 else "", _topics)(table)
    found = SourceSpec(name=name, origin=origin, value=_value(table, origin), watermark=read_watermark(table))
    table.finish()
    return found


def _topics(table: DocumentTable) -> TopicSource:
    for topic in (topics := table.texts("topics")):
        check_topic(table, "topics", topic)
    pattern = table.text("pattern")
    try:
        if pattern:
            name_pattern(pattern)
    except InvalidRegularExpressionError as error:
        table.refuse("pattern", error.message)
    start = table.text("start", "earliest", choices=("earliest", "latest"))
    return TopicSource(
        topics=topics,
        name_pattern=pattern,
        start="latest" if start == "latest" else "earliest",
        max_records=table.integer("max_records", 0, least=1, most=1_000_000_000),
        skips_lost=table.text("lost_records", "stop", choices=("stop", "skip")) == "skip",
        group=_group(table),
        bootstrap=(bootstrap := read_bootstrap(table)),
        config=_config(table, bootstrap),
        collect=(collect := _collect(table, topics, bootstrap)),
        first_line=_first_line(table, collect),
    )


def _collect(table: DocumentTable, topics: tuple[str, ...], bootstrap: str) -> tuple[str, ...]:
    patterns = table.texts("collect")
    if patterns and len(topics) != 1:
        example = table.words.pair("topics", ["access-log"])
        table.refuse("collect", f"sends lines to one topic, which the pipeline reads: add {example}")
    if patterns and bootstrap:
        table.refuse(
            "collect", "sends lines to the pipeline's own cluster: remove bootstrap, or run `barnabas collect`"
        )
    return patterns


def _first_line(table: DocumentTable, collect: tuple[str, ...]) -> str:
    pattern = table.text("first_line")
    if pattern and not collect:
        table.refuse("first_line", "has an effect only with collect: remove it")
    try:
        if pattern:
            name_pattern(pattern)
    except InvalidRegularExpressionError as error:
        table.refuse("first_line", error.message)
    return pattern


def read_bootstrap(table: DocumentTable) -> str:
    text = table.text("bootstrap")
    try:
        if text:
            parse_bootstrap(text)
    except ValueError as error:
        table.refuse("bootstrap", f"is {text!r}: {error}; write HOST:PORT[,HOST:PORT...]")
    return text


def _config(table: DocumentTable, bootstrap: str) -> str:
    file = table.text("config")
    if file and not bootstrap:
        words = "is for another cluster: add its bootstrap, or use --command-config for the pipeline's own"
        table.refuse("config", words)
    return file


def _group(table: DocumentTable) -> str:
    name = table.text("group")
    if len(name) > MAX_GROUP_CHARS:
        table.refuse("group", f"has {len(name)} characters; {MAX_GROUP_CHARS} are allowed")
    return name


def _files(table: DocumentTable) -> FileSource:
    return FileSource(
        path=table.text("files"),
        is_parquet=table.text("format", "lines", choices=("lines", "parquet")) == "parquet",
        max_files=table.integer("max_files", 0, least=1, most=1_000_000),
    )


def _postgres(table: DocumentTable) -> PostgresSource:
    if not table.has("tables"):
        table.refuse("tables", f"is missing: add {table.words.pair('tables', ['public.orders'])}")
    tables = table.texts("tables")
    for name in tables:
        if not _TABLE.fullmatch(name):
            table.refuse("tables", f'has {name!r}: write "schema.table", such as "public.orders" or "public.*"')
    snapshot = table.text("snapshot", "initial", choices=("initial", "never"))
    return PostgresSource(
        dsn=table.text("postgres"),
        publication=table.required_text("publication", "shop"),
        tables=tables,
        slot=table.text("slot"),
        spool=table.text("spool"),
        snapshot="never" if snapshot == "never" else "initial",
        max_changes=table.integer("max_changes", 0, least=1, most=1_000_000_000),
    )


def refuse_parts_of_streams(document: DocumentTable, sources: tuple[SourceSpec, ...], *, is_batch: bool) -> None:
    """What a source needs as a stream, and cannot use as a batch."""
    for source in sources:
        origin = source.origin
        path = f"sources.{source.name}" if document.has("sources") else "source"
        if isinstance(origin, TopicSource) and origin.group and is_batch:
            document.refuse(f"{path}.group", "has no effect in a batch, which has no positions: remove it")
        if isinstance(origin, SqlSource):
            refuse_sql_parts(document, path, source, sources, is_batch=is_batch)
        if not isinstance(origin, PostgresSource):
            continue
        if is_batch:
            given = {"slot": origin.slot, "spool": origin.spool, "max_changes": origin.max_changes}
            for name in (name for name, value in given.items() if value):
                document.refuse(
                    f"{path}.{name}", "has no effect in a batch, which reads the rows as they are: remove it"
                )
        elif not origin.slot:
            example = document.words.pair("slot", "pipeline_shop")
            document.refuse(
                path, f"a stream needs a replication slot of its own: add {example}; the first run creates it"
            )
        if "://" in origin.spool:
            document.refuse(f"{path}.spool", "must be a folder that all machines of Spark share, not an object store")


def check_topic(table: DocumentTable, key: str, topic: str) -> None:
    try:
        check_topic_name(topic)
    except InvalidTopicError as error:
        table.refuse(key, error.message)


def read_watermark(table: DocumentTable) -> Watermark | None:
    found = table.table("watermark")
    if found is None:
        return None
    column = found.required_text("column", "time")
    if not found.has("delay"):
        found.refuse("delay", f"is missing: add {found.words.pair('delay', '10 minutes')}, how late a row may come")
    delay = read_interval(found, "delay")
    found.finish()
    return Watermark(column=column, delay=delay)


def read_interval(table: DocumentTable, name: str) -> str:
    text = table.text(name)
    if text and not _INTERVAL.fullmatch(text):
        table.refuse(name, f'is {text!r}: write a number and a unit, such as "10 seconds" or "5 minutes"')
    return text


# --- values ---------------------------------------------------------------------------------------------------------------


def _value(table: DocumentTable, origin: Origin) -> ValueSpec | None:
    found = table.table("value")
    if isinstance(origin, SqlSource) or (isinstance(origin, FileSource) and origin.is_parquet):
        if found is not None:
            what = "the rows of a database" if isinstance(origin, SqlSource) else "Parquet files"
            table.refuse("value", f"{what} have columns already: remove this table")
        return None
    formats = _DATABASE_FORMATS if isinstance(origin, PostgresSource) else FORMATS
    if found is None:
        example = table.words.pair("value", {"format": formats[0]})
        table.refuse("value", f"is missing: add {example}, or {', '.join(formats[1:])}")
        return None
    name: Any = found.required_text("format", formats[0], choices=formats)
    fields = read_fields(found)
    required = found.texts("required")
    for item in required:
        if fields and item not in {field.name for field in fields}:
            near = did_you_mean(item, [field.name for field in fields])
            found.refuse("required", f"has {item!r}, which is not in fields{near}: add it there, or remove it here")
    delimiter = found.text("delimiter", ",")
    if len(delimiter) != 1:
        found.refuse("delimiter", f"is {delimiter!r}: must be one character")
    if name in ("changes", "avro", "protobuf", "json_schema") and isinstance(origin, FileSource):
        found.refuse("format", f"{name} is for records of a topic: read the topic, or use json for files")
    spec = ValueSpec(
        format=name,
        fields=fields,
        required=required,
        pattern=found.text("pattern", ACCESS_PATTERNS[0], choices=ACCESS_PATTERNS),
        delimiter=delimiter,
        has_header=found.boolean("header"),
        schema=found.text("schema"),
        registry=found.text("registry"),
        subject=found.text("subject"),
        message=found.text("message"),
        is_framed=found.boolean("framed"),
        sample_records=found.integer("sample_records", 1_000, least=1, most=MAX_SAMPLE),
    )
    _refuse_keys_of_other_formats(found, spec)
    _check_schema(found, spec, origin)
    found.finish()
    return spec


def _refuse_keys_of_other_formats(table: DocumentTable, spec: ValueSpec) -> None:
    belongs = {
        "fields": ("json", "changes", "csv"),
        "required": ("json", "changes", "csv", "avro", "protobuf", "json_schema"),
        "schema": ("avro", "protobuf", "json_schema"),
        "registry": ("avro", "json_schema"),
        "subject": ("avro", "json_schema"),
        "message": ("protobuf",),
        "framed": ("protobuf",),
        "sample_records": ("json",),
        "pattern": ("access_log",),
        "delimiter": ("csv",),
        "header": ("csv",),
    }
    for key in table.given(*belongs):
        if spec.format not in belongs[key]:
            table.refuse(key, f"has no effect with the format {spec.format}: remove it")
    if spec.format in ("changes", "csv") and not spec.fields:
        table.refuse(
            "fields",
            f"{spec.format} needs the names and types of its columns: add {table.words.pair('fields', {'id': 'bigint'})}",
        )
    for field in spec.fields if spec.format == "changes" else ():
        if field.name.lower() in CHANGE_COLUMNS:
            table.refuse(f"fields.{field.name}", "is the name of a column that each change has anyway: leave it out")
    if spec.format == "json" and spec.fields and table.has("sample_records"):
        table.refuse("sample_records", "has no effect if fields are declared: remove one of them")


def _check_schema(table: DocumentTable, spec: ValueSpec, origin: Origin) -> None:
    if spec.format == "protobuf":
        if not spec.schema:
            table.refuse("schema", f"is missing: add {table.words.pair('schema', 'orders.desc')}, which protoc writes")
        if not spec.message:
            table.refuse(
                "message", f"is missing: add {table.words.pair('message', 'shop.Order')}, a message of the schema"
            )
    if spec.format not in ("avro", "json_schema"):
        return
    if not (spec.schema or spec.registry):
        example = table.words.pair("schema", "orders.avsc" if spec.format == "avro" else "orders.json")
        table.refuse("schema", f"is missing: add {example}, or the address of a registry")
    check_registry(table, spec.registry)
    if spec.subject and (spec.schema or not spec.registry):
        table.refuse("subject", "has an effect only with a registry and without a schema: remove it")
    is_one_topic = isinstance(origin, TopicSource) and len(origin.topics) == 1
    if spec.registry and not (spec.schema or spec.subject or is_one_topic):
        table.refuse("subject", "is missing: a source of several topics must say whose newest schema makes the columns")


def check_registry(table: DocumentTable, address: str) -> None:
    """The message does not repeat what may be a password."""
    parts = urlsplit(address)
    if address and (parts.scheme not in ("http", "https") or not parts.hostname):
        table.refuse("registry", f"is {address.rpartition('@')[2]!r}: write its address, such as http://localhost:8081")
    elif parts.password is not None:
        table.refuse(
            "registry",
            "has a password: put schema.registry.basic.auth.user.info = USER:PASSWORD into the file of --command-config",
        )
