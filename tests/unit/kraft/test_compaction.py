"""When the beginning of the journal gives way to a snapshot."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

from barnabas.kraft.quorum.config import SnapshotPolicy
from barnabas.kraft.quorum.journal_format import Entry
from barnabas.kraft.quorum.voters import Membership, VoterSet
from barnabas.kraft.raft.consensus.compaction import JOURNAL_TO_SNAPSHOT, Compaction

from .raft_quorums import core_of, finish, running


class World:
    """A journal of 10 entries, all applied, with snapshots that end when the test says so."""

    def __init__(self) -> None:
        self.first_index, self.applied_index = 1, 10
        self.finished: int | None = None
        self.may_begin = True
        self.begun: list[int] = []  # the last entry of each
        self.now_s = 0.0
        self.unpacked_bytes = 0  # of the applied entries
        self.size_bytes = 0  # of the last snapshot
        self.compaction = Compaction(
            cast(Any, self),
            cast(Any, self),
            Membership(VoterSet(voters=()), ()),
            cast(Any, self),
            cast(Any, SimpleNamespace(snapshot=lambda: None)),
            SnapshotPolicy(entries=1_000, size_bytes=10_000, interval_s=60.0, interval_entries=5),
            cast(Any, SimpleNamespace(rng=Random(1), clock=lambda: self.now_s, wake=lambda: None)),
        )

    def entries_from(self, index: int, limit: int) -> list[Entry]:
        assert self.first_index <= index and index + limit - 1 <= self.applied_index
        return [(b"", at, 1) for at in range(index, index + limit)]

    def trim_to(self, index: int) -> None:
        self.first_index = index

    def take_finished(self) -> int | None:
        finished, self.finished = self.finished, None
        return finished

    def begin(self, last: Entry, prev: Entry, *_more: object) -> None:
        assert prev[1] == last[1] - 1
        self.begun.append(last[1])

    def packed(self, size_bytes: int) -> None:
        self.unpacked_bytes -= size_bytes

    def step(self) -> list[int]:
        self.compaction.compact_if_due(self.now_s)
        begun, self.begun = self.begun, []
        return begun


def test_a_snapshot_is_made_on_request_and_the_journal_trimmed_behind_it() -> None:
    world = World()
    assert world.step() == []
    world.compaction.request()
    assert (world.step(), world.step()) == ([10], [])
    world.finished = 9
    assert (world.step(), world.first_index) == ([], 9)


def test_a_request_where_a_snapshot_would_replace_nothing_is_done() -> None:
    world = World()
    world.first_index = 9
    world.compaction.request()
    assert world.step() == []
    world.applied_index = 11
    assert world.step() == [], "what comes later was not asked for"


def test_a_request_waits_until_a_snapshot_may_begin() -> None:
    world = World()
    world.may_begin = False
    world.compaction.request()
    assert world.step() == []
    world.may_begin = True
    assert world.step() == [10]


def test_after_the_interval_a_few_entries_suffice_that_are_still_in_the_journal() -> None:
    world = World()
    world.now_s, world.finished = 60.0, 9
    assert world.step() == [], "none is left behind the one that has just ended"
    world.applied_index = 15
    assert world.step() == [15]
    world.applied_index = 25
    assert world.step() == []


def test_entries_of_many_bytes_are_replaced_however_few_they_are() -> None:
    world = World()
    world.unpacked_bytes = 7_999
    assert world.step() == []
    world.unpacked_bytes = 12_000
    assert world.step() == [10]
    world.unpacked_bytes += 500
    world.finished = 9
    assert (world.step(), world.unpacked_bytes) == ([], 500), "the others came behind the snapshot"


def test_after_a_failure_the_bytes_are_still_due() -> None:
    world = World()
    world.unpacked_bytes = 12_000
    assert (world.step(), world.step()) == ([10], [10])


def test_a_large_state_waits_for_as_many_bytes_as_its_snapshot_takes_unpacked() -> None:
    world = World()
    world.size_bytes = 50_000
    world.unpacked_bytes = 50_000 * JOURNAL_TO_SNAPSHOT - 1
    assert world.step() == []
    world.unpacked_bytes += 1
    assert world.step() == [10]


def test_large_commands_do_not_stay_in_memory() -> None:
    """A few thousand commits of offsets with long metadata once stayed in the journal, which counted entries only."""
    policy = SnapshotPolicy()
    cluster = running(3, policy)
    for _ in range(7):
        cluster.commit(size_bytes=900_000)
    cluster.kill(0)
    cluster.start(0)  # what it replays counts as well
    for _ in range(7):
        cluster.commit(size_bytes=900_000)
    assert cluster.wait_until_equal()
    for node in cluster.ids:
        journal = core_of(cluster, node).journal
        held = journal.entries_from(journal.first_index, len(journal))
        assert sum(len(command) for command, _, _ in held) < 1.2 * policy.size_bytes + 1_000_000
    finish(cluster)
