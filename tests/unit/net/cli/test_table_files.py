"""Files of records: what is wrong with a file is an error that names the line; positions of arguments."""

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from barnabas.net.cli.frame.exit_codes import CommandError
from barnabas.net.cli.records.table_files import closing_in, format_of, in_thread, pieces, unfinished
from barnabas.net.cli.streams.table_file import position_from


def rows(path: Path, kind: str) -> list[dict[str, object]]:
    found, _ = pieces(str(path), kind)
    return [row for batch, _ in found for row in batch.to_pylist()]


def test_lines_become_records(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    lines = [{"value": "x"}, {"value": None, "key": "k"}, {"value_base64": "/w==", "headers": [{"key": "h"}]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows(path, "ndjson") == [
        {"key": None, "value": b"x", "headers": []},
        {"key": b"k", "value": None, "headers": []},
        {"key": None, "value": b"\xff", "headers": [{"key": "h", "value": None}]},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"value": "x"}\n{"value": \n', "line 2 is no record"),
        ('{"value": "x"}\n{"value": 7}\n', r"line 2 is no record: Expected .*\$.value"),
        ('{"value": "x"}\n\n{"value": "y"}', "line 2 is no record"),
        ('{"key": "x"}\n', "line 1 has no field 'value'.*topic produce"),
        ('{"value_base64": "?"}\n', "base64 that cannot be decoded"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(text)
    with pytest.raises(CommandError, match=message):
        rows(path, "ndjson")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key,value\na,b\nc\n", "Row #3: Expected 2 columns, got 1"),
        ("value,timestamp\na,1\nb,x\n", "Row #3: CSV conversion error to int64: invalid value 'x'"),
        ('value,headers\na,"[{"\n', "headers after line 2 are no JSON list"),
        ("", "Empty CSV file"),
    ],
)
def test_a_bad_row_of_csv_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=message):
        rows(path, "csv")


def test_a_csv_of_other_columns_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name,age\nx,1\n")
    assert rows(path, "csv") == [{"name": "x", "age": 1}]


def test_what_is_no_parquet_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CommandError, match=r"a.parquet is no Parquet file"):
        rows(path, "parquet")
    with pytest.raises(CommandError, match=r"b.csv cannot be read: No such file"):
        rows(tmp_path / "b.csv", "csv")


def test_formats_by_suffix() -> None:
    assert [format_of(name, None) for name in ("a.parquet", "a.CSV", "a.jsonl")] == ["parquet", "csv", "ndjson"]
    assert format_of("a.txt", "csv") == "csv"
    with pytest.raises(CommandError, match="a.txt ends with none of .parquet"):
        format_of("a.txt", None)


def test_positions_of_arguments() -> None:
    assert [position_from(text) for text in ("start", "7", "@5")] == ["start", 7, "@5"]
    assert position_from("2026-01-31T12:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31", "soon", "@", "-1"):
        with pytest.raises(CommandError, match="give start, end, an offset"):
            position_from(text)


def test_a_file_has_its_name_once_it_is_whole_and_links_stay_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    with unfinished(str(link)) as path:
        Path(path).write_text("new")
        assert file.read_text() == "old"
    assert (file.read_text(), link.is_symlink(), sorted(os.listdir(tmp_path))) == ("new", True, ["file", "link"])


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout: a file under its name would take its place for all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with unfinished(str(pipe)) as path:
        assert path == str(pipe)
    assert pipe.is_fifo()
    with pytest.raises(CommandError), unfinished(str(pipe)):
        raise OSError(28, "full")
    assert pipe.is_fifo()


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with (
        pytest.raises(CommandError, match="file cannot be written: No space left on device"),
        unfinished(str(target)) as path,
    ):
        Path(path).write_text("half")
        raise OSError(28, "whatever pyarrow says")
    with pytest.raises(CommandError, match="is a folder: name a file"), unfinished(str(tmp_path)):
        pass
    with pytest.raises(ConnectionResetError), unfinished(str(target)):  # of a broker, not of the file
        raise ConnectionResetError
    assert os.listdir(tmp_path) == []


async def test_an_interrupted_file_is_closed_after_its_last_write() -> None:
    began, may_end, events = threading.Event(), threading.Event(), []

    class File:
        def write(self, _: object) -> None:
            began.set()
            may_end.wait(10)
            events.append("written")

        def close(self) -> None:
            events.append("closed")

    async def export() -> None:
        async with closing_in(thread, File()) as file:
            await in_thread(thread, file.write, None)

    with ThreadPoolExecutor(1) as thread:
        task = asyncio.create_task(export())
        await asyncio.to_thread(began.wait, 10)
        task.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert events == ["written", "closed"]


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"value": [str(n) for n in range(9_000)]}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[100:3_000] = bytes(2_900)
    path.write_bytes(data)
    with pytest.raises(CommandError, match=r"a\.parquet is damaged"):
        rows(path, "parquet")
    with pytest.raises(CommandError, match="is a folder"):
        rows(tmp_path, "ndjson")
