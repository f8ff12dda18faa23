"""The client processes of the transactional load: started, killed, frozen, replaced, and started again when they end."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from ..history import Event
from .journal import last_begun, last_error, last_of, read_journal
from .layout import Orders, Role

TESTS: Final = Path(__file__).parent.parent.parent
RESTART_S: Final = 1.0  # between two processes of a client that ends by itself


class Client:
    """One place in the load: at any time at most one process that counts, and zombies, which it has been replaced for."""

    def __init__(self, folder: Path, role: Role, slot: int, bootstrap: str, rng: Random, pace_s: float) -> None:
        self.role = role
        self.slot = slot
        self.errors: Counter[str] = Counter()
        self.zombies: list[subprocess.Popen[bytes]] = []
        self.is_stopping = False
        self._folder = folder
        self._bootstrap = bootstrap
        self._rng = rng
        self._pace_s = pace_s
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._begun = ""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.slot}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        orders = Orders(
            role=self.role,
            slot=self.slot,
            process=f"{self.name}.{self._count}",
            bootstrap=self._bootstrap,
            journal=str(self._folder / f"{self.name}.{self._count}.jsonl"),
            seed=self._rng.getrandbits(32),
            pace_s=self._pace_s,
        )
        self._count += 1
        self._started_s = time.monotonic()
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faults.transactions.client", json.dumps(dataclasses.asdict(orders))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            )

    def keep_running(self) -> None:
        """Another process takes the place of one that has ended, and zombies that have ended are forgotten."""
        self.zombies = [zombie for zombie in self.zombies if zombie.poll() is None]
        if self._process is None or self.is_running or time.monotonic() < self._started_s + RESTART_S:
            return
        if not self.is_stopping:
            self._count_error()
            self.start()

    def _count_error(self) -> None:
        """Of the process that has just ended."""
        error = last_error(self._folder / f"{self.name}.{self._count - 1}.jsonl")
        code = None if self._process is None else self._process.returncode
        kind = re.sub(r"\d+", "N", error)[:100] or f"exit code {code}"
        self.errors[kind] += 1

    def signal(self, number: signal.Signals) -> None:
        if self.is_running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def replace_frozen(self) -> subprocess.Popen[bytes] | None:
        """Freeze the process and start another with the same transactional id. Returns the frozen one."""
        if not self.is_running or self._process is None:
            return None
        self.signal(signal.SIGSTOP)
        zombie = self._process
        self.zombies.append(zombie)
        self.start()
        return zombie

    def stop(self) -> None:
        """Let the process end its transaction, and start no other."""
        self.is_stopping = True
        self.signal(signal.SIGTERM)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun, after a poll before, that nobody has asked to commit or abort."""
        path = self._folder / f"{self.name}.{self._count - 1}.jsonl"
        before, self._begun = self._begun, last_begun(path) if self.is_running and path.exists() else ""
        return bool(before) and before == self._begun

    def standing(self) -> str:
        """What the process has told of itself last."""
        path = self._folder / f"{self.name}.{self._count - 1}.jsonl"
        told = [f"{kind} {item}" for kind in ("begin", "end", "standing") if (item := _short(last_of(kind, path)))]
        state = "runs" if self.is_running else "has ended"
        return f"{path.stem}, {time.monotonic() - self._started_s:.0f} s old, {state}: {'; '.join(told)}"

    def end(self) -> None:
        self.is_stopping = True
        for process in (*self.zombies, *([] if self._process is None else [self._process])):
            process.kill()
            process.wait()

    def events(self) -> Iterator[Event]:
        for number in range(self._count):
            path = self._folder / f"{self.name}.{number}.jsonl"
            if path.exists():
                yield from read_journal(path)


def _short(line: dict[str, Any]) -> str:
    """Without the records of a transaction; with its age."""
    told = {name: value for name, value in line.items() if name not in ("kind", "at_s", "records", "process")}
    return f"{time.monotonic() - line['at_s']:.0f} s ago {told}" if line else ""
