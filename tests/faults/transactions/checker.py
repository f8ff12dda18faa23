"""The rules that a history of transactions must satisfy. Pure.

The last final read says what was committed: every reader, while it read, must have seen that and nothing else, and it must agree
with what the producers were told. Records of CUT are deleted all the time, so only what is seen of them is judged.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from ..checker import (
    Evidence,
    Report,
    Violation,
    at_offset,
    inconsistent_offsets,
    non_monotonic_poll,
    poll_skip,
    regresses,
    replica_divergence,
    silences,
    stuck,
    vanished,
)
from ..history import (
    NEVER_S,
    CommittedRead,
    Event,
    FinalRead,
    History,
    OpenTransaction,
    Partition,
    Poll,
    ReplicaLog,
    StableOffset,
    Transaction,
)
from .layout import BANKS, COPIES, CUT, MIDDLE, SINK, SOURCE, STAGES
from .values import Value, origin, parsed

KEPT: Final = frozenset({MIDDLE, SINK, COPIES, *BANKS})  # topics of transactions whose records are never deleted
LEAST_COMMITTED: Final = 50
LEAST_ABORTED: Final = 10


class Seen:
    """A transactional record that a reader of committed records got."""

    __slots__ = ("at_s", "offset", "partition", "value", "who")

    def __init__(self, who: str, partition: Partition, offset: int, value: Value, at_s: float) -> None:
        self.who = who
        self.partition = partition
        self.offset = offset
        self.value = value
        self.at_s = at_s

    def __str__(self) -> str:
        return f"{self.who} read {self.value.text()!r} at {at_offset(self.partition, self.offset)}"


class TransactionEvidence:
    """The history sorted by what the rules ask for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.transactions = {item.name: item for item in history.of(Transaction)}
        self.plain = Evidence(History(events=[item for item in history.events if not _is_cut(item)]))
        self.committed: dict[Partition, dict[int, str]] = self.plain.final  # the values of the last final read
        self.visible: dict[str, set[int]] = {}  # transaction -> which of its records are committed
        for records in self.committed.values():
            for text in records.values():
                if (value := parsed(text)) is not None:
                    self.visible.setdefault(value.transaction, set()).add(value.number)

    def seen(self) -> Iterator[Seen]:
        for poll in self.history.of(Poll):
            for offset, text in poll.records:
                if (value := parsed(text)) is not None:
                    yield Seen(poll.process, poll.partition, offset, value, poll.at_s)
        for read in self.history.of(FinalRead):
            for offset, text in read.records:
                if (value := parsed(text)) is not None:
                    yield Seen(f"final read {read.name}", read.partition, offset, value, read.at_s)

    def kept(self, transaction: Transaction) -> set[int]:
        return {index for index, (topic, _, _) in enumerate(transaction.records) if topic in KEPT}


def _is_cut(event: Event) -> bool:
    """What differs from reading to reading, and from replica to replica until each has deleted the same."""
    return isinstance(event, Poll | FinalRead | ReplicaLog) and event.partition[0] == CUT


def judge(history: History, fault_kinds: frozenset[str] = frozenset(), *, is_short: bool = False) -> Report:
    evidence = TransactionEvidence(history)
    report = Report()
    for rule, find in RULES.items():
        report.violations.extend(Violation(rule=rule, detail=detail) for detail in find(evidence))
    report.violations.extend(
        Violation(rule="vacuous", detail=detail) for detail in _vacuous(evidence, fault_kinds, is_short=is_short)
    )
    report.figures = _figures(evidence)
    report.unavailable_s = silences(evidence.plain.faults, _progress(evidence))
    return report


# --- what is read ----------------------------------------------------------------------------------------------------


def aborted_read(evidence: TransactionEvidence) -> Iterator[str]:
    """A reader of committed records got one that is not committed, or was not at that time."""
    told = set()
    for seen in evidence.seen():
        transaction = evidence.transactions.get(seen.value.transaction)
        if (why := _why_unreadable(transaction, seen)) and (seen.partition, seen.offset, why) not in told:
            told.add((seen.partition, seen.offset, why))
            yield f"{seen}, {why}"


def _why_unreadable(transaction: Transaction | None, seen: Seen) -> str:
    if transaction is None:
        return "of a transaction that never began"
    if transaction.outcome == "aborted":
        return f"of a transaction that was aborted: {transaction.error or 'on purpose'}"
    if transaction.commit_s == NEVER_S:
        return "of a transaction whose commit was never asked for"
    return "before its commit was asked for" if seen.at_s < transaction.commit_s else ""


def lost(evidence: TransactionEvidence) -> Iterator[str]:
    """The commit was acknowledged, and not every record is there."""
    for name, transaction in evidence.transactions.items():
        missing = evidence.kept(transaction) - evidence.visible.get(name, set())
        if transaction.outcome == "committed" and missing:
            places = [transaction.records[index] for index in sorted(missing)]
            yield f"{name} was committed, and these of its {len(transaction.records)} records are missing: {places}"


def partial(evidence: TransactionEvidence) -> Iterator[str]:
    """Some records of a transaction are committed and others are not, whatever its producer was told."""
    for name, indexes in evidence.visible.items():
        transaction = evidence.transactions.get(name)
        if transaction is not None and (missing := evidence.kept(transaction) - indexes):
            yield (
                f"{name} ({transaction.outcome}) is committed with records {sorted(indexes)} and without "
                f"{[transaction.records[index][:2] for index in sorted(missing)]}"
            )


def duplicate(evidence: TransactionEvidence) -> Iterator[str]:
    for partition, records in evidence.committed.items():
        for text, count in Counter(records.values()).items():
            if count > 1:
                yield f"{text!r} is at {[offset for offset, found in records.items() if found == text]} of {partition}"


def reordered(evidence: TransactionEvidence) -> Iterator[str]:
    """The records of one process lie in the order of its transactions, and of its sending."""
    for partition, records in evidence.committed.items():
        last: dict[str, tuple[int, int]] = {}
        for offset in sorted(records):
            if (value := parsed(records[offset])) is None:
                continue
            process, _, number = value.transaction.rpartition("-")
            place = (int(number), value.number)
            if process in last and place < last[process]:
                yield f"{value.text()!r} at {at_offset(partition, offset)} is behind {last[process]} of the same process"
            last[process] = place


def unbalanced(evidence: TransactionEvidence) -> Iterator[str]:
    """At every snapshot of the last stable offsets the sum of all accounts is 0, once the transactions that are not wholly
    below it are left out."""
    accounts = {
        partition: sorted(records.items()) for partition, records in evidence.committed.items() if partition[0] in BANKS
    }
    positions = dict.fromkeys(accounts, 0)
    sums: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    total, told = 0, set()
    for snapshot in _snapshots(evidence):
        for partition, end in snapshot.items():
            records = accounts.get(partition, [])
            position = positions.get(partition, 0)
            while position < len(records) and records[position][0] < end:
                value = parsed(records[position][1])
                assert value is not None
                sums[value.transaction] += int(value.payload)
                total += int(value.payload)
                counts[value.transaction] += 1
                if counts[value.transaction] == _of_accounts(evidence, value):
                    if sums[value.transaction]:
                        told.add(value.transaction)
                        yield f"the records of {value.transaction} sum up to {sums[value.transaction]}, not to 0"
                    del counts[value.transaction]
                    total -= sums.pop(value.transaction)
                position += 1
            positions[partition] = position
        if total != sum(sums.values()):
            yield f"the sum of all accounts is {total - sum(sums.values())} at {snapshot}"
            return


def _of_accounts(evidence: TransactionEvidence, value: Value) -> int:
    transaction = evidence.transactions.get(value.transaction)
    return value.size if transaction is None else sum(topic in BANKS for topic, _, _ in transaction.records)


def _snapshots(evidence: TransactionEvidence) -> Iterator[dict[Partition, int]]:
    by_time: dict[float, dict[Partition, int]] = defaultdict(dict)
    for item in evidence.history.of(StableOffset):
        by_time[item.began_s][item.partition] = item.last_stable_offset
    for time_s in sorted(by_time):
        yield by_time[time_s]


def readers_differ(evidence: TransactionEvidence) -> Iterator[str]:
    """All final reads, by whatever client, have the same records."""
    for name, partitions in evidence.plain.final_reads.items():
        for partition, records in partitions.items():
            if partition in evidence.committed and records != evidence.committed[partition]:
                different = sorted(set(records.items()) ^ set(evidence.committed[partition].items()))
                yield f"final read {name} of {partition} differs from the last one: {different[:3]}"


# --- the chain -------------------------------------------------------------------------------------------------------


def outputs(evidence: TransactionEvidence) -> Iterator[str]:
    """Every input has exactly one output."""
    for source, target, _ in STAGES:
        found: dict[str, list[str]] = defaultdict(list)
        for partition, records in _of_topic(evidence, target):
            for offset, text in records.items():
                if (value := parsed(text)) is not None:
                    found[value.payload].append(f"{at_offset(partition, offset)} by {value.transaction}")
        for partition, records in _of_topic(evidence, source):
            for offset in records:
                places = found.pop(origin(partition, offset), [])
                if len(places) != 1:
                    yield f"{at_offset(partition, offset)} has {len(places)} outputs in {target}: {places}"
        for payload, places in found.items():
            yield f"{places} in {target} is of {payload}, which is no committed record"


def offsets(evidence: TransactionEvidence) -> Iterator[str]:
    """What the groups have committed is behind their last input, and not behind the end."""
    ends = {item.partition: item.high_watermark for item in evidence.history.of(StableOffset)}
    for item in evidence.history.of(CommittedRead):
        inputs = evidence.committed.get(item.partition, {})
        if max(item.offset, 0) < max(inputs, default=-1) + 1:
            yield f"{item.group} has committed {at_offset(item.partition, item.offset)}, its last input is {max(inputs)}"
        if item.offset > ends.get(item.partition, item.offset):
            yield f"{item.group} has committed {at_offset(item.partition, item.offset)}, behind the end"


def _of_topic(evidence: TransactionEvidence, topic: str) -> Iterator[tuple[Partition, dict[int, str]]]:
    return ((partition, records) for partition, records in evidence.committed.items() if partition[0] == topic)


# --- ends ------------------------------------------------------------------------------------------------------------


def hanging(evidence: TransactionEvidence) -> Iterator[str]:
    for item in evidence.history.of(OpenTransaction):
        yield item.what


def stable_offset_regress(evidence: TransactionEvidence) -> Iterator[str]:
    """The end of what is decided never goes back, and never is behind the high watermark."""
    found = evidence.history.of(StableOffset)
    points = [(item.partition, item.began_s, item.ended_s, item.last_stable_offset) for item in found]
    for partition, before, after in regresses(points):
        yield f"{partition[0]}-{partition[1]} was decided up to {before}, later up to {after}"
    for item in found:
        if item.last_stable_offset > item.high_watermark:  # which was asked for later
            yield f"{item.partition} is decided up to {item.last_stable_offset}, behind its end {item.high_watermark}"


def _vacuous(evidence: TransactionEvidence, fault_kinds: frozenset[str], *, is_short: bool) -> Iterator[str]:
    outcomes: Counter[str] = Counter(item.outcome for item in evidence.transactions.values())
    for outcome, least in (("committed", LEAST_COMMITTED), ("aborted", LEAST_ABORTED)):
        if outcomes[outcome] < least and not is_short:
            yield f"{outcomes[outcome]} of at least {least} transactions were {outcome}"
    if not evidence.plain.final_reads:
        yield "nothing was read in the end"
    absent = fault_kinds - {fault.kind for fault in evidence.plain.faults}
    if absent:
        yield f"these faults never happened: {', '.join(sorted(absent))}"


def _figures(evidence: TransactionEvidence) -> dict[str, float]:
    transactions = evidence.transactions.values()
    unknown = [item for item in transactions if item.outcome == "unknown"]
    asked = [item for item in unknown if item.commit_s != NEVER_S]
    outcomes: Counter[str] = Counter(item.outcome for item in transactions)
    counts: Counter[str] = Counter()
    for (topic, _), records in evidence.committed.items():
        counts[topic] += len(records)
    return {
        "transactions": len(transactions),
        "committed": outcomes["committed"],
        "aborted": outcomes["aborted"],
        "aborted_by_errors": sum(item.outcome == "aborted" and bool(item.error) for item in transactions),
        "unknown": len(unknown),
        "unknown_never_asked": len(unknown) - len(asked),
        "unknown_became_committed": sum(item.name in evidence.visible for item in asked),
        "unknown_became_aborted": sum(item.name not in evidence.visible for item in asked),
        "inputs": counts[SOURCE],
        "outputs": counts[SINK],
        "copies": counts[COPIES],
        "account_records": sum(counts[topic] for topic in BANKS),
        "polled": sum(len(poll.records) for poll in evidence.history.of(Poll)),
        "snapshots": len({item.began_s for item in evidence.history.of(StableOffset)}),
    }


def _progress(evidence: TransactionEvidence) -> dict[Partition, list[float]]:
    """When commits were acknowledged that have records in a partition."""
    times: dict[Partition, list[float]] = defaultdict(list)
    for item in evidence.transactions.values():
        if item.outcome == "committed":
            for partition in {(topic, number) for topic, number, _ in item.records if topic in KEPT}:
                times[partition].append(item.ended_s)
    return {partition: sorted(found) for partition, found in times.items()}


def _plain(rule: Callable[[Evidence], Iterator[str]]) -> Callable[[TransactionEvidence], Iterator[str]]:
    return lambda evidence: rule(evidence.plain)


RULES: dict[str, Callable[[TransactionEvidence], Iterator[str]]] = {
    "aborted-read": aborted_read,
    "lost": lost,
    "partial": partial,
    "duplicate": duplicate,
    "reordered": reordered,
    "unbalanced": unbalanced,
    "readers-differ": readers_differ,
    "outputs": outputs,
    "offsets": offsets,
    "hanging": hanging,
    "stable-offset-regress": stable_offset_regress,
    "vanished": _plain(vanished),
    "inconsistent-offsets": _plain(inconsistent_offsets),
    "non-monotonic-poll": _plain(non_monotonic_poll),
    "poll-skip": _plain(poll_skip),
    "replica-divergence": _plain(replica_divergence),
    "stuck": _plain(stuck),
}
