"""Bugs of what stands on the disk: a partition's log and the quorum's journal, found by `log_machine` and `journal_machine`."""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

from barnabas.kraft.raft.disk.journal import DurableJournal
from barnabas.kraft.raft.disk.journal_writer import JournalWriter
from barnabas.kraft.raft.disk.meta import MetaStore
from barnabas.kraft.raft.disk.snapshot import SnapshotStore
from barnabas.log.checkpoints.producer_snapshots import ProducerSnapshots
from barnabas.log.partition import recovery
from barnabas.log.partition.log_producers import LogProducers
from barnabas.log.partition.log_segments import LogSegments
from barnabas.log.partition.log_tail import LogTail
from barnabas.log.partition.partition_log import PartitionLog
from barnabas.log.partition.pending_flush import PendingFlush
from barnabas.log.segment import transaction_index
from barnabas.log.segment.producer_state import ProducerState
from barnabas.log.segment.segment import LogSegment
from barnabas.log.segment.transaction_index import TransactionIndex
from barnabas.log.vocabulary.errors import StorageError

from . import journal_machine, log_machine
from .planted import planted


def _torn_batch_is_kept() -> AbstractContextManager[Any]:
    """Recovery believes lengths, and looks at no CRC."""
    genuine = recovery._sound_end

    def sound_end(segment: Any, recovery_point: int, epochs: Any, *, verify_crc: bool) -> int:
        return genuine(segment, recovery_point, epochs, verify_crc=False)

    return patch.object(recovery, "_sound_end", sound_end)


def _recovery_point_without_flush() -> AbstractContextManager[Any]:
    """A checkpoint says that all is on the disk, and nothing was flushed."""
    return patch.object(PendingFlush, "perform", lambda self: None)


def _recovery_point_stays_at_truncation() -> AbstractContextManager[Any]:
    """A truncation leaves the recovery point of the checkpoint where it was, above the new end."""
    genuine = PartitionLog.__init__

    def init(self: Any, *args: Any, before_truncation: Any = None, **settings: Any) -> None:
        genuine(self, *args, **settings)

    return patch.object(PartitionLog, "__init__", init)


def _truncation_keeps_a_record() -> AbstractContextManager[Any]:
    """The cut is one batch too high."""
    genuine = LogSegment.truncate_to

    def truncate_to(self: Any, offset: int) -> None:
        genuine(self, offset + 2)

    return patch.object(LogSegment, "truncate_to", truncate_to)


def _gap_between_segments() -> AbstractContextManager[Any]:
    """A segment that lost its end at the border of a batch is followed by the next one all the same."""
    genuine = recovery._sound_end

    def sound_end(segment: Any, recovery_point: int, epochs: Any, *, verify_crc: bool) -> int:
        begins_the_next = segment.next_offset
        end = genuine(segment, recovery_point, epochs, verify_crc=verify_crc)
        if end == segment.size_bytes and begins_the_next > segment.next_offset:
            segment.next_offset = begins_the_next
        return end

    return patch.object(recovery, "_sound_end", sound_end)


def _retention_above_the_start() -> AbstractContextManager[Any]:
    """DeleteRecords moves the start in memory only a little too far."""
    genuine = PartitionLog.delete_records_before

    def delete(self: Any, offset: int) -> None:
        genuine(self, min(offset + 1, self.high_watermark))

    return patch.object(PartitionLog, "delete_records_before", delete)


def _snapshot_within_an_append() -> AbstractContextManager[Any]:
    """Producers are noted when a whole answer is in the log, and so behind the snapshot of a roll within it."""
    genuine = LogTail.write

    def write(self: Any, data: Any, batches: Any, now_ms: int, config: Any) -> None:
        appended: list[Any] = []
        with patch.object(self._producers, "note", lambda *batch: appended.append(batch)):
            try:
                genuine(self, data, batches, now_ms, config)
            finally:
                noted = list(appended)
        for batch in noted:
            self._producers.note(*batch)

    return patch.object(LogTail, "write", write)


def _repetitions_are_judged(*, as_transactional: bool) -> AbstractContextManager[Any]:
    """An old batch of a transaction may not have been written, one of another producer has been."""
    genuine = ProducerState.check

    def check(self: Any, *arguments: Any, is_transactional: bool = False) -> Any:
        return genuine(self, *arguments, is_transactional=as_transactional)

    return patch.object(ProducerState, "check", check)


def _refusal_forgets_producers() -> AbstractContextManager[Any]:
    """Batches before the one that the disk refused are in the log, and their producers are not noted."""
    genuine = LogTail.write

    def write(self: Any, data: Any, batches: Any, now_ms: int, config: Any) -> None:
        before = self._producers.state.to_snapshot()
        try:
            genuine(self, data, batches, now_ms, config)
        except StorageError:
            self._producers.state = ProducerState.from_snapshot(before)
            raise

    return patch.object(LogTail, "write", write)


def _removed_snapshot_comes_back() -> AbstractContextManager[Any]:
    """Snapshots of what was cut off are removed, and nothing makes that durable."""
    genuine = ProducerSnapshots.forget_behind

    def forget(self: Any, end_offset: int) -> None:
        files, self._files = self._files, _WithoutSyncDir(self._files)
        try:
            genuine(self, end_offset)
        finally:
            self._files = files

    return patch.object(ProducerSnapshots, "forget_behind", forget)


def abort_index_is_not_rebuilt() -> AbstractContextManager[Any]:
    """A start takes the sound entries of the index of aborted transactions for all of them, whatever a crash has left of it."""

    def opened(self: Any, segments: Any, log_end_offset: int, *, flushed_end_offset: int) -> None:
        for segment in segments:
            index = segment.transaction_index
            if index._files.exists(index.path):
                index._cut(
                    list(transaction_index._sound_entries(index._files.read_bytes(index.path), segment.base_offset))
                )
        self.restore(segments, log_end_offset)

    return patch.object(LogProducers, "open", opened)


def _abort_index_is_not_flushed() -> AbstractContextManager[Any]:
    """A flush covers the log, and the recovery point passes entries of the index that are in the page cache alone."""
    return patch.object(TransactionIndex, "file_to_flush", lambda self, from_offset: None)


def _segments_go_before_their_files() -> AbstractContextManager[Any]:
    """Retention takes a segment out of the list, then renames its files: a refused rename leaves a log without it."""

    def retire_first(self: Any, due_ms: int) -> None:
        segment = self.all.pop(0)
        self._changed()
        self._retire(segment, due_ms)

    return patch.object(LogSegments, "retire_first", retire_first)


def _vote_without_flush() -> AbstractContextManager[Any]:
    """Term and vote are in the page cache when the vote is given."""

    def store(self: Any, **fields: Any) -> None:
        from dataclasses import replace

        from barnabas.kraft.raft.disk.meta import _encode, _slot_path

        meta = replace(self.current, sequence=self.current.sequence + 1, **fields)
        path = _slot_path(self._path, meta.sequence % 2)
        self._storage.remove(path)
        self._storage.open_append(path).append(_encode(meta))
        self.current, self.found = meta, True

    return patch.object(MetaStore, "store", store)


def _durable_when_written() -> AbstractContextManager[Any]:
    """The journal takes what it has written for what is on the disk: the leader counts itself too early."""
    genuine = JournalWriter._write

    def write(self: Any) -> None:
        genuine(self)
        self.durable_index = self._last_index

    return patch.object(JournalWriter, "_write", write)


def _snapshot_swallows_the_journal() -> AbstractContextManager[Any]:
    """At the start a snapshot that is newer than the journal's begin replaces all of it, and what lies behind is gone."""

    def reconcile(self: Any, last_index: int, last_term: int, prev: Any, last: Any) -> None:
        if self.first_index < last_index - 1:
            self.replace([prev, last])

    return patch.object(DurableJournal, "reconcile", reconcile)


def _journal_is_trimmed_before_the_snapshot() -> AbstractContextManager[Any]:
    """The journal's prefix goes when the snapshot is begun, not when it is on the disk."""
    genuine = SnapshotStore.begin

    def begin(self: Any, last: Any, prev: Any, pack: Any) -> None:
        genuine(self, last, prev, pack)
        self._finished_prev_index = prev[1]

    return patch.object(SnapshotStore, "begin", begin)


def _truncated_entries_stay_durable() -> AbstractContextManager[Any]:
    """The index of an entry that was on the disk counts as durable after its truncation, also for the entry that follows it."""
    genuine = JournalWriter.truncate_from

    def truncate_from(self: Any, index: int) -> None:
        durable_index = self.durable_index
        genuine(self, index)
        self.durable_index = min(durable_index, index)

    return patch.object(JournalWriter, "truncate_from", truncate_from)


def _truncation_during_a_flush_is_forgotten() -> AbstractContextManager[Any]:
    """A flush that was begun before entries were replaced counts for those that replaced them."""
    genuine = JournalWriter._flushed

    def flushed(self: Any, *arguments: Any) -> None:
        self._safe_below = None
        genuine(self, *arguments)

    return patch.object(JournalWriter, "_flushed", flushed)


def _old_file_in_place() -> AbstractContextManager[Any]:
    """The folder is not flushed after the journal was replaced."""
    genuine = JournalWriter._rewrite

    def rewrite(self: Any, entries: Any) -> None:
        storage, self._storage = self._storage, _WithoutSyncDir(self._storage)
        try:
            genuine(self, entries)
        finally:
            self._storage = storage

    return patch.object(JournalWriter, "_rewrite", rewrite)


class _WithoutSyncDir:
    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def sync_dir(self, path: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


BUGS = [
    *planted(
        "log",
        log_machine.run_seed,
        {
            "recovery keeps a torn batch": _torn_batch_is_kept,
            "a recovery point without a flush": _recovery_point_without_flush,
            "a truncation leaves the recovery point above the end": _recovery_point_stays_at_truncation,
            "a truncation keeps a batch too many": _truncation_keeps_a_record,
            "recovery overlooks a gap between segments": _gap_between_segments,
            "DeleteRecords deletes a record too many": _retention_above_the_start,
            "a snapshot of producers is taken within an append": _snapshot_within_an_append,
            "a refusal forgets producers of what is in the log": _refusal_forgets_producers,
            "an old batch that is repeated is called missing": partial(_repetitions_are_judged, as_transactional=True),
            "an old batch of a transaction is called written": partial(_repetitions_are_judged, as_transactional=False),
            "retention forgets segments that the disk has": _segments_go_before_their_files,
            "the index of aborted transactions is not rebuilt": abort_index_is_not_rebuilt,
            "the index of aborted transactions is not flushed": _abort_index_is_not_flushed,
        },
    ),
    *planted(
        "log",
        lambda seed: log_machine.run_seed(seed, log_machine.CutAndGrown),  # a schedule
        {"a removed snapshot of producers comes back": _removed_snapshot_comes_back},
    ),
    *planted(
        "journal",
        journal_machine.run_seed,
        {
            "a vote without fsync": _vote_without_flush,
            "a truncated entry stays durable": _truncated_entries_stay_durable,
            "the leader counts itself before its append is durable": _durable_when_written,
            "a snapshot newer than the journal replaces it": _snapshot_swallows_the_journal,
            "the journal is trimmed before its snapshot is on the disk": _journal_is_trimmed_before_the_snapshot,
            "a flush counts for entries that replaced what it flushed": _truncation_during_a_flush_is_forgotten,
            "a rename without a flush of the folder": _old_file_in_place,
        },
    ),
]
