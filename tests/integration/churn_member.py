"""A member of a group as a process of its own, and the journal in which it says what it does: it may be killed at any moment.

Times are monotonic seconds, which all processes of a machine share. A line is written by one `write` before the member goes on,
so what the group has committed stands in some journal, whoever was killed when.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from barnabas.log.vocabulary.topic_partition import TopicPartition
from barnabas.net.client.consumer.consumer import Consumer

# Processes are forked from one that has everything imported: an import costs a second of a core, a fork nothing.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["barnabas.net.client.consumer.consumer"])
POLLED, TAKEN, GIVEN_UP, LOST = "P", "T", "G", "L"  # lost: to the group that went on without us
POLL_MS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    bootstrap: str
    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    session_timeout_ms: int
    auto_commit_interval_ms: int = 500
    assignor: str = "uniform"  # moves as few partitions as it can


@dataclass(slots=True)
class Journal:
    """What one member did. `owned`: partition -> (from, until), until its death at most. `lost` are ends of which it only heard
    afterwards: it was silent for a session, as a loaded machine makes it, and others may have begun before that."""

    polled: dict[int, list[tuple[float, int, int]]] = field(default_factory=dict)  # time, first and last offset
    owned: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    given_up: list[tuple[float, int]] = field(default_factory=list)
    lost: list[tuple[float, int]] = field(default_factory=list)
    killed_s: float | None = None


class MemberProcess:
    def __init__(self, plan: MemberPlan, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self.killed_s: float | None = None
        self.process: BaseProcess = _CONTEXT.Process(target=_main, args=(plan, str(path)), daemon=True)
        self.process.start()

    def kill(self) -> float:
        """kill -9. Returns when it was."""
        self.process.kill()
        self.killed_s = time.monotonic()
        self.process.join()
        return self.killed_s

    def stop(self) -> None:
        """SIGTERM: it commits and leaves."""
        assert self.process.pid is not None
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGTERM)

    def journal(self) -> Journal:
        found = Journal(killed_s=self.killed_s)
        end_s = float("inf") if self.killed_s is None else self.killed_s
        for kind, time_s, partition, first, last in self._lines():
            if kind == POLLED:
                found.polled.setdefault(partition, []).append((time_s, first, last))
            elif kind == TAKEN:
                found.owned.setdefault(partition, []).append((time_s, end_s))
            else:
                begin_s, _ = found.owned[partition].pop()
                found.owned[partition].append((begin_s, time_s))
                (found.given_up if kind == GIVEN_UP else found.lost).append((time_s, partition))
        return found

    def _lines(self) -> Iterator[tuple[str, float, int, int, int]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="ascii").splitlines():
            kind, time_s, partition, first, last = line.split()
            yield kind, float(time_s), int(partition), int(first), int(last)


def _main(plan: MemberPlan, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind: str, partition: int, first: int = 0, last: int = 0) -> None:
        os.write(file, b"%s %.4f %d %d %d\n" % (kind.encode(), time.monotonic(), partition, first, last))

    asyncio.run(_read(plan, note))


async def _read(plan: MemberPlan, note: Callable[..., None]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def taken(partitions: list[TopicPartition]) -> None:
        for place in partitions:
            note(TAKEN, place.partition)

    def given_up(partitions: list[TopicPartition]) -> None:
        assert consumer._subscriber.session is not None
        for place in partitions:
            note(GIVEN_UP if place in consumer._subscriber.session.ownership.owned else LOST, place.partition)

    consumer = Consumer(
        *plan.topics,
        bootstrap=plan.bootstrap,
        group=plan.group,
        pattern=plan.pattern,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=plan.auto_commit_interval_ms,
        session_timeout_ms=plan.session_timeout_ms,
        assignor=plan.assignor,
        on_assigned=taken,
        on_revoked=given_up,
    )
    async with consumer:
        while not stop.is_set():
            for place, records in (await consumer.poll(timeout_ms=POLL_MS)).items():
                note(POLLED, place.partition, records[0].offset, records[-1].offset)
