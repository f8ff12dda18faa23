"""Parts of a pipeline's driver that need no Spark: the cause of an error, progress from reports, and rows in a table once."""

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from unit.net.pipeline.failing_files import FailingFiles

from barnabas.net.client.connection.errors import MissingExtraError
from barnabas.net.programs.pipeline.disk import CURE
from barnabas.net.programs.pipeline.spec import ConsoleSink, TableSink
from barnabas.net.programs.pipeline.state import RunProgress, StateFolder
from barnabas.net.programs.pipeline.supervisor import DriverExit, DriverOrder
from barnabas.spark_connector.common.connection import properties_of, security_of
from barnabas.spark_connector.pipeline.database import ROWS_AT_ONCE, Database, TableWriter
from barnabas.spark_connector.pipeline.driver import _noted, order_of
from barnabas.spark_connector.pipeline.faults import (
    BAD_RECORD,
    PipelineFault,
    cause_of,
    is_bad_record,
    is_final,
    lost_records,
    told_of,
)
from barnabas.spark_connector.pipeline.queries import in_full, noted, without_secrets
from barnabas.spark_connector.pipeline.sinks import table_writer
from barnabas.spark_connector.pipeline.sources import World
from barnabas.spark_connector.read.data_loss import DataLossError

PLAN = f"\n=== Streaming Query ===\nLogical Plan: {BAD_RECORD}{{, reason, }}{BAD_RECORD}"
JVM = """[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python Proxy. Return Message: Traceback
  File "x.py", line 3, in f
py4j.protocol.Py4JJavaError: An error occurred while calling o230.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' cannot be cast
\tat java.base/java.lang.Thread.run(Thread.java:840)"""


PIPELINE = """name = "p"
checkpoint = "{checkpoint}"
[source]
topics = ["t"]
value = {{ format = "text" }}
[sink]
topic = "u"
"""


class CapturedError(Exception):
    """As PySpark's: its cause is in `_cause`."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted due to stage failure\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat java.base/x",
        "An error occurred while calling o7.start.\n: java.lang.OutOfMemoryError: GC overhead limit exceeded",
    ],
)
def test_an_exhausted_heap_is_named_with_the_settings_that_raise_it(text: str) -> None:
    error = CapturedError("[STREAM_FAILED] Query terminated" + PLAN, CapturedError(text))
    told = told_of(error)
    assert told.startswith(
        f"OutOfMemoryError: {'Java heap space' if 'heap' in text else 'GC overhead limit exceeded'}: "
    )
    for cure in ('"spark.driver.memory"', '"spark.executor.memory"', "watermark", "RocksDBStateStoreProvider"):
        assert cure in told, cure
    assert not is_final(error), "another start may have less to do at once"
    assert "\n" not in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CapturedError(JVM + PLAN), "SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' cannot be cast"),
        (CapturedError("thread" + PLAN, CapturedError("Traceback\nValueError: no luck\n")), "ValueError: no luck"),
        (CapturedError(f"x {BAD_RECORD}{{bad (t 0 1)}}{BAD_RECORD} y" + PLAN), "bad (t 0 1)"),
        (CapturedError("only words\n\tat java.base/x"), "CapturedError: only words"),
        (CapturedError(""), "CapturedError"),
    ],
)
def test_the_cause_is_one_line(error: Exception, told: str) -> None:
    assert cause_of(error) == told


def test_a_plan_that_quotes_the_marker_is_no_bad_record() -> None:
    assert not is_bad_record(CapturedError("broken" + PLAN))
    assert is_bad_record(CapturedError("thread", CapturedError(f"{BAD_RECORD}{{r}}{BAD_RECORD}")))


def test_a_library_that_is_not_installed_does_not_come_by_waiting() -> None:
    error = MissingExtraError("a pipeline of Avro values needs: pip install 'barnabas[schemas]'")
    assert is_final(error) and told_of(error) == error.message


def test_records_that_are_lost_are_named_with_the_key_of_the_file() -> None:
    told = str(DataLossError("offsets 3 to 9 of t-0 are gone"))
    error = CapturedError(
        "thread", CapturedError(f"Traceback\nbarnabas.x.data_loss.DataLossError: {told}\n at x" + PLAN)
    )
    assert lost_records(error) == "offsets 3 to 9 of t-0 are gone"
    assert is_final(error) and 'Set lost_records = "skip" in the source' in told_of(error)
    assert "failOnDataLoss" not in told_of(error)
    assert lost_records(CapturedError("offsets are gone")) == ""


def test_a_ring_of_causes_ends() -> None:
    error = CapturedError("a")
    error._cause = error
    assert cause_of(error) == "CapturedError: a"


def report(batch_id: int, *, is_done: bool = True, rows: int = 5) -> dict[str, Any]:
    offsets = {"version": 1, "topicIds": {"t": "x"}, "initial": {"t": {"0": 0}}}
    return {
        "batchId": batch_id,
        "durationMs": {"addBatch": 3} if is_done else {"latestOffset": 1},
        "numInputRows": rows,
        "eventTime": {"watermark": "2026-01-31T07:00:00.000Z"},
        "observedMetrics": {"source_input": {"records": rows, "bad": 1}, "result": {"rows": rows - 1}},
        "sources": [
            {
                "endOffset": {**offsets, "offsets": {"t": {"0": 6}}},
                "latestOffset": {**offsets, "offsets": {"t": {"0": 9}}},
            }
        ],
    }


def test_each_micro_batch_counts_once() -> None:
    progress = noted(RunProgress(), report(0))
    assert (progress.batches, progress.records, progress.bad_records, progress.rows) == (1, 5, 1, 4)
    assert (progress.lag, progress.watermark) == (3, "2026-01-31T07:00:00.000Z")
    assert noted(progress, report(0)).batches == 1, "the same report again"
    idle = noted(progress, report(1, is_done=False, rows=0))
    assert (idle.batches, idle.last_batch_id) == (1, 0), "an idle query names the micro-batch to come"
    assert noted(idle, report(1)).records == 10


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "ModuleNotFoundError: No module named 'barnabas.spark_connector'",
            "no module barnabas: install 'barnabas[spark]'",
        ),
        (
            "ModuleNotFoundError: No module named 'factors'",
            "no module factors: import it at the head of the step's module",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory',
            "no program /opt/python on a machine of Spark: install 'barnabas[spark]'",
        ),
    ],
)
def test_what_workers_lack_is_final_and_told_with_the_cure(text: str, told: str) -> None:
    """A start again would fail five times, with words of Spark."""
    error = Exception(f"Job aborted due to stage failure: Task 0 in stage 1.0 failed\nTraceback\n{text}\n")
    assert is_final(error) and told in told_of(error)


def test_a_report_of_a_spark_connect_server_counts_as_one_of_spark() -> None:
    sent = {
        "sources": [{"numInputRows": 5, "endOffset": '{"offsets": {}}', "latestOffset": None}],
        "observedMetrics": {"result": {"values": [4], "schema": {"fields": [{"name": "rows"}]}}},
    }
    found = in_full(sent)
    assert found["numInputRows"] == 5 and found["observedMetrics"] == {"result": {"rows": 4}}
    assert found["sources"][0]["endOffset"] == {"offsets": {}}
    assert in_full(found) == found


def test_a_table_that_does_not_fit_a_micro_batch_is_final_and_told_without_sparks_words() -> None:
    """The writer raises it in a callback of Spark, which makes an error of its own that quotes the traceback."""
    quoted = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: An exception was raised by the Python Proxy. Return Message: Traceback\n"
        '  File "iceberg.py", line 90, in write\n'
        "barnabas.spark_connector.pipeline.faults.PipelineFault: sink.iceberg: column 'id' is long: cast it\n"
    )
    error = CapturedError(quoted + PLAN)
    assert is_final(error) and told_of(error) == "sink.iceberg: column 'id' is long: cast it"


def test_the_size_of_the_state_is_that_of_all_operators() -> None:
    joined = report(0) | {
        "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 100}, {"numRowsTotal": 4, "memoryUsedBytes": 20}]
    }
    progress = noted(RunProgress(), joined)
    assert (progress.state_rows, progress.state_bytes) == (7, 120)
    assert noted(progress, report(1)).state_rows == 7, "a report without operators says nothing about them"


def test_files_have_no_lag() -> None:
    of_files = report(0) | {"sources": [{"endOffset": {"logOffset": 0}, "latestOffset": None}]}
    assert noted(RunProgress(), of_files).lag is None


@pytest.mark.parametrize("flags", [{}, {"is_once": True}, {"is_plan": True}])
def test_a_driver_is_told_its_whole_order(tmp_path: Path, flags: dict[str, bool]) -> None:
    file = str(tmp_path / "client.properties")
    order = DriverOrder(
        state=tmp_path / "s", base=tmp_path, bootstrap="b:1", master="local[1]", command_config=file, **flags
    )
    words = order.command(7)
    given = order_of(words[words.index("-m") + 2 :])
    assert (given.state, given.base, given.parent) == (order.state, order.base, 7)
    assert (given.bootstrap, given.master, given.command_config) == ("b:1", "local[1]", Path(file))
    assert (given.once, given.plan) == (order.is_once, order.is_plan)


def test_tls_and_the_login_reach_spark_and_nothing_else_does(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    login = {"security.protocol": "SASL_SSL", "ssl.truststore.location": "/ca.pem", "sasl.mechanism": "PLAIN"}
    file.write_text("".join(f"{key}={text}\n" for key, text in {**login, "bootstrap.servers": "x:1"}.items()))
    assert security_of(properties_of(file)) == login and properties_of(None) == {}


def writer(folder: Path, **more: Any) -> TableWriter:
    made = {"table": "t", "columns": {"id": "INTEGER", 'a "b".c?%': "TEXT"}, "key": (), "sink_id": "s"} | more
    return TableWriter(Database(f"sqlite:{folder / 'x.db'}"), **made)


def stored(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "x.db")) as database:
        return sorted(database.execute("SELECT * FROM t").fetchall())


def test_a_micro_batch_is_written_once_and_computed_each_time(tmp_path: Path) -> None:
    rows = [(number, "x") for number in range(2 * ROWS_AT_ONCE + 1)]
    assert writer(tmp_path).write(0, iter(rows)) == len(rows)
    again = iter(rows)
    assert writer(tmp_path).write(0, again) == 0
    assert next(again, None) is None, "Spark's state moves forward only with rows that are computed"
    assert stored(tmp_path) == rows
    assert writer(tmp_path, sink_id="other").write(0, iter([(-1, "y")])) == 1


def test_a_micro_batch_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def break_off() -> Any:
        yield from [(number, "x") for number in range(ROWS_AT_ONCE)]
        raise ConnectionError("the broker is gone")

    with pytest.raises(ConnectionError):
        writer(tmp_path).write(0, break_off())
    assert stored(tmp_path) == []
    assert writer(tmp_path).write(0, iter([(1, "x")])) == 1


def test_a_table_is_emptied_once_and_not_after_the_first_micro_batch(tmp_path: Path) -> None:
    writer(tmp_path, sink_id="before").write(0, iter([(1, "stale")]))
    writer(tmp_path).empty_once()
    assert stored(tmp_path) == []
    writer(tmp_path, sink_id="other").write(0, iter([(2, "other")]))
    writer(tmp_path).empty_once()  # the next driver, which began before the first micro-batch
    assert writer(tmp_path).write(0, iter([(3, "x")])) == 1, "to be emptied is no micro-batch"
    writer(tmp_path).empty_once()
    assert stored(tmp_path) == [(2, "other"), (3, "x")]


@pytest.mark.parametrize("is_plan", [True, False])
def test_a_plan_empties_no_table(tmp_path: Path, is_plan: bool) -> None:
    """`pipeline plan` after `reset --empty-sink`: the next run empties the table, not the plan before it."""
    state = StateFolder(tmp_path / "state")
    state.prepare()
    state.ask_for_empty_sink()
    writer(tmp_path, sink_id="before").write(0, iter([(1, "kept")]))
    columns = T.StructType([T.StructField("id", T.IntegerType()), T.StructField('a "b".c?%', T.StringType())])
    world = World(
        spark=cast(SparkSession, None), state=state, base=tmp_path, connection={}, is_batch=False, is_plan=is_plan
    )
    result = cast(DataFrame, SimpleNamespace(schema=columns))
    table_writer(world, TableSink(table="t", database="sqlite:x.db"), "p-1", result)
    assert stored(tmp_path) == ([(1, "kept")] if is_plan else [])


def test_rows_of_a_key_replace_each_other(tmp_path: Path) -> None:
    writer(tmp_path, key=("id",)).write(0, iter([(1, "a"), (2, "b")]))
    writer(tmp_path, key=("id",)).write(1, iter([(1, "c"), (1, "d")]))
    assert stored(tmp_path) == [(1, "d"), (2, "b")]
    only_key = {"table": "k", "columns": {"id": "INTEGER"}, "key": ("id",)}
    assert writer(tmp_path, sink_id="k", **only_key).write(0, iter([(1,), (1,)])) == 2


def test_changes_are_applied_by_key_and_a_truncation_once(tmp_path: Path) -> None:
    """Other partitions bring their records from before the truncation, and the truncation itself, in later micro-batches."""

    def applied(batch_id: int, *changes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        writer(tmp_path, key=("id",), has_changes=True).write(batch_id, iter(changes))
        return stored(tmp_path)

    first = [(number, "r", "r", 1, 50, 0) for number in range(3)]
    assert applied(0, *first) == [(0, "r"), (1, "r"), (2, "r")]
    after = applied(
        1,
        (0, "u", "u", 1, 60, 1),
        (1, None, "d", 1, 60, 2),
        (3, "c", "c", 1, 60, 3),
        (3, None, "d", 1, 60, 4),
        (2, None, "d", 1, 60, 5),
        (2, "again", "c", 1, 60, 6),
    )
    assert after == [(0, "u"), (2, "again")]
    assert applied(1, (9, "x", "c", 1, 70, 1)) == after, "the micro-batch is written already"
    assert applied(2, (5, "old", "c", 1, 70, 1), (None, None, "t", 1, 80, 1), (6, "new", "c", 1, 80, 2)) == [(6, "new")]
    assert applied(3, (7, "old", "c", 1, 75, 1), (6, None, "d", 1, 79, 9), (None, None, "t", 1, 80, 1)) == [(6, "new")]
    assert applied(4, (None, None, "t", 2, 10, 0), (8, "r", "r", 2, 10, 0)) == [(8, "r")], "the table was read again"


def test_names_with_the_letters_of_places_reach_postgresql_as_they_are() -> None:
    database = Database("postgresql:host=localhost")
    assert database.sql('INSERT INTO "t?" ("a""?", "b%s") VALUES (?, ?)') == (
        'INSERT INTO "t?" ("a""?", "b%%s") VALUES (%s, %s)'
    )


def test_a_password_with_any_letters_is_not_in_the_plan() -> None:
    """As text, it may be written with other letters: a backslash is two."""
    sink = TableSink(table="t", database="postgresql:host=h password=a\\b'c", key=("id",))
    assert repr(sink.database)[1:-1] != sink.database
    shown = str(without_secrets(sink))
    assert "password" not in shown and "table='t'" in shown
    assert without_secrets(ConsoleSink()) == ConsoleSink()


def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    writer(tmp_path).check()
    assert not file.exists(), "a check makes no file"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE t (id INTEGER)")
    with pytest.raises(
        PipelineFault, match=r"^sink\.table: the database refuses rows with the columns .*no column named"
    ):
        writer(tmp_path).check()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DROP TABLE t")
    writer(tmp_path).check()
    with closing(sqlite3.connect(file)) as database, database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [], "what the check has made is undone"


def test_a_check_sends_nulls_of_the_columns_types() -> None:
    database = Database("postgresql:host=localhost")
    found = database.typed(
        'INSERT INTO t ("a?", b, c) VALUES (?, ?, ?)', {"a?": "BIGINT", "b": "TEXT", "c": "NUMERIC(5, 2)"}
    )
    assert found == 'INSERT INTO t ("a?", b, c) VALUES (NULL::BIGINT, NULL, NULL::NUMERIC(5, 2))'


def test_a_jvm_without_memory_is_told_with_the_settings_that_help() -> None:
    error = CapturedError("java.lang.OutOfMemoryError: Java heap space")
    assert told_of(error).startswith(f'{cause_of(error)}: raise "spark.driver.memory"')
    assert not is_final(error)


def test_a_full_disk_is_told_with_its_folders_and_by_the_exit_code_where_the_reason_has_no_space(
    tmp_path: Path,
) -> None:
    state = StateFolder(tmp_path / "state")
    state.prepare()
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert _noted(error, state, tmp_path) == DriverExit.MAY_PASS
    told = state.take_error()
    assert f"{tmp_path}/state has " in told and told.endswith(CURE)
    state._files = FailingFiles(errno.ENOSPC)
    assert _noted(error, state, tmp_path) == DriverExit.NO_SPACE


@pytest.mark.parametrize(
    ("checkpoint", "is_told"),
    [
        ("/disk/c", "/disk/c"),
        ("c", "{base}/c"),
        ("file:///disk/my%20c", "/disk/my c"),
        ("hdfs://names:9000/disk/c", ""),
    ],
)
def test_a_full_disk_is_told_with_a_checkpoint_of_this_machine(tmp_path: Path, checkpoint: str, is_told: str) -> None:
    state = StateFolder(tmp_path / "state")
    state.prepare()
    state.write_pipeline(PIPELINE.format(checkpoint=checkpoint), is_yaml=False)
    _noted(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), state, tmp_path / "base")
    told = state.take_error() or ""
    wanted = is_told.format(base=tmp_path / "base")
    assert f" {wanted} has " in told if is_told else "/disk/c" not in told, told
