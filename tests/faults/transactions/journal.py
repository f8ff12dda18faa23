"""What a client process writes down while it lives: it may be killed at any moment, and what it wrote stays."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from ..history import NEVER_S, Event, Poll, Transaction
from .values import values_of

Place = tuple[str, int, str]  # topic, partition, payload

TAIL_BYTES: Final = 8_192  # of a journal: more than its longest line


class Journal:
    """Each line is one write to the file, so that only the last one can be cut."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def close(self) -> None:
        os.close(self._handle)

    def note(self, kind: str, **values: Any) -> None:
        line = json.dumps({"kind": kind, "at_s": time.monotonic(), **values}, separators=(",", ":"))
        os.write(self._handle, f"{line}\n".encode())


class Transactions:
    """Names the transactions of one process, and notes what becomes of each."""

    def __init__(self, journal: Journal, rng: Random, *, process: str, transactional_id: str, aborts: float) -> None:
        self._journal = journal
        self._rng = rng
        self._process = process
        self._transactional_id = transactional_id
        self._aborts = aborts
        self._count = 0
        self._name = ""

    def begin(self, places: Iterable[Place]) -> tuple[bool, list[tuple[str, int, bytes]]]:
        """Whether the next transaction is meant to be committed, and its records."""
        is_meant = self._rng.random() >= self._aborts
        self._name = f"{self._process}-{self._count}"
        self._count += 1
        known = list(places)
        values = values_of(self._name, [payload for _, _, payload in known], is_meant=is_meant)
        records = [(topic, number, value) for (topic, number, _), value in zip(known, values, strict=True)]
        self._journal.note(
            "begin", name=self._name, process=self._process, transactional_id=self._transactional_id, records=records
        )
        return is_meant, [(topic, number, value.encode()) for topic, number, value in records]

    def commits(self) -> None:
        """The commit is asked for now."""
        self._journal.note("commit", name=self._name)

    def ended(self, outcome: Literal["committed", "aborted"], error: str = "") -> None:
        self._journal.note("end", name=self._name, outcome=outcome, error=error)


def read_journal(path: Path) -> Iterator[Event]:
    """The transactions and the polls of one process."""
    begun: dict[str, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # its process was killed
        item = json.loads(line)
        match item.pop("kind"):
            case "begin":
                begun[item["name"]] = {**item, "began_s": item["at_s"]}
            case "commit":
                begun[item["name"]]["commit_s"] = item["at_s"]
            case "end":
                begun[item["name"]] |= {
                    "ended_s": item["at_s"],
                    "outcome": item["outcome"],
                    "error": item["error"],
                }
            case "poll":
                yield Poll(
                    process=item["process"],
                    group="",
                    session=item["session"],
                    partition=(item["partition"][0], item["partition"][1]),
                    at_s=item["at_s"],
                    records=tuple((offset, value) for offset, value in item["records"]),
                )
    for found in begun.values():
        yield Transaction(
            process=found["process"],
            transactional_id=found["transactional_id"],
            name=found["name"],
            records=tuple((topic, number, value) for topic, number, value in found["records"]),
            began_s=found["began_s"],
            commit_s=found.get("commit_s", NEVER_S),
            ended_s=found.get("ended_s", NEVER_S),
            outcome=found.get("outcome", "unknown"),
            error=found.get("error", ""),
        )


def last_error(path: Path) -> str:
    """Why the process ended by itself; "": it did not say."""
    return str(last_of("error", path).get("error", ""))


def last_of(kind: str, path: Path) -> dict[str, Any]:
    """The last whole line of this kind; {} without one."""
    start = f'{{"kind":"{kind}"'.encode()
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.startswith(start) and line.endswith(b"\n")]
    return dict(json.loads(whole[-1])) if whole else {}


def last_begun(path: Path) -> str:
    """The transaction that the end of the journal is about, if it has begun and nobody has asked to end it; else ""."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        *_, last = [b"", *file.read().splitlines(keepends=True)]
    if not (last.startswith(b'{"kind":"begin"') and last.endswith(b"\n")):
        return ""
    return str(json.loads(last)["name"])
