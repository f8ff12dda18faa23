"""The journal on disk: torn tails are cut, damage is refused, nothing counts before it is durable."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from simulation.raft_disk import FakeDisk
from simulation.raft_loop import VirtualLoop

from barnabas.kraft.quorum.journal_format import HEADER_BYTES, RecordKind, encode_record, replay
from barnabas.kraft.raft.disk.fail_stop import FailStop
from barnabas.kraft.raft.disk.folder import QuorumFolder
from barnabas.kraft.raft.disk.journal import DurableJournal
from barnabas.kraft.raft.disk.storage import DamagedQuorumError
from barnabas.log.vocabulary.errors import StorageError
from barnabas.net.testing.simulation.executor import DelayedExecutor

PATH = "/q/quorum.journal"


@dataclass
class Bench:
    loop: VirtualLoop = field(default_factory=VirtualLoop)
    disk: FakeDisk = field(default_factory=lambda: FakeDisk(random.Random(1)))
    fatal: list[str] = field(default_factory=list)
    durable: list[int] = field(default_factory=list)

    def open_folder(self) -> QuorumFolder:
        folder = QuorumFolder(
            storage=self.disk,
            directory="/q",
            loop=self.loop,
            executor=DelayedExecutor(self.loop, lambda: 0.002),
            clock=self.loop.time,
            wake=lambda: None,
            fatal=self.fatal.append,
        )
        folder.journal.on_durable = lambda: self.durable.append(folder.journal.durable_index)
        return folder

    def open_alone(self) -> DurableJournal:
        """Without the folder, which expects a snapshot beside a journal that was trimmed."""
        executor = DelayedExecutor(self.loop, lambda: 0.002)
        stop = FailStop(self.fatal.append)
        return DurableJournal(storage=self.disk, path=PATH, loop=self.loop, executor=executor, stop=stop)

    def open(self) -> DurableJournal:
        return self.open_folder().journal

    def filled(self, count: int, *, one_flush_each: bool = False) -> DurableJournal:
        return self.filled_folder(count, one_flush_each=one_flush_each).journal

    def filled_folder(self, count: int, *, one_flush_each: bool = False) -> QuorumFolder:
        folder = self.open_folder()
        journal = folder.journal
        for index in range(1, count + 1):
            journal.add(b"\0command %d" % index, index, 1)
            if one_flush_each:
                self.flush(journal)
        folder.hard_state.clear_blank()
        self.flush(journal)
        return folder

    def flush(self, journal: DurableJournal) -> None:
        journal.sync_soon()
        self.loop.run_for(0.01)

    @property
    def bytes(self) -> bytearray:
        return self.disk.files[PATH].data


def indexes(journal: DurableJournal) -> list[int]:
    return [entry[1] for entry in journal.entries_from(journal.first_index, len(journal))]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.loop.close()


def test_what_was_flushed_is_there_after_a_power_failure(bench: Bench) -> None:
    bench.filled(5)
    bench.disk.power_failure()
    assert indexes(bench.open()) == [1, 2, 3, 4, 5]


def test_nothing_is_durable_before_its_flush_has_ended(bench: Bench) -> None:
    journal = bench.open()
    journal.add(b"\0a", 1, 1)
    journal.sync_soon()
    assert journal.durable_index == 0
    bench.loop.run_for(0.01)
    assert journal.durable_index == 1
    assert bench.durable == [1]


@pytest.mark.parametrize("index", [1, 2, 3])
def test_what_was_truncated_is_not_durable_any_more(bench: Bench, index: int) -> None:
    journal = bench.filled(3)
    journal.truncate_from(index)
    assert journal.durable_index == journal.last_index == index - 1
    journal.add(b"\0other", index, 2)
    assert journal.durable_index == index - 1, "the other entry is in memory alone"
    bench.flush(journal)
    assert journal.durable_index == index


def test_what_comes_during_a_flush_goes_with_the_next_one(bench: Bench) -> None:
    journal = bench.open()
    journal.add(b"\0a", 1, 1)
    journal.sync_soon()
    journal.add(b"\0b", 2, 1)
    journal.sync_soon()
    bench.loop.run_for(0.003)
    assert journal.durable_index == 1
    bench.loop.run_for(0.003)
    assert journal.durable_index == 2


def test_the_ends_of_a_journal_are_those_of_its_entries_after_each_change(bench: Bench) -> None:
    journal = bench.filled(5)

    def ends() -> tuple[int, int, int]:
        assert (journal.first_index, journal.last_index) == (journal.at_position(0)[1], journal.at_position(-1)[1])
        return journal.first_index, journal.last_index, len(journal)

    assert ends() == (1, 5, 5)
    journal.truncate_from(4)
    assert ends() == (1, 3, 3)
    journal.truncate_from(9)
    journal.trim_to(2)
    assert ends() == (2, 3, 2)
    journal.add(b"\0c", 4, 2)
    assert ends() == (2, 4, 3)
    journal.replace([(b"\0a", 8, 2), (b"\0b", 9, 2)])
    assert ends() == (8, 9, 2)
    journal.truncate_from(8)
    assert (journal.first_index, journal.last_index, len(journal)) == (1, 0, 0)
    journal.add(b"\0d", 8, 3)
    assert ends() == (8, 8, 1)


def test_an_entry_replaced_during_a_flush_is_not_durable_by_it(bench: Bench) -> None:
    journal = bench.filled(2)
    journal.add(b"\0old", 3, 1)
    journal.sync_soon()
    journal.truncate_from(3)
    journal.add(b"\0new", 3, 2)
    bench.loop.run_for(0.0025)
    assert journal.durable_index == 2
    bench.flush(journal)
    assert journal.durable_index == 3
    assert bench.open().term_at(3) == 2


def test_a_torn_tail_is_cut(bench: Bench) -> None:
    bench.filled(3)
    bench.bytes.extend(encode_record(RecordKind.ENTRY, 4, 1, 0, b"\0torn")[:-2])
    reopened = bench.open()
    assert indexes(reopened) == [1, 2, 3]
    reopened.add(b"\0again", 4, 1)
    bench.flush(reopened)
    assert indexes(bench.open()) == [1, 2, 3, 4]


def test_pages_of_an_unflushed_batch_may_be_missing_in_any_order(bench: Bench) -> None:
    journal = bench.filled(3)
    size = len(bench.bytes)
    for index in (4, 5, 6):
        journal.add(b"\0unflushed", index, 1)
    journal.sync_soon()
    bench.bytes[size + HEADER_BYTES] ^= 1  # the first of the three; the others are whole
    assert indexes(bench.open()) == [1, 2, 3]


@pytest.mark.parametrize("one_flush_each", [True, False])
def test_a_damaged_middle_is_refused(bench: Bench, one_flush_each: bool) -> None:
    journal = bench.filled(5, one_flush_each=one_flush_each)
    journal.mark_durable()
    second = encode_record(RecordKind.ENTRY, 2, 1, 0, b"\0command 2")
    position = bench.bytes.index(second[-10:])
    bench.bytes[position] ^= 1
    with pytest.raises(DamagedQuorumError, match="although the journal was durable there"):
        bench.open()


def test_a_clean_close_marks_all_of_it_durable(bench: Bench) -> None:
    bench.filled_folder(2).close()
    bench.bytes[bench.bytes.index(b"command 2")] ^= 1
    with pytest.raises(DamagedQuorumError):
        bench.open()


def test_rule_2_the_prefix_goes_in_one_rename(bench: Bench) -> None:
    journal = bench.filled(9)
    journal.trim_to(5)
    assert indexes(journal) == indexes(bench.open_alone()) == [5, 6, 7, 8, 9]
    bench.disk.power_failure()
    assert indexes(bench.open_alone()) == [5, 6, 7, 8, 9]


def test_rule_1_a_newer_journal_survives_the_snapshot_beside_it(bench: Bench) -> None:
    journal = bench.filled(9)
    journal.reconcile(6, 1, (b"\1", 5, 1), (b"\0command 6", 6, 1))
    assert indexes(journal) == [5, 6, 7, 8, 9]


def test_a_journal_that_does_not_reach_the_snapshot_is_replaced(bench: Bench) -> None:
    journal = bench.filled(3)
    journal.reconcile(8, 2, (b"\1", 7, 2), (b"\0eight", 8, 2))
    assert [entry[1:] for entry in bench.open_alone().entries_from(7, 2)] == [(7, 2), (8, 2)]


def test_a_journal_that_begins_behind_the_snapshot_is_refused(bench: Bench) -> None:
    journal = bench.filled(9)
    journal.trim_to(7)
    with pytest.raises(DamagedQuorumError, match="begins at 7"):
        journal.reconcile(5, 1, (b"\1", 4, 1), (b"\0", 5, 1))


def test_a_vote_is_durable_when_it_is_cast(bench: Bench) -> None:
    bench.filled_folder(1).hard_state.set_term(7, 2)
    bench.disk.power_failure()
    reopened = bench.open_folder().hard_state
    assert (reopened.term, reopened.voted_for) == (7, 2)


def test_the_commit_index_is_stored_at_the_end(bench: Bench) -> None:
    folder = bench.filled_folder(3)
    folder.hard_state.note_commit(2)
    folder.close()
    assert bench.open_folder().hard_state.commit_index == 2


@pytest.mark.parametrize("slot", [0, 1])
def test_a_damaged_slot_of_the_vote_is_refused_although_the_other_one_is_valid(bench: Bench, slot: int) -> None:
    """One of the two holds the vote for 2, and nobody can say which: believing the other would allow a second vote."""
    hard_state = bench.filled_folder(1).hard_state
    hard_state.set_term(8, None)
    hard_state.set_term(8, 2)
    bench.disk.files[f"{PATH}.meta.{slot}"].data[-1] ^= 1
    with pytest.raises(DamagedQuorumError, match="a vote may be forgotten"):
        bench.open()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_missing_slot_of_the_vote_is_refused(bench: Bench, slot: int) -> None:
    bench.filled_folder(1).hard_state.set_term(7, 2)
    bench.disk.remove(f"{PATH}.meta.{slot}")
    with pytest.raises(DamagedQuorumError, match="missing"):
        bench.open()


def test_a_journal_without_its_vote_is_refused(bench: Bench) -> None:
    bench.filled(1)
    for slot in (0, 1):
        bench.disk.remove(f"{PATH}.meta.{slot}")
    with pytest.raises(DamagedQuorumError, match="without term and vote"):
        bench.open()


def test_a_missing_journal_of_a_voter_is_refused(bench: Bench) -> None:
    bench.filled(1)
    bench.disk.remove(PATH)
    with pytest.raises(DamagedQuorumError, match="missing"):
        bench.open()


def test_a_new_journal_is_blank_until_it_is_cleared(bench: Bench) -> None:
    assert bench.open_folder().hard_state.blank
    assert bench.open_folder().hard_state.blank
    bench.open_folder().hard_state.clear_blank()
    assert not bench.open_folder().hard_state.blank


@pytest.mark.parametrize("when", ["write", "flush"])
def test_a_disk_that_fails_stops_the_process_once(bench: Bench, when: str) -> None:
    journal = bench.filled(2)
    journal.add(b"\0", 3, 1)
    if when == "flush":
        journal.sync_soon()
        bench.disk.fails = True
    else:
        bench.disk.fails = True
        with pytest.raises(StorageError):
            journal.sync_soon()
    bench.loop.run_for(0.1)
    bench.disk.fails = False
    journal.sync_soon()
    bench.loop.run_for(0.1)
    assert len(bench.fatal) == 1
    assert journal.durable_index == 2


def test_every_cut_of_a_journal_replays_to_a_prefix() -> None:
    data = b"".join(encode_record(RecordKind.ENTRY, index, 1, 0, b"\0%d" % index) for index in range(1, 6))
    for size in range(len(data)):
        found = [entry[1] for entry in replay(data[:size]).entries]
        assert found == list(range(1, len(found) + 1))
