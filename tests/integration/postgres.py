"""A PostgreSQL server of a test's own: Debian's programs, a folder under /tmp, a free port of loopback, an unprivileged user.

Where there are no programs (`apt-get install postgresql`), or nobody but root to run them, `find` says why.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0
POLL_S = 0.05
USER = "postgres"  # Debian's package makes it; PostgreSQL refuses to run as root


def find() -> tuple[Path | None, str]:
    """The folder of the newest installed version's programs, or None and the reason."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not versions:
        return None, "no PostgreSQL here: apt-get install postgresql"
    if os.getuid() == 0 and not any(entry.pw_name == USER for entry in pwd.getpwall()):
        return None, f"PostgreSQL does not run as root, and there is no user {USER}"
    return versions[-1].parent, ""


@contextmanager
def running() -> Iterator[str]:
    """Start a server, give its connection string, and leave nothing behind."""
    programs, reason = find()
    assert programs is not None, reason
    folder = Path(tempfile.mkdtemp(prefix="barnabas-postgres-"))
    user = USER if os.getuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    try:
        data = str(folder / "data")
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-A", "trust", "-U", "test", "--no-sync", "-E", "UTF8", "--locale", "C"],
            cwd=folder, user=user, capture_output=True, text=True,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        port = _free_port()
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "16MB"}
        arguments = [item for key, value in settings.items() for item in ("-c", f"{key}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(port), *arguments],
                cwd=folder, user=user, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            _wait_for(port, server, folder / "log")
            yield f"host=127.0.0.1 port={port} user=test dbname=postgres"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once, without a checkpoint
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
