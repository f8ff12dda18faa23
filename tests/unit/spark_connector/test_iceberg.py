"""Iceberg tables as a sink, with tasks that run here: rows once, other writers, columns that come later, what is refused."""

import datetime
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from barnabas.net.programs.pipeline.spec import IcebergSink
from barnabas.spark_connector.pipeline.faults import PipelineFault
from barnabas.spark_connector.pipeline.lakes.files import MAX_COMMITS
from barnabas.spark_connector.pipeline.lakes.iceberg import CATALOG_FILE, CATALOG_NAME, IcebergWriter

TESTS = Path(__file__).parents[2]
KILLS, BATCHES = 8, 40
LONGEST_S = 0.4  # about two micro-batches on an idle machine
ORDERS = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Rows:
    """A micro-batch as far as the writer asks: two tasks, one with the rows and one without any."""

    def __init__(
        self, rows: list[dict[str, Any]], schema: pa.Schema = ORDERS, before: Callable[[], None] | None = None
    ) -> None:
        self._table = pa.Table.from_pylist(rows, schema)
        self._before = before
        self.tasks = 0
        self.is_computed = False

    @property
    def write(self) -> Any:
        """Of rows that are only computed."""
        made = MagicMock()
        made.format.return_value.mode.return_value.save.side_effect = self._compute
        return made

    def _compute(self) -> None:
        self.is_computed = True

    def toDF(self, *names: str) -> "Rows":
        self._table = self._table.rename_columns(list(names))
        return self

    def mapInArrow(self, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: object) -> "Rows":
        self._write = write
        return self

    def collect(self) -> list[Any]:
        self.tasks += 1
        if self._before is not None:
            self._before()
        tasks: list[list[pa.RecordBatch]] = [self._table.to_batches(), []]
        found = [row for task in tasks for batch in self._write(iter(task)) for row in batch.to_pylist()]
        return [type("Row", (), row) for row in found]


def writer(
    folder: Path, schema: pa.Schema = ORDERS, *, sink_id: str = "p-1", noted: int = 0, **more: Any
) -> IcebergWriter:
    return IcebergWriter(
        str(folder),
        IcebergSink(table="shop.orders", warehouse=str(folder)),
        sink_id=sink_id,
        columns=from_arrow_schema(schema),
        is_complete=more.get("is_complete", False),
        written_batches=lambda: noted,
    )


def table(folder: Path) -> Any:
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{folder / CATALOG_FILE}", warehouse=str(folder))
    return catalog.load_table("shop.orders")


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(folder).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["id"], str(row)))


def order(number: int, name: str | None = None) -> dict[str, Any]:
    return {"id": number, "name": name}


def test_each_micro_batch_is_written_once(tmp_path: Path) -> None:
    writer(tmp_path).write(Rows([order(1, "a"), order(2)]), 0)  # type: ignore[arg-type]
    again = Rows([order(1, "a"), order(2)])
    writer(tmp_path, noted=1).write(again, 0)  # type: ignore[arg-type]  # the driver was killed behind the commit
    assert again.tasks == 0 and again.is_computed, "the watermark moves on"
    writer(tmp_path, noted=1).write(Rows([order(3)]), 1)  # type: ignore[arg-type]
    assert rows(tmp_path) == [order(1, "a"), order(2), order(3)]
    writer(tmp_path, sink_id="p-2").write(Rows([order(4)]), 0)  # type: ignore[arg-type]  # another pipeline, or after a reset
    assert [row["id"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_files_of_an_attempt_that_failed_are_seen_by_no_reader(tmp_path: Path) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    made = writer(tmp_path)
    made._commit = lambda *_: killed()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.write(Rows([order(1)]), 0)  # type: ignore[arg-type]
    assert rows(tmp_path) == []
    writer(tmp_path).write(Rows([order(1)]), 0)  # type: ignore[arg-type]
    assert rows(tmp_path) == [order(1)]


def test_an_empty_micro_batch_is_noted(tmp_path: Path) -> None:
    writer(tmp_path).write(Rows([]), 0)  # type: ignore[arg-type]
    again = Rows([order(1)])
    writer(tmp_path, noted=1).write(again, 0)  # type: ignore[arg-type]
    assert again.tasks == 0 and rows(tmp_path) == []


def test_another_writer_may_commit_in_between(tmp_path: Path) -> None:
    mine = Rows([order(1)], before=lambda: writer(tmp_path, sink_id="q-1").write(Rows([order(2)]), 0))  # type: ignore[arg-type]
    writer(tmp_path).write(mine, 0)  # type: ignore[arg-type]
    assert [row["id"] for row in rows(tmp_path)] == [1, 2] and mine.tasks == 1, "the same files"


def test_two_drivers_of_one_pipeline_do_not_both_write_a_micro_batch(tmp_path: Path) -> None:
    mine = Rows([order(1)], before=lambda: writer(tmp_path).write(Rows([order(1)]), 0))  # type: ignore[arg-type]
    writer(tmp_path).write(mine, 0)  # type: ignore[arg-type]
    assert rows(tmp_path) == [order(1)]


def test_the_whole_table_is_replaced_in_the_mode_complete(tmp_path: Path) -> None:
    for number in range(3):
        writer(tmp_path, is_complete=True, noted=number).write(Rows([order(number)]), number)  # type: ignore[arg-type]
    assert rows(tmp_path) == [order(2)]
    writer(tmp_path, is_complete=True, noted=3).write(Rows([]), 3)  # type: ignore[arg-type]
    assert rows(tmp_path) == []


def test_columns_come_later_and_stay(tmp_path: Path) -> None:
    writer(tmp_path).write(Rows([order(1, "a")]), 0)  # type: ignore[arg-type]
    more = pa.schema([("tags", pa.list_(pa.string())), ("id", pa.int64())])
    writer(tmp_path, more, noted=1).write(Rows([{"id": 2, "tags": ["x", None]}], more), 1)  # type: ignore[arg-type]
    assert rows(tmp_path) == [
        {"id": 1, "name": "a", "tags": None},
        {"id": 2, "name": None, "tags": ["x", None]},
    ]


def test_all_types_are_read_back(tmp_path: Path) -> None:
    utc = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    values: dict[str, tuple[pa.DataType, Any]] = {
        "id": (pa.int64(), 2**62),
        "a": (pa.int8(), -8),
        "b": (pa.int16(), 300),
        "c": (pa.int32(), 2**31 - 1),
        "d": (pa.float32(), 0.5),
        "e": (pa.float64(), 0.1),
        "f": (pa.decimal128(38, 10), Decimal("1.0000000001")),
        "g": (pa.bool_(), True),
        "h": (pa.binary(), b"\0\xff"),
        "i": (pa.date32(), utc.date()),
        "j": (pa.timestamp("us", "UTC"), utc),
        "k": (pa.timestamp("us"), utc.replace(tzinfo=None)),
        "l": (pa.list_(pa.struct([("x", pa.int16())])), [{"x": 1}, None]),
        "m": (pa.map_(pa.string(), pa.list_(pa.int64())), [("k", [1, None])]),
        "odd name.with dots": (pa.string(), "ü"),
    }
    schema = pa.schema([(name, kind) for name, (kind, _) in values.items()])
    row = {name: value for name, (_, value) in values.items()}
    writer(tmp_path, schema).write(Rows([row, {"id": 1, "l": []}], schema), 0)  # type: ignore[arg-type]
    empty, full = rows(tmp_path)
    assert full == row and empty == dict.fromkeys(row) | {
        "id": 1,
        "l": [],
    }  # pyiceberg reads no list of structs as an empty one


@pytest.mark.timeout(300)
def test_each_row_is_there_once_after_kills_at_any_moment(tmp_path: Path) -> None:
    """Each process is killed at another moment of its first or second micro-batch, the last one not at all."""
    from unit.spark_connector.iceberg_kills import PER_BATCH

    words = [sys.executable, "-m", "unit.spark_connector.iceberg_kills", str(tmp_path), str(BATCHES)]
    random = Random(7)
    for _ in range(KILLS):
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(TESTS)}
        )
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()  # the first micro-batch of this process is written
            with suppress(subprocess.TimeoutExpired):
                process.wait(random.uniform(0, LONGEST_S))
            process.kill()
            process.wait()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(TESTS)})
    assert rows(tmp_path) == [order(number) for number in range(BATCHES * PER_BATCH)]


# --- what is refused ------------------------------------------------------------------------------------------------------


def test_a_table_that_has_lost_its_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineFault, match="has nothing of the 3 micro-batches that are written: restore the table"):
        writer(tmp_path, noted=3).write(Rows([order(1)]), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("id", pa.string())]), "column 'id' is long in shop.orders and string in the result: cast it"),
        (pa.schema([("id", pa.int32())]), "column 'id' is long in shop.orders and int in the result: cast it"),
        (pa.schema([("ID", pa.int64())]), "column 'ID' differs from 'id' of shop.orders only in upper and lower case"),
    ],
)
def test_columns_that_do_not_fit_the_table(tmp_path: Path, schema: pa.Schema, words: str) -> None:
    writer(tmp_path).write(Rows([order(1)]), 0)  # type: ignore[arg-type]
    with pytest.raises(PipelineFault, match=words):
        writer(tmp_path, schema, sink_id="q").write(Rows([], schema), 0)  # type: ignore[arg-type]
    assert rows(tmp_path) == [order(1)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (T.StructType([T.StructField("a", T.NullType())]), "type void, which Iceberg lacks"),
        (T.StructType([T.StructField("a", T.ArrayType(T.DayTimeIntervalType()))]), "which Iceberg lacks"),
        (T.StructType([T.StructField("a", T.LongType()), T.StructField("A", T.LongType())]), "rename one"),
    ],
)
def test_columns_that_no_table_has(tmp_path: Path, columns: T.StructType, words: str) -> None:
    with pytest.raises(PipelineFault, match=words):
        IcebergWriter(
            str(tmp_path),
            IcebergSink(table="a.b", warehouse=str(tmp_path)),
            sink_id="p",
            columns=columns,
            is_complete=False,
            written_batches=lambda: 0,
        )


def test_tables_with_other_rules_are_refused(tmp_path: Path) -> None:
    catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{tmp_path / CATALOG_FILE}", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    made = catalog.create_table("shop.orders", ORDERS)
    with made.update_spec() as spec:
        spec.add_identity("id")
    with pytest.raises(PipelineFault, match="is partitioned, which this writer cannot"):
        writer(tmp_path).write(Rows([order(1)]), 0)  # type: ignore[arg-type]
    catalog.drop_table("shop.orders")
    catalog.create_table("shop.orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(PipelineFault, match="column 'id' of shop.orders is required"):
        writer(tmp_path).write(Rows([order(1)]), 0)  # type: ignore[arg-type]


def test_a_password_of_the_catalog_is_not_told(tmp_path: Path) -> None:
    sink = IcebergSink(table="a.b", warehouse=str(tmp_path), catalog="nonsense://me:secret@host/x")
    made = IcebergWriter(
        str(tmp_path / "w"), sink, sink_id="p", columns=T.StructType(), is_complete=False, written_batches=lambda: 0
    )
    assert not (tmp_path / "w").exists(), "a plan writes nothing"
    with pytest.raises(PipelineFault, match="the catalog cannot be opened") as caught:
        made.write(Rows([]), 0)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_a_writer_that_is_always_overtaken_gives_up(tmp_path: Path) -> None:
    others = iter(range(100))
    made = writer(tmp_path)
    commit = made._commit

    def overtaken(table: Any, files: list[str], batch_id: int) -> None:
        number = next(others)
        writer(tmp_path, sink_id=f"q-{number}").write(Rows([order(number)]), 0)  # type: ignore[arg-type]
        commit(table, files, batch_id)

    made._commit = overtaken  # type: ignore[method-assign]
    with pytest.raises(Exception, match="CommitFailed|has changed|updated by another") as caught:
        made.write(Rows([order(99)]), 0)  # type: ignore[arg-type]
    assert type(caught.value).__name__ == "CommitFailedException"
    assert [row["id"] for row in rows(tmp_path)] == list(range(MAX_COMMITS))
