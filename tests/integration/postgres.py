"""A PostgreSQL server of a test's own: Debian's programs, a folder under /tmp, a free port of loopback, an unprivileged user.

Where there are no programs (`apt-get install postgresql`), or nobody but root to run them, `find` says why.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from barnabas.net.base.local.ports import free_ports

START_TIMEOUT_S = 60.0
POLL_S = 0.05
LOGICAL = {"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}
TRANSACTIONS_OF_SEGMENT = 1 << 20  # of pg_xact, in 256 KiB
USER = "postgres"  # Debian's package makes it; PostgreSQL refuses to run as root


def find() -> tuple[Path | None, str]:
    """The folder of the newest installed version's programs, or None and the reason."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not versions:
        return None, "no PostgreSQL here: apt-get install postgresql"
    if os.getuid() == 0 and not any(entry.pw_name == USER for entry in pwd.getpwall()):
        return None, f"PostgreSQL does not run as root, and there is no user {USER}"
    return versions[-1].parent, ""


T = TypeVar("T", bound="Server")


class Server:
    """Its processes can be killed and started again, on the same folder and port."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        programs, reason = find()
        assert programs is not None, reason
        self._folder = folder
        self._programs = programs
        self._user = USER if os.getuid() == 0 else None
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            **settings,
        }
        self._port = free_ports(1)[0]
        self.address = f"host=127.0.0.1 port={self._port} user=test dbname=postgres"
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._make()
        self.start()

    def _make(self) -> None:
        self.program("initdb", "-A", "trust", "-U", "test", "--no-sync", "-E", "UTF8", "--locale", "C")

    def program(self, name: str, *words: str) -> None:
        """One of the server's own programs, on its folder."""
        made = subprocess.run(
            [self._programs / name, "-D", self.data, *words],
            cwd=self._folder, user=self._user, capture_output=True, text=True,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr

    @property
    def data(self) -> str:
        return str(self._folder / "data")

    def skip_transactions(self, next_id: int) -> None:
        """Restart with this id as the next one. All rows must be frozen."""
        self._process.send_signal(signal.SIGINT)  # a fast shutdown, with a checkpoint
        self._process.wait()
        self.program("pg_resetwal", "-x", str(next_id), "-u", str(next_id - 5))
        segment = Path(self.data, "pg_xact", f"{next_id // TRANSACTIONS_OF_SEGMENT:04X}")
        segment.write_bytes(bytes(TRANSACTIONS_OF_SEGMENT // 4))
        if self._user is not None:
            shutil.chown(segment, self._user, self._user)
        self.start()

    def start(self) -> None:
        """Returns when it takes connections."""
        arguments = [item for key, value in self._settings.items() for item in ("-c", f"{key}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, "-p", str(self._port), *arguments],
                cwd=self._folder, user=self._user, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        _wait_for(self._port, self._process, self._folder / "log")

    def kill(self) -> None:
        """kill -9 of all of its processes: the server recovers from its log."""
        children = _children(self._process.pid)
        self._process.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline_s
            time.sleep(POLL_S)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once, without a checkpoint
        self._process.wait()


class Standby(Server):
    """Follows a primary until it is promoted."""

    def __init__(self, folder: Path, settings: Mapping[str, str], primary: Server) -> None:
        self._primary = primary
        super().__init__(folder, settings)

    def _make(self) -> None:
        self.program("pg_basebackup", "-R", "--no-sync", "--checkpoint=fast", "-d", self._primary.address)

    def copy_slot(self, name: str) -> None:
        """As Patroni keeps logical slots for a failover: by their files, while this server is down."""
        copied = shutil.copytree(Path(self._primary.data, "pg_replslot", name), Path(self.data, "pg_replslot", name))
        for path in (copied, *copied.iterdir()):
            if self._user is not None:
                shutil.chown(path, self._user, self._user)


@contextmanager
def server(**settings: str) -> Iterator[Server]:
    """Start a server, and leave nothing behind."""
    with _left_clean(lambda folder: Server(folder, settings)) as started:
        yield started


@contextmanager
def standby(primary: Server, **settings: str) -> Iterator[Standby]:
    with _left_clean(lambda folder: Standby(folder, settings, primary)) as started:
        yield started


@contextmanager
def _left_clean(start: Callable[[Path], T]) -> Iterator[T]:
    folder = Path(tempfile.mkdtemp(prefix="barnabas-postgres-"))
    try:
        started = start(folder)
        try:
            yield started
        finally:
            started.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(**settings: str) -> Iterator[str]:
    """Start a server, give its connection string, and leave nothing behind."""
    with server(**settings) as started:
        yield started.address


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for(port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    import psycopg

    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        assert server.poll() is None, log.read_text()
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=test dbname=postgres").close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(POLL_S)
