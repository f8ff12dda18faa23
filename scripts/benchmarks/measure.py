"""Samples and the conditions they were taken under: CPU use of other processes, and whether a sample is valid."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

HERE: Final = Path(__file__).parent
VOID_PERCENT: Final = 25.0  # of one core, used by other processes: above it a sample measures them rather than Barnabas
QUIET_WAIT_S: Final = 4.0  # at most, for each sample
VOID_RETRIES: Final = 2
CHILD_TIMEOUT_S: Final = 300.0  # A client that hangs; on a busy machine a sample may take minutes.
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Metrics = dict[str, float]


class Skipped(Exception):
    """This cannot be measured here; the message says what is missing."""


@dataclass(kw_only=True)
class Case:
    """One line of the table: `run` takes a sample, as metric -> value. `msg/s` and `MB/s` are better large."""

    name: str
    run: Callable[[], Metrics]
    pids: Callable[[], Sequence[int]] = lambda: ()  # servers that work for it


@dataclass(kw_only=True)
class Row:
    """What came of a case."""

    samples: list[Metrics] = field(default_factory=list)
    others_percent: list[float] = field(default_factory=list)
    void: int = 0  # samples that were taken while others were busy, kept only where there is no better one
    problem: str = ""

    def median(self, metric: str) -> float | None:
        values = [sample[metric] for sample in self.samples if metric in sample]
        return statistics.median(values) if values else None

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(metric for sample in self.samples for metric in sample))


def cpu_of(pid: int) -> float:
    """Seconds that a process and its ended children have used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def rss_mib(pid: int) -> float:
    """Memory of a process that is in RAM, with the code that it shares with others. Not `ru_maxrss`: a child's begins with its
    parent's."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _busy() -> float:
    """Seconds that the machine's cores have worked."""
    values = [int(value) for value in Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:9]]
    return (sum(values) - values[3] - values[4]) / _TICKS


class Meter:
    """How much CPU other processes use between `start` and `others_percent`."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self._pids = pids
        self._began = time.perf_counter()
        self._busy = _busy()
        self._ours = self._used()

    def _used(self) -> float:
        return sum(os.times()[:4]) + sum(map(cpu_of, self._pids))

    def others_percent(self) -> float:
        wall = max(time.perf_counter() - self._began, 1e-6)
        return 100 * max(0.0, (_busy() - self._busy) - (self._used() - self._ours)) / wall


def wait_until_quiet(pids: Sequence[int], limit_s: float = QUIET_WAIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        meter = Meter(pids)
        time.sleep(0.2)
        if meter.others_percent() < VOID_PERCENT:
            return


def take_sample(case: Case, row: Row, retries: int = VOID_RETRIES) -> None:
    """Add one sample, if possible one that no other process disturbed."""
    if row.problem:
        return
    for attempt in range(retries + 1):
        pids = case.pids()
        wait_until_quiet(pids)
        meter = Meter(pids)
        try:
            metrics = case.run()
        except Skipped as reason:
            row.problem = f"skipped: {reason}"
            return
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            row.problem = f"failed: {str(error).strip().splitlines()[-1][:150]}"
            return
        others = meter.others_percent()
        if others <= VOID_PERCENT or attempt == retries:
            break
    row.void += others > VOID_PERCENT
    row.samples.append(metrics)
    row.others_percent.append(others)


def child(script: Path, *arguments: object, python: str = sys.executable, cwd: Path | None = None) -> Metrics:
    """Run a role in a process of its own; it prints its metrics as the last line, in JSON. Raises RuntimeError."""
    done = subprocess.run(
        [python, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
        cwd=cwd,
    )
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(done.stderr or f"{script.name} said nothing")
    found: Metrics = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class Work:
    """What this process and the servers that work for it spend in a `with` block."""

    def __init__(self, servers: Sequence[int] = ()) -> None:
        self._servers = servers

    def __enter__(self) -> Self:
        self._began, self._cpu, self._servers_cpu = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        began, cpu, servers_cpu = self._began, self._cpu, self._servers_cpu
        now, cpu_now, servers_now = self._now()
        self.seconds, self.cpu_s, self.servers_cpu_s = now - began, cpu_now - cpu, servers_now - servers_cpu

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(map(cpu_of, self._servers))

    def metrics(self, count: int, size_bytes: int) -> Metrics:
        found = {
            "msg/s": count / self.seconds,
            "MB/s": count * size_bytes / self.seconds / 1e6,
            "client_ns": self.cpu_s / count * 1e9,
        }
        if self._servers:
            found["brokers_ns"] = self.servers_cpu_s / count * 1e9
        return found


def percentiles(seconds: list[float]) -> Metrics:
    """The first tenth is warming up."""
    kept = sorted(seconds[len(seconds) // 10 :])
    return {"p50_us": kept[len(kept) // 2] * 1e6, "p99_us": kept[int(len(kept) * 0.99)] * 1e6}


def records(count: int, size_bytes: int) -> list[bytes]:
    """Lines as applications write them, `size_bytes` each; ten thousand different ones, over and over."""
    distinct = []
    for number in range(min(count, 10_000)):
        line = f'{{"user":"u{number:05d}","path":"/item/{number * 7919 % 100_003}","status":200,"text":"'
        distinct.append((line + "abcdefghij" * (size_bytes // 10 + 1))[: size_bytes - 2].encode() + b'"}')
    return (distinct * (count // len(distinct) + 1))[:count]


@contextlib.contextmanager
def process(*command: object, cwd: Path | None = None, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A server for as long as it is needed."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("ab")) if log is not None else subprocess.DEVNULL
        started = subprocess.Popen(list(map(str, command)), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
