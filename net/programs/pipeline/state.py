"""`StateFolder`: what a pipeline keeps on disk between its runs, and what `status` reads.

    run.lock, driver.lock   held by the process that supervises, and by the Spark driver
    run.pid, driver.pid     the processes that hold them
    resetting               a reset has begun, and the next `run` or `reset` finishes it
    generation              a random id; sinks count micro-batches under it, so a reset, which removes it, counts from 0
    pipeline.toml, .yaml    one of them: the file as `run` found it: a driver that starts again runs the same pipeline
    run.json                the state of the supervisor (`RunState`)
    progress.json           the progress of the driver (`RunProgress`)
    reserve                 two blocks of the disk, which are given up for the last run.json when the disk is full
    error                   the last error of the driver, one line
    driver.log              stderr of the driver and of its JVM, of the last start
    empty-sink              after `reset --empty-sink`: the next run removes the rows of the sink's table before it writes
    parquet                 the folder of a sink in Parquet, which this state has made
    schemas/                inferred schemas, one for each source
    checkpoint/             of Spark, a folder for each query
    plan/                   the same of `plan`, which may run beside `run`

Every JSON file has one writer, which replaces it as a whole, so readers never see half of one.
"""

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from barnabas.log.disk.files import RealFiles
from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.base.printable import printable

from .disk import full_disk, says_full

RunWord = Literal["running", "restarting", "stopped", "finished", "failed"]
T = TypeVar("T")
LOCK_WAIT_S: Final = 1.0  # `status` holds a lock for an instant, to see whether it is free
LOCK_PAUSE_S: Final = 0.05
_RESETTING: Final = "resetting"
_RESERVE: Final = "reserve"
_PIPELINE: Final = {False: "pipeline.toml", True: "pipeline.yaml"}  # by whether it is YAML
_KEPT: Final = (
    "generation", *_PIPELINE.values(), "run.json", "progress.json", "error", "driver.log", "parquet", "schemas", "checkpoint",
    "plan", "empty-sink", "reserve",
)  # fmt: skip
RESERVE_BYTES: Final = 8 << 10  # run.json has an error of at most MAX_ERROR_CHARS, and is written beside the old one
MAX_ERROR_CHARS: Final = 2_000  # of one line; errors of Spark contain whole plans


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    state: RunWord
    restarts: int = 0  # since `run`
    since_ms: int = 0
    last_error: str = ""


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Counts are since the last reset. A micro-batch that a killed driver had not reported yet is not in them."""

    batches: int = 0
    last_batch_id: int = -1
    records: int = 0
    bad_records: int = 0  # skipped or sent to the topic of dead letters
    rows: int = 0  # given to the sink
    lag: int | None = None  # records that are not read yet; None if the source does not say
    watermark: str = ""
    last_batch_ms: int = 0
    state_rows: int = 0  # of windows, joins and aggregations, of the query to the sink
    state_bytes: int = 0  # in the memory of the executors, as Spark estimates it


class LockedError(Exception):
    """Another process holds the lock."""


class StateFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = RealFiles()

    def prepare(self) -> None:
        """Only its owner may enter: the pipeline's file may be secret, and errors quote records."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of_plan(self) -> "StateFolder":
        """For a driver that only plans, beside one that runs."""
        return StateFolder(self.path / "plan")

    def write_pipeline(self, text: str, *, is_yaml: bool) -> None:
        """A file of the other language is from an earlier run."""
        self._pipeline_file(is_yaml=not is_yaml).unlink(missing_ok=True)
        self._write(self._pipeline_file(is_yaml=is_yaml), text.encode())

    def read_pipeline(self) -> tuple[str, bool]:
        """As the last `run` found it, and whether it is YAML; empty before the first."""
        for is_yaml in _PIPELINE:
            with suppress(FileNotFoundError):
                return self._pipeline_file(is_yaml=is_yaml).read_text(encoding="utf-8"), is_yaml
        return "", False

    def _pipeline_file(self, *, is_yaml: bool) -> Path:
        return self.path / _PIPELINE[is_yaml]

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def claimed_folder(self) -> str:
        """The folder that a sink in Parquet has begun to write; empty if there is none."""
        with suppress(FileNotFoundError):
            return (self.path / "parquet").read_text(encoding="utf-8")
        return ""

    def claim_folder(self, folder: str) -> None:
        self._write(self.path / "parquet", folder.encode())

    def ask_for_empty_sink(self) -> None:
        """Of the next run. Behind `remove`, which forgets it."""
        self._write(self.path / "empty-sink", b"")

    @property
    def wants_empty_sink(self) -> bool:
        """Also after that run, so the sink must know whether it has been done under this generation."""
        return (self.path / "empty-sink").exists()

    @property
    def driver_log(self) -> Path:
        return self.path / "driver.log"

    def generation(self) -> str:
        """The id under which sinks count micro-batches; made when it is asked for the first time."""
        file = self.path / "generation"
        if not file.exists():
            self._write(file, uuid.uuid4().hex[:12].encode())
        return file.read_text(encoding="ascii")

    # --- locks --------------------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self, name: str, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
        """Hold a lock of the folder; the kernel releases it with the process. Raises LockedError."""
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                lock = self._files.lock(str(self.path / f"{name}.lock"))
                break
            except StorageError as error:
                if not isinstance(error.__cause__, BlockingIOError):
                    raise
                if time.monotonic() > deadline_s:
                    raise LockedError(name) from None
            time.sleep(LOCK_PAUSE_S)
        pid = self.path / f"{name}.pid"
        try:
            pid.unlink(missing_ok=True)  # of a holder that was killed; a stranger may have its number now
            yield
        finally:
            pid.unlink(missing_ok=True)
            lock.release()

    def is_locked(self, name: str) -> bool:
        if not (self.path / f"{name}.lock").exists():
            return False
        try:
            with self.locked(name, wait_s=0):
                return False
        except LockedError:
            return True

    def note_pid(self, name: str, pid: int) -> None:
        """Of the process that holds the lock `name`."""
        self._write(self.path / f"{name}.pid", b"%d" % pid)

    def pid(self, name: str) -> int | None:
        """Of the process that holds the lock. None: nothing holds it, or only for a moment, as `status` and `reset` do."""
        try:
            return int((self.path / f"{name}.pid").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    # --- state --------------------------------------------------------------------------------------------------------

    def write_run(self, state: RunState) -> None:
        """On a full disk, the reserve makes room for the last word: an old one would tell of a process that died. Before it, a
        driver would take the room. Raises StorageError."""
        try:
            self._write(self.path / "run.json", msgspec.json.encode(state))
        except StorageError:
            if state.state in ("running", "restarting") or not (self.path / _RESERVE).exists():
                raise
            (self.path / _RESERVE).unlink()
            self._write(self.path / "run.json", msgspec.json.encode(state))

    def make_reserve(self) -> None:
        """Again after a full disk. Without room for it, the reader of `status` may see an old word."""
        if not (self.path / _RESERVE).exists():
            with suppress(StorageError):
                self._write(self.path / _RESERVE, bytes(RESERVE_BYTES))

    def read_run(self) -> RunState | None:
        return self._read(self.path / "run.json", RunState)

    def write_progress(self, progress: RunProgress) -> None:
        self._write(self.path / "progress.json", msgspec.json.encode(progress))

    def read_progress(self) -> RunProgress:
        return self._read(self.path / "progress.json", RunProgress) or RunProgress()

    def write_error(self, text: str) -> None:
        """It may quote a record: what would control a terminal is escaped."""
        self._write(self.path / "error", printable(" ".join(text.split()))[:MAX_ERROR_CHARS].encode())

    def take_error(self) -> str:
        """The error of the driver that has just ended; empty if it wrote none."""
        file = self.path / "error"
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""
        file.unlink()
        return text

    def write_schema(self, source: str, text: str) -> None:
        (self.path / "schemas").mkdir(exist_ok=True)
        self._write(self.path / "schemas" / f"{source}.json", text.encode())

    def read_schema(self, source: str) -> str:
        """Empty if none was inferred yet."""
        with suppress(FileNotFoundError):
            return (self.path / "schemas" / f"{source}.json").read_text(encoding="utf-8")
        return ""

    def remove(self) -> None:
        """What a pipeline keeps, but the locks, which the caller holds. Other files in the folder stay: it may be the user's.

        If this is interrupted, `finish_removal` goes on. With its generation but without its checkpoint, a pipeline would count
        from 0 under the same id, and its sink would leave out new rows as written already.
        """
        self._write(self.path / _RESETTING, b"")
        for name in _KEPT:
            item = self.path / name
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            else:
                item.unlink(missing_ok=True)
        (self.path / _RESETTING).unlink()

    def finish_removal(self) -> None:
        """The caller holds the lock `run`."""
        if (self.path / _RESETTING).exists():
            self.remove()

    def _write(self, file: Path, data: bytes) -> None:
        """Raises StorageError; if the disk is full, with the cure of a pipeline."""
        try:
            self._files.write_atomically(str(file), data)
        except StorageError as error:
            if not says_full(str(error.__cause__)):
                raise
            raise StorageError(full_disk(f"cannot write {file}: {error.__cause__}", [self.path])) from error.__cause__

    def _read(self, file: Path, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(file.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
