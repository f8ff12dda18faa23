"""The sink in a pipeline's file, its output mode, and what happens with bad records. Pure."""

import re
from typing import Any, Final

from .document_table import DocumentTable
from .source_parsing import check_registry, check_topic
from .spec import ConsoleSink, DeltaSink, ErrorPolicy, IcebergSink, OutputMode, ParquetSink, TableSink, TopicSink

Sink = TopicSink | ParquetSink | DeltaSink | IcebergSink | TableSink | ConsoleSink
KINDS: Final = ("topic", "parquet", "delta", "iceberg", "table", "console")
_ICEBERG_TABLE: Final = re.compile(r"\w[\w-]*(\.\w[\w-]*)+")
OUTPUT_MODES: Final = ("append", "update", "complete")
ACTIONS: Final = ("stop", "skip", "dead-letter")
SCHEMA_FORMATS: Final = ("avro", "protobuf", "json_schema")
DATABASES: Final = ("sqlite", "postgresql")


def read_sink(document: DocumentTable) -> Sink:
    table = document.table("sink")
    if table is None:
        if not document.has("sink"):
            document.refuse(
                "sink",
                f"is missing: add a sink with {document.words.pair('topic', 'NAME')}, or parquet, delta, iceberg, table, console",
            )
        return ConsoleSink()
    kinds = table.given(*KINDS)
    if len(kinds) != 1:
        table.refuse(
            "",
            "a sink has one of topic, parquet (a folder), delta (a folder), iceberg (a table), table and console = true",
        )
    found = _sink(table, kinds[0] if kinds else "console")
    table.given("output_mode")
    table.finish()
    return found


def _sink(table: DocumentTable, kind: str) -> Sink:
    if kind == "topic":
        return _topic(table)
    if table.text("delivery", choices=("exactly_once", "at_least_once")) and table.has("delivery"):
        words = "prints rows again after a crash" if kind == "console" else "writes each row once"
        table.refuse("delivery", f"this sink always {words}: remove the key")
    if kind == "table":
        return _table(table)
    if kind == "parquet":
        return ParquetSink(folder=table.text("parquet"), partition_by=table.texts("partition_by"))
    if kind == "delta":
        folder = table.text("delta")
        if "://" in folder:
            table.refuse("delta", "must be a folder that all machines of Spark share: object stores are not supported")
        return DeltaSink(folder=folder, partition_by=table.texts("partition_by"))
    if kind == "iceberg":
        return _iceberg(table)
    if table.has("console") and not table.boolean("console", default=True):
        table.refuse("console", "is false: write console = true")
    return ConsoleSink()


def _iceberg(table: DocumentTable) -> IcebergSink:
    name, warehouse = table.text("iceberg"), table.required_text("warehouse", "lake")
    if name and not _ICEBERG_TABLE.fullmatch(name):
        example = table.words.pair("iceberg", "shop.orders")
        table.refuse("iceberg", f"is {name!r}: write NAMESPACE.NAME, such as {example}; the folder is warehouse")
    if "://" in warehouse:
        table.refuse("warehouse", "must be a folder that all machines of Spark share: object stores are not supported")
    catalog = table.text("catalog")
    if catalog and "://" not in catalog:
        # The value may contain a password, so the message does not repeat it.
        table.refuse("catalog", 'must be an address of a database, such as "sqlite:////srv/catalog.db"')
    return IcebergSink(table=name, warehouse=warehouse, catalog=catalog)


def _topic(table: DocumentTable) -> TopicSink:
    topic = table.text("topic")
    if topic:
        check_topic(table, "topic", topic)
    format_name = table.text("format", "json", choices=("json", *SCHEMA_FORMATS, "record"))
    is_records = format_name == "record"
    if is_records and table.has("key"):
        table.refuse(
            "key", f"has no effect with {table.words.pair('format', 'record')}: name the column key in the result"
        )
    has_schema = format_name in SCHEMA_FORMATS
    if has_schema:
        _check_schema(table, format_name)
    else:
        for name in table.given("registry", "schema", "message"):
            table.refuse(
                name, f"has an effect only with {table.words.pair('format', 'avro')}: add that, or remove the key"
            )
    schema_format: Any = format_name if has_schema else "avro"
    delivery: Any = table.text("delivery", "exactly_once", choices=("exactly_once", "at_least_once"))
    return TopicSink(
        topic=topic,
        key=table.text("key"),
        is_records=is_records,
        registry=table.text("registry"),
        schema_format=schema_format,
        schema=table.text("schema"),
        message=table.text("message"),
        delivery=delivery,
    )


def _check_schema(table: DocumentTable, format_name: str) -> None:
    check_registry(table, table.text("registry"))
    if not table.has("registry"):
        example = table.words.pair("registry", "http://localhost:8081")
        table.refuse("registry", f"is missing: {format_name} needs the address of a schema registry, add {example}")
    if format_name != "protobuf":
        for name in table.given("message"):
            table.refuse(name, f"has no effect with {table.words.pair('format', format_name)}: remove it")
        return
    for name, example in (("schema", "orders.desc"), ("message", "shop.Order")):
        if not table.has(name):
            table.refuse(
                name, f"is missing: Protobuf is written by a message of yours, add {table.words.pair(name, example)}"
            )


def _table(table: DocumentTable) -> TableSink:
    database = table.required_text("database", "sqlite:web.db")
    kind, _, place = database.partition(":")
    if database and (kind not in DATABASES or not place):
        # The value may contain a password, so the message does not repeat it.
        table.refuse("database", 'must be "sqlite:FILE" or "postgresql:CONNECTION"')
    write = table.text("write", "append", choices=("append", "upsert", "changes"))
    is_upsert = write in ("upsert", "changes")
    key = table.texts("key")
    if is_upsert and not key:
        table.refuse(
            "key", f"{write} needs the columns by which rows are replaced: add {table.words.pair('key', ['id'])}"
        )
    if key and not is_upsert:
        table.refuse("key", f"needs {table.words.pair('write', 'upsert')}: add that, or remove the key")
    return TableSink(
        table=table.text("table"), database=database, key=key if is_upsert else (), applies_changes=write == "changes"
    )


def read_output_mode(document: DocumentTable, sink: Sink, *, is_batch: bool) -> OutputMode:
    """By default, a table that replaces rows takes every change, and any other sink takes rows that are final."""
    table = document.table("sink")
    applies_changes = isinstance(sink, TableSink) and sink.applies_changes
    default = "update" if isinstance(sink, TableSink) and sink.key and not (is_batch or applies_changes) else "append"
    if table is None:
        return "append"
    found: Any = table.text("output_mode", default, choices=OUTPUT_MODES)
    if found != "append" and is_batch:
        table.refuse(
            "output_mode", f"a batch has one result: remove the key, or use {table.words.pair('mode', 'stream')}"
        )
    if found != "append" and applies_changes:
        table.refuse("output_mode", "a change is applied once, and does not change later: remove the key")
    if found != "append" and isinstance(sink, ParquetSink):
        table.refuse(
            "output_mode", "files take rows that do not change later: use append, with a watermark for windows"
        )
    if found == "update" and isinstance(sink, DeltaSink | IcebergSink):
        table.refuse(
            "output_mode",
            "a table of files gets rows that do not change later (append), or the whole result (complete)",
        )
    if found == "complete" and isinstance(sink, TableSink) and not sink.key:
        table.refuse(
            "output_mode", f"would append the whole result again and again: use {table.words.pair('write', 'upsert')}"
        )
    return found  # type: ignore[no-any-return]  # one of OUTPUT_MODES


def read_errors(document: DocumentTable) -> ErrorPolicy:
    table = document.table("errors")
    if table is None:
        return ErrorPolicy()
    action: Any = table.required_text("action", "stop", choices=ACTIONS)
    topic = table.text("topic")
    if topic:
        check_topic(table, "topic", topic)
    if action == "dead-letter" and not topic:
        table.refuse("topic", f"is missing: add {table.words.pair('topic', 'NAME')}, where bad records go")
    if topic and action != "dead-letter":
        table.refuse(
            "topic", f'has no effect with {table.words.pair("action", action)}: remove it, or use "dead-letter"'
        )
    table.finish()
    return ErrorPolicy(action=action, topic=topic)
