"""Members of one group are killed with -9, one after the other, each replaced at once: what does the group feel of it?

`scripts/groups` runs it as long and as large as it is told, `test_group_churn` in a trimmed form. Three real brokers, one
process per member, a producer that keeps every partition busy. Reported are

- records that were acknowledged and that no member was handed out (must be none), and how many were handed out twice;
- the time from a kill until every partition of the victim is read again (most of it is the session time-out: a connection
  that breaks is no proof of a death, so nobody is put out before it);
- for partitions that stayed with their member through a kill: the longest gap between two of its polls around it, beside the
  same figure for as long a time before the first kill. And how many partitions a living member had to give up per kill.
"""

import argparse
import asyncio
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from integration.churn_member import Journal, MemberPlan, MemberProcess
from integration.cluster import SESSION, Cluster, until
from integration.gaps import percentiles

from barnabas.log.vocabulary.errors import BarnabasError
from barnabas.net.client.producer.producer import Producer

TOPIC, GROUP = "work", "workers"
OVERRIDES = {**SESSION, "group.consumer.heartbeat.interval.ms": "300"}
TICK_S = 0.2  # a record for every partition so often
SETTLE_LIMIT_S = 120.0  # to begin, and to come to an end: a loaded machine needs time to start processes
MOST_TOLD = 12  # of partitions that two members had
AROUND_S = 6.0  # after a kill: a session, a rebalance, and a margin


@dataclass(slots=True)
class Kill:
    at_s: float
    partitions: tuple[int, ...]  # that the victim read
    back_after_s: float | None = None  # until the last of them was read by somebody
    moved: int = 0  # partitions that living members gave up before the next kill
    longest_gap_s: float = 0.0  # of a partition that stayed where it was


@dataclass(slots=True)
class Report:
    partitions: int
    acknowledged: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    twice: int = 0
    kills: list[Kill] = field(default_factory=list)
    calm_gap_s: float = 0.0
    adoptions_together: list[str] = field(default_factory=list)  # partitions that two members had at the same time
    put_out: int = 0  # partitions of members that lived, and were silent for a session
    session_timeout_ms: int = 0

    def __str__(self) -> str:
        back = [1000 * kill.back_after_s for kill in self.kills if kill.back_after_s is not None]
        gaps = [1000 * kill.longest_gap_s for kill in self.kills]
        moved = sorted(kill.moved for kill in self.kills)
        return "\n".join(
            [
                f"{self.acknowledged} records acknowledged, {len(self.missing)} of them never handed out, "
                f"{self.twice} handed out more than once",
                f"{len(self.kills)} kills -9; until every partition is read again: {percentiles(back)} "
                f"(session time-out {self.session_timeout_ms} ms)",
                f"partitions that stayed: longest gap around a kill {percentiles(gaps)}; before the first kill "
                f"{1000 * self.calm_gap_s:.0f} ms",
                f"partitions that living members gave up per kill: median {moved[len(moved) // 2]}, most {moved[-1]} of "
                f"{self.partitions}",
                f"partitions that two members rightly had at once: {len(self.adoptions_together)}; that members lost who lived "
                f"and were silent for a session: {self.put_out}",
                *self.adoptions_together[:MOST_TOLD],
            ]
        )


class Churn:
    def __init__(
        self, cluster: Cluster, folder: Path, *, members: int, partitions: int, session_ms: int, rng: random.Random
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.rng = rng
        self.partitions = partitions
        self.report = Report(partitions=partitions, session_timeout_ms=session_ms)
        self.plan = MemberPlan(bootstrap=cluster.bootstrap, group=GROUP, topics=(TOPIC,), session_timeout_ms=session_ms)
        self.members: list[MemberProcess] = []
        self.alive: list[MemberProcess] = []
        self.acknowledged: list[set[int]] = [set() for _ in range(partitions)]
        self._wanted = members
        self._stop = asyncio.Event()

    async def run(self, *, seconds: float, every_s: float) -> Report:
        async with self.cluster.admin() as admin:
            await admin.create_topic(TOPIC, partitions=self.partitions, replication_factor=3)
        producer = asyncio.create_task(self._produce())
        for _ in range(self._wanted):
            self._start_member()
        try:
            await until(self._all_read, "every member reads, every partition is read", timeout_s=SETTLE_LIMIT_S)
            calm_from_s = time.monotonic()
            await asyncio.sleep(AROUND_S)  # the time that is measured, not one that is waited out
            calm_until_s = time.monotonic()
            await self._kill_for(seconds, every_s)
            self._stop.set()
            await producer
            await until(self._has_read_everything, "every acknowledged record is read", timeout_s=SETTLE_LIMIT_S)
        finally:
            producer.cancel()
            for member in self.alive:
                member.stop()
            for member in self.alive:
                await asyncio.to_thread(member.process.join, SETTLE_LIMIT_S)
                member.process.kill()
        self._analyse(calm_from_s, calm_until_s)
        return self.report

    def _start_member(self) -> None:
        member = MemberProcess(self.plan, self.folder / f"member-{len(self.members)}.txt")
        self.members.append(member)
        self.alive.append(member)

    async def _kill_for(self, seconds: float, every_s: float) -> None:
        """The next one dies when its time has come, however far the group has got with the last one."""
        began_s = time.monotonic()
        number = 0
        while time.monotonic() - began_s < seconds:
            victim = self.rng.choice(self.alive)
            self.alive.remove(victim)
            held = tuple(
                partition for partition, spans in victim.journal().owned.items() if spans[-1][1] == float("inf")
            )
            self.report.kills.append(Kill(at_s=victim.kill(), partitions=held))
            self._start_member()
            number += 1
            await asyncio.sleep(max(0.0, began_s + number * every_s - time.monotonic()))
        await asyncio.sleep(AROUND_S)  # what the last one did is measured, too, while there is something to read

    async def _produce(self) -> None:
        async with Producer(self.cluster.bootstrap, acks="all", on_error=lambda *_: None) as producer:
            while not self._stop.is_set():
                began_s = time.monotonic()
                handles = [
                    await producer.send(TOPIC, b"tick", partition=partition) for partition in range(self.partitions)
                ]
                for partition, handle in enumerate(handles):
                    try:
                        self.acknowledged[partition].add((await handle).offset)
                    except BarnabasError:
                        pass  # not acknowledged: it may be there or not
                await asyncio.sleep(max(0.0, began_s + TICK_S - time.monotonic()))

    # --- looking ------------------------------------------------------------------------------------------------------

    def _all_read(self) -> bool:
        journals = [member.journal() for member in self.alive]
        read = {partition for journal in journals for partition in journal.polled}
        return len(read) == self.partitions and all(journal.owned for journal in journals)

    def _read(self) -> list[dict[int, int]]:
        """Of every partition: how often each record was handed out."""
        found: list[dict[int, int]] = [{} for _ in range(self.partitions)]
        for member in self.members:
            for partition, polls in member.journal().polled.items():
                for _, first, last in polls:
                    for offset in range(first, last + 1):
                        found[partition][offset] = found[partition].get(offset, 0) + 1
        return found

    def _has_read_everything(self) -> bool:
        return not self._missing(self._read())

    def _missing(self, read: list[dict[int, int]]) -> list[tuple[int, int]]:
        return [
            (partition, offset)
            for partition, offsets in enumerate(self.acknowledged)
            for offset in sorted(offsets - read[partition].keys())
        ]

    def _analyse(self, calm_from_s: float, calm_until_s: float) -> None:
        report, read = self.report, self._read()
        report.acknowledged = sum(map(len, self.acknowledged))
        report.missing = self._missing(read)
        report.twice = sum(count > 1 for counts in read for count in counts.values())
        journals = {member.name: member.journal() for member in self.members}
        report.calm_gap_s = _longest_gap_s(journals, calm_from_s, calm_until_s)
        starts = [kill.at_s for kill in report.kills]
        for kill, next_s in zip(report.kills, [*starts[1:], starts[-1] + AROUND_S], strict=True):
            kill.back_after_s = _back_after_s(journals, kill)
            kill.moved = sum(kill.at_s < at_s <= next_s for it in journals.values() for at_s, _ in it.given_up)
            kill.longest_gap_s = _longest_gap_s(journals, kill.at_s, kill.at_s + AROUND_S)
        report.adoptions_together = _together(journals)
        report.put_out = sum(len(journal.lost) for journal in journals.values())


def _back_after_s(journals: dict[str, Journal], kill: Kill) -> float | None:
    """Until somebody has read from each of the victim's partitions; None: it had none."""
    firsts = [
        min(
            (at_s for it in journals.values() for at_s, _, _ in it.polled.get(partition, ()) if at_s > kill.at_s),
            default=float("inf"),
        )
        for partition in kill.partitions
    ]
    return max(firsts) - kill.at_s if firsts else None


def _longest_gap_s(journals: dict[str, Journal], from_s: float, until_s: float) -> float:
    """Between two polls of a partition by the one member that had it all that time."""
    longest_s = 0.0
    for journal in journals.values():
        for partition, spans in journal.owned.items():
            if any(begin_s <= from_s and until_s <= end_s for begin_s, end_s in spans):
                times = [
                    from_s,
                    *(at_s for at_s, _, _ in journal.polled.get(partition, ()) if from_s < at_s < until_s),
                    until_s,
                ]
                longest_s = max(longest_s, *(b - a for a, b in zip(times, times[1:], strict=False)))
    return longest_s


def _together(journals: dict[str, Journal]) -> list[str]:
    """Who was put out while it lived reads on until it hears of it (its commits are refused): that is not counted."""
    spans: dict[int, list[tuple[float, float, str]]] = {}
    for name, journal in journals.items():
        for partition, own in journal.owned.items():
            kept = [span for span in own if (span[1], partition) not in journal.lost]
            spans.setdefault(partition, []).extend((begin_s, end_s, name) for begin_s, end_s in kept)
    found = []
    for partition, own_spans in spans.items():
        own_spans.sort()
        for (_, end_s, one), (begin_s, _, other) in zip(own_spans, own_spans[1:], strict=False):
            if begin_s < end_s:
                end = "killed" if journals[one].killed_s == end_s else "gave it up"
                found.append(
                    f"partition {partition}: {one} had it until it {'was ' * (end == 'killed')}{end}, "
                    f"{other} {1000 * (end_s - begin_s):.0f} ms before that"
                )
    return found


async def churn(
    folder: Path, *, members: int, partitions: int, seconds: float, every_s: float, session_ms: int, seed: int
) -> Report:
    with Cluster(folder / "cluster", 3, overrides=OVERRIDES) as cluster:
        await cluster.ready()
        (folder / "journals").mkdir()
        run = Churn(
            cluster,
            folder / "journals",
            members=members,
            partitions=partitions,
            session_ms=session_ms,
            rng=random.Random(seed),
        )
        return await run.run(seconds=seconds, every_s=every_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/groups", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--session-ms", type=int, default=1_500, help="session time-out of the members")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="barnabas-groups-"))
    try:
        report = asyncio.run(
            churn(
                folder,
                members=options.members,
                partitions=options.partitions,
                seconds=options.seconds,
                every_s=options.every,
                session_ms=options.session_ms,
                seed=options.seed,
            )
        )
    finally:
        shutil.rmtree(folder)
    print(report)
    return 1 if report.missing or report.adoptions_together else 0


if __name__ == "__main__":
    raise SystemExit(main())
