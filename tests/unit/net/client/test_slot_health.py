"""Slots of PostgreSQL, as `barnabas doctor` judges the reports of the programs that read them."""

import dataclasses
from typing import Any

import pytest
from unit.net.client.test_doctor import HEALTHY

from barnabas.net.client.admin.cluster_health import slot_problems
from barnabas.net.client.admin.doctor import diagnose
from barnabas.net.client.admin.finding import Weight
from barnabas.net.client.positions.reports import encoded_report
from barnabas.net.client.positions.slot_reports import SlotReport, read_report

NOW_MS = 1_000_000
GOOD = SlotReport(
    program="connector shop",
    slot="shop",
    server="db:5432/shop",
    at_ms=NOW_MS - 10_000,
    interval_ms=15_000,
    exists=True,
    is_active=True,
    wal_status="reserved",
    retained_bytes=5_000,
    warn_bytes=10_000,
)
NAME = "slot shop of connector shop (PostgreSQL, db:5432/shop)"


def changed(**fields: Any) -> SlotReport:
    known = {name: getattr(GOOD, name) for name in GOOD.__struct_fields__}
    return SlotReport(**{**known, **fields})


@pytest.mark.parametrize(
    ("report", "weight", "what", "cure"),
    [
        (changed(exists=False), Weight.CRITICAL, f"{NAME} does not exist any more", "barnabas connect reset FILE"),
        (
            changed(wal_status="lost"),
            Weight.CRITICAL,
            f"{NAME} is lost: the server has",
            "raise max_slot_wal_keep_size",
        ),
        (changed(is_active=False), Weight.PROBLEM, f"{NAME} is not read", "pg_drop_replication_slot('shop')"),
        (changed(at_ms=NOW_MS - 60_001), Weight.PROBLEM, f"{NAME} is not read", "start connector shop again"),
        (
            changed(retained_bytes=10_001),
            Weight.RISK,
            f"{NAME} retains 10001 bytes of log, more than 10000",
            "long trans",
        ),
    ],
)
def test_what_is_wrong_with_a_slot(report: SlotReport, weight: Weight, what: str, cure: str) -> None:
    (found,) = slot_problems([report, GOOD], NOW_MS)
    assert found.weight is weight and found.what.startswith(what) and cure in found.cure and found.costs


def test_a_slot_that_is_read_is_no_finding() -> None:
    assert list(slot_problems([GOOD, changed(at_ms=NOW_MS - 60_000)], NOW_MS)) == []


def test_findings_are_among_those_of_the_cluster() -> None:
    picture = dataclasses.replace(HEALTHY, slots=(changed(exists=False),), now_ms=NOW_MS)
    assert [found.what for found in diagnose(picture)] == [f"{NAME} does not exist any more"]


@pytest.mark.parametrize("value", [None, b"", b"no JSON", b"{}", b'{"slot": 5}'])
def test_other_records_are_none(value: bytes | None) -> None:
    assert read_report(value) is None
    assert read_report(encoded_report(GOOD)) == GOOD


@pytest.mark.parametrize(
    "fields", [{"at_ms": 10**18}, {"at_ms": -1}, {"interval_ms": 0}, {"interval_ms": 10**12}, {"slot": "s" * 1_001}]
)
def test_a_record_whose_findings_could_not_be_shown_is_none(fields: dict[str, Any]) -> None:
    """Or that would stand for a program for ever: any program may write to the topic."""
    assert read_report(encoded_report(changed(exists=False, **fields))) is None
