"""Every rule about transactions is proved by a history with one thing wrong, which the rule finds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from faults.history import (
    NEVER_S,
    CommittedRead,
    Event,
    Fault,
    FinalRead,
    History,
    OpenTransaction,
    Partition,
    Poll,
    ReplicaLog,
    StableOffset,
    Stuck,
    Transaction,
    read_history,
)
from faults.transactions.checker import RULES, TransactionEvidence, judge
from faults.transactions.layout import BANKS, COPIES, CUT, FIRST_GROUP, MIDDLE, SECOND_GROUP, SINK, SOURCE
from faults.transactions.values import origin, values_of

IN, MID, OUT, COPY = (SOURCE, 0), (MIDDLE, 0), (SINK, 0), (COPIES, 0)
PAYER, PAYEE, SHORT = (BANKS[0], 0), (BANKS[1], 0), (CUT, 0)


def transaction(
    name: str, places: list[tuple[Partition, str]], *, is_meant: bool = True, began_s: float = 1.0
) -> Transaction:
    texts = values_of(name, [payload for _, payload in places], is_meant=is_meant)
    return Transaction(
        process=name.rpartition("-")[0],
        transactional_id=name.rpartition("-")[0],
        name=name,
        records=tuple((place[0], place[1], text) for (place, _), text in zip(places, texts, strict=True)),
        began_s=began_s,
        commit_s=began_s + 0.5 if is_meant else NEVER_S,
        ended_s=began_s + 1,
        outcome="committed" if is_meant else "aborted",
    )


PAID = transaction("bank-0", [(PAYER, "-5"), (PAYEE, "+5"), (SHORT, "+0")])
GAVE_UP = transaction("bank-1", [(PAYER, "-7"), (PAYEE, "+7"), (SHORT, "+0")], is_meant=False, began_s=2)
FIRST = transaction("first-0", [(MID, origin(IN, 0)), (MID, origin(IN, 1))])
SECOND = transaction("second-0", [(OUT, origin(MID, 0)), (OUT, origin(MID, 1))], began_s=3)
COPIED = transaction("copies-0", [(COPY, origin(IN, 0)), (COPY, origin(IN, 1))])
ALL = (PAID, GAVE_UP, FIRST, COPIED, SECOND)

# What is committed, by offset. Markers, and the records of the aborted transaction, take offsets too.
COMMITTED: dict[Partition, dict[int, str]] = {
    IN: {0: "a", 1: "b"},
    MID: {0: FIRST.records[0][2], 1: FIRST.records[1][2]},
    OUT: {0: SECOND.records[0][2], 1: SECOND.records[1][2]},
    COPY: {0: COPIED.records[0][2], 1: COPIED.records[1][2]},
    PAYER: {0: PAID.records[0][2]},
    PAYEE: {0: PAID.records[1][2]},
}


def poll(partition: Partition, *offsets: int, process: str = "r0", at_s: float = 10.0) -> Poll:
    records = tuple((offset, COMMITTED[partition][offset]) for offset in offsets)
    return Poll(process=process, group="", session=0, partition=partition, at_s=at_s, records=records)


def odd_poll(partition: Partition, offset: int, text: str, at_s: float = 10.0) -> Poll:
    """A record that the last final read does not have there."""
    return Poll(process="odd", group="", session=0, partition=partition, at_s=at_s, records=((offset, text),))


def stable(partition: Partition, offset: int, at_s: float, high_watermark: int = 9) -> StableOffset:
    return StableOffset(
        partition=partition, last_stable_offset=offset, high_watermark=high_watermark, began_s=at_s, ended_s=at_s + 0.1
    )


def finals(committed: dict[Partition, dict[int, str]], name: str = "last") -> list[Event]:
    return [
        FinalRead(name=name, partition=partition, at_s=20, records=tuple(records.items()))
        for partition, records in committed.items()
    ]


def offset_of(group: str, partition: Partition, offset: int) -> CommittedRead:
    return CommittedRead(process="final", group=group, partition=partition, offset=offset, began_s=20, ended_s=21)


def replica(node_id: int, digest: str) -> ReplicaLog:
    return ReplicaLog(node_id=node_id, partition=PAYER, high_watermark=2, batches=((0, 2, digest),))


def history_of(
    *transactions: Transaction, committed: dict[Partition, dict[int, str]] = COMMITTED, more: tuple[Event, ...] = ()
) -> list[Event]:
    return [
        *transactions,
        *(poll(partition, *COMMITTED[partition]) for partition in (MID, OUT, PAYER, PAYEE) if committed is COMMITTED),
        *(stable(place, end, at_s) for at_s, end in ((3, 0), (4, 1), (5, 4)) for place in (PAYER, PAYEE)),
        Fault(kind="kill_leader", target="1", began_s=1, healed_s=2, recovered_s=3),
        offset_of(FIRST_GROUP, IN, 2),
        offset_of(SECOND_GROUP, MID, 2),
        replica(0, "a"),
        replica(1, "a"),
        *finals(committed, "first"),
        *finals(committed),
        *more,
    ]


def with_record(partition: Partition, offset: int, text: str) -> dict[Partition, dict[int, str]]:
    return {**COMMITTED, partition: {**COMMITTED[partition], offset: text}}


def without_record(partition: Partition, offset: int) -> dict[Partition, dict[int, str]]:
    kept = {number: text for number, text in COMMITTED[partition].items() if number != offset}
    return {**COMMITTED, partition: kept}


def judged(events: list[Event]) -> set[str]:
    return judge(History(events=events), is_short=True).rules()


def test_a_good_history_passes() -> None:
    report = judge(History(events=history_of(*ALL)), frozenset({"kill_leader"}), is_short=True)
    assert report.text() == ""
    assert (report.figures["committed"], report.figures["aborted"], report.figures["outputs"]) == (4, 1, 2)


def test_the_outcome_of_a_commit_without_an_answer_is_read_off_the_log() -> None:
    asked = replace(PAID, outcome="unknown", ended_s=NEVER_S)
    lost = replace(GAVE_UP, outcome="unknown", ended_s=NEVER_S, commit_s=2.5)
    report = judge(History(events=history_of(asked, lost, FIRST, COPIED, SECOND)), is_short=True)
    assert report.text() == ""
    assert report.figures["unknown_became_committed"] == report.figures["unknown_became_aborted"] == 1


def test_records_that_were_deleted_are_not_missed() -> None:
    more: tuple[Event, ...] = tuple(
        Poll(process="r0", group="", session=0, partition=SHORT, at_s=9, records=((offset, PAID.records[2][2]),))
        for offset in (0, 5)
    )
    more += (FinalRead(name="first", partition=SHORT, at_s=19, records=((5, PAID.records[2][2]),)),)
    assert judged(history_of(*ALL, more=more)) == set()


ABORTED = GAVE_UP.records[0][2]
FALSE = transaction("bank-2", [(PAYER, "-5"), (PAYEE, "+4")], began_s=4)
LATER = transaction("bank-9", [(PAYER, "+0")], began_s=4)
PLANTED: dict[str, tuple[Callable[[], list[Event]], set[str]]] = {
    "a reader ignores the aborted transactions": (
        lambda: history_of(*ALL, more=(odd_poll(PAYER, 2, ABORTED),)),
        {"aborted-read", "vanished"},
    ),
    "a record of an aborted transaction is read where records are deleted": (
        lambda: history_of(*ALL, more=(odd_poll(SHORT, 2, GAVE_UP.records[2][2]),)),
        {"aborted-read"},
    ),
    "a record of an aborted transaction is in a final read where records are deleted": (
        lambda: history_of(
            *ALL,
            more=(FinalRead(name="first", partition=SHORT, at_s=19, records=((2, GAVE_UP.records[2][2]),)),),
        ),
        {"aborted-read"},
    ),
    "a record of an open transaction is read": (
        lambda: history_of(*ALL, more=(poll(PAYER, 0, process="early", at_s=1.2),)),
        {"aborted-read"},
    ),
    "a record of a producer that died before its commit is read": (
        lambda: history_of(
            PAID, replace(GAVE_UP, outcome="unknown"), *ALL[2:], more=(odd_poll(SHORT, 2, GAVE_UP.records[2][2]),)
        ),
        {"aborted-read"},
    ),
    "a record of nobody is read": (
        lambda: history_of(*ALL[1:]),
        {"aborted-read"},
    ),
    "an aborted transaction becomes visible in all partitions": (
        lambda: history_of(
            *ALL, committed={**with_record(PAYER, 2, ABORTED), PAYEE: {**COMMITTED[PAYEE], 2: GAVE_UP.records[1][2]}}
        ),
        {"aborted-read"},
    ),
    "a transaction is committed in one partition and aborted in another": (
        lambda: history_of(replace(PAID, outcome="unknown"), *ALL[1:], committed=without_record(PAYEE, 0)),
        {"partial"},
    ),
    "a committed transaction is lost": (
        lambda: history_of(*ALL, committed={**without_record(PAYEE, 0), PAYER: {}}),
        {"lost"},
    ),
    "a record is stored twice": (
        lambda: history_of(*ALL, committed=with_record(PAYEE, 3, PAID.records[1][2])),
        {"duplicate"},
    ),
    "transactions of one producer change places": (
        lambda: history_of(
            PAID,
            LATER,
            *ALL[1:],
            committed={**COMMITTED, PAYER: {0: LATER.records[0][2], 1: PAID.records[0][2]}},
        ),
        {"reordered"},
    ),
    "money vanishes": (
        lambda: history_of(
            *ALL,
            FALSE,
            committed={
                **with_record(PAYER, 3, FALSE.records[0][2]),
                PAYEE: {**COMMITTED[PAYEE], 3: FALSE.records[1][2]},
            },
        ),
        {"unbalanced"},
    ),
    "two clients read different records": (
        lambda: [*finals({**COMMITTED, PAYER: {}}, "by another client"), *history_of(*ALL)],
        {"readers-differ"},
    ),
    "an input has two outputs": (
        lambda: history_of(
            *ALL,
            transaction("second-1", [(OUT, origin(MID, 0))], began_s=5),
            committed=with_record(OUT, 4, values_of("second-1", [origin(MID, 0)], is_meant=True)[0]),
        ),
        {"outputs"},
    ),
    "an input has no output": (
        lambda: history_of(
            *ALL[:4],
            transaction("second-0", [(OUT, origin(MID, 0))], began_s=3),
            committed={**COMMITTED, OUT: {0: values_of("second-0", [origin(MID, 0)], is_meant=True)[0]}},
        ),
        {"outputs"},
    ),
    "the offsets of a transaction are lost": (
        lambda: history_of(*ALL, more=(offset_of(SECOND_GROUP, MID, 1),)),
        {"offsets"},
    ),
    "the offsets are behind the end": (
        lambda: history_of(*ALL, more=(stable(MID, 4, 6, 4), offset_of(SECOND_GROUP, MID, 7))),
        {"offsets"},
    ),
    "a transaction never ends": (
        lambda: history_of(*ALL, more=(OpenTransaction(what="it is open", at_s=30),)),
        {"hanging"},
    ),
    "the last stable offset goes back": (
        lambda: history_of(*ALL, more=(stable(PAYER, 3, 7),)),
        {"stable-offset-regress"},
    ),
    "the last stable offset is behind the high watermark": (
        lambda: history_of(*ALL, more=(stable(PAYER, 9, 7, 8),)),
        {"stable-offset-regress"},
    ),
    "one offset has two values": (
        lambda: history_of(*ALL, more=(odd_poll(PAYER, 0, PAID.records[1][2]),)),
        {"inconsistent-offsets", "vanished"},
    ),
    "a reader goes back": (lambda: history_of(*ALL, more=(poll(MID, 0),)), {"non-monotonic-poll"}),
    "a reader leaves a committed record out": (
        lambda: history_of(
            *ALL,
            LATER,
            committed=(more := {**COMMITTED, PAYER: {**COMMITTED[PAYER], 1: LATER.records[0][2], 4: "x"}}),
            more=(
                Poll(
                    process="r9",
                    group="",
                    session=0,
                    partition=PAYER,
                    at_s=9,
                    records=((0, more[PAYER][0]), (4, more[PAYER][4])),
                ),
            ),
        ),
        {"poll-skip"},
    ),
    "replicas differ": (lambda: history_of(*ALL, more=(replica(2, "b"),)), {"replica-divergence"}),
    "no progress": (lambda: history_of(*ALL, more=(Stuck(what="it stands still", at_s=9),)), {"stuck"}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    make, expected = PLANTED[name]
    assert judged(make()) == expected


def test_every_rule_is_proved() -> None:
    assert set().union(*(rules for _, rules in PLANTED.values())) == set(RULES)


def test_too_little_is_no_proof() -> None:
    assert judge(History(events=history_of(*ALL))).rules() == {"vacuous"}
    assert judge(History(events=history_of(*ALL)), frozenset({"other"}), is_short=True).rules() == {"vacuous"}


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    history = History(events=history_of(*ALL, more=(OpenTransaction(what="open", at_s=1),)))
    history.write(tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl").events == history.events
    assert TransactionEvidence(history).visible["bank-0"] == {0, 1}
