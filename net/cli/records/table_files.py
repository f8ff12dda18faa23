"""Files of records: Parquet, CSV and NDJSON, written and read batch by batch. Needs pyarrow."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from ..frame.exit_codes import CommandError, ExitCode
from .table_text import batch_of_csv, batch_of_lines, csv_batch, json_lines

FORMATS: Final = ("parquet", "csv", "ndjson")
_SUFFIXES: Final = {".parquet": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson"}
LINES_AT_A_TIME: Final = 10_000
ROWS_AT_A_TIME: Final = 65_536  # Of a Parquet file, whose row groups may have millions.
Result = TypeVar("Result")
Piece = tuple[pyarrow.RecordBatch, int]  # The rows, and how much of `total` they are.


def format_of(path: str, named: str | None) -> str:
    """By --as, or by the suffix."""
    found = named or _SUFFIXES.get(Path(path).suffix.lower())
    if found is None:
        raise CommandError(
            f"{path} ends with none of {', '.join(_SUFFIXES)}: add --as {'|'.join(FORMATS)}", ExitCode.USAGE
        )
    return found


class TableWriter(Protocol):
    def write(self, batch: pyarrow.RecordBatch) -> None: ...
    def close(self) -> None: ...


class _Lines:
    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()

    def write(self, batch: pyarrow.RecordBatch) -> None:
        self._file.write(json_lines(batch))

    def close(self) -> None:
        self._file.close()


class _Csv:
    def __init__(self, path: str, schema: pyarrow.Schema) -> None:
        empty = pyarrow.RecordBatch.from_pylist([], schema=schema)
        self._writer = pyarrow.csv.CSVWriter(path, csv_batch(empty).schema)

    def write(self, batch: pyarrow.RecordBatch) -> None:
        self._writer.write_batch(csv_batch(batch))

    def close(self) -> None:
        self._writer.close()


class _Parquet:
    def __init__(self, path: str, schema: pyarrow.Schema) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")

    def write(self, batch: pyarrow.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


@contextmanager
def unfinished(path: str) -> Iterator[str]:
    """Where to write what becomes the file `path` once it is whole. Devices and pipes are written as they are.

    Raises CommandError if the file cannot be written.
    """
    is_plain = os.path.isfile(path) or not os.path.exists(path)
    target = os.path.realpath(path)  # A link goes on to name the file.
    part = f"{target}.part" if is_plain else path
    try:
        if os.path.isdir(path):
            raise CommandError(f"{path} is a folder: name a file", ExitCode.USAGE)
        yield part
        if is_plain:
            os.replace(part, target)
    except BaseException as error:
        if is_plain and os.path.exists(part):
            os.unlink(part)
        if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
            reason = os.strerror(error.errno) if error.errno else error
            raise CommandError(f"{path} cannot be written: {reason}") from error
        raise


def writer(path: str, kind: str, schema: pyarrow.Schema) -> TableWriter:
    """Creates the file."""
    if kind == "ndjson":
        return _Lines(path)
    return _Csv(path, schema) if kind == "csv" else _Parquet(path, schema)


async def in_thread(thread: ThreadPoolExecutor, work: Callable[..., Result], *arguments: Any) -> Result:
    """Of one file, all in one thread."""
    return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)


@asynccontextmanager
async def closing_in(thread: ThreadPoolExecutor, file: TableWriter) -> AsyncIterator[TableWriter]:
    """Close it in the thread that writes: an interrupted command must not close it in the middle of a write."""
    try:
        yield file
    finally:
        await in_thread(thread, file.close)


def pieces(path: str, kind: str) -> tuple[Iterator[Piece], int | None]:
    """The rows of a file, and the total of their amounts if it is known. Raises CommandError, which names the line."""
    try:
        if os.path.isdir(path):
            raise CommandError(f"{path} is a folder: name a file", ExitCode.USAGE)
        size_bytes = Path(path).stat().st_size
        if kind == "ndjson":
            return _lines(path), size_bytes
        if kind == "csv":
            return _csv(path), None
        file = pyarrow.parquet.ParquetFile(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
    except pyarrow.ArrowException as error:
        raise CommandError(f"{path} is no Parquet file: {error}") from error
    return _parquet(path, file), file.metadata.num_rows


def _parquet(path: str, file: Any) -> Iterator[Piece]:
    try:
        for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME):
            yield batch, batch.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        raise CommandError(f"{path} is damaged, or of an unknown codec: {error}") from error


def _lines(path: str) -> Iterator[Piece]:
    with open(path, "rb") as file:
        first = 1
        while lines := list(islice(file, LINES_AT_A_TIME)):
            yield batch_of_lines(lines, first), sum(map(len, lines))
            first += len(lines)


def _csv(path: str) -> Iterator[Piece]:
    text = pyarrow.string()
    names = ("key", "key_base64", "value", "value_base64", "headers")
    types = {**dict.fromkeys(names, text), "timestamp": pyarrow.int64(), "partition": pyarrow.int64()}
    first = 2  # Line 1 has the names.
    try:
        reader = pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(use_threads=False),  # Only then do errors have the number of the row.
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            # A null is an empty cell; an empty text is an empty cell in quotes.
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
            ),
        )
        is_records = not {"value", "value_base64"}.isdisjoint(reader.schema.names)
        for batch in reader:
            yield (batch_of_csv(batch, first) if is_records else batch), batch.num_rows
            first += batch.num_rows
    except pyarrow.ArrowException as error:
        raise CommandError(f"{path} cannot be read after line {first - 1}: {error}") from error
