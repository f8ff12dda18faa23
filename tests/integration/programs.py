"""Programs that we did not write (Java, Go, JavaScript), as processes: what they need is fetched once into the user's cache."""

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.cluster import clean_environment, until

FETCH_LIMIT_S = 600.0  # a build in Go takes ten seconds of two processors, and more beside other work
STOP_LIMIT_S = 30.0
TAIL_CHARACTERS = 3_000
# For each JVM of a test. None runs long enough for the second compiler, or for a garbage collector with threads. Without the
# verification of classes of released libraries, a start of Spark with one query takes a quarter less processor time.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)


def missing(*programs: str) -> str:
    """The reason why a test cannot run here, or nothing."""
    absent = [program for program in programs if shutil.which(program) is None]
    return f"no {' and no '.join(absent)} here" if absent else ""


@contextmanager
def cache(name: str) -> Iterator[Path]:
    """A folder of downloads that outlives a run, held by one process at a time: mvn and npm do not share theirs safely."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "barnabas-tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def built_by_go(folder: Path, source: Path, module: str) -> list[str] | None:
    """The command of a source in Go that needs one module with its version, or None where modules are out of reach."""
    shutil.copytree(source, folder)
    with cache("go") as kept:
        environment = clean_environment() | {
            "GOPATH": str(kept / "path"),
            "GOCACHE": str(kept / "build"),
            "GOFLAGS": "-modcacherw",
        }

        def go(*arguments: str, check: bool = True) -> bool:
            done = subprocess.run(["go", *arguments], cwd=folder, env=environment, timeout=FETCH_LIMIT_S, check=check)
            return done.returncode == 0

        go("mod", "init", "client")
        if not go("get", module, check=False):
            return None
        go("mod", "tidy")
        go("build", "-o", "client")
    return [str(folder / "client")]


def installed_by_npm(folder: Path, source: Path, package: str) -> Path | None:
    """The folder of sources in JavaScript with the package, or None where the registry is out of reach."""
    shutil.copytree(source, folder)
    with cache("npm") as kept:
        done = subprocess.run(
            ["npm", "install", "--silent", "--cache", str(kept), package],
            cwd=folder,
            timeout=FETCH_LIMIT_S,
            check=False,
        )
    return folder if done.returncode == 0 else None


def go_client(folder: Path, source: Path, module: str) -> list[str]:
    """As `built_by_go`, for a test that is skipped where that is not possible."""
    if reason := missing("go"):
        pytest.skip(reason)
    command = built_by_go(folder, source, module)
    if command is None:
        pytest.skip(f"go cannot fetch {module}: it is out of reach, or needs a newer go")
    return command


def node_client(folder: Path, source: Path, package: str) -> Path:
    """As `installed_by_npm`, for a test that is skipped where that is not possible."""
    if reason := missing("node", "npm"):
        pytest.skip(reason)
    made = installed_by_npm(folder, source, package)
    if made is None:
        pytest.skip("the registry of npm is out of reach")
    return made


class Program:
    """One process and what it prints, over all of its starts."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, *, cwd: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.output = folder / f"{name}.log"
        self._command = list(command)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.is_running
        with self.output.open("ab") as output:
            self._started_at = output.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
                cwd=self._cwd,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def printed(self) -> str:
        """Since the last start."""
        with self.output.open("rb") as output:
            output.seek(self._started_at)
            return output.read().decode(errors="replace")

    async def prints(self, text: str, *, timeout_s: float) -> None:
        def is_there() -> bool:
            found = self.printed()
            assert self.is_running or text in found, f"{self.name} ended: {found[-TAIL_CHARACTERS:]}"
            return text in found

        await until(is_there, f"{self.name} prints {text!r}", timeout_s=timeout_s)


async def lines_of(command: Sequence[str], *, timeout_s: float, cwd: Path | None = None) -> list[str]:
    """What a program prints that ends by itself with exit code 0."""
    ended = await asyncio.to_thread(
        subprocess.run, command, env=clean_environment(), cwd=cwd, capture_output=True, text=True, timeout=timeout_s
    )
    said = f"{ended.stdout[-TAIL_CHARACTERS:]}\n{ended.stderr[-TAIL_CHARACTERS:]}"
    assert ended.returncode == 0, f"exit code {ended.returncode}\n{said}"
    return str(ended.stdout).splitlines()
