"""Every rule of the checker fires on a history with one planted bug, and on no other; a good history passes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from faults.checker import RULES, Expected, check, percentile
from faults.history import (
    UNKNOWN_OFFSET,
    Commit,
    CommittedRead,
    EndOffset,
    Event,
    Fault,
    FinalRead,
    History,
    Poll,
    ReplicaLog,
    Send,
    Stuck,
    read_history,
)

P = ("t", 0)


def send(number: int, **changes: object) -> Send:
    """Record "v<number>" at offset <number>, sent at second <number> and acknowledged half a second later."""
    made = Send(
        process="p0",
        partition=P,
        value=f"v{number}",
        sequence=number,
        acks=-1,
        began_s=number,
        ended_s=number + 0.5,
        outcome="ok",
        offset=number,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def poll(*offsets: int, process: str = "c0", group: str = "", session: int = 0) -> Poll:
    records = tuple((offset, f"v{offset}") for offset in offsets)
    return Poll(process=process, group=group, session=session, partition=P, at_s=10, records=records)


def commit(offset: int, at_s: float, **changes: object) -> Commit:
    made = Commit(process="g0", group="g", partition=P, offset=offset, began_s=at_s, ended_s=at_s + 0.1, outcome="ok")
    return replace(made, **changes)  # type: ignore[arg-type]


def committed(offset: int, at_s: float) -> CommittedRead:
    return CommittedRead(process="g0", group="g", partition=P, offset=offset, began_s=at_s, ended_s=at_s + 0.1)


def end(offset: int, at_s: float) -> EndOffset:
    return EndOffset(process="a", partition=P, offset=offset, began_s=at_s, ended_s=at_s + 0.1)


def final(name: str = "second", *, values: dict[int, str] | None = None) -> FinalRead:
    records = values if values is not None else {number: f"v{number}" for number in range(4)}
    return FinalRead(name=name, partition=P, at_s=20, records=tuple(records.items()))


def replica(node_id: int, *digests: str, high_watermark: int = 4) -> ReplicaLog:
    batches = tuple((2 * number, 2 * number + 2, digest) for number, digest in enumerate(digests))
    return ReplicaLog(node_id=node_id, partition=P, high_watermark=high_watermark, batches=batches)


def good() -> list[Event]:
    return [
        *(send(number) for number in range(4)),
        poll(0, 1),
        poll(2, 3),
        poll(0, 1, 2, process="g0", group="g"),
        poll(3, process="g1", group="g"),
        committed(-1, 4),
        commit(2, 5),
        committed(2, 6),
        commit(4, 7),
        end(3, 3),
        end(4, 5),
        Fault(kind="kill_leader", target="1", began_s=1, healed_s=2, recovered_s=3),
        replica(0, "a", "b"),
        replica(1, "a", "b", "not committed"),
        final("first"),
        final("second"),
    ]


def judge(events: list[Event], expected: Expected | None = None) -> set[str]:
    return check(History(events=events), expected).rules()


def without(events: list[Event], kind: type) -> list[Event]:
    return [event for event in events if not isinstance(event, kind)]


def finally_holding(values: dict[int, str]) -> list[Event]:
    return [*without(without(good(), FinalRead), ReplicaLog), final("first", values=values), final(values=values)]


def test_a_good_history_passes() -> None:
    assert judge(good(), Expected(acknowledged=4, polled=8, fault_kinds=frozenset({"kill_leader"}))) == set()


def test_a_record_may_be_acknowledged_without_its_offset() -> None:
    """librdkafka learns that the leader already has the batch, but not at which offset."""
    events = without(good(), Send)
    sends: list[Event] = [send(number, offset=UNKNOWN_OFFSET if number == 2 else number) for number in range(4)]
    assert judge([*sends, *events]) == set()
    assert judge(
        [*sends, *without(without(events, FinalRead), ReplicaLog), final(values={0: "v0", 1: "v1", 3: "v3"})]
    ) >= {"lost"}


V = {number: f"v{number}" for number in range(4)}
PLANTED: dict[str, tuple[Callable[[], list[Event]], set[str]]] = {
    "a retry of an idempotent producer is stored twice": (lambda: finally_holding({**V, 4: "v3"}), {"duplicate"}),
    # Every history breaks one thing; where that is visible to several rules, all of them must say so.
    "lost": (lambda: [*good(), send(4)], {"lost", "unseen"}),
    "lost at the second reading only": (
        lambda: [*without(good(), FinalRead), final("first"), final(values={0: "v0", 1: "v1", 2: "v2"})],
        {"lost", "vanished"},
    ),
    "one offset read with two values": (
        lambda: [
            *good(),
            send(9, outcome="info", offset=-1),
            Poll(process="c1", group="", session=0, partition=P, at_s=3, records=((1, "v9"),)),
        ],
        {"inconsistent-offsets", "vanished"},
    ),
    "two acknowledged at one offset": (
        lambda: [*good(), send(9, offset=3, began_s=3.2)],
        {"offset-reuse", "inconsistent-offsets", "lost", "producer-order", "unseen"},
    ),
    "acknowledged elsewhere": (
        lambda: [*good()[:3], send(3, offset=7), *good()[4:]],
        {"acked-offset-mismatch"},
    ),
    "vanished": (
        lambda: [*good(), send(4, outcome="info", offset=-1), poll(4, process="c9")],
        {"vanished"},
    ),
    "hole": (lambda: [*finally_holding({**V, 5: "v5"}), send(5, outcome="info")], {"hole"}),
    "phantom": (lambda: finally_holding({**V, 4: "never sent"}), {"phantom"}),
    "phantom of a failed send": (
        lambda: [*finally_holding({**V, 4: "v4"}), send(4, outcome="fail", offset=-1, error="refused")],
        {"phantom"},
    ),
    "reordered in real time": (
        lambda: [
            *finally_holding({**V, 4: "v5", 5: "v4"}),
            send(4, offset=5, process="p1"),
            send(5, offset=4),
            Poll(process="g3", group="g", session=0, partition=P, at_s=9, records=((4, "v5"), (5, "v4"))),
        ],
        {"reordered"},
    ),
    "reordered within a producer": (
        lambda: [
            *finally_holding({**V, 4: "v5", 5: "v4"}),
            send(4, offset=5, ended_s=9),
            send(5, offset=4, ended_s=9),
            Poll(process="g3", group="g", session=0, partition=P, at_s=9, records=((4, "v5"), (5, "v4"))),
        ],
        {"producer-order"},
    ),
    "a consumer goes back": (lambda: [*good(), poll(2)], {"non-monotonic-poll"}),
    "a consumer goes back within a poll": (lambda: [*good(), poll(1, 0, process="c5")], {"non-monotonic-poll"}),
    "a consumer skips": (lambda: [*good(), poll(0, process="c5"), poll(3, process="c5")], {"poll-skip"}),
    "an end goes back": (lambda: [*good(), end(3, 8)], {"end-offset-regress"}),
    "a commit is forgotten": (lambda: [*good(), committed(2, 9)], {"commit-regress"}),
    "a commit goes back": (lambda: [*good(), commit(3, 9)], {"commit-regress"}),
    "a commit behind the end": (lambda: [*good(), committed(5, 9)], {"commit-beyond-end"}),
    "the group was not given a record": (
        lambda: [event for event in good() if not (isinstance(event, Poll) and event.process == "g1")],
        {"unseen"},
    ),
    "replicas differ": (lambda: [*good(), replica(2, "a", "x")], {"replica-divergence"}),
    "a replica lacks what is committed": (lambda: [*good(), replica(2, "a")], {"replica-divergence"}),
    "no progress": (lambda: [*good(), Stuck(what="the ISR never filled", at_s=9)], {"stuck"}),
    "nothing was read in the end": (lambda: without(good(), FinalRead), {"vacuous"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    make, expected = PLANTED[name]
    assert judge(make()) == expected


def test_every_rule_is_proved_by_a_planted_bug() -> None:
    assert set().union(*(rules for _, rules in PLANTED.values())) == {*RULES, "vacuous"}


@pytest.mark.parametrize(
    "expected", [Expected(acknowledged=5), Expected(polled=9), Expected(fault_kinds=frozenset({"pause"}))]
)
def test_too_little_is_no_proof(expected: Expected) -> None:
    assert judge(good(), expected) == {"vacuous"}


def test_what_is_allowed_passes() -> None:
    events = [
        *finally_holding({**V, 4: "v6", 5: "v6"}),  # a retry wrote it twice
        send(6, acks=1, offset=5),
        send(4, acks=1, offset=4),  # acks=1: may be lost
        send(5, outcome="info", offset=-1),
        poll(0, 1, session=1),  # assigned again
        commit(1, 5.05, outcome="info"),  # the outcome is unknown
        committed(2, 6.5),
    ]
    report = check(History(events=events))
    assert report.rules() == set()
    assert (report.duplicates_acks_1, report.lost_acks_1, report.unknown) == (1, 1, 1)


def test_unavailability_is_the_longest_silence_of_a_fault() -> None:
    times_s = [0.5, 1.0, 1.1, 4.0, 9.0]
    sends = [send(number, began_s=0, ended_s=time_s) for number, time_s in enumerate(times_s)]
    faults = [
        Fault(kind="kill", target="1", began_s=1.05, healed_s=4, recovered_s=4, affected=(P,)),
        Fault(kind="pause", target="1", began_s=4.05, healed_s=5, recovered_s=5),
    ]
    found = check(History(events=[*sends, *faults, final()])).unavailable_s
    assert found == {"kill": [pytest.approx(2.9)], "pause": [pytest.approx(4.95)]}


def test_percentiles() -> None:
    values = [float(number) for number in range(100)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([], 0.5)) == (50, 99, 0)


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    history = History(events=[*good(), Stuck(what="x", at_s=1)])
    history.write(tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl").events == history.events
