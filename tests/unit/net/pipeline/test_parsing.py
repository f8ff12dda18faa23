"""The file of a pipeline: what it becomes, and for each mistake the line, the key and what to do."""

import time

import pytest

from barnabas.net.programs.pipeline.parsing import MAX_STEPS, parse_pipeline
from barnabas.net.programs.pipeline.spec import (
    ConsoleSink,
    FileSource,
    ParquetSink,
    PipelineSpec,
    PostgresSource,
    PythonStep,
    SqlStep,
    TableSink,
    TopicSink,
    TopicSource,
    ValueField,
    Watermark,
)
from barnabas.net.programs.pipeline.toml_lines import places_of_keys

GOOD = """\
name = "orders"
mode = "stream"
bootstrap = "localhost:9092"
trigger = "5 seconds"

[source]
topics = ["orders"]
start = "latest"
max_records = 500
watermark = { column = "time", delay = "10 minutes" }

[source.value]
format = "json"
required = ["id"]
[source.value.fields]
id = "bigint"
time = "timestamp"
items = "array<struct<name: string, price: decimal(10,2)>>"

[[steps]]
name = "large"
sql = \"\"\"
SELECT * FROM input
WHERE size(items) > 10;
\"\"\"

[[steps]]
python = "steps:totals"

[sink]
table = "totals"
database = "sqlite:orders.db"
write = "upsert"
key = ["id"]

[errors]
action = "dead-letter"
topic = "orders-dead"

[restarts]
attempts = 2

[spark]
"spark.sql.shuffle.partitions" = "4"
"""
SOURCE = 'name = "p"\n[source]\ntopics = ["t"]\nvalue = { format = "text" }\n'
SINK = "[sink]\nconsole = true\n"


def spec_of(text: str) -> PipelineSpec:
    found = parse_pipeline(text)
    assert isinstance(found, PipelineSpec), found
    return found


def problems_of(text: str) -> list[str]:
    found = parse_pipeline(text)
    assert isinstance(found, list), "the file has no problem"
    return [problem.text("p.toml") for problem in found]


def without_column(problem: str) -> str:
    """A problem in the file p.toml or p.yaml, with its line only; test_toml_lines and test_yaml have the columns."""
    file, line, column, rest = problem.split(":", 3)
    assert int(column) >= 1
    return f"{file}:{line}:{rest}"


def test_all_parts_of_a_file() -> None:
    spec = spec_of(GOOD)
    (source,) = spec.sources
    assert source.name == "input" and source.watermark == Watermark(column="time", delay="10 minutes")
    assert source.origin == TopicSource(topics=("orders",), start="latest", max_records=500)
    assert source.value is not None and source.value.required == ("id",)
    assert source.value.fields[0] == ValueField(name="id", type_name="bigint") and len(source.value.fields) == 3
    select, totals = spec.steps
    assert select == SqlStep(name="large", statement="\nSELECT * FROM input\nWHERE size(items) > 10".lstrip("\n"))
    assert isinstance(totals, PythonStep) and (totals.module, totals.function) == ("steps", "totals")
    assert totals.name == "input"
    assert spec.sink == TableSink(table="totals", database="sqlite:orders.db", key=("id",))
    assert spec.output_mode == "update", "a table that replaces rows takes every change"
    assert spec.errors.topic == "orders-dead" and spec.restarts.attempts == 2
    assert spec.spark_settings == {"spark.sql.shuffle.partitions": "4"} and spec.trigger == "5 seconds"


def test_the_file_of_a_connector_is_told_as_that() -> None:
    (problem,) = problems_of('name = "shop"\nconnector = "postgres-source"\nslot = "shop"\n')
    assert problem == (
        "p.toml:2:1: connector: this is the file of a connector, not of a pipeline: run `barnabas connect run FILE`"
    )


def test_what_is_left_out() -> None:
    spec = spec_of(SOURCE + SINK)
    assert (spec.is_batch, spec.steps, spec.sink, spec.output_mode) == (False, (), ConsoleSink(), "append")
    assert spec.errors.action == "stop" and spec.bootstrap == "" and spec.result_view() == "input"


def test_several_sources_are_views_of_their_names() -> None:
    spec = spec_of(f'mode = "batch"\n{TWO}[[steps]]\nsql = "SELECT 1"\n[sink]\nparquet = "out"\n')
    assert [source.name for source in spec.sources] == ["a", "b"]
    assert spec.sources[1].origin == FileSource(path="in", is_parquet=True) and spec.sources[1].value is None
    assert spec.sink == ParquetSink(folder="out")


def test_a_topic_is_written_exactly_once_unless_the_file_says_otherwise() -> None:
    assert spec_of(SOURCE + '[sink]\ntopic = "out"').sink == TopicSink(topic="out", delivery="exactly_once")
    assert spec_of(SOURCE + '[sink]\ntopic = "out"\ndelivery = "at_least_once"').sink == TopicSink(
        topic="out", delivery="at_least_once"
    )


TWO = (
    'name = "p"\n[sources.a]\ntopics = ["a"]\nvalue = { format = "raw" }\n'
    '[sources.b]\nfiles = "in"\nformat = "parquet"\n'
)
WRONG = [
    ('name = "orders"', 'nmae = "orders"', "1: nmae: unknown key (did you mean name?)"),
    ('name = "orders"', 'nmae = "orders"', '1: name: is missing: add name = "web-requests"'),
    ('name = "orders"', 'name = "a/b"', "1: name: is 'a/b': use up to 100 letters"),
    ('name = "orders"', "name = 3", "1: name: is 3: must be a string"),
    ('mode = "stream"', 'mode = "steam"', "2: mode: is 'steam': write stream or batch (did you mean stream?)"),
    ('mode = "stream"', 'mode = "batch"', '4: trigger: has no effect with mode = "batch"'),
    ("localhost:9092", "localhost:x", "3: bootstrap: is 'localhost:x'"),
    ("5 seconds", "5s", "4: trigger: is '5s': write a number and a unit"),
    ('topics = ["orders"]', 'topics = "orders"', "7: source.topics: is 'orders': must be a list of strings"),
    ('topics = ["orders"]', 'topics = ["a b"]', "7: source.topics: "),
    ('topics = ["orders"]', 'topics = ["t"]\npattern = "x.*"', "6: source: a source has one of topics"),
    ('topics = ["orders"]', 'pattern = "("', "7: source.pattern: "),
    ('topics = ["orders"]', 'pattern = "orders.*"', "38: errors.topic: is 'orders-dead', which a source reads"),
    ("max_records = 500", "max_records = 0", "9: source.max_records: is 0: must be an integer between 1 and"),
    ("max_records = 500", "max_records = true", "9: source.max_records: is True: must be an integer"),
    ('"10 minutes"', '"10m"', "10: source.watermark.delay: is '10m': write a number and a unit"),
    ("column =", "colum =", "10: source.watermark.colum: unknown key (did you mean column?)"),
    ('format = "json"', 'format = "jsn"', "13: source.value.format: is 'jsn': write json or csv"),
    ('format = "json"', 'format = "avro"', "12: source.value.schema: is missing: add schema = "),
    (
        'format = "json"',
        'format = "avro"\nschema = "a.avsc"\nsubject = "s"',
        "15: source.value.subject: has an effect only",
    ),
    ('format = "json"', 'format = "avro"\nregistry = "host:8081"', "14: source.value.registry: is 'host:8081'"),
    (
        'format = "json"',
        'format = "avro"\nregistry = "http://h"\nmessage = "M"',
        "15: source.value.message: has no effect",
    ),
    (
        'format = "json"',
        'format = "protobuf"\nschema = "a.desc"',
        "12: source.value.message: is missing: add message = ",
    ),
    ('format = "json"', 'format = "protobuf"\nregistry = "http://h"', "14: source.value.registry: has no effect"),
    (
        'format = "json"',
        'framed = true\nformat = "json"',
        "13: source.value.framed: has no effect with the format json",
    ),
    ('format = "json"', 'format = "text"', "15: source.value.fields: has no effect with the format text"),
    ('["id"]', '["ids"]', "14: source.value.required: has 'ids', which is not in fields (did you mean id?)"),
    (
        'id = "bigint"',
        'id = "bigin"',
        "16: source.value.fields.id: is 'bigin', which is no type (did you mean bigint?)",
    ),
    ('id = "bigint"', "id = 3", '16: source.value.fields.id: is 3: write a string, such as "3"'),
    ('id = "bigint"', 'id = "array<int"', "16: source.value.fields.id: is 'array<int': its brackets do not match"),
    ('id = "bigint"', 'id = "bigint"\nID = "string"', "17: source.value.fields.ID: is there twice"),
    ('id = "bigint"', 'record_key = "int"', "16: source.value.fields.record_key: is the name of a column"),
    ('name = "large"', 'name = "2 large"', "21: steps[1].name: is '2 large': a view's name"),
    ('name = "large"', 'name = "INPUT"', "21: steps[1].name: is 'INPUT', which another view has already"),
    ('name = "large"', 'name = "input"', "21: steps[1].name: is 'input', which another view has already"),
    ("steps:totals", "steps.totals", "28: steps[2].python: is 'steps.totals': write \"module:function\""),
    ('python = "steps:totals"', 'sql = "SELECT 1"\npython = "a:b"', "27: steps[2]: a step has either sql"),
    ('python = "steps:totals"', 'pyton = "a:b"', "28: steps[2].pyton: unknown key (did you mean python?)"),
    ('table = "totals"', 'tabel = "totals"', "31: sink.tabel: unknown key (did you mean table?)"),
    ('table = "totals"', 'table = "t"\ntopic = "u"', "30: sink: a sink has one of topic"),
    ("sqlite:orders.db", "mysql:secret", '32: sink.database: must be "sqlite:FILE" or "postgresql:CONNECTION"'),
    ('key = ["id"]', "", "30: sink.key: upsert needs the columns"),
    ('write = "upsert"', "", '34: sink.key: needs write = "upsert"'),
    ('write = "upsert"', 'delivery = "exactly_once"\nwrite = "upsert"', "33: sink.delivery: this sink always writes"),
    ('write = "upsert"\nkey = ["id"]', 'write = "changes"', "30: sink.key: changes needs the columns"),
    (
        'write = "upsert"',
        'write = "changes"\noutput_mode = "update"',
        "34: sink.output_mode: a change is applied once, and does not change later",
    ),
    (
        'format = "json"\nrequired = ["id"]\n[source.value.fields]\nid',
        'format = "changes"\n[source.value.fields]\nchange_lsn',
        "15: source.value.fields.change_lsn: is the name of a column that each change has",
    ),
    ('action = "dead-letter"', 'action = "skip"', '38: errors.topic: has no effect with action = "skip"'),
    ('topic = "orders-dead"', "", "36: errors.topic: is missing"),
    ('topic = "orders-dead"', 'topic = "orders"', "38: errors.topic: is 'orders', which a source reads"),
    ("attempts = 2", "attempts = -1", "41: restarts.attempts: is -1: must be an integer between 0 and"),
    ("attempts = 2", "first_ms = 90000", "41: restarts.first_ms: is 90000, which is more than max_ms"),
    ('"spark.sql.shuffle.partitions"', '"shuffle.partitions"', "44: spark.shuffle.partitions: is no setting of Spark"),
    ("[errors]", "[eror]", "36: eror: unknown key (did you mean errors?)"),
    ('name = "orders"', "name = orders", "1: not valid TOML: Invalid value"),
]


@pytest.mark.parametrize(("right", "wrong", "told"), WRONG)
def test_a_mistake_is_named_with_its_line_and_the_cure(right: str, wrong: str, told: str) -> None:
    assert right in GOOD
    found = problems_of(GOOD.replace(right, wrong, 1))
    assert any(without_column(problem).startswith(f"p.toml:{told}") for problem in found), found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "p.toml:1: a pipeline has either the table source"),
        (SOURCE, "p.toml:1: sink: is missing: add a sink with topic ="),
        (SOURCE.replace("value =", "#"), 'p.toml:2: source.value: is missing: add value = { format = "json" }'),
        (SOURCE.replace('"text"', '"csv"') + SINK, "p.toml:4: source.value.fields: csv needs the names and types"),
        (SOURCE + '[sink]\nparquet = "o"\noutput_mode = "update"', "p.toml:7: sink.output_mode: files take rows"),
        (SOURCE + '[sink]\ntopic = "t"', "p.toml:6: sink.topic: is 't', which a source reads"),
        (SOURCE + '[sink]\ntopic = "o"\nformat = "record"\nkey = "k"', "p.toml:8: sink.key: has no effect"),
        (SOURCE + "[sink]\nconsole = false", "p.toml:6: sink.console: is false"),
        (
            'mode = "batch"\n' + SOURCE + '[sink]\ntopic = "o"\noutput_mode = "update"',
            "p.toml:8: sink.output_mode: a batch",
        ),
        (SOURCE + "[[steps]]\nsql = 'SELECT 1'\n" * (MAX_STEPS + 1) + SINK, "p.toml:5: steps: has 101 steps"),
        (
            SOURCE + '[errors]\naction = "dead-letter"\ntopic = "d"\n[sink]\ntopic = "d"',
            "p.toml:7: errors.topic: is the topic",
        ),
        ("steps = [3]\n" + SOURCE + SINK, "p.toml:1: steps: has the item 3"),
        ('name = "p"\n[sources]\n' + SINK, "p.toml:2: sources: is empty: add [sources.NAME]"),
        (TWO.replace("sources.b", "sources.A") + SINK, "p.toml:5: sources.A: is the name of another source, too"),
        ("source = 3\n" + SINK, "p.toml:1: source: is 3: must be a table: write [source]"),
    ],
)
def test_a_mistake_of_the_whole(text: str, told: str) -> None:
    found = problems_of(text)
    assert any(without_column(problem).startswith(told) for problem in found), found


def test_all_problems_are_reported_at_once_in_the_order_of_lines() -> None:
    text = (
        GOOD.replace("trigger", "triger")
        .replace("totals", "to tals")
        .replace('"bigint"', '"big"')
        .replace("attempts", "x")
    )
    lines = [int(problem.split(":")[1]) for problem in problems_of(text)]
    assert lines == sorted(lines) and set(lines) >= {4, 16, 28, 41}


def test_a_password_is_not_repeated() -> None:
    assert "secret" not in "".join(problems_of(GOOD.replace("sqlite:orders.db", "postgres:password=secret")))


def test_a_file_that_is_no_pipeline_is_refused_and_costs_little() -> None:
    """The line of each key was counted from the start of the text: a file of 700 KB took 20 s."""
    found = parse_pipeline("a = " + "[" * 5_000 + "]" * 5_000)
    assert isinstance(found, list) and "within each other" in found[0].message
    began_s = time.process_time()
    assert places_of_keys("".join(f"k{number} = 1\n" for number in range(40_000)))["k39999",].line == 40_000
    assert time.process_time() - began_s < 3


def test_changes_of_a_table_go_to_a_table() -> None:
    text = """\
name = "copy"
[source]
topics = ["shop.public.t"]
value = { format = "changes", fields = { id = "bigint" } }
[sink]
table = "t"
database = "sqlite:x.db"
write = "changes"
key = ["id"]
"""
    spec = spec_of(text)
    assert isinstance(spec.sink, TableSink) and spec.sink.applies_changes and spec.sink.key == ("id",)
    assert spec.output_mode == "append"
    of_files = problems_of(text.replace('topics = ["shop.public.t"]', 'files = "x"'))
    assert any("changes is for records of a topic" in problem for problem in of_files)
    assert any(
        "changes needs the names" in problem
        for problem in problems_of(text.replace(', fields = { id = "bigint" }', ""))
    )


POSTGRES = """\
name = "copy"
[source]
postgres = "host=h password=secret"
publication = "p"
tables = ["public.t", "audit.*"]
slot = "s"
value = { format = "changes", fields = { id = "bigint" } }
[sink]
console = true
"""


def test_tables_of_a_server_are_a_source() -> None:
    (source,) = spec_of(POSTGRES).sources
    tables = ("public.t", "audit.*")
    assert source.origin == PostgresSource(dsn="host=h password=secret", publication="p", tables=tables, slot="s")
    batch = 'mode = "batch"\n' + POSTGRES.replace('slot = "s"\n', "")
    assert isinstance(spec_of(batch).sources[0].origin, PostgresSource)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('slot = "s"\n', "", '2: source: a stream needs a replication slot of its own: add slot = "pipeline_shop"'),
        ('name = "copy"', 'name = "copy"\nmode = "batch"', "7: source.slot: has no effect in a batch"),
        ('publication = "p"\n', "", '2: source.publication: is missing: add publication = "shop"'),
        ('tables = ["public.t", "audit.*"]\n', "", '2: source.tables: is missing: add tables = ["public.orders"]'),
        ('"audit.*"', '"audit"', "5: source.tables: has 'audit': write \"schema.table\""),
        ('"changes"', '"json"', "7: source.value.format: is 'json': write changes or text or raw"),
        (
            'slot = "s"',
            'slot = "s"\nspool = "s3://b"',
            "7: source.spool: must be a folder that all machines of Spark share",
        ),
        ('slot = "s"', 'slot = "s"\ntopics = ["t"]', "2: source: a source has one of topics"),
        (
            "[sink]",
            '[errors]\naction = "dead-letter"\ntopic = "d"\n[sink]',
            "9: errors.action: dead-letter reads the source",
        ),
    ],
)
def test_what_a_source_in_a_server_needs(old: str, new: str, told: str) -> None:
    assert old in POSTGRES
    found = problems_of(POSTGRES.replace(old, new, 1))
    assert any(without_column(problem).startswith(f"p.toml:{told}") for problem in found), found
    assert "secret" not in "".join(found)


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (
            'format = "protobuf"\nregistry = "http://h"',
            "5: sink.schema: is missing: Protobuf is written by a message of yours",
        ),
        ('format = "protobuf"\nregistry = "http://h"', "5: sink.message: is missing: Protobuf is written"),
        ('format = "json_schema"', "5: sink.registry: is missing: json_schema needs the address of a schema registry"),
        ('format = "json_schema"\nregistry = "http://h"\nmessage = "a.B"', "9: sink.message: has no effect"),
        ('message = "a.B"', '7: sink.message: has an effect only with format = "avro"'),
    ],
)
def test_what_a_sink_with_a_schema_needs(sink: str, told: str) -> None:
    found = problems_of(f'{SOURCE}[sink]\ntopic = "out"\n{sink}\n')
    assert any(without_column(problem).startswith(f"p.toml:{told}") for problem in found), found


def test_a_sink_of_protobuf() -> None:
    text = 'format = "protobuf"\nregistry = "http://h"\nschema = "o.desc"\nmessage = "shop.Order"'
    sink = spec_of(f'{SOURCE}[sink]\ntopic = "out"\n{text}\n').sink
    assert isinstance(sink, TopicSink)
    assert (sink.schema_format, sink.schema, sink.message) == ("protobuf", "o.desc", "shop.Order")


COLLECT = """\
name = "logs"
[source]
collect = ["/var/log/web.log*"]
first_line = "^[0-9]"
topics = ["lines"]
value = { format = "text" }
[sink]
console = true
"""


def test_log_files_that_are_collected_into_a_topic() -> None:
    origin = spec_of(COLLECT).sources[0].origin
    assert origin == TopicSource(topics=("lines",), collect=("/var/log/web.log*",), first_line="^[0-9]")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('topics = ["lines"]', 'pattern = "lines"', "3:1: source.collect: sends lines to one topic, which the pipeline reads"),
        ('topics = ["lines"]', 'topics = ["a", "b"]', "3:1: source.collect: sends lines to one topic, which the pipeline"),
        ('topics = ["lines"]', 'topics = ["a"]\nbootstrap = "b:1"', "3:1: source.collect: sends lines to the pipeline's own"),
        ('collect = ["/var/log/web.log*"]\n', "", "3:1: source.first_line: has an effect only with collect: remove it"),
        ('"^[0-9]"', '"("', "4:1: source.first_line: "),
    ],
)  # fmt: skip
def test_mistakes_of_log_files(old: str, new: str, told: str) -> None:
    problems = parse_pipeline(COLLECT.replace(old, new))
    assert isinstance(problems, list)
    assert [problem.text("p").removeprefix("p:")[: len(told)] for problem in problems] == [told]
