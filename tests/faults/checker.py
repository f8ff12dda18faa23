"""The rules that a history must satisfy: those of Jepsen's Kafka tests, and further ones of Barnabas. Pure.

`check` returns every violation; a duplicate is allowed, and counted, only where acks=1 made the producer not idempotent. A
value is written once by one producer, so a value identifies its record. Records acknowledged with acks=1 have their own rules:
they may be lost when their leader dies, but the order and offsets that a consumer has seen must not change.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .history import (
    UNKNOWN_OFFSET,
    Commit,
    CommittedRead,
    EndOffset,
    Fault,
    FinalRead,
    History,
    Partition,
    Poll,
    ReplicaLog,
    Send,
    Stuck,
)

MAX_SHOWN = 5  # violations of one rule in a text: the first few tell, the history has the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    rule: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must have happened for a run to mean anything."""

    acknowledged: int = 1
    polled: int = 1
    fault_kinds: frozenset[str] = frozenset()


@dataclass(slots=True)
class Report:
    violations: list[Violation] = field(default_factory=list)
    acknowledged: int = 0  # acks=all
    acknowledged_by_leader: int = 0  # acks=1
    unknown: int = 0  # sends with an unknown outcome
    refused: int = 0  # sends that failed for certain
    lost: int = 0
    lost_acks_1: int = 0
    duplicates_acks_1: int = 0  # their producer is not idempotent: a repetition may store them twice
    polled: int = 0
    unavailable_s: dict[str, list[float]] = field(default_factory=dict)  # by kind of fault
    figures: dict[str, float] = field(default_factory=dict)  # by name, for the summary of a campaign

    def rules(self) -> set[str]:
        return {violation.rule for violation in self.violations}

    def text(self) -> str:
        by_rule = Counter(violation.rule for violation in self.violations)
        lines = []
        for rule, count in sorted(by_rule.items()):
            lines.append(f"{rule}: {count}")
            shown = [violation.detail for violation in self.violations if violation.rule == rule]
            lines.extend(
                f"    {detail}" for detail in (shown if rule == "stuck" else shown[:MAX_SHOWN])
            )  # few, each another
        return "\n".join(lines)


class Evidence:
    """The history sorted by what the rules ask for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends = history.of(Send)
        self.polls = history.of(Poll)
        self.commits = history.of(Commit)
        self.committed_reads = history.of(CommittedRead)
        self.ends = history.of(EndOffset)
        self.faults = sorted(history.of(Fault), key=lambda fault: fault.began_s)
        self.replicas = history.of(ReplicaLog)
        self.stuck = history.of(Stuck)
        self.final_reads: dict[str, dict[Partition, dict[int, str]]] = {}
        self.final_times_s: dict[tuple[str, Partition], float] = {}
        for read in history.of(FinalRead):
            self.final_reads.setdefault(read.name, {})[read.partition] = dict(read.records)
            self.final_times_s[read.name, read.partition] = read.at_s
        self.final = list(self.final_reads.values())[-1] if self.final_reads else {}
        self.acked = [send for send in self.sends if send.outcome == "ok" and send.acks == -1]
        self.placed = [send for send in self.acked if send.offset != UNKNOWN_OFFSET]

    def seen(self) -> Iterator[tuple[str, Partition, int, str]]:
        """Every record that a consumer saw: who, where, at which offset, what."""
        for poll in self.polls:
            for offset, value in poll.records:
                yield poll.process, poll.partition, offset, value
        for name, partitions in self.final_reads.items():
            for partition, records in partitions.items():
                for offset, value in records.items():
                    yield f"final read {name}", partition, offset, value


def check(history: History, expected: Expected | None = None) -> Report:
    evidence = Evidence(history)
    report = Report(
        acknowledged=len(evidence.acked),
        acknowledged_by_leader=sum(send.outcome == "ok" and send.acks == 1 for send in evidence.sends),
        unknown=sum(send.outcome == "info" for send in evidence.sends),
        refused=sum(send.outcome == "fail" for send in evidence.sends),
        polled=sum(len(poll.records) for poll in evidence.polls),
        unavailable_s=unavailability(evidence),
    )
    for rule, judge in RULES.items():
        report.violations.extend(Violation(rule=rule, detail=detail) for detail in judge(evidence))
    report.lost = sum(violation.rule == "lost" for violation in report.violations)
    report.lost_acks_1 = _lost_acks_1(evidence)
    report.duplicates_acks_1 = _duplicates_acks_1(evidence)
    report.violations.extend(_vacuous(evidence, report, expected or Expected()))
    return report


# --- what was written stays ------------------------------------------------------------------------------------------


def lost(evidence: Evidence) -> Iterator[str]:
    """Acknowledged with acks=all, and absent from a final read."""
    for name, partitions in evidence.final_reads.items():
        values = {partition: set(records.values()) for partition, records in partitions.items()}
        for send in evidence.acked:
            if send.value not in values.get(send.partition, ()):
                yield f"{send.value!r}, acknowledged at {at_offset(send.partition, send.offset)}, is not in final read {name}"


def _lost_acks_1(evidence: Evidence) -> int:
    values = {partition: set(records.values()) for partition, records in evidence.final.items()}
    sends = [send for send in evidence.sends if send.outcome == "ok" and send.acks == 1]
    return sum(send.value not in values.get(send.partition, ()) for send in sends)


def _duplicates_acks_1(evidence: Evidence) -> int:
    idempotent = _idempotent(evidence)
    found = ([value for value in records.values() if value not in idempotent] for records in evidence.final.values())
    return sum(len(values) - len(set(values)) for values in found)


def _idempotent(evidence: Evidence) -> set[str]:
    """Values whose producer was idempotent, as every producer with acks=all is."""
    return {send.value for send in evidence.sends if send.acks == -1}


def duplicate(evidence: Evidence) -> Iterator[str]:
    """Stored twice, though its producer was idempotent."""
    idempotent = _idempotent(evidence)
    for name, partitions in evidence.final_reads.items():
        for partition, records in partitions.items():
            for value, count in Counter(records.values()).items():
                if count > 1 and value in idempotent:
                    offsets = [offset for offset, found in records.items() if found == value]
                    yield f"{value!r} is at offsets {offsets} of {partition} in final read {name}"


def inconsistent_offsets(evidence: Evidence) -> Iterator[str]:
    """One offset, two values: of whatever was read or acknowledged by all."""
    values: dict[tuple[Partition, int], dict[str, str]] = defaultdict(dict)
    for send in evidence.placed:
        values[send.partition, send.offset].setdefault(send.value, f"acknowledged to {send.process}")
    for who, partition, offset, value in evidence.seen():
        values[partition, offset].setdefault(value, f"read by {who}")
    for (partition, offset), found in values.items():
        if len(found) > 1:
            yield f"{at_offset(partition, offset)} has {found}"


def offset_reuse(evidence: Evidence) -> Iterator[str]:
    """Two records were acknowledged at one offset."""
    first: dict[tuple[Partition, int], str] = {}
    for send in evidence.placed:
        other = first.setdefault((send.partition, send.offset), send.value)
        if other != send.value:
            yield f"{at_offset(send.partition, send.offset)} was acknowledged for {other!r} and for {send.value!r}"


def acked_offset_mismatch(evidence: Evidence) -> Iterator[str]:
    """The record is there, but not where its acknowledgement said."""
    for send in evidence.placed:
        records = evidence.final.get(send.partition, {})
        found = records.get(send.offset)
        if found != send.value and send.value in records.values():
            yield f"{send.value!r} was acknowledged at {at_offset(send.partition, send.offset)}, where {found!r} is now"


def vanished(evidence: Evidence) -> Iterator[str]:
    """A consumer saw it, and the last read does not."""
    told = set()
    for who, partition, offset, value in evidence.seen():
        if partition in evidence.final and evidence.final[partition].get(offset) != value:
            if (partition, offset, value) not in told:
                told.add((partition, offset, value))
                yield f"{who} saw {value!r} at {at_offset(partition, offset)}; now {evidence.final[partition].get(offset)!r}"


def hole(evidence: Evidence) -> Iterator[str]:
    """Nothing is compacted or deleted here, so offsets are dense from 0."""
    for name, partitions in evidence.final_reads.items():
        for partition, records in partitions.items():
            missing = sorted(set(range(max(records, default=-1) + 1)) - set(records))
            if missing:
                yield f"final read {name} of {partition[0]}-{partition[1]} has no {missing[:MAX_SHOWN]}"


def phantom(evidence: Evidence) -> Iterator[str]:
    """Read, but never sent to this partition; or sent, and told for certain that it was not written."""
    sent = {(send.partition, send.value): send for send in evidence.sends}
    told = set()
    for who, partition, offset, value in evidence.seen():
        send = sent.get((partition, value))
        if (send is None or send.outcome == "fail") and (partition, value) not in told:
            told.add((partition, value))
            why = "was never sent there" if send is None else f"had failed for certain: {send.error}"
            yield f"{who} read {value!r} at {at_offset(partition, offset)}, which {why}"


# --- order -----------------------------------------------------------------------------------------------------------


def reordered(evidence: Evidence) -> Iterator[str]:
    """Acknowledged before the other was sent, yet behind it."""
    for partition, sends in _by_partition(evidence.placed):
        ended = sorted(sends, key=lambda send: send.ended_s)
        highest: Send | None = None
        position = 0
        for send in sorted(sends, key=lambda send: send.began_s):
            while position < len(ended) and ended[position].ended_s < send.began_s:
                if highest is None or ended[position].offset > highest.offset:
                    highest = ended[position]
                position += 1
            if highest is not None and send.offset <= highest.offset:
                yield (
                    f"{send.value!r} is at {at_offset(partition, send.offset)}, though {highest.value!r} "
                    f"at {highest.offset} was acknowledged before it was sent"
                )


def producer_order(evidence: Evidence) -> Iterator[str]:
    """The acknowledged records of one producer lie in the order in which it sent them."""
    groups: dict[tuple[str, Partition], list[Send]] = defaultdict(list)
    for send in evidence.placed:
        groups[send.process, send.partition].append(send)
    for (process, partition), sends in groups.items():
        sends.sort(key=lambda send: send.sequence)
        for before, after in zip(sends, sends[1:], strict=False):
            if after.offset <= before.offset:
                yield (
                    f"{process} sent {before.value!r} before {after.value!r}; "
                    f"they lie at {at_offset(partition, before.offset)} and {after.offset}"
                )


def non_monotonic_poll(evidence: Evidence) -> Iterator[str]:
    """A consumer went back without being told to."""
    for poll, last, offset in _steps(evidence):
        if offset <= last:
            yield f"{poll.process} read {at_offset(poll.partition, offset)} after {last}"


def poll_skip(evidence: Evidence) -> Iterator[str]:
    """A consumer passed over records that the last read has."""
    for poll, last, offset in _steps(evidence):
        records = evidence.final.get(poll.partition, {})
        skipped = [number for number in range(last + 1, offset) if number in records]
        if skipped:
            yield f"{poll.process} went from {at_offset(poll.partition, last)} to {offset}: {len(skipped)} records passed over"


def _steps(evidence: Evidence) -> Iterator[tuple[Poll, int, int]]:
    """Every offset with the one before it in the same session of the same consumer."""
    last: dict[tuple[str, int, Partition], int] = {}
    for poll in evidence.polls:
        place = (poll.process, poll.session, poll.partition)
        for offset, _ in poll.records:
            if place in last:
                yield poll, last[place], offset
            last[place] = offset


def end_offset_regress(evidence: Evidence) -> Iterator[str]:
    """An end that a client has been told never goes back (KIP-207)."""
    ends = [(end.partition, end.began_s, end.ended_s, end.offset) for end in evidence.ends]
    for partition, before, after in regresses(ends):
        yield f"{partition[0]}-{partition[1]} ended at {before}, later at {after}"


# --- groups ----------------------------------------------------------------------------------------------------------


def commit_regress(evidence: Evidence) -> Iterator[str]:
    """What the group has committed never goes back: our members only ever commit more."""
    groups = {item.group for item in evidence.commits} | {item.group for item in evidence.committed_reads}
    for group in sorted(groups):
        points = [
            (item.partition, item.began_s, item.ended_s, item.offset)
            for item in evidence.commits
            if item.group == group and item.outcome == "ok"
        ]
        reads = [
            (item.partition, item.began_s, item.ended_s, item.offset)
            for item in evidence.committed_reads
            if item.group == group
        ]
        for partition, before, after in regresses(points + reads):
            yield f"group {group}: {at_offset(partition, before)} was committed, later {after}"


def commit_beyond_end(evidence: Evidence) -> Iterator[str]:
    for item in evidence.committed_reads:
        records = evidence.final.get(item.partition)
        if records is not None and item.offset > max(records, default=-1) + 1:
            yield f"group {item.group} committed {at_offset(item.partition, item.offset)}, behind the end"


def unseen(evidence: Evidence) -> Iterator[str]:
    """Acknowledged, and never delivered to a group that read everything that it was given."""
    for group in sorted({poll.group for poll in evidence.polls if poll.group}):
        seen: dict[Partition, set[str]] = defaultdict(set)
        for poll in evidence.polls:
            if poll.group == group:
                seen[poll.partition].update(value for _, value in poll.records)
        topics = {topic for topic, _ in seen}
        for send in evidence.acked:
            if send.partition[0] in topics and send.value not in seen[send.partition]:
                yield f"group {group} never got {send.value!r} at {at_offset(send.partition, send.offset)}"


def regresses(
    points: Iterable[tuple[Partition, float, float, int]],
) -> Iterator[tuple[Partition, int, int]]:
    """(partition, earlier value, later value) wherever a value is lower than one that was over before it began."""
    by_partition: dict[Partition, list[tuple[float, float, int]]] = defaultdict(list)
    for partition, began_s, ended_s, value in points:
        by_partition[partition].append((began_s, ended_s, value))
    for partition, items in by_partition.items():
        over = sorted(items, key=lambda item: item[1])
        highest, position = -1, 0
        for began_s, _, value in sorted(items):
            while position < len(over) and over[position][1] < began_s:
                highest = max(highest, over[position][2])
                position += 1
            if value < highest:
                yield partition, highest, value


# --- disks and progress ----------------------------------------------------------------------------------------------


def replica_divergence(evidence: Evidence) -> Iterator[str]:
    """All replicas hold the same bytes up to the high watermark, and at least what the last read showed."""
    by_partition: dict[Partition, list[ReplicaLog]] = defaultdict(list)
    for replica in evidence.replicas:
        by_partition[replica.partition].append(replica)
    for partition, replicas in by_partition.items():
        committed = max(
            max(replica.high_watermark for replica in replicas), max(evidence.final.get(partition, {}), default=-1) + 1
        )
        logs = {replica.node_id: [batch for batch in replica.batches if batch[0] < committed] for replica in replicas}
        reference_id, reference = max(logs.items(), key=lambda item: len(item[1]))
        for node_id, batches in logs.items():
            if batches != reference:
                at = next(
                    (ours[0] for ours, theirs in zip(batches, reference, strict=False) if ours != theirs),
                    batches[-1][1] if batches else 0,
                )
                yield (
                    f"{partition[0]}-{partition[1]} of broker {node_id} differs from broker {reference_id} "
                    f"from offset {at} on; committed up to {committed}"
                )


def stuck(evidence: Evidence) -> Iterator[str]:
    for item in evidence.stuck:
        yield item.what


def _vacuous(evidence: Evidence, report: Report, expected: Expected) -> Iterator[Violation]:
    missing = []
    if report.acknowledged < expected.acknowledged:
        missing.append(f"{report.acknowledged} of {expected.acknowledged} records acknowledged")
    if report.polled < expected.polled:
        missing.append(f"{report.polled} of {expected.polled} records polled")
    absent = expected.fault_kinds - {fault.kind for fault in evidence.faults}
    if absent:
        missing.append(f"these faults never happened: {', '.join(sorted(absent))}")
    if not evidence.final_reads:
        missing.append("nothing was read in the end")
    for text in missing:
        yield Violation(rule="vacuous", detail=text)


# --- unavailability --------------------------------------------------------------------------------------------------


def unavailability(evidence: Evidence) -> dict[str, list[float]]:
    """For each kind of fault, the longest time that each affected partition acknowledged nothing.

    A fault's time reaches to the next fault. Affected are the partitions that the target
    led, or all of them where it led none.
    """
    return silences(
        evidence.faults,
        {partition: sorted(send.ended_s for send in sends) for partition, sends in _by_partition(evidence.acked)},
    )


def silences(faults: Sequence[Fault], times: Mapping[Partition, list[float]]) -> dict[str, list[float]]:
    """`unavailability`, of anything that happens at times in partitions."""
    found: dict[str, list[float]] = defaultdict(list)
    for number, fault in enumerate(faults):
        later = faults[number + 1 :]
        until_s = later[0].began_s if later else float("inf")
        for partition in fault.affected or tuple(times):
            if partition in times:
                found[fault.kind].append(longest_gap_s(times[partition], fault.began_s, until_s))
    return dict(found)


def longest_gap_s(times_s: list[float], began_s: float, until_s: float) -> float:
    """The longest time without any of `times_s`, which are in order, from `began_s` to `until_s`."""
    longest_s, last_s = 0.0, began_s
    for position in range(bisect_right(times_s, began_s), len(times_s)):
        time_s = times_s[position]
        longest_s = max(longest_s, min(time_s, until_s) - last_s)
        last_s = time_s
        if time_s > until_s:
            break  # the rest of this silence is the next fault's
    return longest_s


def percentile(values: list[float], share: float) -> float:
    """The value below which this share lies; 0 where there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _by_partition(sends: Iterable[Send]) -> Iterable[tuple[Partition, list[Send]]]:
    found: dict[Partition, list[Send]] = defaultdict(list)
    for send in sends:
        found[send.partition].append(send)
    return found.items()


def at_offset(partition: Partition, offset: int) -> str:
    return f"{partition[0]}-{partition[1]}@{offset}"


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "lost": lost,
    "duplicate": duplicate,
    "inconsistent-offsets": inconsistent_offsets,
    "offset-reuse": offset_reuse,
    "acked-offset-mismatch": acked_offset_mismatch,
    "vanished": vanished,
    "hole": hole,
    "phantom": phantom,
    "reordered": reordered,
    "producer-order": producer_order,
    "non-monotonic-poll": non_monotonic_poll,
    "poll-skip": poll_skip,
    "end-offset-regress": end_offset_regress,
    "commit-regress": commit_regress,
    "commit-beyond-end": commit_beyond_end,
    "unseen": unseen,
    "replica-divergence": replica_divergence,
    "stuck": stuck,
}
