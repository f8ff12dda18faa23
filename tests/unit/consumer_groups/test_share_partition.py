"""The records of a partition as a share group sees them, against a model with one object for each record."""

import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from barnabas.consumer_groups.share.settings import ShareSettings
from barnabas.consumer_groups.share.share_partition import BatchSpan, SharePartition
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.share.errors import InvalidRecordStateError
from barnabas.log.vocabulary.share.messages import (
    AcknowledgedBatch,
    Acknowledgement,
    AcquiredRecords,
    RecordState,
    ShareRange,
)

LOCK_MS, LIMIT, LOCKS = 1_000, 3, 50
SETTINGS = ShareSettings(record_lock_duration_ms=LOCK_MS, delivery_count_limit=LIMIT, max_record_locks=LOCKS)


def partition(start_offset: int = 0, *ranges: ShareRange, settings: ShareSettings = SETTINGS) -> SharePartition:
    return SharePartition(start_offset=start_offset, ranges=ranges, settings=settings)


def span(first: int, last: int, *, is_deliverable: bool = True) -> BatchSpan:
    return BatchSpan(first_offset=first, last_offset=last, is_deliverable=is_deliverable)


def acked(first: int, last: int, *kinds: int) -> AcknowledgedBatch:
    return AcknowledgedBatch(first_offset=first, last_offset=last, kinds=kinds)


def acquired(first: int, last: int, deliveries: int = 1) -> AcquiredRecords:
    return AcquiredRecords(first_offset=first, last_offset=last, delivery_count=deliveries)


def take(machine: SharePartition, member: str, *spans: BatchSpan, now_ms: int = 0, most: int = 500, **more: Any) -> Any:
    return machine.acquire(member, spans, max_records=most, now_ms=now_ms, **more)


ACCEPT, RELEASE, REJECT, GAP, RENEW = (
    Acknowledgement.ACCEPT,
    Acknowledgement.RELEASE,
    Acknowledgement.REJECT,
    Acknowledgement.GAP,
    Acknowledgement.RENEW,
)


def test_members_lock_different_records() -> None:
    machine = partition()
    assert take(machine, "a", span(0, 9)) == [acquired(0, 9)]
    assert machine.next_fetch_offset == 10
    assert take(machine, "b", span(0, 9), span(10, 14)) == [acquired(10, 14)]
    machine.acknowledge("a", [acked(0, 9, ACCEPT)], 1)
    assert (machine.start_offset, machine.end_offset, machine.stored()[0].first_offset) == (10, 15, 10)


def test_each_record_of_a_batch_has_its_own_acknowledgement() -> None:
    machine = partition()
    take(machine, "a", span(0, 4))
    machine.acknowledge("a", [acked(0, 4, ACCEPT, RELEASE, REJECT, GAP, RELEASE)], 1)
    assert machine.start_offset == machine.next_fetch_offset == 1
    assert take(machine, "b", span(0, 4)) == [acquired(1, 1, 2), acquired(4, 4, 2)]
    machine.acknowledge("b", [acked(1, 1, ACCEPT), acked(4, 4, ACCEPT)], 2)
    assert (machine.start_offset, machine.stored()) == (5, ())


@pytest.mark.parametrize(
    "batches",
    [
        [acked(0, 5, ACCEPT)],  # beyond the end
        [acked(2, 2, ACCEPT)],  # of another member
        [acked(0, 1, ACCEPT), acked(2, 2, ACCEPT)],  # all or none
    ],
)
def test_what_a_member_does_not_hold_it_cannot_acknowledge(batches: list[AcknowledgedBatch]) -> None:
    machine = partition()
    take(machine, "a", span(0, 1))
    take(machine, "b", span(2, 4))
    before = machine.stored()
    with pytest.raises(InvalidRecordStateError):
        machine.acknowledge("a", batches, 1)
    assert machine.stored() == before and machine.acquired_count == 5


@pytest.mark.parametrize(
    "batches",
    [
        [acked(1, 0, ACCEPT)],
        [acked(-1, 0, ACCEPT)],
        [acked(0, 2, ACCEPT, ACCEPT)],
        [acked(0, 0)],
        [acked(0, 0, 5)],
        [acked(0, 0, -1)],
        [acked(1, 1, ACCEPT), acked(0, 0, ACCEPT)],
        [acked(0, 1, ACCEPT), acked(1, 2, ACCEPT)],
    ],
)
def test_malformed_acknowledgements_are_refused(batches: list[AcknowledgedBatch]) -> None:
    machine = partition()
    take(machine, "a", span(0, 4))
    with pytest.raises(InvalidRequestError):
        machine.acknowledge("a", batches, 1)
    assert machine.acquired_count == 5


def test_a_lock_ends_and_can_be_renewed() -> None:
    machine = partition()
    take(machine, "a", span(0, 1), now_ms=100)
    machine.acknowledge("a", [acked(1, 1, RENEW)], 600)
    assert machine.next_deadline_ms() == 100 + LOCK_MS
    assert not machine.expire(99 + LOCK_MS)
    assert machine.expire(100 + LOCK_MS)
    assert machine.next_deadline_ms() == 600 + LOCK_MS
    assert take(machine, "b", span(0, 1), now_ms=1_200) == [acquired(0, 0, 2)]
    with pytest.raises(InvalidRecordStateError):
        machine.acknowledge("a", [acked(0, 0, ACCEPT)], 1_250)
    machine.acknowledge("a", [acked(1, 1, ACCEPT)], 1_300)


def test_a_record_is_archived_after_its_last_delivery() -> None:
    machine = partition()
    for deliveries in range(1, LIMIT + 1):
        assert take(machine, "a", span(0, 0)) == [acquired(0, 0, deliveries)]
        machine.acknowledge("a", [acked(0, 0, RELEASE)], 1)
    assert machine.start_offset == 1
    assert take(machine, "a", span(1, 1), now_ms=0) == [acquired(1, 1)]
    for _ in range(LIMIT):
        machine.expire(LOCK_MS)
        take(machine, "a", span(1, 1))
    assert machine.start_offset == 2


def test_no_more_than_the_limit_of_locks_between_both_ends() -> None:
    machine = partition()
    assert take(machine, "a", span(0, 79)) == [acquired(0, LOCKS - 1)]
    assert not machine.has_room
    machine.acknowledge("a", [acked(1, 9, ACCEPT)], 1)
    assert not machine.has_room  # record 0 is in the way
    machine.acknowledge("a", [acked(0, 0, ACCEPT)], 1)
    assert take(machine, "b", span(0, 79)) == [acquired(LOCKS, LOCKS + 9)]


def test_the_number_of_records_ends_with_a_batch_unless_it_is_strict() -> None:
    machine = partition()
    assert take(machine, "a", span(0, 2), span(3, 5), span(6, 8), most=4) == [acquired(0, 5)]
    assert take(machine, "a", span(6, 8), most=2, is_strict=True) == [acquired(6, 7)]
    assert machine.next_fetch_offset == 8


def test_nothing_is_delivered_of_control_batches_and_of_what_the_log_has_lost() -> None:
    machine = partition()
    assert take(machine, "a", span(0, 1, is_deliverable=False), span(4, 5)) == [acquired(4, 5)]
    assert machine.start_offset == 4
    machine.acknowledge("a", [acked(4, 5, RELEASE)], 1)
    assert take(machine, "a", span(5, 5), now_ms=1) == [acquired(5, 5, 2)]  # compaction has removed record 4
    assert machine.start_offset == 5


def test_a_member_that_leaves_releases_what_it_holds() -> None:
    machine = partition()
    take(machine, "a", span(0, 3))
    take(machine, "b", span(4, 5))
    assert machine.release_member("a") and not machine.release_member("a")
    assert machine.acquired_count == 2
    assert take(machine, "b", span(0, 3)) == [acquired(0, 3, 2)]


def test_deleted_records_are_passed_over() -> None:
    machine = partition()
    take(machine, "a", span(0, 9))
    machine.log_begins_at(5)
    assert machine.start_offset == 5
    machine.acknowledge("a", [acked(0, 9, ACCEPT)], 1)  # those that are left
    assert machine.start_offset == 10
    machine.log_begins_at(30)
    assert (machine.start_offset, machine.next_fetch_offset, machine.stored()) == (30, 30, ())


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, REJECT])
def test_a_late_acknowledgement_is_refused_though_nothing_before_its_record_is_open(kind: int) -> None:
    """Another member has settled the record meanwhile: the late one must learn that it was not the only one."""
    machine = partition()
    take(machine, "late", span(0, 3))
    machine.expire(SETTINGS.record_lock_duration_ms)
    take(machine, "b", span(0, 3), now_ms=SETTINGS.record_lock_duration_ms)
    machine.acknowledge("b", [acked(0, 1, ACCEPT)], SETTINGS.record_lock_duration_ms)
    assert machine.start_offset == 2
    for first, last in ((0, 0), (0, 1), (1, 2)):
        for member in ("late", "b"):
            with pytest.raises(InvalidRecordStateError):
                machine.acknowledge(member, [acked(first, last, kind)], SETTINGS.record_lock_duration_ms)
    machine.log_begins_at(1)
    machine.acknowledge("late", [acked(0, 0, kind)], SETTINGS.record_lock_duration_ms)  # deleted: passed over
    with pytest.raises(InvalidRecordStateError):
        machine.acknowledge("late", [acked(0, 1, kind)], SETTINGS.record_lock_duration_ms)


def test_control_batches_behind_a_locked_record_cost_no_walk_over_all_of_them() -> None:
    """A transaction for each record: a read of 1 MiB holds thousands of markers, and this runs on the event loop."""
    machine = partition(settings=ShareSettings(max_record_locks=10_000))
    pairs = [(span(at, at), span(at + 1, at + 1, is_deliverable=False)) for at in range(0, 8_000, 2)]
    batches = [batch for pair in pairs for batch in pair]
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        found = machine.acquire("a", batches, max_records=10_000, now_ms=0)
    finally:
        sys.setprofile(None)
    assert len(found) == 4_000 and machine.span_count == 8_000
    assert calls < 100 * len(batches)


def test_a_log_that_lost_its_end_gives_its_offsets_again() -> None:
    machine = partition()
    take(machine, "a", span(0, 9))
    machine.acknowledge("a", [acked(8, 9, ACCEPT)], 1)
    machine.log_ends_at(6)
    assert machine.end_offset == 6 and machine.acquired_count == 6
    assert take(machine, "b", span(6, 9)) == [acquired(6, 9)]
    machine.log_ends_at(0)
    assert (machine.start_offset, machine.end_offset) == (0, 0)


def test_a_new_leader_knows_what_was_stored() -> None:
    machine = partition()
    take(machine, "a", span(0, 9))
    machine.acknowledge("a", [acked(2, 4, ACCEPT), acked(6, 6, RELEASE)], 1)
    successor = partition(machine.start_offset, *machine.stored())
    assert successor.stored() == machine.stored()
    assert take(successor, "b", span(0, 9)) == [acquired(0, 1, 2), acquired(5, 9, 2)]
    lower = partition(0, *machine.stored(), settings=replace(SETTINGS, delivery_count_limit=1))
    assert lower.start_offset == 10  # delivered as often as allowed


def test_a_hole_in_what_was_stored_is_available() -> None:
    machine = partition(3, ShareRange(first_offset=6, last_offset=7, state=RecordState.ACKNOWLEDGED, delivery_count=1))
    assert take(machine, "a", span(0, 9)) == [acquired(3, 5), acquired(8, 9)]


# --- a model ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Record:
    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    member: str = ""
    deadline_ms: int = -1


class Model:
    """One object for each record of the log, from offset 0 on. `batches` never change."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ms = 0
        self.records: dict[int, Record] = {}
        self.batches: list[BatchSpan] = []
        self.log_end = 0

    def grow(self) -> None:
        first = self.log_end + self.rng.choice((0, 0, 0, 2))  # sometimes compaction has removed records
        last = first + self.rng.randrange(6)
        self.batches.append(span(first, last, is_deliverable=self.rng.random() < 0.8))
        self.log_end = last + 1

    def read(self, offset: int) -> list[BatchSpan]:
        return [item for item in self.batches if item.last_offset >= offset][: self.rng.randrange(1, 5)]

    def took(self, member: str, found: list[AcquiredRecords], spans: list[BatchSpan]) -> None:
        deliverable = {
            offset for item in spans if item.is_deliverable for offset in range(item.first_offset, item.last_offset + 1)
        }
        for item in found:
            for offset in range(item.first_offset, item.last_offset + 1):
                record = self.records.setdefault(offset, Record())
                assert offset in deliverable
                assert record.state is RecordState.AVAILABLE, f"{offset} is {record.state!r}"
                assert item.delivery_count == record.deliveries + 1 <= LIMIT
                record.state, record.member = RecordState.ACQUIRED, member
                record.deliveries, record.deadline_ms = record.deliveries + 1, self.now_ms + LOCK_MS

    def settle(self, record: Record, kind: int) -> None:
        if kind == RENEW:
            record.deadline_ms = self.now_ms + LOCK_MS
            return
        record.member = ""
        if kind == ACCEPT:
            record.state = RecordState.ACKNOWLEDGED
        elif kind == RELEASE and record.deliveries < LIMIT:
            record.state = RecordState.AVAILABLE
        else:
            record.state = RecordState.ARCHIVED

    def held_by(self, member: str) -> list[int]:
        return [offset for offset, record in sorted(self.records.items()) if record.member == member]


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = Model(self.rng)
        self.machine = partition()

    def step(self) -> None:
        self.model.now_ms += self.rng.randrange(200)
        action = self.rng.choice(
            (self.model.grow, self.take, self.take, self.take, self.acknowledge, self.acknowledge, self.acknowledge,
             self.acknowledge_wrongly, self.leave, self.expire, self.fail_over)
        )  # fmt: skip
        action()
        self.check()

    def take(self) -> None:
        spans = self.model.read(self.machine.next_fetch_offset)
        if not spans or not self.machine.has_room:
            return
        member, most = self.rng.choice("abc"), self.rng.randrange(1, 12)
        is_strict = self.rng.random() < 0.5
        found = take(self.machine, member, *spans, now_ms=self.model.now_ms, most=most, is_strict=is_strict)
        count = sum(item.last_offset - item.first_offset + 1 for item in found)
        assert count <= most if is_strict else count < most + 6
        self.model.took(member, found, spans)

    def acknowledge(self) -> None:
        member = self.rng.choice("abc")
        held = self.model.held_by(member)
        if not held:
            return
        first = self.rng.choice(held)
        last = first
        while last + 1 in held and self.rng.random() < 0.7:
            last += 1
        kinds = [self.rng.choice((ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW)) for _ in range(first, last + 1)]
        if self.rng.random() < 0.3:
            kinds = kinds[:1]
        self.machine.acknowledge(member, [acked(first, last, *kinds)], self.model.now_ms)
        for position, offset in enumerate(range(first, last + 1)):
            self.model.settle(self.model.records[offset], kinds[position if len(kinds) > 1 else 0])

    def acknowledge_wrongly(self) -> None:
        member = self.rng.choice("abc")
        held = set(self.model.held_by(member))
        offset = self.rng.randrange(self.machine.start_offset, self.machine.end_offset + 2)
        if offset not in held:
            with pytest.raises(InvalidRecordStateError):
                self.machine.acknowledge(member, [acked(offset, offset, ACCEPT)], self.model.now_ms)

    def leave(self) -> None:
        member = self.rng.choice("abc")
        held = self.model.held_by(member)
        assert self.machine.release_member(member) == bool(held)
        for offset in held:
            self.model.settle(self.model.records[offset], RELEASE)

    def expire(self) -> None:
        over = [
            record
            for record in self.model.records.values()
            if record.state is RecordState.ACQUIRED and record.deadline_ms <= self.model.now_ms
        ]
        assert self.machine.expire(self.model.now_ms) == bool(over)
        for record in over:
            self.model.settle(record, RELEASE)

    def fail_over(self) -> None:
        """A new leader: locks are gone, nothing else is."""
        if self.rng.random() < 0.7:
            return
        self.machine = partition(self.machine.start_offset, *self.machine.stored())
        for record in self.model.records.values():
            if record.state is RecordState.ACQUIRED:
                self.model.settle(record, RELEASE)

    def check(self) -> None:
        machine = self.machine
        assert machine.end_offset - machine.start_offset <= LOCKS + 10  # gaps at the end need no lock
        stored = {
            offset: item for item in machine.stored() for offset in range(item.first_offset, item.last_offset + 1)
        }
        assert sorted(stored) == list(range(machine.start_offset, machine.end_offset))
        for offset, record in self.model.records.items():
            if offset < machine.start_offset:
                assert record.state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED), f"{offset} is lost"
                continue
            seen = RecordState.AVAILABLE if record.state is RecordState.ACQUIRED else record.state
            assert (stored[offset].state, stored[offset].delivery_count) == (seen, record.deliveries), offset
        held = sum(record.state is RecordState.ACQUIRED for record in self.model.records.values())
        assert machine.acquired_count == held
        undelivered = [offset for offset in self.deliverable() if offset < machine.start_offset]
        assert all(offset in self.model.records for offset in undelivered), "a record was skipped"

    def deliverable(self) -> list[int]:
        return [
            offset
            for item in self.model.batches
            if item.is_deliverable
            for offset in range(item.first_offset, item.last_offset + 1)
        ]


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_agree_with_the_model(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    finish(world)


def finish(world: World) -> None:
    """Whatever happened, every record can be brought to its end."""
    world.fail_over()
    for _ in range(10_000):
        world.model.now_ms += 2 * LOCK_MS
        world.expire()
        spans = [item for item in world.model.batches if item.last_offset >= world.machine.next_fetch_offset]
        if not spans:
            break
        found = take(world.machine, "z", *spans, now_ms=world.model.now_ms)
        world.model.took("z", found, spans)
        for item in found:
            world.machine.acknowledge("z", [acked(item.first_offset, item.last_offset, ACCEPT)], world.model.now_ms)
            for offset in range(item.first_offset, item.last_offset + 1):
                world.model.settle(world.model.records[offset], ACCEPT)
        world.check()
    assert world.machine.start_offset == world.model.log_end
    assert set(world.deliverable()) <= world.model.records.keys()
