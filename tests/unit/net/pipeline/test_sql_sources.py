"""A source that is a table or a query of a database: what its keys become, and for each mistake its place and the cure."""

import pytest

from barnabas.net.programs.pipeline.parsing import parse_pipeline
from barnabas.net.programs.pipeline.spec import PipelineSpec, SqlSource, ValueField

STREAM = """\
name = "orders"
[source]
database = "postgresql:host=h password=secret"
table = "public.orders"
increasing = "id"
start = "latest"
max_rows = 500
partitions = 4
[sink]
topic = "orders"
"""
BATCH = """\
name = "orders"
mode = "batch"
[source]
database = "sqlite:shop.db"
query = "SELECT * FROM orders"
fields = { total = "bigint" }
partition_by = "id"
partitions = 4
[sink]
topic = "orders"
"""


def test_what_the_keys_become() -> None:
    stream, batch = parse_pipeline(STREAM), parse_pipeline(BATCH)
    assert isinstance(stream, PipelineSpec) and isinstance(batch, PipelineSpec)
    assert stream.sources[0].origin == SqlSource(
        database="postgresql:host=h password=secret",
        table="public.orders",
        increasing="id",
        start="latest",
        max_rows=500,
        partitions=4,
    )
    assert batch.sources[0].origin == SqlSource(
        database="sqlite:shop.db",
        query="SELECT * FROM orders",
        fields=(ValueField(name="total", type_name="bigint"),),
        partition_by="id",
        partitions=4,
    )


@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [
        (STREAM, "postgresql:host=h", "mysql:host=h", '3:1: source.database: must be "sqlite:FILE" or "postgresql:CONN'),
        (STREAM, 'table = "public.orders"\n', "", "2:1: source: a source in a database has either table (a name) or query"),
        (BATCH, "SELECT *", "DELETE", "5:1: source.query: must begin with SELECT or WITH: it may only read"),
        (STREAM, 'increasing = "id"', 'fields = { id = "int" }', "5:1: source.fields: has no effect, because PostgreSQL"),
        (STREAM, 'increasing = "id"\n', "", '5:1: source.start: has an effect only with increasing = "id"'),
        (STREAM, "max_rows = 500", 'partition_by = "id"', "7:1: source.partition_by: has no effect with increasing"),
        (BATCH, "partitions = 4\n", "", "7:1: source.partition_by: has no effect without a number of tasks: add partitions"),
        (BATCH, 'partition_by = "id"\n', "", '7:1: source.partitions: needs a column of numbers or times, of which each'),
        (BATCH, "partition_by", "increasing", "7:1: source.increasing: has no effect in a batch, which reads all rows"),
        (BATCH, 'mode = "batch"\n', "", "2:1: source: a stream follows a column whose values grow with each new row: add"),
        (BATCH, "partitions = 4", 'value = { format = "json" }', "8:1: source.value: the rows of a database have columns"),
        (BATCH, '"bigint"', '"bigin"', "6:12: source.fields.total: is 'bigin', which is no type (did you mean bigint?)"),
        (
            STREAM,
            'topic = "orders"',
            'table = "public.orders"\ndatabase = "postgresql:host=h password=secret"',
            "10:1: sink.table: is 'public.orders', which a source reads: write to another table",
        ),
    ],
)  # fmt: skip
def test_mistakes_at_their_places(text: str, old: str, new: str, told: str) -> None:
    assert old in text
    problems = parse_pipeline(text.replace(old, new))
    assert isinstance(problems, list)
    texts = [problem.text("p").removeprefix("p:") for problem in problems]
    assert any(text.startswith(told) for text in texts) and "secret" not in "".join(texts), texts


def test_a_watermark_of_a_lookup_table_has_no_effect() -> None:
    text = """
name = "joined"
[sources.events]
topics = ["events"]
value = { format = "json", fields = { id = "bigint" } }
[sources.names]
database = "sqlite:names.db"
table = "names"
[[steps]]
sql = "SELECT * FROM events JOIN names USING (id)"
[sink]
console = true
"""
    assert isinstance(parse_pipeline(text), PipelineSpec)
    late = text.replace('table = "names"', 'table = "names"\nwatermark = { column = "at", delay = "1 hour" }')
    problems = parse_pipeline(late)
    assert isinstance(problems, list)
    assert [problem.text("p") for problem in problems] == [
        'p:9:1: sources.names.watermark: has no effect on a table that is read whole: add increasing = "id", or remove it'
    ]
