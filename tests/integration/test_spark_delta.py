"""Pipelines into Delta tables, read back by delta-rs: each row once through repeated micro-batches, columns that come later, and
tables that this writer must not touch."""

import datetime
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import ArrayType, PrimitiveType, StructType
from integration.cluster import Cluster
from integration.declared_pipeline import Declared
from integration.spark_world import create_topic, send

from barnabas.net.programs.pipeline.spec import DeltaSink
from barnabas.spark_connector.pipeline.faults import PipelineFault
from barnabas.spark_connector.pipeline.lakes import delta, files

pytestmark = pytest.mark.timeout(300)
Pipelines = Callable[..., Declared]
FORM = """
name = "lake"
[source]
topics = ["%s"]
max_records = 40
value = { format = "json", fields = { %s } }
%s
[sink]
delta = "%s"
%s
"""
FIELDS = 'id = "bigint", kind = "string"'


def form(topic: str, *, fields: str = FIELDS, steps: str = "", folder: str = "lake", sink: str = "") -> str:
    return FORM % (topic, fields, steps, folder, sink)


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(folder)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=repr)


def kind_of(number: int) -> str | None:
    return f"k {number % 3}" if number % 4 else None


def numbers(first: int, last: int) -> list[bytes]:
    return [json.dumps({"id": number, "kind": kind_of(number)}).encode() for number in range(first, last)]


def expected(count: int) -> list[tuple[Any, ...]]:
    return sorted(((number, kind_of(number)) for number in range(count)), key=repr)


@pytest.mark.parametrize("sink", ["", 'partition_by = ["kind"]'])
def test_each_row_is_there_once_through_repeated_micro_batches(
    spark_cluster: Cluster, declared: Pipelines, sink: str
) -> None:
    topic = create_topic(spark_cluster, f"delta-once-{len(sink)}", partitions=2)
    send(spark_cluster, topic, numbers(0, 100), partition=0)
    pipeline = declared(form(topic, sink=sink))
    pipeline.run()
    send(spark_cluster, topic, numbers(100, 200), partition=1)
    pipeline.run()
    before = DeltaTable(str(pipeline.folder / "lake")).version()
    pipeline.replay()
    table = DeltaTable(str(pipeline.folder / "lake"))
    assert table.version() == before, "what is repeated is not committed again"
    assert rows(pipeline.folder / "lake", "id", "kind") == expected(200)
    assert table.metadata().partition_columns == (["kind"] if sink else [])
    if sink:
        only = DeltaTable(str(pipeline.folder / "lake")).to_pyarrow_table(filters=[("kind", "=", "k 1")])
        assert set(only.column("kind").to_pylist()) == {"k 1"}


def test_files_of_an_attempt_that_failed_belong_to_no_version(
    spark_cluster: Cluster, declared: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(spark_cluster, "delta-failed", partitions=1)
    send(spark_cluster, topic, numbers(0, 30))
    pipeline = declared(form(topic))

    def dies(*_: Any, **__: Any) -> None:
        raise OSError("killed before the commit")

    with monkeypatch.context() as killed:
        killed.setattr(DeltaTable, "create_write_transaction", dies)
        with pytest.raises(Exception, match="killed before the commit"):
            pipeline.run()
    assert list((pipeline.folder / "lake").glob("*.parquet")) and not rows(pipeline.folder / "lake", "id")
    pipeline.run()
    assert rows(pipeline.folder / "lake", "id", "kind") == expected(30)


def test_types_come_back_as_they_were(spark_cluster: Cluster, declared: Pipelines) -> None:
    topic = create_topic(spark_cluster, "delta-types", partitions=1)
    value = {
        "t": "2026-11-28T12:00:00.123456+01:00",
        "d": "1.50",
        "day": "2026-11-28",
        "tags": ["a", None],
        "m": {"x": 1},
    }
    send(spark_cluster, topic, [json.dumps(value).encode(), b"{}"])
    fields = 't = "timestamp", d = "decimal(10,2)", day = "date", tags = "array<string>", m = "map<string,int>"'
    pipeline = declared(form(topic, fields=fields, sink='partition_by = ["day"]'))
    pipeline.run()
    table = DeltaTable(str(pipeline.folder / "lake")).to_pyarrow_table()
    found = sorted(table.to_pylist(), key=lambda row: row["t"] is None)
    assert found[0]["t"].isoformat() == "2026-11-28T11:00:00.123456+00:00"
    assert (str(found[0]["d"]), found[0]["day"].isoformat()) == ("1.50", "2026-11-28")
    assert (found[0]["tags"], found[0]["m"]) == (["a", None], [("x", 1)])
    assert all(found[1][name] is None for name in value)


def test_columns_may_be_added_and_keep_their_types(spark_cluster: Cluster, declared: Pipelines) -> None:
    topic = create_topic(spark_cluster, "delta-columns", partitions=1)
    send(spark_cluster, topic, [b'{"id": 1, "kind": "a", "size": 7}'])
    pipeline = declared(form(topic))
    pipeline.run()
    send(spark_cluster, topic, [b'{"id": 2, "kind": "b", "size": 8}'])
    pipeline.file.write_text(form(topic, fields=f'{FIELDS}, size = "int"'))
    pipeline.run()
    send(spark_cluster, topic, [b'{"id": 3}'])
    pipeline.file.write_text(form(topic, fields='id = "bigint"'))
    pipeline.run()
    assert rows(pipeline.folder / "lake", "id", "kind", "size") == [(1, "a", None), (2, "b", 8), (3, None, None)]
    for fields, told in (
        (FIELDS.replace("bigint", "string"), "'id' is long in .* string"),
        ('Id = "bigint"', "upper and lower case"),
    ):
        send(spark_cluster, topic, [b'{"id": 4, "Id": 4}'])
        pipeline.file.write_text(form(topic, fields=fields))
        with pytest.raises(Exception, match=told):
            pipeline.run()


def test_a_complete_result_replaces_the_table(spark_cluster: Cluster, declared: Pipelines) -> None:
    topic = create_topic(spark_cluster, "delta-complete", partitions=1)
    steps = '[[steps]]\nsql = "SELECT kind, count(*) AS count FROM input GROUP BY kind"'
    pipeline = declared(form(topic, steps=steps, sink='output_mode = "complete"'))
    for first in (0, 120):
        send(spark_cluster, topic, numbers(first, first + 120))
        pipeline.run()
    counts = {kind: sum(row[1] == kind for row in expected(240)) for kind in ("k 0", "k 1", "k 2", None)}
    assert dict(rows(pipeline.folder / "lake", "kind", "count")) == counts


def test_a_batch_is_written_once(spark_cluster: Cluster, declared: Pipelines) -> None:
    topic = create_topic(spark_cluster, "delta-batch", partitions=1)
    send(spark_cluster, topic, numbers(0, 10))
    pipeline = declared('mode = "batch"\n' + form(topic).replace("max_records = 40\n", ""))
    pipeline.run()
    progress = pipeline.state.read_progress()
    pipeline.state.write_progress(type(progress)())  # as after a crash before it was noted
    pipeline.run()
    assert rows(pipeline.folder / "lake", "id", "kind") == expected(10)


def test_a_table_that_was_lost_or_is_another_is_an_error(spark_cluster: Cluster, declared: Pipelines) -> None:
    topic = create_topic(spark_cluster, "delta-lost", partitions=1)
    send(spark_cluster, topic, numbers(0, 3))
    pipeline = declared(form(topic))
    pipeline.run()
    send(spark_cluster, topic, numbers(3, 6))
    (pipeline.folder / "lake").rename(pipeline.folder / "moved")
    with pytest.raises(Exception, match="lake has nothing of the .* micro-batches"):
        pipeline.run()
    shutil.rmtree(pipeline.folder / "lake", ignore_errors=True)
    (pipeline.folder / "moved").rename(pipeline.folder / "lake")
    pipeline.run()
    assert len(rows(pipeline.folder / "lake", "id")) == 6


def test_a_table_with_rules_or_another_shape_is_left_alone(spark_cluster: Cluster, declared: Pipelines) -> None:
    topic = create_topic(spark_cluster, "delta-rules", partitions=1)
    send(spark_cluster, topic, numbers(0, 3))
    pipeline = declared(form(topic, folder="files"))
    (pipeline.folder / "files").mkdir()
    (pipeline.folder / "files" / "other.txt").touch()
    with pytest.raises(Exception, match="files has files and is no Delta table"):
        pipeline.run()
    schema = Schema.from_json(
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
        '{"name":"kind","type":"string","nullable":true,"metadata":{}}]}'
    )
    constrained = DeltaTable.create(str(pipeline.folder / "constrained"), schema=schema)
    constrained.alter.add_constraint({"positive": "id > 0"})
    DeltaTable.create(str(pipeline.folder / "parts"), schema=schema, partition_by=["kind"])
    inner = {"name": "x", "type": "long", "nullable": True, "metadata": {"delta.invariants": "{}"}}
    nested = {"name": "s", "type": {"type": "struct", "fields": [inner]}, "nullable": True, "metadata": {}}
    fields = [*json.loads(schema.to_json())["fields"], nested]
    DeltaTable.create(
        str(pipeline.folder / "nested"), schema=Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    )
    for folder, told in (
        ("constrained", r"delta\.constraints\.positive"),
        ("nested", r"delta\.invariants"),
        ("parts", "is partitioned by kind"),
    ):
        pipeline.file.write_text(form(topic, folder=folder))
        with pytest.raises(Exception, match=told):
            pipeline.run()
        assert not rows(pipeline.folder / folder, "id")


def test_a_new_table_promises_nothing_of_later_rows(spark_cluster: Cluster, declared: Pipelines) -> None:
    """`count(*)` and `array(...)` are never null, but columns of the next version of the pipeline may be."""
    topic = create_topic(spark_cluster, "delta-nullable", partitions=1)
    send(spark_cluster, topic, [b'{"id": 1}'])
    pipeline = declared(form(topic, steps="[[steps]]\nsql = \"SELECT 1L AS id, array('a') AS kinds FROM input\""))
    pipeline.run()
    send(spark_cluster, topic, [b'{"id": 2}'])
    pipeline.file.write_text(
        form(topic, steps='[[steps]]\nsql = "SELECT NULLIF(id, 2) AS id, array(kind) AS kinds FROM input"')
    )
    pipeline.run()
    assert rows(pipeline.folder / "lake", "id", "kinds") == [(1, ["a"]), (None, [None])]


@pytest.mark.parametrize(
    ("column", "sink", "value"),
    [("id", "", b'{"kind": "a"}'), ("kind", 'partition_by = ["kind"]', b'{"id": 7, "kind": ""}')],
)
def test_a_column_that_is_never_null_stays_so(
    spark_cluster: Cluster, declared: Pipelines, column: str, sink: str, value: bytes
) -> None:
    topic = create_topic(spark_cluster, f"delta-required-{column}", partitions=1)
    send(spark_cluster, topic, numbers(1, 3))
    pipeline = declared(form(topic, sink=sink))
    fields = [
        {"name": name, "type": kind, "nullable": name != column, "metadata": {}}
        for name, kind in (("id", "long"), ("kind", "string"))
    ]
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    DeltaTable.create(str(pipeline.folder / "lake"), schema=schema, partition_by=["kind"] if sink else [])
    pipeline.run()
    send(spark_cluster, topic, [value])
    with pytest.raises(Exception, match=f"in '{column}', which the table declares NOT NULL"):
        pipeline.run()
    assert rows(pipeline.folder / "lake", "id") == [(1,), (2,)]


def test_another_writer_in_between_neither_ends_the_run_nor_doubles_a_row(
    spark_cluster: Cluster, declared: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adds a column, removes rows, or is another driver of the same pipeline that commits the same micro-batch."""
    topic = create_topic(spark_cluster, "delta-between", partitions=1)
    send(spark_cluster, topic, numbers(0, 10))
    pipeline = declared(form(topic))
    pipeline.run()
    commit = DeltaTable.create_write_transaction

    def add_column(table: DeltaTable, *_: Any, **__: Any) -> None:
        table.alter.add_columns([Field("more", PrimitiveType("string"), nullable=True)])

    def remove(table: DeltaTable, *_: Any, **__: Any) -> None:
        table.delete("id < 5")

    def other_driver(table: DeltaTable, added: Any, *given: Any, **named: Any) -> None:
        files = [replace(item, path=f"copy-{item.path}") for item in added]  # each driver writes its own
        for item, copy in zip(added, files, strict=True):
            shutil.copy(pipeline.folder / "lake" / item.path, pipeline.folder / "lake" / copy.path)
        commit(table, files, *given, **named)

    total = 10
    for other, left in ((add_column, 20), (remove, 25), (other_driver, 35)):
        send(spark_cluster, topic, numbers(total, total + 10))
        total += 10
        others = iter([other])

        def raced(table: DeltaTable, *given: Any, others: Any = others, **named: Any) -> None:
            if (first := next(others, None)) is not None:
                first(DeltaTable(table.table_uri), *given, **named)
            commit(table, *given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "create_write_transaction", raced)
            pipeline.run()
        found = rows(pipeline.folder / "lake", "id", "kind")
        assert len(found) == left and len(set(found)) == left


def test_what_a_table_cannot_have_is_said_before_anything_is_written(
    spark_cluster: Cluster, declared: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(spark_cluster, "delta-refused", partitions=1)
    for steps, sink, told in (
        ("", 'partition_by = ["nothing"]', "sink.partition_by names 'nothing'"),
        ('[[steps]]\nsql = "SELECT id FROM input"', 'partition_by = ["id"]', "names all columns"),
        ('[[steps]]\nsql = "SELECT id, 1.5D AS kind FROM input"', 'partition_by = ["kind"]', "which is double"),
        ('[[steps]]\nsql = "SELECT id, INTERVAL 1 DAY AS kind FROM input"', "", "type interval day, which Delta lacks"),
    ):
        pipeline = declared(form(topic, steps=steps, sink=sink))
        with pytest.raises(PipelineFault, match=told):
            pipeline.job()
        assert not (pipeline.folder / "lake").exists()


def test_many_values_of_a_partition_open_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr(files, "MAX_OPEN_FILES", 4)
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])
    batches = (
        pa.RecordBatch.from_pydict({"id": [number, number], "kind": [f"{number % 10}", ""]}, schema=schema)
        for number in range(100)
    )
    done = [
        row for batch in files.write_files(batches, schema, str(tmp_path), ("kind",), "p") for row in batch.to_pylist()
    ]
    assert sum(row["rows"] for row in done) == 200 and {row["path"] for row in done} == {
        item.name for item in tmp_path.iterdir()
    }
    assert {json.loads(row["partition"])["kind"] for row in done} == {*map(str, range(10)), None}


def test_object_stores_are_refused_by_the_file(declared: Pipelines) -> None:
    pipeline = declared(form("t", folder="s3://bucket/lake"))
    with pytest.raises(Exception, match="object stores are not supported"):
        pipeline.job()
    assert DeltaSink(folder="x").partition_by == ()


# --- one micro-batch after the other, without a source ----------------------------------------------------------------------


def write(
    spark: Any, folder: Path, query: str, *, batch_id: int = 0, complete: bool = False, by: tuple[str, ...] = ()
) -> None:
    result = spark.sql(query)
    sink = DeltaSink(folder=str(folder), partition_by=by)
    delta.DeltaWriter(
        str(folder), sink, sink_id="p-1", columns=result.schema, is_complete=complete, written_batches=lambda: batch_id
    ).write(result, batch_id)


def made_by_others(folder: Path, *fields: Field, by: tuple[str, ...] = (), only_appends: bool = False) -> Path:
    configuration: dict[str, str | None] = {"delta.appendOnly": "TRUE"} if only_appends else {}
    DeltaTable.create(str(folder), schema=Schema([*fields]), partition_by=[*by], configuration=configuration)
    return folder


def test_a_later_result_may_have_nulls_where_the_first_had_none(spark: Any, tmp_path: Path) -> None:
    write(spark, tmp_path, "SELECT 1L AS id, array(named_struct('x', 1)) AS parts")
    later = (
        "SELECT nullif(id, 0) AS id, array(IF(id = 0, NULL, named_struct('x', nullif(1, 1)))) AS parts FROM range(2)"
    )
    write(spark, tmp_path, later, batch_id=1)
    assert rows(tmp_path, "id", "parts") == sorted([(1, [{"x": 1}]), (None, [None]), (1, [{"x": None}])], key=repr)
    with pytest.raises(
        PipelineFault, match=r"array<struct<x: integer>> in .* and array<struct<x: long not null> not null> in"
    ):
        write(spark, tmp_path, "SELECT 1L AS id, array(named_struct('x', 1L)) AS parts", batch_id=2)


def test_nulls_within_a_column_that_takes_none_are_refused(spark: Any, tmp_path: Path) -> None:
    folder = made_by_others(tmp_path / "lake", Field("tags", ArrayType(PrimitiveType("string"), contains_null=False)))
    with pytest.raises(PipelineFault, match=r"array<string not null> in .* and array<string> in the result"):
        write(spark, folder, "SELECT array('a', NULL) AS tags")
    write(spark, folder, "SELECT array('a') AS tags")
    assert rows(folder, "tags") == [(["a"],)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT 1 AS id, NULL AS x", "'x' has the type void"),
        ("SELECT 1 AS id, array(parse_json('1')) AS x", "'x' has the type variant"),
        ("SELECT 1 AS a, 2 AS A", "'a' and 'A' have one name"),
    ],
)
def test_types_and_names_that_delta_lacks_are_refused(spark: Any, tmp_path: Path, query: str, told: str) -> None:
    with pytest.raises(PipelineFault, match=told):
        write(spark, tmp_path / "lake", query)
    assert not (tmp_path / "lake").exists()


def test_names_with_dots_and_partitions_of_any_text(spark: Any, tmp_path: Path) -> None:
    texts = ["a b", "a/b", "a%20b", "a=b", "..", " ", "null", "__HIVE_DEFAULT_PARTITION__", "#?&"]
    values = ", ".join(f"({number}, '{text}')" for number, text in enumerate(texts))
    write(spark, tmp_path, f"SELECT id AS `a.id`, kind AS `a.kind` FROM VALUES {values} AS t(id, kind)", by=("a.kind",))
    assert rows(tmp_path, "a.id", "a.kind") == [*enumerate(texts)]


def test_partitions_by_several_columns_of_each_type(spark: Any, tmp_path: Path) -> None:
    query = (
        "SELECT id, IF(id % 4 = 0, NULL, id % 2 = 0) AS b, CAST(-id % 3 AS TINYINT) AS n, "
        "date_add(date'2026-11-28', id % 2) AS d"
    )
    write(spark, tmp_path, f"{query} FROM (SELECT CAST(id AS INT) AS id FROM range(24))", by=("b", "n", "d"))
    days = datetime.date(2026, 11, 28), datetime.date(2026, 11, 29)
    wanted = [(id, None if id % 4 == 0 else id % 2 == 0, -(id % 3), days[id % 2]) for id in range(24)]
    assert rows(tmp_path, "id", "b", "n", "d") == sorted(wanted, key=repr)
    log = (tmp_path / "_delta_log" / f"{1:020}.json").read_text(encoding="utf-8").splitlines()
    added = [found["add"]["partitionValues"] for line in log if "add" in (found := json.loads(line))]
    assert {item["b"] for item in added} == {"true", "false", None}  # as the protocol writes them
    assert {item["d"] for item in added} == {"2026-11-28", "2026-11-29"}


def test_a_table_for_appends_only_is_not_replaced(spark: Any, tmp_path: Path) -> None:
    only = made_by_others(tmp_path / "only", Field("id", PrimitiveType("integer")), only_appends=True)
    write(spark, only, "SELECT 1 AS id")
    with pytest.raises(PipelineFault, match=r"delta\.appendOnly"):
        write(spark, only, "SELECT 2 AS id", batch_id=1, complete=True)


def test_comments_within_a_column_make_no_other_type(spark: Any, tmp_path: Path) -> None:
    part = StructType([Field("x", PrimitiveType("integer"), metadata={"comment": "in metres"})])
    folder = made_by_others(tmp_path / "lake", Field("part", part))
    write(spark, folder, "SELECT named_struct('x', 1) AS part")
    assert rows(folder, "part") == [({"x": 1},)]


def test_a_table_whose_creation_was_interrupted_is_created(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "_commit_1.json.tmp").touch()
    write(spark, tmp_path, "SELECT 1 AS id")
    assert rows(tmp_path, "id") == [(1,)]


def test_a_checkpoint_of_the_log_keeps_the_last_micro_batch(spark: Any, tmp_path: Path) -> None:
    for batch_id in range(3):
        write(spark, tmp_path, f"SELECT {batch_id} AS id", batch_id=batch_id)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    for batch_id in (2, 3):
        write(spark, tmp_path, f"SELECT {batch_id} AS id", batch_id=batch_id)
    assert rows(tmp_path, "id") == [(number,) for number in range(4)]


def test_the_page_tells_how_files_of_failed_attempts_are_removed(spark: Any, tmp_path: Path) -> None:
    write(spark, tmp_path, "SELECT 1 AS id")
    left_over = tmp_path / "part-p-1-1-of-a-failed-attempt.parquet"
    left_over.touch()
    os.utime(left_over, (0, 0))
    table = DeltaTable(str(tmp_path))
    table.vacuum(dry_run=False)
    assert left_over.exists()
    table.vacuum(dry_run=False, full=True)
    assert not left_over.exists() and rows(tmp_path, "id") == [(1,)]
