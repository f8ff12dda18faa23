"""Pipelines from files on real Spark and a real cluster: the declared forms of scripts/pipelines against plain Python, bad
records, inferred schemas, replays, and what is wrong with a pipeline only once it runs."""

import json
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from integration import access_log_facts as facts
from integration.cluster import Cluster
from integration.declared_pipeline import Declared
from integration.spark_world import create_topic, send
from integration.test_spark_sink import read
from pyspark.sql import SparkSession

from barnabas import sync
from barnabas.log.vocabulary.errors import UnknownTopicOrPartitionError
from barnabas.net.client.connection.records import ConsumerRecord
from barnabas.net.programs.pipeline.files import YAML_SUFFIXES, read_pipeline
from barnabas.spark_connector.pipeline.faults import PipelineFault, cause_of, is_bad_record, is_final, told_of

pytestmark = pytest.mark.timeout(300)  # The first to use the session also waits for it; two cores may be busy.
DECLARED = facts.PIPELINES / "declared"
MAX_LINES = 40  # of a declared form: a pipeline is short
HOUR, LATE, GAP = timedelta(hours=1), timedelta(minutes=10), timedelta(minutes=30)
POISON = [b"no line of a log", b"\xff\xfe"]


def form(name: str, suffix: str = ".toml", **names: str) -> str:
    """A file of scripts/pipelines/declared with other names of topics."""
    text = (DECLARED / f"{name}{suffix}").read_text()
    for old, new in names.items():
        quoted = f'"{old.replace("_", "-")}"'
        assert quoted in text
        text = (
            text.replace(f"[{quoted}]", f'["{new}"]')
            .replace(f"topic = {quoted}", f'topic = "{new}"')
            .replace(f"topic: {quoted}", f'topic: "{new}"')
        )
    return text


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    path = facts.log_path()
    if path is None:
        pytest.skip("the real log is not beside this checkout: ../shared/data/apache_access.log")
    return path.read_bytes().splitlines()


@pytest.fixture(scope="module")
def log(spark_cluster: Cluster, lines: list[bytes]) -> str:
    """The log in partitions that advance together, and two records that are no lines of it."""
    create_topic(spark_cluster, "declared-log", partitions=2)
    send(spark_cluster, "declared-log", POISON, partition=0, key=b"k", headers=[("h", b"v")])
    for partition in range(2):
        send(spark_cluster, "declared-log", lines[partition::2], partition=partition)
    return "declared-log"


@pytest.fixture(scope="module")
def poison(spark_cluster: Cluster) -> str:
    """A topic for tests that need no real log."""
    create_topic(spark_cluster, "declared-poison", partitions=1)
    send(spark_cluster, "declared-poison", POISON)
    return "declared-poison"


def objects(records: list[ConsumerRecord]) -> list[dict[str, object]]:
    return [json.loads(bytes(record.value or b"")) for record in records]


def headers_of(record: ConsumerRecord) -> dict[str, str]:
    return {key: bytes(value or b"").decode() for key, value in record.headers}


def closed(requests: list[facts.Request]) -> datetime:
    """Windows that end later are still open: the watermark has not passed them."""
    return max(item.time for item in requests) - LATE


# --- the declared forms ---------------------------------------------------------------------------------------------------


def test_each_declared_form_is_short_and_valid() -> None:
    files = sorted(file for file in DECLARED.iterdir() if file.suffix in (".toml", *YAML_SUFFIXES))
    assert len(files) >= 6
    for file in files:
        read_pipeline(file)
        assert len(file.read_text().splitlines()) <= MAX_LINES, file.name


def test_the_access_log_is_counted_as_plain_python_counts_it_and_poison_is_set_aside(
    declared: Any, spark_cluster: Cluster, log: str, lines: list[bytes]
) -> None:
    for name in ("hours", "hours-dead"):
        create_topic(spark_cluster, name)
    text = form("access_log", access_log=log, requests_per_hour="hours", access_log_dead="hours-dead")
    pipeline: Declared = declared(text)
    pipeline.run()
    pipeline.replay()

    requests = facts.parse(lines)
    found = objects(read(spark_cluster, "hours"))
    rows = [
        (datetime.fromisoformat(str(row["start"])).replace(tzinfo=None), row["requests"], row["errors"], row["bytes"])
        for row in found
    ]
    assert sorted(rows) == sorted(row for row in facts.hours(requests) if row[0] + HOUR <= closed(requests))
    dead = read(spark_cluster, "hours-dead")
    assert sorted(bytes(record.value or b"") for record in dead) == sorted(POISON), "each once, and unchanged"
    told = {bytes(record.value or b""): headers_of(record) for record in dead}
    assert told[POISON[0]]["barnabas-error"] == "the line is not in the format of an access log"
    assert told[POISON[1]]["barnabas-error"] == "the value is not UTF-8 text"
    assert all(record.key == b"k" for record in dead)
    assert [told[value]["barnabas-record-offset"] for value in POISON] == ["0", "1"]
    assert {
        (item["h"], item["barnabas-record-topic"], item["barnabas-record-partition"]) for item in told.values()
    } == {("v", log, "0")}
    progress = pipeline.state.read_progress()
    assert progress.records == len(lines) + len(POISON) and progress.bad_records == len(POISON)
    assert (progress.rows, progress.lag) == (len(rows), 0) and progress.watermark.startswith("2015-05-20T")


def test_sessions_in_a_table(declared: Any, log: str, lines: list[bytes]) -> None:
    pipeline: Declared = declared(form("sessions", access_log=log))
    pipeline.run()
    pipeline.replay()
    with closing(sqlite3.connect(pipeline.folder / "web.db")) as database:
        found = database.execute("SELECT client, start, last, requests, bytes FROM sessions").fetchall()
    rows = [
        (client, *(datetime.fromisoformat(time).replace(tzinfo=None) for time in (start, last)), requests, size)
        for client, start, last, requests, size in found
    ]
    requests = facts.parse(lines)
    expected = [row for row in facts.sessions(requests, GAP) if row[2] + GAP <= closed(requests)]
    assert sorted(rows) == sorted(expected) and len(rows) > 1_000


def test_requests_in_a_database_each_once(declared: Any, log: str, lines: list[bytes]) -> None:
    pipeline: Declared = declared(form("to_database", access_log=log))
    pipeline.run()
    pipeline.replay()
    with closing(sqlite3.connect(pipeline.folder / "web.db")) as database:
        found = database.execute("SELECT client, path, status, size FROM requests").fetchall()
    requests = facts.parse(lines)
    assert sorted((client, path.partition("?")[0], status, size) for client, path, status, size in found) == sorted(
        (item.client, item.path, item.status, item.size) for item in requests
    )


def test_a_select_over_the_records_of_a_topic(declared: Any, spark_cluster: Cluster) -> None:
    for topic in ("small-and-large", "only-large"):
        create_topic(spark_cluster, topic, partitions=1)
    send(spark_cluster, "small-and-large", [b'{"amount": 999}', b'{"amount": 1001}', b"poison"], key=b"k")
    pipeline: Declared = declared(form("sql", orders="small-and-large", large_orders="only-large"))
    pipeline.run()
    pipeline.replay()
    found = [(record.key, bytes(record.value or b"")) for record in read(spark_cluster, "only-large")]
    assert found == [(b"k", b'{"amount": 1001}')]


def test_page_loads_by_a_python_step_in_parquet(
    declared: Any, spark: SparkSession, log: str, lines: list[bytes]
) -> None:
    pipeline: Declared = declared(form("page_loads", access_log=log))
    shutil.copy(DECLARED / "web_parts.py", pipeline.folder)
    pipeline.run()
    found = spark.read.parquet(str(pipeline.folder / "page-loads"))
    rows = Counter(tuple(row) for row in found.select("client", "page", "page_time", "part", "part_time").collect())
    assert rows == facts.page_loads(facts.parse(lines), timedelta(seconds=30))
    progress = pipeline.state.read_progress()
    assert (progress.rows, progress.bad_records) == (rows.total(), len(POISON))


def test_a_batch_does_not_replace_a_folder_of_others(declared: Any, poison: str) -> None:
    text = 'mode = "batch"\nname = "copy"\n[source]\ntopics = ["%s"]\nvalue = { format = "raw" }\n[sink]\nparquet = "mine"\n'
    pipeline: Declared = declared(text % poison)
    (pipeline.folder / "mine").mkdir()
    with pytest.raises(PipelineFault, match="mine exists: a batch writes a new folder"):
        pipeline.run()


def test_words_as_a_table_in_a_topic(declared: Any, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "declared-lines", partitions=1)
    create_topic(spark_cluster, "declared-words")
    pipeline: Declared = declared(form("wordcount", ".yaml", lines="declared-lines", words="declared-words"), ".yaml")
    for line in (b"the cat saw the dog", b"The dog ran"):
        send(spark_cluster, "declared-lines", [line])
        pipeline.run()
        pipeline.replay()
    rows = [
        (bytes(record.key or b"").decode(), json.loads(bytes(record.value or b""))["count"])
        for record in read(spark_cluster, "declared-words")
    ]
    assert sorted(rows) == [("cat", 1), ("dog", 1), ("dog", 2), ("ran", 1), ("saw", 1), ("the", 2), ("the", 3)]


# --- the page -------------------------------------------------------------------------------------------------------------


def test_the_pipelines_of_the_page_are_valid_and_the_first_one_runs(
    declared: Any, spark_cluster: Cluster, tmp_path: Path
) -> None:
    page = (facts.ROOT / "docs/pipelines.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for block in reversed(blocks):
        (tmp_path / "pipeline.toml").write_text(block)
        read_pipeline(tmp_path / "pipeline.toml")
    for topic in ("page-access-log", "page-requests-per-hour", "page-access-log-dead"):
        create_topic(spark_cluster, topic)
    send(spark_cluster, "page-access-log", [b"GET /"], key=b"k", headers=[("h", b"v")])
    declared(re.sub(r'(topics? = \[?)"', r'\1"page-', blocks[0])).run()
    (dead,) = read(spark_cluster, "page-access-log-dead")
    assert (dead.key, dead.value) == (b"k", b"GET /")
    assert headers_of(dead) == {
        "h": "v",
        "barnabas-error": "the line is not in the format of an access log",
        "barnabas-pipeline": "requests-per-hour",
        "barnabas-record-topic": "page-access-log",
        "barnabas-record-partition": headers_of(dead)["barnabas-record-partition"],
        "barnabas-record-offset": "0",
    }


# --- JSON without declared fields, files, tables --------------------------------------------------------------------------


ORDERS = """
name = "orders"
[source]
topics = ["declared-orders"]
value = { format = "json" }
[sink]
table = "orders"
database = "sqlite:orders.db"
write = "upsert"
key = ["id"]
[errors]
action = "skip"
"""


def test_inferred_fields_stay_and_new_ones_are_added(declared: Any, spark_cluster: Cluster) -> None:
    create_topic(spark_cluster, "declared-orders", partitions=1)
    pipeline: Declared = declared(ORDERS)
    with pytest.raises(PipelineFault, match="no JSON object yet to infer the fields from"):
        pipeline.run()
    send(spark_cluster, "declared-orders", [b'{"id": 1, "name": "a"}', b"{", b'{"id": 2, "name": "b"}'])
    pipeline.run()
    send(spark_cluster, "declared-orders", [b'{"id": "x"}', b'{"id": 1, "name": "c"}'])
    pipeline.run()
    with closing(sqlite3.connect(pipeline.folder / "orders.db")) as database:
        assert sorted(database.execute("SELECT id, name FROM orders").fetchall()) == [(1, "c"), (2, "b")]
        database.execute('ALTER TABLE orders ADD COLUMN "new" TEXT')
    send(spark_cluster, "declared-orders", [b'{"id": 3, "name": "d", "new": "n"}'])
    pipeline.run()
    with closing(sqlite3.connect(pipeline.folder / "orders.db")) as database:
        assert sorted(database.execute('SELECT id, name, "new" FROM orders').fetchall()) == [
            (1, "c", None),
            (2, "b", None),
            (3, "d", "n"),
        ]
    assert pipeline.state.read_progress().bad_records == 2


def test_files_of_lines_and_of_parquet(declared: Any, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n{"id": 2}\nno JSON\n')
    spark.createDataFrame([(1, "one"), (3, "three")], "id bigint, name string").write.parquet(str(tmp_path / "names"))
    pipeline: Declared = declared(
        """
name = "files"
mode = "batch"
[sources.ids]
files = "in"
value = { format = "json" }
[sources.names]
files = "names"
format = "parquet"
[[steps]]
sql = "SELECT ids.id, name, record_file LIKE '%a.json' AS is_known FROM ids LEFT JOIN names ON ids.id = names.id"
[sink]
table = "named"
database = "sqlite:out.db"
[errors]
action = "skip"
"""
    )
    pipeline.run()
    pipeline.run()
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert sorted(database.execute("SELECT * FROM named").fetchall()) == [(1, "one", 1), (2, None, 1)]


# --- where a stream begins, and what a reset forgets ----------------------------------------------------------------------


NUMBERS = """
name = "numbers"
checkpoint = "elsewhere"
[source]
topics = ["%s"]
value = { format = "json", fields = { id = "bigint", kind = "string" } }
start = "%s"
[sink]
%s
"""


def test_a_reset_forgets_a_checkpoint_elsewhere_too(declared: Any, spark_cluster: Cluster) -> None:
    topic = create_topic(spark_cluster, "declared-reset", partitions=1)
    pipeline: Declared = declared(NUMBERS % (topic, "earliest", 'table = "t"\ndatabase = "sqlite:t.db"'))
    send(spark_cluster, topic, [b'{"id": 1}', b'{"id": 2}'])
    for expected in ([1, 2], [1, 2]):
        pipeline.run()
        assert ids_in(pipeline.folder / "t.db") == expected
    assert list((pipeline.folder / "elsewhere").iterdir())
    pipeline.state.remove()
    pipeline.run()
    assert ids_in(pipeline.folder / "t.db") == [1, 1, 2, 2], "everything again, beside what the sink has"


def ids_in(file: Path) -> list[int]:
    with closing(sqlite3.connect(file)) as database:
        return sorted(number for (number,) in database.execute("SELECT id FROM t"))


def test_a_stream_that_begins_at_the_end_has_what_comes_after_its_first_run(
    declared: Any, spark: SparkSession, spark_cluster: Cluster
) -> None:
    topic = create_topic(spark_cluster, "declared-latest", partitions=1)
    send(spark_cluster, topic, [b'{"id": 1, "kind": "old"}'])
    pipeline: Declared = declared(NUMBERS % (topic, "latest", 'parquet = "out"\npartition_by = ["kind"]'))
    pipeline.run()
    send(spark_cluster, topic, [b'{"id": 2, "kind": "a"}', b'{"id": 3, "kind": "b"}'])
    pipeline.run()
    rows = spark.read.parquet(str(pipeline.folder / "out")).select("id", "kind").collect()
    assert sorted(map(tuple, rows)) == [(2, "a"), (3, "b")]
    assert sorted(item.name for item in (pipeline.folder / "out").glob("kind=*")) == ["kind=a", "kind=b"]


# --- what is wrong only once it runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ('sql = "SELECT nothing FROM input"', r"step 1 \(input\): .*UNRESOLVED_COLUMN.*nothing"),
        ('sql = "SELEC 1"', r"step 1 \(input\): .*PARSE_SYNTAX_ERROR"),
        ('sql = "SELECT * FROM elsewhere"', r"step 1 \(input\): .*TABLE_OR_VIEW_NOT_FOUND.*elsewhere"),
        ('python = "broken:raises"', r"step 1 \(input\): broken:raises raised ZeroDivisionError: division by zero"),
        ('python = "broken:gives_none"', r"broken:gives_none returned NoneType: return a DataFrame"),
    ],
)
def test_a_step_that_cannot_work_is_named(declared: Any, poison: str, tmp_path: Path, step: str, told: str) -> None:
    (tmp_path / "broken.py").write_text("def raises(rows):\n    return 1 / 0\n\n\ndef gives_none(rows): ...\n")
    pipeline: Declared = declared(
        f'name = "p"\n[source]\ntopics = ["{poison}"]\nvalue = {{ format = "text" }}\n[[steps]]\n{step}\n[sink]\nconsole = true\n'
    )
    with pytest.raises(PipelineFault, match=told):
        pipeline.run()


def test_a_topic_that_does_not_exist_is_named_before_anything_runs(declared: Any, poison: str) -> None:
    text = (
        f'name = "p"\n[source]\ntopics = ["{poison}"]\nvalue = {{ format = "text" }}\n[sink]\ntopic = "missing-topic"\n'
    )
    with pytest.raises(UnknownTopicOrPartitionError, match="missing-topic"):
        declared(text).run()


def test_a_column_that_the_result_does_not_have(declared: Any, spark_cluster: Cluster, poison: str) -> None:
    topic = create_topic(spark_cluster, "declared-any")
    text = f'name = "p"\n[source]\ntopics = ["{poison}"]\nvalue = {{ format = "text" }}\n[sink]\ntopic = "{topic}"\nkey = "id"\n'
    with pytest.raises(PipelineFault, match=r"sink.key names 'id', but the result has the columns text, record_key"):
        declared(text).run()


def test_a_bad_record_stops_the_pipeline_and_is_named(declared: Any, poison: str) -> None:
    text = f'name = "p"\n[source]\ntopics = ["{poison}"]\nvalue = {{ format = "access_log" }}\n[sink]\nconsole = true\n'
    with pytest.raises(Exception) as caught:
        declared(text).run()
    assert is_bad_record(caught.value)
    assert cause_of(caught.value).startswith(
        f"the line is not in the format of an access log (topic {poison} partition 0 offset 0 "
    )


def test_a_plan_shows_views_sink_and_sparks_plan(
    declared: Any, poison: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline: Declared = declared(form("sessions", access_log=poison))
    pipeline.job().plan()
    shown = capsys.readouterr().out
    assert (
        "source input\n  client: string\n" in shown and "result (append)\n  client: string\n  start: timestamp" in shown
    )
    assert "web.db" not in shown and "SessionWindow" in shown.replace("session_window", "SessionWindow")
    assert not (pipeline.folder / "web.db").exists()


PARQUET = 'name = "p"\n[source]\ntopics = ["%s"]\nvalue = { format = "text" }\n[sink]\nparquet = "%s"\n'


def test_parquet_of_another_run_is_not_taken_for_micro_batches_of_this_one(
    spark_cluster: Cluster, declared: Any, spark: SparkSession
) -> None:
    """Spark leaves out the micro-batches whose numbers it finds in the folder, and their rows with them."""
    topic = create_topic(spark_cluster, "declared-parquet", partitions=1)
    send(spark_cluster, topic, [b"a"])
    pipeline: Declared = declared(PARQUET % (topic, "one"))
    pipeline.run()
    pipeline.state.remove()
    send(spark_cluster, topic, [b"b"])
    with pytest.raises(PipelineFault, match="one has rows of another run"):
        pipeline.run()
    pipeline.file.write_text(PARQUET % (topic, "two"))
    pipeline.run()
    pipeline.replay()
    assert sorted(row.text for row in spark.read.parquet(str(pipeline.folder / "two")).collect()) == ["a", "b"]
    pipeline.file.write_text(PARQUET % (topic, "three"))
    with pytest.raises(PipelineFault, match="has written its rows to .*two"):
        pipeline.run()
    pipeline.file.write_text(PARQUET % (topic, "two"))
    shutil.rmtree(pipeline.folder / "two")
    with pytest.raises(PipelineFault, match="two has lost what this pipeline has written"):
        pipeline.run()


def test_a_checkpoint_that_is_gone_or_elsewhere_is_an_error(spark_cluster: Cluster, declared: Any) -> None:
    """Counting from 0 under the same id, the sink would leave out new rows as written already."""
    topic = create_topic(spark_cluster, "declared-no-checkpoint", partitions=1)
    send(spark_cluster, topic, [b"a"])
    text = 'name = "p"\n%s[source]\ntopics = ["%s"]\nvalue = { format = "text" }\n[sink]\ntable = "t"\ndatabase = "sqlite:x.db"\n'
    pipeline: Declared = declared(text % ("", topic))
    pipeline.run()
    send(spark_cluster, topic, [b"b"])
    pipeline.file.write_text(text % ('checkpoint = "elsewhere"\n', topic))
    with pytest.raises(PipelineFault, match="there is no checkpoint .*elsewhere"):
        pipeline.run()
    pipeline.file.write_text(text % ("", topic))
    pipeline.run()
    with closing(sqlite3.connect(pipeline.folder / "x.db")) as database:
        assert sorted(database.execute("SELECT text FROM t").fetchall()) == [("a",), ("b",)]
    shutil.rmtree(pipeline.state.checkpoint)
    with pytest.raises(PipelineFault, match="but 2 micro-batches are written"):
        pipeline.run()


def test_a_batch_that_failed_does_not_replace_the_folder_that_is_named_next(declared: Any, log: str) -> None:
    text = 'mode = "batch"\nname = "copy"\n[source]\ntopics = ["%s"]\nvalue = { format = "json", fields = { id = "int" } }\n'
    text += '[sink]\nparquet = "%s"\n'
    pipeline: Declared = declared(text % (log, "first"))
    with pytest.raises(Exception, match="not valid JSON"):
        pipeline.run()
    (pipeline.folder / "precious").mkdir()
    (pipeline.folder / "precious" / "years-of-work").touch()
    pipeline.file.write_text(text % (log, "precious"))
    with pytest.raises(PipelineFault, match="precious exists"):
        pipeline.run()
    assert (pipeline.folder / "precious" / "years-of-work").exists()


def test_names_of_fields_with_any_letters_reach_a_table(spark_cluster: Cluster, declared: Any) -> None:
    topic = create_topic(spark_cluster, "declared-names", partitions=1)
    send(spark_cluster, topic, [json.dumps({"a.b": 1, "it's": 2, 'x"; --': 3, "q`?%s": 4}).encode()])
    text = 'name = "p"\n[source]\ntopics = ["%s"]\nvalue = { format = "json", fields = %s }\n[sink]\ntable = "t"\n'
    fields = """{ "a.b" = "int", "it's" = "int", 'x"; --' = "int", "q`?%s" = "int" }"""
    pipeline: Declared = declared((text % (topic, fields)) + 'database = "sqlite:x.db"\n')
    pipeline.run()
    with closing(sqlite3.connect(pipeline.folder / "x.db")) as database:
        found = database.execute("SELECT * FROM t")
        assert [column[0] for column in found.description][:4] == ["a.b", "it's", 'x"; --', "q`?%s"]
        assert [row[:4] for row in found] == [(1, 2, 3, 4)]


def test_records_that_retention_took_stop_the_pipeline_or_are_skipped(spark_cluster: Cluster, declared: Any) -> None:
    topic = create_topic(spark_cluster, "declared-lost", partitions=1)
    send(spark_cluster, topic, [b"a", b"b"])
    text = 'name = "p"\n[source]\ntopics = ["%s"]\n%svalue = { format = "text" }\n[sink]\ntable = "t"\ndatabase = "sqlite:x.db"\n'
    pipeline: Declared = declared(text % (topic, ""))
    pipeline.run()
    send(spark_cluster, topic, [b"c", b"d", b"e"])
    with sync.Admin(spark_cluster.bootstrap) as admin:
        admin.delete_records(topic, 0, before_offset=4)
    with pytest.raises(Exception) as caught:
        pipeline.run()
    assert is_final(caught.value)
    assert f"{topic}-0" in told_of(caught.value) and 'Set lost_records = "skip" in the source' in told_of(caught.value)
    pipeline.file.write_text(text % (topic, 'lost_records = "skip"\n'))
    pipeline.run()
    with closing(sqlite3.connect(pipeline.folder / "x.db")) as database:
        assert sorted(database.execute("SELECT text FROM t").fetchall()) == [("a",), ("b",), ("e",)]
