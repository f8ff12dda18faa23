"""The sketches of the hot path study, run as their own scripts run them: no index, no quorum, no metadata, no limits."""

import contextlib
import importlib.util
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measure import Metrics, Skipped, child, process

from barnabas.net.base.local.ports import free_ports

NEEDED = ("uvloop", "msgspec")
SETTLE_S = 0.4  # until the followers of proto_repl are connected


class Sketches:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self) -> None:
        """Raises Skipped."""
        if not (self._folder / "proto_sdk.py").exists():
            raise Skipped(f"no sketches in {self._folder}")
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise Skipped(f"pip install {' '.join(missing)}")

    def produce(self, count: int, size: int, api: str) -> Metrics:
        with self._broker() as port:
            return self._sdk(port, "produce", "--api", api, "--n", count, "--msg", size)

    def consume(self, count: int, api: str) -> Metrics:
        with self._broker() as port:
            self._sdk(port, "produce", "--api", "many", "--n", count)
            return self._sdk(port, "consume", "--api", api, "--n", count, "--defgc", "--pause")

    def end_to_end(self, count: int) -> Metrics:
        with self._broker() as port:
            return self._sdk(port, "latency", "--n", count, "--noloop")

    def replicated(self, *, acks: str, size: int, depth: int, seconds: float, partitions: int = 1) -> Metrics:
        """One Python client that encodes whole batches of 100-byte records, against three brokers."""
        self.check()
        folder = Path(tempfile.mkdtemp(prefix="barnabas-sketch-"))
        ports = free_ports(3)
        listed = ",".join(map(str, ports))
        script = self._folder / "proto_repl.py"
        try:
            with contextlib.ExitStack() as running:
                for number in range(3):
                    (folder / str(number)).mkdir()
                    options = ("--id", number, "--ports", listed, "--dir", folder / str(number), "--parts", partitions)
                    running.enter_context(process(sys.executable, script, "broker", *options, cwd=self._folder))
                for port in ports:
                    wait_for(port)
                time.sleep(SETTLE_S)
                options = ("--ports", listed, "--acks", acks, "--bytes", size, "--depth", depth, "--seconds", seconds)
                limit = ("--max", int(1e9 / size), "--parts", partitions)
                encode = ("--encode",) if size > 1000 else ()
                return _named(child(script, "client", *options, *limit, *encode, cwd=self._folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _broker(self) -> Iterator[int]:
        self.check()
        folder = Path(tempfile.mkdtemp(prefix="barnabas-sketch-"))
        port = free_ports(1)[0]
        options = ("--loop", "uv-buf", "--append", "write", "--fetch", "sendfile", "--port", port, "--dir", folder)
        try:
            with process(sys.executable, self._folder / "proto_broker.py", *options, cwd=self._folder):
                wait_for(port)
                yield port
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sdk(self, port: int, role: str, *arguments: object) -> Metrics:
        return _named(child(self._folder / "proto_sdk.py", role, "--port", port, *arguments, cwd=self._folder))


def _named(metrics: Metrics) -> Metrics:
    names = {"msg_s": "msg/s", "MBps": "MB/s", "p50_us": "p50_us", "p99_us": "p99_us"}
    return {names[key]: value for key, value in metrics.items() if key in names}


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"nothing listens on port {port}")
